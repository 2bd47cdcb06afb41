//! What is saved of TCP and UDP sockets.

use super::options::Options;
use crate::error::ProcError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use snapify_sys::inet_diag::canonical;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// All TCP and UDP sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InetImage {
    /// The sockets.
    pub sockets: Vec<InetSocket>,
    /// Connections that nobody had accepted yet, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
}

/// A description of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InetDescription {
    /// Index into [`InetImage::sockets`].
    pub socket: usize,
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// `AF_INET`.
    Ipv4,
    /// `AF_INET6`.
    Ipv6,
}

/// Protocol, which also tells the type of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// `IPPROTO_TCP`.
    Tcp,
    /// `IPPROTO_MPTCP`, as long as it has no connections of its own: a listener that accepts plain TCP.
    Mptcp,
    /// `IPPROTO_UDP`.
    Udp,
}

/// What socket(2) is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub family: Family,
    pub protocol: Protocol,
}

impl Kind {
    /// A new socket, which does not block.
    pub fn socket(self) -> io::Result<OwnedFd> {
        let family = match self.family {
            Family::Ipv4 => AddressFamily::INET,
            Family::Ipv6 => AddressFamily::INET6,
        };
        let (kind, protocol) = match self.protocol {
            Protocol::Tcp => (SocketType::STREAM, ipproto::TCP),
            Protocol::Mptcp => (SocketType::STREAM, ipproto::MPTCP),
            Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socket_with(family, kind, flags, Some(protocol))?)
    }
}

/// A TCP or UDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InetSocket {
    /// Its address family.
    pub family: Family,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its own address; with port 0 if only the host was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<SocketAddr>,
    /// Its options.
    #[serde(default)]
    pub options: Options,
    /// What it is used for.
    #[serde(flatten)]
    pub state: SocketState,
}

/// What a socket is used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum SocketState {
    /// TCP: for nothing yet.
    Idle,
    /// TCP: waits for connections.
    Listening {
        /// How many may wait to be accepted.
        backlog: u32,
    },
    /// TCP: connecting.
    Connecting {
        /// To whom.
        peer: SocketAddr,
    },
    /// TCP: connected.
    Connected(Connected),
    /// TCP: a connection that is over, or was never made.
    Ended {
        /// How.
        ending: Ending,
        /// Whether the program has yet to be told of the error (`SO_ERROR`).
        #[serde(default)]
        pending: bool,
        /// The object with what can still be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unread: Option<SpaceId>,
    },
    /// UDP.
    Datagrams {
        /// The peer that it is connected to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<SocketAddr>,
        /// What has not been read.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unread: Vec<Datagram>,
        /// Whether its reading side is shut down.
        #[serde(default)]
        shut_read: bool,
    },
}

/// An end of a TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connected {
    /// The peer's address.
    pub peer: SocketAddr,
    /// Who has the other end.
    pub other: OtherEnd,
    /// The object with what was received, or was on its way, and has not been read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<SpaceId>,
    /// The urgent byte in it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub urgent: Option<Urgent>,
    /// Whether the program has shut down its reading side.
    #[serde(default)]
    pub shut_read: bool,
    /// Whether the program has shut down its writing side.
    #[serde(default)]
    pub shut_write: bool,
}

/// An urgent byte (`MSG_OOB`) among what has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Urgent {
    /// How many unread bytes precede it.
    pub after: usize,
    /// The byte; it is not among the others.
    pub byte: u8,
}

/// Who has the other end of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherEnd {
    /// A socket of the image: index into [`InetImage::sockets`].
    Socket(usize),
    /// Nobody yet: it waits to be accepted, see [`InetImage::waiting`].
    Waits,
    /// Nobody any more.
    Closed,
    /// Somebody who is not part of the image; it comes back as closed by the peer.
    Outside,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Both sides have closed it.
    Closed,
    /// It was reset (`ECONNRESET`).
    Reset,
    /// It was refused (`ECONNREFUSED`).
    Refused,
}

