//! Files and directories of a chain: private to their owner, never followed through a link.

use crate::StoreError;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, DirBuilder, File, FileType};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Memory of a program is nobody else's business.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const DIR_MODE: u32 = 0o700;

/// Whether `name` can name a member or a file: plain, and neither hidden nor a way out of its directory.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
}

/// Creates a file for reading and writing.
pub(crate) fn create(path: &Path) -> Result<File, StoreError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, FILE_MODE)
        .map(File::from)
        .map_err(StoreError::io("create", path))
}

/// Opens a regular file for reading.
///
/// # Errors
/// [`StoreError::Missing`], [`StoreError::Damaged`] for anything but a regular file, [`StoreError::Io`].
pub(crate) fn open(path: &Path) -> Result<File, StoreError> {
    // Not to wait for the other end if somebody has put a FIFO there.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => {
            return Err(StoreError::damaged(path, 0, "it is a symbolic link"));
        }
        Err(errno) => return Err(StoreError::io_or_missing("open", path)(errno)),
    };
    let meta = file.metadata().map_err(StoreError::io("look at", path))?;
    if !meta.is_file() {
        return Err(StoreError::damaged(path, 0, "it is not a regular file"));
    }
    Ok(file)
}

/// Creates a file that holds `bytes`, on stable storage.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut file = create(path)?;
    file.write_all(bytes)
        .map_err(|source| write_error(path, bytes.len() as u64, source))?;
    sync(&file, path)
}

/// The error for a failure to write a file of `needed` bytes.
pub(crate) fn write_error(path: &Path, needed: u64, source: io::Error) -> StoreError {
    if crate::error::is_no_space(&source) {
        return StoreError::DiskFull {
            path: path.to_owned(),
            needed,
            available: path
                .parent()
                .and_then(|dir| rustix::fs::statvfs(dir).ok())
                .map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
            source,
        };
    }
    StoreError::Io {
        operation: "write",
        path: path.to_owned(),
        source,
    }
}

/// Waits until the file is on stable storage.
pub(crate) fn sync(file: &File, path: &Path) -> Result<(), StoreError> {
    file.sync_all()
        .map_err(|source| write_error(path, 0, source))
}

/// Waits until what was created, renamed or removed in `dir` is on stable storage.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::empty()).map_err(StoreError::io("open", dir))?;
    match rustix::fs::fsync(file) {
        // Some file systems cannot do it for directories (fsync(2), EINVAL).
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(errno) => Err(StoreError::io("flush to disk", dir)(errno)),
    }
}

/// Creates a directory.
pub(crate) fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)
}

/// Creates `dir` and what is missing above it. Returns what was created, outermost first.
pub(crate) fn create_dirs(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut missing = Vec::new();
    for path in dir.ancestors() {
        if path.as_os_str().is_empty() || path.exists() {
            break;
        }
        missing.push(path.to_owned());
    }
    let mut created = Vec::new();
    for path in missing.into_iter().rev() {
        match create_dir(&path) {
            Ok(()) => created.push(path),
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                remove_dirs(&created);
                return Err(StoreError::io("create directory", &path)(error));
            }
        }
    }
    Ok(created)
}

/// Takes back what [`create_dirs`] has created, as far as nothing is in it.
pub(crate) fn remove_dirs(created: &[PathBuf]) {
    for path in created.iter().rev() {
        if fs::remove_dir(path).is_err() {
            return;
        }
    }
}

/// Names and types of what is in `dir`; names that are not UTF-8 are shown as well as possible.
pub(crate) fn list(dir: &Path) -> Result<Vec<(String, FileType)>, StoreError> {
    let failed = |error: io::Error| StoreError::io("list", dir)(error);
    fs::read_dir(dir)
        .map_err(StoreError::io_or_missing("list", dir))?
        .map(|entry| {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            Ok((entry.file_name().to_string_lossy().into_owned(), kind))
        })
        .collect()
}

/// Removes a file, or a directory with all that is in it.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    let kind = fs::symlink_metadata(path)
        .map_err(StoreError::io("look at", path))?
        .file_type();
    if kind.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
    .map_err(StoreError::io("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_lead_elsewhere() {
        for name in ["host", "offload-0a", "pages.snap", "a_b"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "/",
            ".lock",
            "a b",
            "a\0",
            "ä",
            &"a".repeat(201),
        ] {
            assert!(!is_plain_name(name), "{name}");
        }
    }

    #[test]
    fn directories_above_are_created_and_taken_back() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/b/c");
        let created = create_dirs(&dir).unwrap();
        assert_eq!(created.len(), 3);
        assert!(dir.is_dir());
        assert!(create_dirs(&dir).unwrap().is_empty());
        remove_dirs(&created);
        assert!(!top.path().join("a").exists());
    }
}
