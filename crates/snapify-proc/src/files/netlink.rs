//! Netlink sockets (netlink(7)) in which nothing waits to be read: who asks the kernel about interfaces and routes, or
//! listens for devices, goes on doing so.

use super::survey::{Found, Recognized, Seen, View};
use super::unix::options::{self, Defaults, Options, Origin};
use super::{Object, has_flag};
use crate::error::{Obstacle, ProcError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, sockopt as named};
use serde::{Deserialize, Serialize};
use snapify_sys::sockopt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A netlink socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netlink {
    /// `SOCK_RAW` or `SOCK_DGRAM`, which mean the same.
    #[serde(rename = "type")]
    pub kind: u32,
    /// `NETLINK_*`: which part of the kernel it talks to.
    pub protocol: u32,
    /// Its port id; 0 if it is not bound.
    pub port: u32,
    /// Numbers of the groups that it receives from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<u32>,
    /// Port id and group mask of its peer; both 0 for the kernel.
    #[serde(default)]
    pub peer: (u32, u32),
    /// Options of netlink that are not 0, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switched_on: Vec<i32>,
    /// Other options that are not as in a new socket, by name.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    pub options: Options,
}

const SOL_NETLINK: i32 = 270;
const ADD_MEMBERSHIP: i32 = 1;
const LIST_MEMBERSHIPS: i32 = 9;
/// `NETLINK_PKTINFO`, `BROADCAST_ERROR`, `NO_ENOBUFS`, `LISTEN_ALL_NSID`, `CAP_ACK`, `EXT_ACK` and `GET_STRICT_CHK`: all
/// are on or off.
const FLAGS: [i32; 7] = [3, 4, 5, 8, 10, 11, 12];
/// Words of group bits that are looked at; the kernel's families have far fewer groups.
const GROUP_WORDS: usize = 64;

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    if !seen.link.as_bytes().starts_with(b"socket:[") {
        return None;
    }
    let socket = view.duplicate(seen).ok()?;
    if named::socket_domain(&socket) != Ok(AddressFamily::NETLINK) {
        return None;
    }
    Some(describe(seen, socket.as_fd()).map(|socket| Found::Whole(Object::Netlink(socket))))
}

fn describe(seen: &Seen, socket: BorrowedFd<'_>) -> Result<Netlink, Obstacle> {
    let events = PollFlags::IN | PollFlags::ERR;
    let mut polled = [PollFd::new(&socket, events)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut polled, Some(&at_once)) {
        Ok(0) => {}
        Ok(_) => {
            let why = "it is a netlink socket with messages that have not been read, which is not supported";
            return Err(seen.obstacle(why));
        }
        Err(errno) => return Err(unreadable(seen, errno)),
    }
    look(socket).map_err(|error| unreadable(seen, error))
}

fn unreadable(seen: &Seen, error: impl Into<io::Error>) -> Obstacle {
    seen.obstacle(format!(
        "this netlink socket cannot be looked at: {}",
        error.into()
    ))
}

fn look(socket: BorrowedFd<'_>) -> io::Result<Netlink> {
    let own = SocketAddrNetlink::try_from(rustix::net::getsockname(socket)?)?;
    let peer = rustix::net::getpeername(socket)?.map(SocketAddrNetlink::try_from);
    let peer = peer
        .transpose()?
        .map_or((0, 0), |peer| (peer.pid(), peer.groups()));
    let kind = named::socket_type(socket)?.as_raw();
    let protocol = sockopt::get_int(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL)?.cast_unsigned();
    let mut bits = [0; GROUP_WORDS * 4];
    let length = sockopt::get(socket, SOL_NETLINK, LIST_MEMBERSHIPS, &mut bits)?;
    let groups = (0..length.min(bits.len()) * 8).filter(|bit| bits[bit / 8] >> (bit % 8) & 1 == 1);
    let is_on = |flag: &i32| sockopt::get_int(socket, SOL_NETLINK, *flag).is_ok_and(|on| on != 0);
    Ok(Netlink {
        kind,
        protocol,
        port: own.pid(),
        groups: groups.map(|bit| bit as u32 + 1).collect(),
        peer,
        switched_on: FLAGS.into_iter().filter(is_on).collect(),
        options: Defaults::default().changed(socket, origin(kind, protocol))?,
    })
}

