//! One writer at a time: flock(2) on a file in the chain's directory.
//!
//! The kernel lets go of the lock when its holder dies, however it dies. It is a file of its own, open for
//! writing, since some network file systems lock no directories and nothing that is open only for reading.

use super::files;
use crate::StoreError;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file that is locked. It stays; being there means nothing.
pub(crate) const LOCK_FILE: &str = ".lock";

/// The right to write into a chain's directory.
#[derive(Debug)]
pub(crate) struct ChainLock {
    _file: File,
    path: PathBuf,
    /// Directories that were created for this writer, outermost first.
    created: Vec<PathBuf>,
}

impl ChainLock {
    /// Takes the right to write into `dir`, which exists; `created` are the directories that were created
    /// for that, and that go again if nothing comes of it.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another writer has it, [`StoreError::Io`].
    pub(crate) fn acquire(dir: &Path, created: Vec<PathBuf>) -> Result<Self, StoreError> {
        let path = dir.join(LOCK_FILE);
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
                .map(File::from)
                .map_err(StoreError::io("open", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(StoreError::Busy {
                        dir: dir.to_owned(),
                    });
                }
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(StoreError::io("lock", &path)(errno)),
            }
            // Another writer may have removed the file between our opening and locking it, and then the
            // lock keeps nobody out.
            if is_at(&file, &path) {
                return Ok(Self {
                    _file: file,
                    path,
                    created,
                });
            }
        }
    }

    /// The directories that were created for this writer, outermost first.
    pub(crate) fn created(&self) -> &[PathBuf] {
        &self.created
    }

    /// Gives up the lock for a writer of which nothing remains: what was created for it goes too.
    pub(crate) fn abandon(self) {
        if !self.created.is_empty() {
            let _ = fs::remove_file(&self.path);
            files::remove_dirs(&self.created);
        }
    }
}

/// Whether `path` still leads to `file`.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(theirs)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_writer_is_refused_until_the_first_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let first = ChainLock::acquire(dir.path(), Vec::new()).unwrap();
        let second = ChainLock::acquire(dir.path(), Vec::new());
        assert!(matches!(second, Err(StoreError::Busy { .. })));
        drop(first);
        ChainLock::acquire(dir.path(), Vec::new()).unwrap();
    }

    #[test]
    fn abandoning_takes_back_what_was_created() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/b");
        let created = files::create_dirs(&dir).unwrap();
        ChainLock::acquire(&dir, created).unwrap().abandon();
        assert!(!top.path().join("a").exists());
        assert!(top.path().exists());
    }
}
