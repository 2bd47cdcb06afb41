//! kcmp(2): whether two processes share a kernel object.

use std::cmp::Ordering;
use std::io;

/// What to compare (`enum kcmp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// Open file descriptions; the indices are descriptor numbers.
    File = 0,
    /// Address spaces.
    Vm = 1,
    /// Descriptor tables.
    Files = 2,
    /// Root, working directory and umask.
    Fs = 3,
    /// Signal dispositions.
    SignalHandlers = 4,
    /// I/O contexts.
    Io = 5,
    /// System V semaphore undo lists.
    SysvSem = 6,
}

/// Compares object `index1` of `pid1` with object `index2` of `pid2`: equal if they are one,
/// otherwise in an order that is the same for all calls, so that objects can be sorted.
///
/// # Errors
/// `ENOSYS` in a kernel without kcmp, `EPERM` without ptrace rights over both processes.
pub fn kcmp(pid1: i32, pid2: i32, kind: Kind, index1: u64, index2: u64) -> io::Result<Ordering> {
    // SAFETY: no memory is passed.
    let result = crate::check(unsafe {
        libc::syscall(libc::SYS_kcmp, pid1, pid2, kind as i32, index1, index2)
    })?;
    ordering(result)
}

/// A registration of an epoll instance, as `KCMP_EPOLL_TFD` names it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollSlot {
    /// Descriptor number of the epoll instance.
    pub epoll: u32,
    /// Descriptor number that the file was registered under.
    pub target: u32,
    /// Which of several registrations under the same number, in the order of fdinfo.
    pub nth: u32,
}

/// Compares descriptor `fd` of `pid1` with the file that an epoll instance of `pid2` watches
/// (`KCMP_EPOLL_TFD`): equal if they are one open file description.
///
/// # Errors
/// As [`kcmp`]; `ENOENT` if there is no such registration.
pub fn kcmp_epoll(pid1: i32, fd: u64, pid2: i32, slot: EpollSlot) -> io::Result<Ordering> {
    const EPOLL_TFD: i32 = 7;
    // SAFETY: the kernel reads one `EpollSlot`, which outlives the call.
    let result = crate::check(unsafe {
        libc::syscall(libc::SYS_kcmp, pid1, pid2, EPOLL_TFD, fd, &raw const slot)
    })?;
    ordering(result)
}

fn ordering(result: u64) -> io::Result<Ordering> {
    match result {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(io::Error::other("kcmp cannot order these objects")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn tells_a_duplicate_from_another_open() {
        let me = std::process::id() as i32;
        let a = File::open("/dev/null").unwrap();
        let duplicate = a.try_clone().unwrap();
        let b = File::open("/dev/null").unwrap();
        let compare = |x: &File, y: &File| {
            kcmp(
                me,
                me,
                Kind::File,
                x.as_raw_fd() as u64,
                y.as_raw_fd() as u64,
            )
            .unwrap()
        };
        assert_eq!(compare(&a, &duplicate), Ordering::Equal);
        assert_ne!(compare(&a, &b), Ordering::Equal);
        assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
    }
}