fn origin(kind: u32, protocol: u32) -> Origin {
    Origin {
        family: AddressFamily::NETLINK,
        kind: rustix::net::SocketType::from_raw(kind),
        protocol,
    }
}

impl Netlink {
    /// Whether its numbers are possible.
    pub(crate) fn is_valid(&self) -> bool {
        let is_group = |&group: &u32| (1..=GROUP_WORDS as u32 * 32).contains(&group);
        matches!(self.kind.cast_signed(), libc::SOCK_RAW | libc::SOCK_DGRAM)
            && self.protocol < 256
            && self.groups.iter().all(is_group)
            && self.switched_on.iter().all(|flag| FLAGS.contains(flag))
            && options::are_known(&self.options)
    }

    /// Makes such a socket. What it had subscribed to and may not any more, and a port id that another has
    /// now, is told.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub(crate) fn make(&self, flags: u32, warn: &dyn Fn(String)) -> Result<OwnedFd, ProcError> {
        let failed = |what: &str| format!("{what} a netlink socket of protocol {}", self.protocol);
        let socket = origin(self.kind, self.protocol)
            .make()
            .map_err(ProcError::system(failed("making")))?;
        if self.port != 0 {
            let bind = |port| rustix::net::bind(&socket, &SocketAddrNetlink::new(port, 0));
            match bind(self.port) {
                Err(rustix::io::Errno::ADDRINUSE) => {
                    warn(format!(
                        "a netlink socket gets another port id, for somebody has {} now",
                        self.port
                    ));
                    bind(0)
                }
                other => other,
            }
            .map_err(ProcError::system(failed("binding")))?;
        }
        for &group in &self.groups {
            let group = group.cast_signed();
            if let Err(error) = sockopt::set_int(&socket, SOL_NETLINK, ADD_MEMBERSHIP, group) {
                warn(format!(
                    "a netlink socket of protocol {} is not in group {group} any more: {error}",
                    self.protocol
                ));
            }
        }
        for &flag in &self.switched_on {
            if let Err(error) = sockopt::set_int(&socket, SOL_NETLINK, flag, 1) {
                warn(format!(
                    "a netlink socket comes back without its option {flag}: {error}"
                ));
            }
        }
        if self.peer != (0, 0) {
            let peer = SocketAddrNetlink::new(self.peer.0, self.peer.1);
            rustix::net::connect(&socket, &peer)
                .map_err(ProcError::system(failed("connecting")))?;
        }
        options::set(socket.as_fd(), &self.options, warn);
        rustix::io::ioctl_fionbio(&socket, has_flag(flags, libc::O_NONBLOCK))
            .map_err(ProcError::system(failed("setting the flags of")))?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_comes_back() {
        let image = Netlink {
            kind: libc::SOCK_RAW.cast_unsigned(),
            protocol: libc::NETLINK_ROUTE.cast_unsigned(),
            port: 4_000_000_000 + std::process::id() % 1_000_000,
            groups: vec![1, 5, 33],
            peer: (0, 0),
            switched_on: vec![10, 11],
            options: Options::new(),
        };
        assert!(image.is_valid());
        let nonblocking = libc::O_NONBLOCK.cast_unsigned();
        let socket = image.make(nonblocking, &|text| panic!("{text}")).unwrap();
        assert_eq!(look(socket.as_fd()).unwrap(), image);
        let told = std::cell::Cell::new(0);
        let other = image.make(0, &|_| told.set(told.get() + 1)).unwrap();
        assert_eq!(told.get(), 1);
        assert_ne!(look(other.as_fd()).unwrap().port, image.port);
    }

    #[test]
    fn impossible_sockets_are_refused() {
        let image = Netlink {
            kind: 3,
            protocol: 0,
            port: 0,
            groups: vec![],
            peer: (0, 0),
            switched_on: vec![],
            options: Options::new(),
        };
        assert!(image.is_valid());
        assert!(
            !Netlink {
                kind: 1,
                ..image.clone()
            }
            .is_valid()
        );
        assert!(
            !Netlink {
                groups: vec![0],
                ..image.clone()
            }
            .is_valid()
        );
        assert!(
            !Netlink {
                switched_on: vec![1],
                ..image
            }
            .is_valid()
        );
    }
}
