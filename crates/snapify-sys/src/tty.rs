//! Terminals: what ioctl_tty(2) offers and rustix does not, or not as plain numbers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Settings of a terminal: the kernel's `struct termios2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Termios {
    /// Input modes.
    pub input: u32,
    /// Output modes.
    pub output: u32,
    /// Control modes.
    pub control: u32,
    /// Local modes.
    pub local: u32,
    /// Line discipline.
    pub line: u8,
    /// Special characters.
    pub characters: [u8; 19],
    /// Input speed in bits per second.
    pub input_speed: u32,
    /// Output speed in bits per second.
    pub output_speed: u32,
}

const TCGETS2: libc::c_ulong = 0x802c_542a;
const TCSETS2: libc::c_ulong = 0x402c_542b;
const TIOCGPKT: libc::c_ulong = 0x8004_5438;
const TIOCGPTLCK: libc::c_ulong = 0x8004_5439;
const TIOCGEXCL: libc::c_ulong = 0x8004_5440;
const TIOCGPTN: libc::c_ulong = 0x8004_5430;
const TIOCSPTLCK: libc::c_ulong = 0x4004_5431;
const TIOCGDEV: libc::c_ulong = 0x8004_5432;
const TIOCGPTPEER: libc::c_ulong = 0x5441;

/// Gets settings (`TCGETS2`). On the master side of a pseudo-terminal they are those of the other side.
///
/// # Errors
/// `EIO` if the terminal was hung up, `ENOTTY` if it is none.
pub fn settings(terminal: impl AsFd) -> io::Result<Termios> {
    let mut settings = Termios::default();
    // SAFETY: the kernel writes one `struct termios2`, as which `Termios` is laid out.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), TCGETS2, &raw mut settings) };
    crate::check(result.into()).map(|_| settings)
}

/// Sets settings at once (`TCSETS2`). Whoever is not of the terminal's session does not have to be in its foreground; whoever
/// is should block `SIGTTOU`, see [`with_output_allowed`].
///
/// # Errors
/// As [`settings`].
pub fn set_settings(terminal: impl AsFd, settings: &Termios) -> io::Result<()> {
    // SAFETY: the kernel reads one `struct termios2`, as which `Termios` is laid out.
    let result = unsafe {
        libc::ioctl(
            terminal.as_fd().as_raw_fd(),
            TCSETS2,
            std::ptr::from_ref(settings),
        )
    };
    crate::check(result.into()).map(drop)
}

/// Whether the master side is in packet mode (`TIOCGPKT`).
///
/// # Errors
/// `ENOTTY` if it is no master side.
pub fn packet_mode(master: impl AsFd) -> io::Result<bool> {
    get(master, TIOCGPKT).map(|value| value != 0)
}

/// Switches packet mode (`TIOCPKT`).
///
/// # Errors
/// As [`packet_mode`].
pub fn set_packet_mode(master: impl AsFd, on: bool) -> io::Result<()> {
    set(master, libc::TIOCPKT, on.into())
}

/// Whether the other side cannot be opened yet (`TIOCGPTLCK`).
///
/// # Errors
/// As [`packet_mode`].
pub fn locked(master: impl AsFd) -> io::Result<bool> {
    get(master, TIOCGPTLCK).map(|value| value != 0)
}

/// Locks or unlocks the other side (`TIOCSPTLCK`).
///
/// # Errors
/// As [`packet_mode`].
pub fn set_locked(master: impl AsFd, on: bool) -> io::Result<()> {
    set(master, TIOCSPTLCK, on.into())
}

/// Whether nobody but root can open it again (`TIOCGEXCL`).
///
/// # Errors
/// As [`settings`].
pub fn exclusive(terminal: impl AsFd) -> io::Result<bool> {
    get(terminal, TIOCGEXCL).map(|value| value != 0)
}

/// Switches exclusive mode (`TIOCEXCL`, `TIOCNXCL`).
///
/// # Errors
/// As [`settings`].
pub fn set_exclusive(terminal: impl AsFd, on: bool) -> io::Result<()> {
    let request = if on { libc::TIOCEXCL } else { libc::TIOCNXCL };
    // SAFETY: no memory is passed.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), request) };
    crate::check(result.into()).map(drop)
}

