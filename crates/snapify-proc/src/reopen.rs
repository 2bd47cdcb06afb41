//! Opening a file once more that its owner could not open any more. A program that makes a file which nobody may write, or takes
//! permissions away from one that it has open, goes on using its descriptor; a restart has only the name.

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Opens a file by `open`. If that is denied, and the file is one of this user's, once more while its owner may read and write
/// it.
pub(crate) fn as_owner<T, E>(
    path: &Path,
    is_denied: impl Fn(&E) -> bool,
    mut open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    match open() {
        Err(error) if is_denied(&error) => match Opened::new(path) {
            Ok(_open) => open(),
            Err(_) => Err(error),
        },
        other => other,
    }
}

/// Whether [`as_owner`] can open what is denied to this user now.
pub(crate) fn is_own(path: &Path) -> bool {
    look(path).is_ok()
}

/// A file of this user's and its permissions.
fn look(path: &Path) -> rustix::io::Result<(OwnedFd, Mode)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    let may_be = matches!(
        FileType::from_raw_mode(stat.st_mode),
        FileType::RegularFile | FileType::Directory | FileType::Fifo
    );
    if !may_be || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    Ok((file, Mode::from_raw_mode(stat.st_mode & 0o7777)))
}

/// A file that its owner may read and write until this is dropped.
struct Opened {
    /// The link to it: permissions of what is only a place in the file system (`O_PATH`) are changed by its name.
    link: PathBuf,
    usual: Mode,
    _file: OwnedFd,
}

impl Opened {
    fn new(path: &Path) -> rustix::io::Result<Self> {
        let (file, usual) = look(path)?;
        let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        rustix::fs::chmodat(
            CWD,
            &link,
            usual | Mode::RUSR | Mode::WUSR,
            rustix::fs::AtFlags::empty(),
        )?;
        Ok(Self {
            link,
            usual,
            _file: file,
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let usual = rustix::fs::chmodat(CWD, &self.link, self.usual, rustix::fs::AtFlags::empty());
        if let Err(errno) = usual {
            tracing::warn!("a file keeps permissions for its owner: {errno}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn permissions_are_lent_and_given_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mode = || file.as_file().metadata().unwrap().permissions().mode() & 0o7777;
        file.as_file()
            .set_permissions(PermissionsExt::from_mode(0o040))
            .unwrap();
        let mut seen = Vec::new();
        let result = as_owner(
            file.path(),
            |errno| *errno == Errno::ACCESS,
            || {
                seen.push(mode());
                Err::<(), _>(Errno::ACCESS)
            },
        );
        assert_eq!(result, Err(Errno::ACCESS));
        assert_eq!(seen, [0o040, 0o640]);
        assert_eq!(mode(), 0o040);
        assert!(is_own(file.path()));
        assert!(!is_own(Path::new("/dev/null")));
    }
}