/// A connection that waits to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The socket that listens: index into [`InetImage::sockets`].
    pub listener: usize,
    /// The address that the connection goes to.
    pub to: SocketAddr,
    /// The address that it comes from.
    pub from: SocketAddr,
    /// The socket at its other end, unless it is closed already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<usize>,
    /// The object with what its client has sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<SpaceId>,
}

/// A datagram that has not been read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagram {
    /// Who sent it.
    pub from: SocketAddr,
    /// The object with its content; none if it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<SpaceId>,
}

impl InetSocket {
    pub(crate) fn kind(&self) -> Kind {
        Kind {
            family: self.family,
            protocol: self.protocol,
        }
    }

    /// The address of its connection's other end.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match &self.state {
            SocketState::Connecting { peer } => Some(*peer),
            SocketState::Connected(connected) => Some(connected.peer),
            SocketState::Datagrams { peer, .. } => *peer,
            _ => None,
        }
    }
}

impl InetImage {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Checks that the parts refer to each other as they must.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] with the first contradiction.
    pub fn validate(&self) -> Result<(), ProcError> {
        for (index, socket) in self.sockets.iter().enumerate() {
            socket
                .options
                .validate()
                .and_then(|()| self.validate_socket(index, socket))?;
        }
        let mut waits = vec![false; self.sockets.len()];
        for waiting in &self.waiting {
            let listens = self
                .sockets
                .get(waiting.listener)
                .is_some_and(|socket| matches!(socket.state, SocketState::Listening { .. }));
            if !listens {
                return bad("a connection waits to be accepted where nobody listens");
            }
            let Some(client) = waiting.client else {
                continue;
            };
            let is_client = self.sockets.get(client).is_some_and(|socket| {
                matches!(&socket.state, SocketState::Connected(c) if c.other == OtherEnd::Waits)
                    && socket.kind().protocol == Protocol::Tcp
            });
            if !is_client || std::mem::replace(&mut waits[client], true) {
                return bad("a connection that waits to be accepted is not its client's");
            }
        }
        let all_wait = self.sockets.iter().zip(&waits).all(|(socket, waits)| {
            *waits
                || !matches!(&socket.state, SocketState::Connected(c) if c.other == OtherEnd::Waits)
        });
        if all_wait {
            Ok(())
        } else {
            bad("a connection waits to be accepted nowhere")
        }
    }

    fn validate_socket(&self, index: usize, socket: &InetSocket) -> Result<(), ProcError> {
        let is_udp = socket.protocol == Protocol::Udp;
        if is_udp != matches!(socket.state, SocketState::Datagrams { .. }) {
            return bad("a socket is in a state that its protocol has not");
        }
        let may_connect = socket.protocol != Protocol::Mptcp;
        let is_plain = matches!(
            socket.state,
            SocketState::Idle | SocketState::Listening { .. }
        );
        if !may_connect && !is_plain {
            return bad("a multipath TCP socket is connected");
        }
        let fits = |address: SocketAddr| address.is_ipv6() == (socket.family == Family::Ipv6);
        let addresses = socket.local.into_iter().chain(socket.peer());
        if !addresses.clone().all(fits) {
            return bad("a socket has an address of another family");
        }
        let SocketState::Connected(connected) = &socket.state else {
            return Ok(());
        };
        if socket.local.is_none_or(|local| local.port() == 0) || connected.peer.port() == 0 {
            return bad("a connected socket has no address");
        }
        let OtherEnd::Socket(other) = connected.other else {
            return Ok(());
        };
        let ends =
            |socket: &InetSocket| Some((canonical(socket.local?), canonical(socket.peer()?)));
        let is_mutual = other != index && self.sockets.get(other).is_some_and(|there| {
            matches!(&there.state, SocketState::Connected(c) if c.other == OtherEnd::Socket(index))
                && ends(there) == ends(socket).map(|(local, peer)| (peer, local))
        });
        if is_mutual {
            Ok(())
        } else {
            bad("the two ends of a connection are not each other's")
        }
    }
}