/// Number of the pseudo-terminal of a master side (`TIOCGPTN`).
///
/// # Errors
/// As [`packet_mode`].
pub fn number(master: impl AsFd) -> io::Result<u32> {
    get(master, TIOCGPTN).map(i32::cast_unsigned)
}

/// Device number of the terminal itself, whatever name it was opened by (`TIOCGDEV`).
///
/// # Errors
/// As [`settings`].
pub fn device(terminal: impl AsFd) -> io::Result<u32> {
    get(terminal, TIOCGDEV).map(i32::cast_unsigned)
}

/// Line discipline (`TIOCGETD`).
///
/// # Errors
/// As [`settings`].
pub fn discipline(terminal: impl AsFd) -> io::Result<i32> {
    get(terminal, libc::TIOCGETD)
}

/// Id of the session that a terminal controls, as the caller sees it (`TIOCGSID`), `None` if there is none.
///
/// # Errors
/// As [`settings`]; `ENOTTY` also for a terminal that is neither a master side nor the caller's own.
pub fn session(master: impl AsFd) -> io::Result<Option<i32>> {
    // `ENOTTY` says that there is no session.
    match get(&master, libc::TIOCGSID) {
        Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => Ok(None),
        other => other.map(Some),
    }
}

/// Id of the foreground group of a terminal as the caller sees it (`TIOCGPGRP`); 0 if it cannot see it.
///
/// # Errors
/// `ENOTTY` for a terminal that is neither a master side nor the caller's own.
pub fn foreground(terminal: impl AsFd) -> io::Result<i32> {
    get(terminal, libc::TIOCGPGRP)
}

/// Makes a group of the caller's session the foreground group of its terminal (`TIOCSPGRP`).
///
/// # Errors
/// `EPERM` or `ESRCH` if it is no such group.
pub fn set_foreground(terminal: impl AsFd, group: i32) -> io::Result<()> {
    set(terminal, libc::TIOCSPGRP, group)
}

/// Opens the other side of a master side, without its name (`TIOCGPTPEER`). It does not become the caller's controlling terminal.
///
/// # Errors
/// `EIO` while it is locked, `EBUSY` in exclusive mode.
pub fn peer(master: impl AsFd, flags: i32) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: no memory is passed.
    let result = unsafe { libc::ioctl(master.as_fd().as_raw_fd(), TIOCGPTPEER, flags) };
    let fd = crate::check(result.into())?;
    // SAFETY: the kernel has just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Does `work`, which may change a terminal, with `SIGTTOU` blocked in the calling thread: a process in the background would be
/// stopped otherwise.
pub fn with_output_allowed<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero sets are initialized by sigemptyset and sigprocmask.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the sets are live.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
    }
    let result = work();
    // SAFETY: `before` was filled in above.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    result
}

fn get(terminal: impl AsFd, request: libc::c_ulong) -> io::Result<i32> {
    let mut value = 0_i32;
    // SAFETY: each of these requests writes one integer.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), request, &raw mut value) };
    crate::check(result.into()).map(|_| value)
}

fn set(terminal: impl AsFd, request: libc::c_ulong, value: i32) -> io::Result<()> {
    // SAFETY: each of these requests reads one integer.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), request, &raw const value) };
    crate::check(result.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_new_terminal_tells_what_it_is() {
        let master = File::options()
            .read(true)
            .write(true)
            .open("/dev/ptmx")
            .unwrap();
        assert!(locked(&master).unwrap());
        assert_eq!(
            peer(&master, libc::O_RDWR).unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
        set_locked(&master, false).unwrap();
        let side = peer(&master, libc::O_RDWR).unwrap();
        assert_eq!(device(&side).unwrap(), device(&master).unwrap());
        assert_eq!(session(&master).unwrap(), None);
        assert_eq!(discipline(&side).unwrap(), 0);
        let mut changed = settings(&side).unwrap();
        changed.local &= !libc::ECHO;
        set_settings(&side, &changed).unwrap();
        assert_eq!(settings(&master).unwrap(), changed);
        set_packet_mode(&master, true).unwrap();
        assert!(packet_mode(&master).unwrap());
        set_exclusive(&side, true).unwrap();
        assert!(exclusive(&side).unwrap());
        drop(master);
        assert_eq!(settings(&side).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
