//! Making all sockets of an image, with their addresses and connections.
//!
//! The order matters, because a listener, the connections that it accepted and those that wait in
//! its queue share an address:
//!
//! 1. connections between two sockets, each by a listener of its own for a moment;
//! 2. connections whose other end is gone, with an end of ours instead;
//! 3. sockets that have just an address;
//! 4. then all listeners listen,
//! 5. and those who wait in their queues connect, and those who were still connecting.
//!
//! Meanwhile all of them let others use their addresses (`SO_REUSEADDR`).

use super::connect::{End, bound, connect, connecting, finish_connecting, in_family, take_error};
use super::image::{
    Connected, Ending, Family, InetImage, InetSocket, Kind, OtherEnd, Protocol, SocketState,
    Waiting,
};
use super::options::Options;
use super::ports;
use super::relate::is_local;
use crate::error::ProcError;
use rustix::fs::OFlags;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// New sockets, without content.
#[derive(Debug)]
pub(crate) struct NewSockets {
    /// In the order of the image.
    pub(super) sockets: Vec<OwnedFd>,
    /// Our own ends of connections whose other end is gone.
    pub(super) peers: Vec<Option<OwnedFd>>,
    /// The same of connections that wait to be accepted.
    pub(super) clients: Vec<Option<OwnedFd>>,
}

impl NewSockets {
    /// Makes all sockets.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] if the image contradicts itself; an address that is taken or is none of
    /// this machine's.
    pub fn new(image: &InetImage, warn: &dyn Fn(String)) -> Result<Self, ProcError> {
        image.validate()?;
        let mut maker = Maker {
            image,
            warn,
            sockets: image.sockets.iter().map(|_| None).collect(),
            peers: image.sockets.iter().map(|_| None).collect(),
        };
        for (index, socket) in image.sockets.iter().enumerate() {
            maker.connection(index, socket)?;
        }
        for (index, socket) in image.sockets.iter().enumerate() {
            maker.addressed(index, socket)?;
        }
        for (index, socket) in image.sockets.iter().enumerate() {
            maker.listening(index, socket)?;
        }
        let mut clients = Vec::with_capacity(image.waiting.len());
        for waiting in &image.waiting {
            let client = maker.waiting(waiting)?;
            clients.push(client);
        }
        for (index, socket) in image.sockets.iter().enumerate() {
            maker.still_connecting(index, socket)?;
        }
        let sockets: Option<Vec<OwnedFd>> = maker.sockets.into_iter().collect();
        Ok(Self {
            sockets: sockets.ok_or_else(|| {
                ProcError::BadImage("a socket is neither connected nor anything else".into())
            })?,
            peers: maker.peers,
            clients,
        })
    }

    /// Another descriptor of a socket, with its status flags.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn description(&self, index: usize, flags: u32) -> Result<OwnedFd, ProcError> {
        let socket = self
            .sockets
            .get(index)
            .ok_or_else(|| ProcError::BadImage(format!("it has no socket {index}")))?;
        let status = OFlags::from_bits_retain(flags) & (OFlags::NONBLOCK | OFlags::APPEND);
        rustix::fs::fcntl_setfl(socket, status)
            .map_err(ProcError::system("setting the flags of a socket"))?;
        socket
            .try_clone()
            .map_err(ProcError::system("duplicating a socket"))
    }
}

struct Maker<'a> {
    image: &'a InetImage,
    warn: &'a dyn Fn(String),
    sockets: Vec<Option<OwnedFd>>,
    peers: Vec<Option<OwnedFd>>,
}

