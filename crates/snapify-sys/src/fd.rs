//! Descriptors that are known by number only.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

/// Sets the number of expiries that wait to be read from a timerfd (`TFD_IOC_SET_TICKS`,
/// timerfd_create(2)); 0 is refused.
///
/// # Errors
/// `EINVAL` for anything but a timerfd, `ENOTTY` in a kernel without checkpoint/restore.
pub fn set_timer_ticks(timer: BorrowedFd<'_>, ticks: u64) -> io::Result<()> {
    const SET_TICKS: libc::c_ulong = 0x4008_5400;
    // SAFETY: the kernel reads 8 bytes from `ticks`.
    let result = unsafe { libc::ioctl(timer.as_raw_fd(), SET_TICKS, &raw const ticks) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Makes a descriptor from which `signals` (bit n-1 is signal n) are read (signalfd(2)). It is closed
/// on exec.
///
/// # Errors
/// `EMFILE` and the like.
pub fn signalfd(signals: u64, nonblocking: bool) -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | if nonblocking { libc::SFD_NONBLOCK } else { 0 };
    // SAFETY: the kernel reads a mask of 8 bytes, as told, from `signals`.
    let new = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const signals, 8, flags) };
    let new = crate::check(new)?;
    // SAFETY: the kernel has just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(new as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn numbers_are_as_asked_for() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(duplicate(reader.as_raw_fd(), 100).unwrap().as_raw_fd() >= 100);
        assert_eq!(
            duplicate(-1, 0).unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );
    }
}
