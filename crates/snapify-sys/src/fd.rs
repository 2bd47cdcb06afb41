//! Descriptors that are known by number only.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Duplicates descriptor `number` of this process to the lowest free number that is at least `least`
/// (`F_DUPFD_CLOEXEC`). The new one is closed on exec.
///
/// # Errors
/// `EBADF` if there is no such descriptor, `EINVAL`/`EMFILE` at the limit of open files.
pub fn duplicate(number: i32, least: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; whoever owns `number` keeps it.
    let new = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, least) };
    if new < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn numbers_are_as_asked_for() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(duplicate(reader.as_raw_fd(), 100).unwrap().as_raw_fd() >= 100);
        assert_eq!(duplicate(-1, 0).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
