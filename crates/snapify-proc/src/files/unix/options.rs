//! Socket options that a program can change. Stored are those that are not as in a new socket of the
//! same type.

use super::image::Kind;
use crate::error::ProcError;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use snapify_sys::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `SO_BUF_LOCK`: which buffer sizes the program has chosen itself.
const BUF_LOCK: i32 = 72;
/// `SO_PASSPIDFD` (Linux 6.5).
const PASS_PIDFD: i32 = 76;
/// `SO_PASSRIGHTS` (Linux 6.16).
const PASS_RIGHTS: i32 = 83;

/// Options that are numbers and are set as they are read. Offsets for peeking come last: the calls that set
/// others do not move them.
const NUMBERS: [(&str, i32); 19] = [
    ("reuse-address", libc::SO_REUSEADDR),
    ("dont-route", libc::SO_DONTROUTE),
    ("broadcast", libc::SO_BROADCAST),
    ("keep-alive", libc::SO_KEEPALIVE),
    ("out-of-band-inline", libc::SO_OOBINLINE),
    ("no-check", libc::SO_NO_CHECK),
    ("priority", libc::SO_PRIORITY),
    ("receive-low-water", libc::SO_RCVLOWAT),
    ("timestamp", libc::SO_TIMESTAMP),
    ("timestamp-ns", libc::SO_TIMESTAMPNS),
    ("mark", libc::SO_MARK),
    ("receive-overflow", libc::SO_RXQ_OVFL),
    ("select-error-queue", libc::SO_SELECT_ERR_QUEUE),
    ("busy-poll", libc::SO_BUSY_POLL),
    ("pass-credentials", libc::SO_PASSCRED),
    ("pass-security", libc::SO_PASSSEC),
    ("pass-pidfd", PASS_PIDFD),
    ("pass-rights", PASS_RIGHTS),
    ("peek-offset", libc::SO_PEEK_OFF),
];

/// Sizes of buffers: the kernel doubles what it is told and tells that.
const SIZES: [(&str, i32); 2] = [
    ("send-buffer", libc::SO_SNDBUF),
    ("receive-buffer", libc::SO_RCVBUF),
];

/// Times, stored in microseconds.
const TIMES: [(&str, i32); 2] = [
    ("receive-timeout-us", libc::SO_RCVTIMEO),
    ("send-timeout-us", libc::SO_SNDTIMEO),
];

const BUFFER_LOCK: &str = "buffer-lock";
const LINGER: &str = "linger-s";

/// The options of a socket, by name.
pub(in crate::files) type Options = BTreeMap<String, i64>;

/// What a socket is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) struct Origin {
    pub family: AddressFamily,
    pub kind: SocketType,
    /// 0 for the only one or the usual one.
    pub protocol: u32,
}

impl Origin {
    /// Makes such a socket, which never waits.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn make(self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = NonZeroU32::new(self.protocol).map(Protocol::from_raw);
        Ok(socket_with(self.family, self.kind, flags, protocol)?)
    }
}

impl From<Kind> for Origin {
    fn from(kind: Kind) -> Self {
        Self {
            family: AddressFamily::UNIX,
            kind: kind.socket_type(),
            protocol: 0,
        }
    }
}

/// Options of new sockets, to compare with.
#[derive(Debug, Default)]
pub(in crate::files) struct Defaults(Vec<(Origin, Options)>);

impl Defaults {
    /// The options of a socket that are not as in a new one.
    ///
    /// # Errors
    /// Those of socket(2) and getsockopt(2).
    pub fn changed(
        &mut self,
        socket: BorrowedFd<'_>,
        origin: impl Into<Origin>,
    ) -> io::Result<Options> {
        let origin = origin.into();
        let mut options = all(socket)?;
        if !self.0.iter().any(|(known, _)| *known == origin) {
            self.0.push((origin, all(origin.make()?.as_fd())?));
        }
        let known = self.0.iter().find(|(known, _)| *known == origin);
        if let Some((_, default)) = known {
            options.retain(|name, value| default.get(name) != Some(value));
        }
        Ok(options)
    }
}

fn all(socket: BorrowedFd<'_>) -> io::Result<Options> {
    let level = libc::SOL_SOCKET;
    let mut options = Options::new();
    let lock = ("", BUF_LOCK);
    for (name, number) in NUMBERS.into_iter().chain(SIZES).chain([lock]) {
        match sockopt::get_int(socket, level, number) {
            Ok(value) => {
                let name = if number == BUF_LOCK {
                    BUFFER_LOCK
                } else {
                    name
                };
                options.insert(name.into(), value.into());
            }
            // Older kernels lack the newest.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
    }
    for (name, number) in TIMES {
        let mut time = [0; 16];
        sockopt::get(socket, level, number, &mut time)?;
        let (seconds, micros) = halves(time);
        options.insert(
            name.into(),
            seconds.saturating_mul(1_000_000).saturating_add(micros),
        );
    }
    let mut linger = [0; 8];
    sockopt::get(socket, level, libc::SO_LINGER, &mut linger)?;
    let [on, seconds] = [0, 4].map(|at| {
        let mut word = [0; 4];
        word.copy_from_slice(&linger[at..at + 4]);
        i32::from_ne_bytes(word)
    });
    if on != 0 {
        options.insert(LINGER.into(), seconds.into());
    }
    Ok(options)
}

fn halves(bytes: [u8; 16]) -> (i64, i64) {
    let half = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        i64::from_ne_bytes(word)
    };
    (half(0), half(8))
}

/// Whether a filter decides which messages the socket receives.
pub(in crate::files) fn has_filter(socket: BorrowedFd<'_>) -> bool {
    // The kernel tells how many instructions a filter has; it refuses to for one that is no classic one.
    match sockopt::get(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &mut []) {
        Ok(instructions) => instructions > 0,
        Err(error) => error.raw_os_error() == Some(libc::EACCES),
    }
}

