//! Options of sockets: what a program has set is what reads otherwise than on a new socket.

use super::Kind;
use crate::error::ProcError;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use snapify_sys::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Options that are not as on a new socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Those whose value is a number, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, i32>,
    /// `SO_LINGER`, if on: seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linger: Option<i32>,
    /// `SO_RCVTIMEO` in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_timeout: Option<u64>,
    /// `SO_SNDTIMEO` in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_timeout: Option<u64>,
    /// `SO_RCVBUF` as the kernel shows it (twice what was asked for), if the program has set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<i32>,
    /// `SO_SNDBUF` likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<i32>,
    /// `SO_BINDTODEVICE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `TCP_CONGESTION`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
}

/// Bits of `SO_BUF_LOCK` (Linux 5.14): the program has set the size of the buffer.
pub(super) const SEND_LOCK: i32 = 1;
/// See [`SEND_LOCK`].
pub(super) const RECEIVE_LOCK: i32 = 2;
const SO_BUF_LOCK: i32 = 72;

/// When an option is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before the socket gets an address.
    Early,
    /// When its content is in place.
    Late,
    /// When all sockets have their addresses.
    Last,
}

struct Number {
    name: &'static str,
    level: i32,
    option: i32,
    when: When,
}

const fn number(name: &'static str, level: i32, option: i32, when: When) -> Number {
    Number {
        name,
        level,
        option,
        when,
    }
}

const SOCKET: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
const TCP: i32 = libc::IPPROTO_TCP;
const UDP: i32 = libc::IPPROTO_UDP;

