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

/// Who gets the signals of a file (`struct f_owner_ex`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalOwner {
    /// `F_OWNER_TID` (0), `F_OWNER_PID` (1) or `F_OWNER_PGRP` (2).
    pub kind: i32,
    /// Id as the caller sees it; 0 for nobody.
    pub id: i32,
}

/// `F_SETSIG` of fcntl(2).
pub const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
/// `F_SETOWN_EX` of fcntl(2).
pub const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_GET_RW_HINT: i32 = 1035;
/// `F_SET_RW_HINT` of fcntl(2).
pub const F_SET_RW_HINT: i32 = 1036;

/// `F_GETOWN_EX` (fcntl(2)).
///
/// # Errors
/// `EBADF` for a descriptor opened with `O_PATH`.
pub fn signal_owner(fd: BorrowedFd<'_>) -> io::Result<SignalOwner> {
    let mut owner = SignalOwner::default();
    // SAFETY: the kernel writes one structure.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETOWN_EX, &raw mut owner) };
    crate::check(result.into()).map(|_| owner)
}

/// `F_GETSIG`: the signal that tells of input; 0 is SIGIO without details.
///
/// # Errors
/// `EBADF` for a descriptor opened with `O_PATH`.
pub fn input_signal(fd: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: no memory is passed.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETSIG) };
    crate::check(result.into()).map(|signal| signal as i32)
}

/// `F_GET_RW_HINT`: the write life time hint of a file, 0 for none.
///
/// # Errors
/// `EINVAL` for what is no file.
pub fn write_hint(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut hint = 0_u64;
    // SAFETY: the kernel writes one integer.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), F_GET_RW_HINT, &raw mut hint) };
    crate::check(result.into()).map(|_| hint)
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