/// Whether all names are known, and all values are of a possible size.
pub(in crate::files) fn are_known(options: &Options) -> bool {
    let numbers = NUMBERS.iter().chain(&SIZES).map(|&(name, _)| name);
    let names: Vec<&str> = numbers.chain([BUFFER_LOCK, LINGER]).collect();
    options.iter().all(|(name, &value)| {
        let is_time = TIMES.iter().any(|(known, _)| known == name);
        is_time && value >= 0 || names.contains(&name.as_str()) && i32::try_from(value).is_ok()
    })
}

/// Sets options. What the kernel refuses (sizes above the system's limits, priorities for administrators) is told, and
/// stays as it is.
pub(in crate::files) fn set(socket: BorrowedFd<'_>, options: &Options, warn: &dyn Fn(String)) {
    let level = libc::SOL_SOCKET;
    let tell = |name: &str, value: i64, result: io::Result<()>| {
        if let Err(error) = result {
            warn(format!(
                "a socket comes back without its option {name} = {value}: {error}"
            ));
        }
    };
    for (name, number) in SIZES {
        let Some(&value) = options.get(name) else {
            continue;
        };
        let result = sockopt::set_int(socket, level, number, (value / 2) as i32);
        let now = sockopt::get_int(socket, level, number).map_or(0, i64::from);
        match result {
            Ok(()) if now < value => warn(format!(
                "a socket comes back with a {name} of {now} instead of {value} bytes"
            )),
            other => tell(name, value, other),
        }
    }
    // Setting a size has locked it.
    if SIZES.iter().any(|(name, _)| options.contains_key(*name))
        || options.contains_key(BUFFER_LOCK)
    {
        let lock = options.get(BUFFER_LOCK).copied().unwrap_or(0);
        tell(
            BUFFER_LOCK,
            lock,
            sockopt::set_int(socket, level, BUF_LOCK, lock as i32),
        );
    }
    for (name, number) in TIMES {
        if let Some(&value) = options.get(name) {
            let mut time = [0; 16];
            time[..8].copy_from_slice(&(value / 1_000_000).to_ne_bytes());
            time[8..].copy_from_slice(&(value % 1_000_000).to_ne_bytes());
            tell(name, value, sockopt::set(socket, level, number, &time));
        }
    }
    if let Some(&seconds) = options.get(LINGER) {
        let linger = [1, seconds as i32].map(i32::to_ne_bytes).concat();
        let result = sockopt::set(socket, level, libc::SO_LINGER, &linger);
        tell(LINGER, seconds, result);
    }
    for (name, number) in NUMBERS {
        if let Some(&value) = options.get(name) {
            let result = sockopt::set_int(socket, level, number, value as i32);
            tell(name, value, result);
        }
    }
}

/// Lets a socket send as much as the system allows at all.
pub(in crate::files) fn enlarge(socket: BorrowedFd<'_>) -> Result<(), ProcError> {
    const GREATEST: i32 = 1 << 30;
    sockopt::set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, GREATEST)
        .map_err(ProcError::system("enlarging the buffer of a UNIX socket"))
}

/// The usual size of a buffer for sending.
///
/// # Errors
/// Those of socket(2) and getsockopt(2).
pub(in crate::files) fn usual_size() -> io::Result<i32> {
    let fresh = Origin::from(Kind::Stream).make()?;
    sockopt::get_int(&fresh, libc::SOL_SOCKET, libc::SO_SNDBUF)
}

/// Undoes [`enlarge`], for a socket that had the usual size.
pub(in crate::files) fn set_usual_size(
    socket: BorrowedFd<'_>,
    usual: i32,
) -> Result<(), ProcError> {
    let level = libc::SOL_SOCKET;
    let set = || {
        if sockopt::get_int(socket, level, libc::SO_SNDBUF)? == usual {
            return Ok(());
        }
        sockopt::set_int(socket, level, libc::SO_SNDBUF, usual / 2)?;
        sockopt::set_int(socket, level, BUF_LOCK, 0)
    };
    set().map_err(ProcError::system(
        "giving the buffer of a UNIX socket its usual size",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_set() {
        let new = || Origin::from(Kind::Datagram).make().unwrap();
        let (socket, again) = (new(), new());
        let mut defaults = Defaults::default();
        assert_eq!(
            defaults.changed(socket.as_fd(), Kind::Datagram).unwrap(),
            Options::new()
        );
        let wanted = Options::from(
            [
                ("send-buffer", 8192),
                (BUFFER_LOCK, 1),
                (LINGER, 7),
                ("receive-timeout-us", 2_500_000),
                ("pass-credentials", 1),
                ("peek-offset", 3),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        assert!(are_known(&wanted));
        for one in [&socket, &again] {
            set(one.as_fd(), &wanted, &|text| panic!("{text}"));
            assert_eq!(
                defaults.changed(one.as_fd(), Kind::Datagram).unwrap(),
                wanted
            );
        }
        enlarge(socket.as_fd()).unwrap();
        set_usual_size(socket.as_fd(), usual_size().unwrap()).unwrap();
        let now = defaults.changed(socket.as_fd(), Kind::Datagram).unwrap();
        assert!(!now.contains_key("send-buffer") && !now.contains_key(BUFFER_LOCK));
    }

    #[test]
    fn unknown_options_are_refused() {
        for (name, value) in [("x", 1), ("keep-alive", 1 << 40), ("send-timeout-us", -1)] {
            assert!(
                !are_known(&Options::from([(name.to_owned(), value)])),
                "{name}"
            );
        }
    }
}