/// All numbers, in the order in which they are set: `IP_TOS` changes `SO_PRIORITY`, and the amount that
/// wakes a reader is the last thing to change. Options that a socket does not have are passed over.
///
/// Not among them is what reads as the kernel's own choice (`TCP_WINDOW_CLAMP`, `TCP_QUICKACK`,
/// `SO_INCOMING_CPU`), and what takes privileges.
#[rustfmt::skip]
const NUMBERS: &[Number] = &[
    number("IPV6_V6ONLY", IPV6, libc::IPV6_V6ONLY, When::Early),
    number("IP_FREEBIND", IP, libc::IP_FREEBIND, When::Early),
    number("IPV6_FREEBIND", IPV6, 78, When::Early),
    number("IP_TRANSPARENT", IP, libc::IP_TRANSPARENT, When::Early),
    number("SO_MARK", SOCKET, libc::SO_MARK, When::Early),
    number("SO_BROADCAST", SOCKET, libc::SO_BROADCAST, When::Early),
    number("SO_DONTROUTE", SOCKET, libc::SO_DONTROUTE, When::Early),
    number("TCP_MAXSEG", TCP, libc::TCP_MAXSEG, When::Early),
    number("TCP_SAVE_SYN", TCP, 27, When::Early),
    number("TCP_DEFER_ACCEPT", TCP, libc::TCP_DEFER_ACCEPT, When::Early),
    number("TCP_FASTOPEN", TCP, libc::TCP_FASTOPEN, When::Early),
    number("TCP_SYNCNT", TCP, libc::TCP_SYNCNT, When::Early),
    number("TCP_USER_TIMEOUT", TCP, libc::TCP_USER_TIMEOUT, When::Early),
    number("TCP_FASTOPEN_CONNECT", TCP, libc::TCP_FASTOPEN_CONNECT, When::Late),
    number("TCP_FASTOPEN_NO_COOKIE", TCP, 34, When::Late),
    number("IP_TOS", IP, libc::IP_TOS, When::Late),
    number("IPV6_TCLASS", IPV6, libc::IPV6_TCLASS, When::Late),
    number(PRIORITY, SOCKET, libc::SO_PRIORITY, When::Late),
    number("IP_TTL", IP, libc::IP_TTL, When::Late),
    number("IP_MINTTL", IP, libc::IP_MINTTL, When::Late),
    number("IP_MTU_DISCOVER", IP, libc::IP_MTU_DISCOVER, When::Late),
    number("IP_RECVERR", IP, libc::IP_RECVERR, When::Late),
    number("IP_RECVTTL", IP, libc::IP_RECVTTL, When::Late),
    number("IP_RECVTOS", IP, libc::IP_RECVTOS, When::Late),
    number("IP_RECVORIGDSTADDR", IP, libc::IP_RECVORIGDSTADDR, When::Late),
    number("IP_PKTINFO", IP, libc::IP_PKTINFO, When::Late),
    number("IP_MULTICAST_IF", IP, libc::IP_MULTICAST_IF, When::Late),
    number("IP_MULTICAST_TTL", IP, libc::IP_MULTICAST_TTL, When::Late),
    number("IP_MULTICAST_LOOP", IP, libc::IP_MULTICAST_LOOP, When::Late),
    number("IP_MULTICAST_ALL", IP, 49, When::Late),
    number("IP_UNICAST_IF", IP, 50, When::Late),
    number("IP_BIND_ADDRESS_NO_PORT", IP, 24, When::Late),
    number("IP_LOCAL_PORT_RANGE", IP, LOCAL_PORT_RANGE, When::Late),
    number("IPV6_UNICAST_HOPS", IPV6, libc::IPV6_UNICAST_HOPS, When::Late),
    number("IPV6_MULTICAST_IF", IPV6, libc::IPV6_MULTICAST_IF, When::Late),
    number("IPV6_MULTICAST_HOPS", IPV6, libc::IPV6_MULTICAST_HOPS, When::Late),
    number("IPV6_MULTICAST_LOOP", IPV6, libc::IPV6_MULTICAST_LOOP, When::Late),
    number("IPV6_MULTICAST_ALL", IPV6, 29, When::Late),
    number("IPV6_UNICAST_IF", IPV6, 76, When::Late),
    number("IPV6_MTU_DISCOVER", IPV6, libc::IPV6_MTU_DISCOVER, When::Late),
    number("IPV6_DONTFRAG", IPV6, libc::IPV6_DONTFRAG, When::Late),
    number("IPV6_RECVERR", IPV6, libc::IPV6_RECVERR, When::Late),
    number("IPV6_RECVPKTINFO", IPV6, libc::IPV6_RECVPKTINFO, When::Late),
    number("IPV6_RECVHOPLIMIT", IPV6, libc::IPV6_RECVHOPLIMIT, When::Late),
    number("IPV6_RECVTCLASS", IPV6, libc::IPV6_RECVTCLASS, When::Late),
    number("IPV6_RECVORIGDSTADDR", IPV6, 74, When::Late),
    number("IPV6_AUTOFLOWLABEL", IPV6, 70, When::Late),
    number("IPV6_ADDR_PREFERENCES", IPV6, 72, When::Late),
    number("IPV6_MINHOPCOUNT", IPV6, 73, When::Late),
    number("SO_NO_CHECK", SOCKET, libc::SO_NO_CHECK, When::Late),
    number("SO_OOBINLINE", SOCKET, libc::SO_OOBINLINE, When::Late),
    number("SO_TIMESTAMP", SOCKET, libc::SO_TIMESTAMP, When::Late),
    number("SO_TIMESTAMPNS", SOCKET, libc::SO_TIMESTAMPNS, When::Late),
    number("SO_TIMESTAMP_NEW", SOCKET, 63, When::Late),
    number("SO_TIMESTAMPNS_NEW", SOCKET, 64, When::Late),
    number("SO_RXQ_OVFL", SOCKET, libc::SO_RXQ_OVFL, When::Late),
    number("SO_SELECT_ERR_QUEUE", SOCKET, libc::SO_SELECT_ERR_QUEUE, When::Late),
    number("SO_MAX_PACING_RATE", SOCKET, libc::SO_MAX_PACING_RATE, When::Late),
    number("SO_ZEROCOPY", SOCKET, libc::SO_ZEROCOPY, When::Late),
    number("TCP_KEEPIDLE", TCP, libc::TCP_KEEPIDLE, When::Late),
    number("TCP_KEEPINTVL", TCP, libc::TCP_KEEPINTVL, When::Late),
    number("TCP_KEEPCNT", TCP, libc::TCP_KEEPCNT, When::Late),
    number("SO_KEEPALIVE", SOCKET, libc::SO_KEEPALIVE, When::Late),
    number("TCP_LINGER2", TCP, libc::TCP_LINGER2, When::Late),
    number("TCP_THIN_LINEAR_TIMEOUTS", TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, When::Late),
    number("TCP_NOTSENT_LOWAT", TCP, libc::TCP_NOTSENT_LOWAT, When::Late),
    number("TCP_INQ", TCP, 36, When::Late),
    number("TCP_NODELAY", TCP, libc::TCP_NODELAY, When::Late),
    number("TCP_CORK", TCP, libc::TCP_CORK, When::Late),
    number("UDP_SEGMENT", UDP, libc::UDP_SEGMENT, When::Late),
    number("UDP_GRO", UDP, libc::UDP_GRO, When::Late),
    number("UDP_NO_CHECK6_TX", UDP, 101, When::Late),
    number("UDP_NO_CHECK6_RX", UDP, 102, When::Late),
    number("UDP_CORK", UDP, libc::UDP_CORK, When::Late),
    number("SO_PEEK_OFF", SOCKET, libc::SO_PEEK_OFF, When::Late),
    number("SO_RCVLOWAT", SOCKET, libc::SO_RCVLOWAT, When::Late),
    number("SO_REUSEPORT", SOCKET, libc::SO_REUSEPORT, When::Last),
    number("SO_REUSEADDR", SOCKET, libc::SO_REUSEADDR, When::Last),
];