fn bad<T>(text: &str) -> Result<T, ProcError> {
    Err(ProcError::BadImage(text.into()))
}

/// Whether an address stands for all of the host's.
pub(super) fn is_any(ip: IpAddr) -> bool {
    ip.to_canonical().is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(local: &str, peer: &str, other: OtherEnd) -> InetSocket {
        InetSocket {
            family: Family::Ipv4,
            protocol: Protocol::Tcp,
            local: Some(local.parse().unwrap()),
            options: Options::default(),
            state: SocketState::Connected(Connected {
                peer: peer.parse().unwrap(),
                other,
                unread: None,
                urgent: None,
                shut_read: false,
                shut_write: false,
            }),
        }
    }

    fn idle(state: SocketState) -> InetSocket {
        InetSocket {
            state,
            ..end("127.0.0.1:1", "127.0.0.1:2", OtherEnd::Closed)
        }
    }

    fn image(sockets: Vec<InetSocket>, waiting: Vec<Waiting>) -> InetImage {
        InetImage { sockets, waiting }
    }

    const A: &str = "127.0.0.1:40000";
    const B: &str = "127.0.0.1:80";

    #[test]
    fn a_pair_reads_well_and_comes_back() {
        let sockets = vec![
            end(A, B, OtherEnd::Socket(1)),
            end(B, A, OtherEnd::Socket(0)),
        ];
        let image = image(sockets, Vec::new());
        image.validate().unwrap();
        let json = serde_json::to_string(&image).unwrap();
        assert!(
            json.contains(r#""local":"127.0.0.1:40000","options":{},"state":"connected""#),
            "{json}"
        );
        assert!(json.contains(r#""other":{"socket":1}"#), "{json}");
        assert_eq!(serde_json::from_str::<InetImage>(&json).unwrap(), image);
    }

    #[test]
    fn contradictions_are_refused() {
        let listening = || idle(SocketState::Listening { backlog: 1 });
        let waiting = |listener, client| Waiting {
            listener,
            client,
            to: B.parse().unwrap(),
            from: A.parse().unwrap(),
            unread: None,
        };
        let waits = || end(A, B, OtherEnd::Waits);
        let fine = image(vec![listening(), waits()], vec![waiting(0, Some(1))]);
        fine.validate().unwrap();
        let udp = InetSocket {
            protocol: Protocol::Udp,
            ..idle(SocketState::Idle)
        };
        let mptcp = InetSocket {
            protocol: Protocol::Mptcp,
            ..end(A, B, OtherEnd::Closed)
        };
        let wrong = [
            image(vec![end(A, B, OtherEnd::Socket(0))], vec![]),
            image(vec![end(A, B, OtherEnd::Socket(7))], vec![]),
            image(
                vec![
                    end(A, B, OtherEnd::Socket(1)),
                    end(A, B, OtherEnd::Socket(0)),
                ],
                vec![],
            ),
            image(
                vec![end(A, B, OtherEnd::Socket(1)), end(B, A, OtherEnd::Closed)],
                vec![],
            ),
            image(vec![end(A, "[::1]:80", OtherEnd::Closed)], vec![]),
            image(vec![end("127.0.0.1:0", B, OtherEnd::Closed)], vec![]),
            image(vec![udp], vec![]),
            image(vec![mptcp], vec![]),
            image(vec![waits()], vec![]),
            image(vec![listening()], vec![waiting(1, None)]),
            image(vec![listening()], vec![waiting(0, Some(0))]),
            image(
                vec![listening(), waits()],
                vec![waiting(0, Some(1)), waiting(0, Some(1))],
            ),
        ];
        for image in wrong {
            assert!(image.validate().is_err(), "{image:?}");
        }
    }
}