impl Maker<'_> {
    /// A connection of which we have or make both ends.
    fn connection(&mut self, index: usize, socket: &InetSocket) -> Result<(), ProcError> {
        match &socket.state {
            SocketState::Connected(connected) => match connected.other {
                OtherEnd::Socket(other) if other > index => {
                    let there = &self.image.sockets[other];
                    let (here, there) = connect(end(socket), end(there), self.warn)?;
                    self.sockets[index] = Some(here);
                    self.sockets[other] = Some(there);
                }
                OtherEnd::Socket(_) | OtherEnd::Waits => {}
                OtherEnd::Closed | OtherEnd::Outside => {
                    self.with_own_peer(index, socket, Some(connected))?;
                }
            },
            SocketState::Ended {
                ending: Ending::Refused,
                pending,
                ..
            } => {
                let refused = self.refused(socket)?;
                if !pending {
                    take_error(refused.as_fd());
                }
                self.sockets[index] = Some(refused);
            }
            SocketState::Ended { .. } => self.with_own_peer(index, socket, None)?,
            _ => {}
        }
        Ok(())
    }

    /// Connects a socket to one of ours, which has the address of its peer if it can be had.
    fn with_own_peer(
        &mut self,
        index: usize,
        socket: &InetSocket,
        connected: Option<&Connected>,
    ) -> Result<(), ProcError> {
        let options = Options::default();
        let local = socket.local.filter(|local| is_local(local.ip()));
        let local = local.unwrap_or_else(|| any_port(loopback(socket.family)));
        let peer_end = |local| End {
            kind: socket.kind(),
            local,
            options: &options,
        };
        let here = End {
            local,
            ..end(socket)
        };
        let mut made = None;
        if let Some(connected) = connected
            && is_local(connected.peer.ip())
        {
            made = connect(here, peer_end(connected.peer), self.warn).ok();
        }
        let (here, there) = match made {
            Some(made) => made,
            None => {
                let beside = peer_end(any_port(local.ip()));
                match (connect(here, beside, self.warn), connected) {
                    // Nobody can tell any more where a connection was that is over.
                    (Err(_), None) => {
                        let here = End {
                            local: any_port(local.ip()),
                            ..here
                        };
                        connect(here, beside, self.warn)?
                    }
                    (made, _) => made?,
                }
            }
        };
        self.sockets[index] = Some(here);
        self.peers[index] = Some(there);
        Ok(())
    }

    /// A socket whose connection was refused.
    fn refused(&self, socket: &InetSocket) -> Result<OwnedFd, ProcError> {
        let local = socket.local.filter(|local| is_local(local.ip()));
        let local = local.unwrap_or_else(|| any_port(loopback(socket.family)));
        let deaf = End {
            local: any_port(local.ip()),
            ..end(socket)
        };
        let options = Options::default();
        // It has a port, so that nobody else listens there, and does not listen.
        let nobody = bound(
            End {
                options: &options,
                ..deaf
            },
            self.warn,
        )?;
        let to = super::connect::address_of(&nobody)
            .map_err(ProcError::system("making a connection that is refused"))?;
        let from = End { local, ..deaf };
        connecting(from, to, self.warn).or_else(|_| connecting(deaf, to, self.warn))
    }

    /// A socket that has at most an address.
    fn addressed(&mut self, index: usize, socket: &InetSocket) -> Result<(), ProcError> {
        let made = match &socket.state {
            SocketState::Idle => match socket.local {
                None => self.unbound(socket)?,
                Some(local) if local.port() == 0 => self.host_only(socket, local)?,
                Some(local) => ports::patiently(&[local], || bound(end(socket), self.warn))?,
            },
            SocketState::Listening { .. } => match socket.local {
                None => self.unbound(socket)?,
                Some(local) => ports::patiently(&[local], || bound(end(socket), self.warn))?,
            },
            SocketState::Datagrams { peer, .. } => self.datagrams(socket, *peer)?,
            _ => return Ok(()),
        };
        self.sockets[index] = Some(made);
        Ok(())
    }

    fn unbound(&self, socket: &InetSocket) -> Result<OwnedFd, ProcError> {
        let made = socket
            .kind()
            .socket()
            .map_err(ProcError::system("making a socket"))?;
        socket.options.set_early(made.as_fd(), self.warn)?;
        Ok(made)
    }

    /// Bound to a host without a port yet (`IP_BIND_ADDRESS_NO_PORT`).
    fn host_only(&self, socket: &InetSocket, local: SocketAddr) -> Result<OwnedFd, ProcError> {
        const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
        let made = self.unbound(socket)?;
        snapify_sys::sockopt::set_int(&made, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            .and_then(|()| Ok(rustix::net::bind(&made, &local)?))
            .map_err(ProcError::system(format!("binding a socket to {local}")))?;
        Ok(made)
    }

    /// Datagram sockets share addresses only as they say themselves.
    fn datagrams(
        &self,
        socket: &InetSocket,
        peer: Option<SocketAddr>,
    ) -> Result<OwnedFd, ProcError> {
        let made = self.unbound(socket)?;
        socket.options.set_last(made.as_fd(), self.warn);
        socket.options.set_buffers(made.as_fd(), self.warn);
        if let Some(local) = socket.local {
            rustix::net::bind(&made, &local).map_err(ProcError::system(format!(
                "making a UDP socket with the address {local}"
            )))?;
        }
        if let Some(peer) = peer {
            rustix::net::connect(&made, &peer).map_err(ProcError::system(format!(
                "connecting a UDP socket to {peer}"
            )))?;
        }
        Ok(made)
    }

    fn listening(&mut self, index: usize, socket: &InetSocket) -> Result<(), ProcError> {
        let (SocketState::Listening { backlog }, Some(made)) =
            (&socket.state, &self.sockets[index])
        else {
            return Ok(());
        };
        // Sockets whose addresses the kernel tells apart by them only. One may have been told since not to share any more.
        let port = socket.local.map(|local| local.port());
        let is_another = |(other, at): (&InetSocket, usize)| {
            at != index
                && matches!(other.state, SocketState::Listening { .. })
                && other.local.map(|local| local.port()) == port
        };
        let mut all = self.image.sockets.iter().zip(0..);
        if socket.options.number("SO_REUSEPORT") != 0 || all.any(is_another) {
            rustix::net::sockopt::set_socket_reuseport(made, true)
                .map_err(ProcError::system("sharing the port of a listening socket"))?;
        }
        let backlog = i32::try_from(*backlog).unwrap_or(i32::MAX);
        rustix::net::listen(made, backlog).map_err(ProcError::system(format!(
            "listening at {}",
            socket.local.map_or_else(String::new, |at| at.to_string())
        )))
    }

    /// A connection that waits to be accepted.
    fn waiting(&mut self, waiting: &Waiting) -> Result<Option<OwnedFd>, ProcError> {
        let options = Options::default();
        let to = in_family(waiting.to, family_of(waiting.from));
        let what = || format!("connecting from {} to {to} again", waiting.from);
        let from = match waiting.client {
            Some(client) => end(&self.image.sockets[client]),
            None => End {
                kind: Kind {
                    family: family_of(waiting.from),
                    protocol: Protocol::Tcp,
                },
                local: waiting.from,
                options: &options,
            },
        };
        let made = ports::patiently(&[from.local], || connecting(from, to, self.warn))?;
        finish_connecting(&made).map_err(ProcError::system(what()))?;
        match waiting.client {
            Some(client) => {
                self.sockets[client] = Some(made);
                Ok(None)
            }
            None => Ok(Some(made)),
        }
    }

    fn still_connecting(&mut self, index: usize, socket: &InetSocket) -> Result<(), ProcError> {
        let SocketState::Connecting { peer } = &socket.state else {
            return Ok(());
        };
        let from = match socket.local {
            Some(_) => end(socket),
            None => End {
                local: any_port(unspecified(socket.family)),
                ..end(socket)
            },
        };
        let made = ports::patiently(&[from.local], || connecting(from, *peer, self.warn))?;
        self.sockets[index] = Some(made);
        Ok(())
    }
}

fn end(socket: &InetSocket) -> End<'_> {
    End {
        kind: socket.kind(),
        local: socket
            .local
            .unwrap_or_else(|| any_port(unspecified(socket.family))),
        options: &socket.options,
    }
}

fn any_port(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 0)
}

fn family_of(address: SocketAddr) -> Family {
    match address {
        SocketAddr::V4(_) => Family::Ipv4,
        SocketAddr::V6(_) => Family::Ipv6,
    }
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => Ipv4Addr::LOCALHOST.into(),
        Family::Ipv6 => Ipv6Addr::LOCALHOST.into(),
    }
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}