const PRIORITY: &str = "SO_PRIORITY";
/// What an accepted connection has from the packet that began it; a program can set neither on a stream socket.
const OF_FIRST_PACKET: [&str; 3] = [
    "IP_MULTICAST_TTL",
    "IPV6_MULTICAST_HOPS",
    "IPV6_MULTICAST_IF",
];
/// `IP_LOCAL_PORT_RANGE` (Linux 6.3): lowest port in the lower 16 bits, highest in the upper.
pub(super) const LOCAL_PORT_RANGE: i32 = 51;

impl Options {
    /// Reads the options of a socket. `is_connected` says that the segment size is the
    /// connection's, not the program's.
    ///
    /// # Errors
    /// If no socket of this kind can be made to compare with, or an option cannot be read.
    pub(super) fn of(socket: BorrowedFd<'_>, kind: Kind, is_connected: bool) -> io::Result<Self> {
        let new = kind.socket()?;
        let is_stream = sockopt::get_int(socket, SOCKET, libc::SO_TYPE)? == libc::SOCK_STREAM;
        let mut numbers = BTreeMap::new();
        for option in NUMBERS {
            if is_stream && OF_FIRST_PACKET.contains(&option.name) {
                continue;
            }
            let Ok(usual) = sockopt::get_int(&new, option.level, option.option) else {
                continue;
            };
            let value = sockopt::get_int(socket, option.level, option.option)?;
            let is_its_own = option.option == libc::TCP_MAXSEG && option.level == TCP;
            // With another type of service, the usual priority is one that was chosen.
            let is_chosen = option.name == PRIORITY && numbers.contains_key("IP_TOS");
            if (value != usual || is_chosen) && !(is_its_own && is_connected) {
                numbers.insert(option.name.to_owned(), value);
            }
        }
        let locked = sockopt::get_int(socket, SOCKET, SO_BUF_LOCK).unwrap_or(0);
        let buffer = |lock: i32, option| match locked & lock {
            0 => Ok(None),
            _ => sockopt::get_int(socket, SOCKET, option).map(Some),
        };
        let congestion = text(socket, TCP, libc::TCP_CONGESTION)
            .filter(|name| text(new.as_fd(), TCP, libc::TCP_CONGESTION).as_ref() != Some(name));
        Ok(Self {
            numbers,
            linger: linger(socket)?,
            receive_timeout: timeout(socket, libc::SO_RCVTIMEO)?,
            send_timeout: timeout(socket, libc::SO_SNDTIMEO)?,
            receive_buffer: buffer(RECEIVE_LOCK, libc::SO_RCVBUF)?,
            send_buffer: buffer(SEND_LOCK, libc::SO_SNDBUF)?,
            device: text(socket, SOCKET, libc::SO_BINDTODEVICE),
            congestion,
        })
    }

    /// A number, 0 if it is as usual.
    pub(super) fn number(&self, name: &str) -> i32 {
        self.numbers.get(name).copied().unwrap_or(0)
    }

    /// Checks that all numbers are of known options.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] with the first that is not.
    pub(super) fn validate(&self) -> Result<(), ProcError> {
        let is_known = |name: &str| NUMBERS.iter().any(|option| option.name == name);
        match self.numbers.keys().find(|name| !is_known(name)) {
            Some(name) => Err(ProcError::BadImage(format!(
                "a socket has an option {name:?}, which is not known"
            ))),
            None => Ok(()),
        }
    }

    /// Sets what must be set before the socket gets an address.
    ///
    /// # Errors
    /// A device that is not there.
    pub(super) fn set_early(
        &self,
        socket: BorrowedFd<'_>,
        warn: &dyn Fn(String),
    ) -> Result<(), ProcError> {
        self.set_numbers(socket, When::Early, warn);
        if let Some(device) = &self.device {
            sockopt::set(socket, SOCKET, libc::SO_BINDTODEVICE, device.as_bytes()).map_err(
                ProcError::system(format!("binding a socket to the network device {device}")),
            )?;
        }
        Ok(())
    }

    /// Sets the sizes of the buffers that the program has set.
    pub(super) fn set_buffers(&self, socket: BorrowedFd<'_>, warn: &dyn Fn(String)) {
        let sizes = [
            (self.receive_buffer, libc::SO_RCVBUF, "receive"),
            (self.send_buffer, libc::SO_SNDBUF, "send"),
        ];
        for (size, option, name) in sizes {
            let Some(size) = size else { continue };
            // The kernel doubles what it is told, and limits it.
            let result = sockopt::set_int(socket, SOCKET, option, size / 2)
                .and_then(|()| sockopt::get_int(socket, SOCKET, option));
            if !result.as_ref().is_ok_and(|now| *now >= size / 2 * 2) {
                warn(format!(
                    "a socket's {name} buffer of {size} bytes is smaller now: {result:?}"
                ));
            }
        }
    }

    /// Sets all the rest but what says who may use the same address.
    pub(super) fn set_late(&self, socket: BorrowedFd<'_>, warn: &dyn Fn(String)) {
        self.set_numbers(socket, When::Late, warn);
        let failed = |name: &str, result: io::Result<()>| {
            if let Err(error) = result {
                warn(format!("a socket comes back without its {name}: {error}"));
            }
        };
        if let Some(seconds) = self.linger {
            let [on, seconds] = [1, seconds].map(i32::to_ne_bytes);
            let value = [on, seconds].concat();
            failed(
                "SO_LINGER",
                sockopt::set(socket, SOCKET, libc::SO_LINGER, &value),
            );
        }
        let timeouts = [
            (self.receive_timeout, libc::SO_RCVTIMEO, "SO_RCVTIMEO"),
            (self.send_timeout, libc::SO_SNDTIMEO, "SO_SNDTIMEO"),
        ];
        for (timeout, option, name) in timeouts {
            let Some(timeout) = timeout else { continue };
            let value = [timeout / MICROSECONDS, timeout % MICROSECONDS].map(u64::to_ne_bytes);
            failed(name, sockopt::set(socket, SOCKET, option, &value.concat()));
        }
        if let Some(name) = &self.congestion {
            let result = sockopt::set(socket, TCP, libc::TCP_CONGESTION, name.as_bytes());
            failed(&format!("congestion control {name}"), result);
        }
    }

    /// Sets who may use the same address. Until all sockets of an image have theirs they let each
    /// other: a listener and its connections share one.
    pub(super) fn set_last(&self, socket: BorrowedFd<'_>, warn: &dyn Fn(String)) {
        for option in NUMBERS.iter().filter(|option| option.when == When::Last) {
            let value = self.number(option.name);
            if let Err(error) = sockopt::set_int(socket, option.level, option.option, value) {
                warn(format!(
                    "a socket comes back without its {}: {error}",
                    option.name
                ));
            }
        }
    }

    fn set_numbers(&self, socket: BorrowedFd<'_>, when: When, warn: &dyn Fn(String)) {
        for option in NUMBERS.iter().filter(|option| option.when == when) {
            let Some(&value) = self.numbers.get(option.name) else {
                continue;
            };
            if let Err(error) = sockopt::set_int(socket, option.level, option.option, value) {
                warn(format!(
                    "a socket comes back without its {}: {error}",
                    option.name
                ));
            }
        }
    }
}

const MICROSECONDS: u64 = 1_000_000;

fn linger(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut value = [0; 8];
    sockopt::get(socket, SOCKET, libc::SO_LINGER, &mut value)?;
    let [on, seconds] = [0, 4].map(|at| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&value[at..at + 4]);
        i32::from_ne_bytes(bytes)
    });
    Ok((on != 0).then_some(seconds))
}

fn timeout(socket: BorrowedFd<'_>, option: i32) -> io::Result<Option<u64>> {
    let mut value = [0; 16];
    sockopt::get(socket, SOCKET, option, &mut value)?;
    let [seconds, micros] = [0, 8].map(|at| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&value[at..at + 8]);
        u64::from_ne_bytes(bytes)
    });
    let timeout = seconds.saturating_mul(MICROSECONDS).saturating_add(micros);
    Ok((timeout != 0).then_some(timeout))
}

/// An option that is a text; nothing if it is empty or there is no such option.
pub(super) fn text(socket: BorrowedFd<'_>, level: i32, option: i32) -> Option<String> {
    let mut value = [0; 64];
    let length = sockopt::get(socket, level, option, &mut value).ok()?;
    let bytes = value.get(..length)?.split(|&byte| byte == 0).next()?;
    let text = String::from_utf8_lossy(bytes).into_owned();
    (!text.is_empty()).then_some(text)
}

/// What about a socket is neither saved nor made again.
pub(super) fn unsupported(socket: BorrowedFd<'_>) -> Option<String> {
    const TCP_ULP: i32 = 31;
    if let Some(layer) = text(socket, TCP, TCP_ULP) {
        return Some(format!("it has the protocol layer {layer} on top"));
    }
    // Told to write nothing, the kernel answers how many instructions there are; it does not show a
    // program for the extended machine at all.
    const SO_GET_FILTER: i32 = 26;
    let denied = Errno::ACCESS.raw_os_error();
    let has_filter = match sockopt::get(socket, SOCKET, SO_GET_FILTER, &mut []) {
        Ok(instructions) => instructions > 0,
        Err(error) => error.raw_os_error() == Some(denied),
    };
    has_filter.then(|| "it has a packet filter".into())
}

#[cfg(test)]
mod tests {
    use super::super::{Family, Protocol};
    use super::*;

    #[test]
    fn options_come_back() {
        for family in [Family::Ipv4, Family::Ipv6] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let kind = Kind { family, protocol };
                let socket = kind.socket().unwrap();
                assert_eq!(
                    Options::of(socket.as_fd(), kind, false).unwrap(),
                    Options::default()
                );
                let mut options = Options {
                    linger: Some(5),
                    receive_timeout: Some(1_500_000),
                    send_timeout: Some(20_000),
                    receive_buffer: Some(65536),
                    send_buffer: Some(32768),
                    device: Some("lo".into()),
                    ..Options::default()
                };
                let mut numbers = vec![("SO_PRIORITY", 0), ("SO_KEEPALIVE", 1), ("IP_TTL", 9)];
                numbers.extend([("IP_TOS", 0x10), ("SO_REUSEADDR", 1), ("SO_REUSEPORT", 1)]);
                if protocol == Protocol::Tcp {
                    numbers.extend([("TCP_NODELAY", 1), ("TCP_CORK", 1), ("TCP_KEEPIDLE", 77)]);
                    numbers.extend([("TCP_USER_TIMEOUT", 1234), ("SO_OOBINLINE", 1)]);
                } else {
                    numbers.extend([("IP_PKTINFO", 1), ("SO_BROADCAST", 1), ("UDP_GRO", 1)]);
                    numbers.extend([("IP_MULTICAST_TTL", 3), ("IP_MULTICAST_LOOP", 0)]);
                }
                if family == Family::Ipv6 {
                    numbers.extend([("IPV6_V6ONLY", 1), ("IPV6_UNICAST_HOPS", 8)]);
                }
                options.numbers = numbers
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
                options.validate().unwrap();
                let warn = |text| panic!("{text}");
                options.set_early(socket.as_fd(), &warn).unwrap();
                options.set_buffers(socket.as_fd(), &warn);
                options.set_late(socket.as_fd(), &warn);
                options.set_last(socket.as_fd(), &warn);
                assert_eq!(Options::of(socket.as_fd(), kind, false).unwrap(), options);
            }
        }
    }

    #[test]
    fn unknown_numbers_are_refused() {
        let options = Options {
            numbers: BTreeMap::from([("SO_WHAT".to_owned(), 1)]),
            ..Options::default()
        };
        assert!(options.validate().is_err());
    }
}
