//! Looking at one socket without changing it.
//!
//! Asking for the pending error (`SO_ERROR`), and reading a socket that has one, takes it away; so
//! neither is done. poll(2) tells that there is one, and the state of the connection which.

use super::image::{Ending, Family, Kind, Protocol};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketType, sockopt as typed};
use snapify_sys::inet_diag::{TcpState, canonical};
use snapify_sys::sockopt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// What a socket shows of itself.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub kind: Kind,
    pub local: Option<SocketAddr>,
    /// Of a connection that exists; one that is being made does not show it.
    pub remote: Option<SocketAddr>,
    /// [`TcpState::Close`] for UDP.
    pub state: TcpState,
    pub tcp: TcpInfo,
    events: PollFlags,
}

/// Fields of `struct tcp_info`; for a listener two of them have another meaning. Zero for UDP.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TcpInfo {
    /// Connections that wait to be accepted.
    pub waiting: u32,
    /// How many may.
    pub backlog: u32,
    /// Milliseconds since data was last received, or the connection made.
    pub last_received: u32,
    /// Smoothed round trip time; a connection that was never made has none.
    round_trip: u32,
}

/// Which protocol and family a socket has, if one of those that are supported.
pub(super) fn kind(socket: BorrowedFd<'_>) -> io::Result<Option<Kind>> {
    let family = match typed::socket_domain(socket)? {
        AddressFamily::INET => Family::Ipv4,
        AddressFamily::INET6 => Family::Ipv6,
        _ => return Ok(None),
    };
    let number = sockopt::get_int(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
    let protocol = match (typed::socket_type(socket)?, number) {
        (SocketType::STREAM, libc::IPPROTO_TCP) => Protocol::Tcp,
        (SocketType::STREAM, libc::IPPROTO_MPTCP) => Protocol::Mptcp,
        (SocketType::DGRAM, libc::IPPROTO_UDP) => Protocol::Udp,
        _ => return Ok(None),
    };
    Ok(Some(Kind { family, protocol }))
}

impl Observed {
    /// Looks at a socket of this kind.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn new(socket: BorrowedFd<'_>, kind: Kind) -> io::Result<Self> {
        let local = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
        let has_local = local.port() != 0 || !local.ip().is_unspecified();
        let remote = match rustix::net::getpeername(socket) {
            Ok(Some(address)) => Some(SocketAddr::try_from(address)?),
            Ok(None) | Err(rustix::io::Errno::NOTCONN) => None,
            Err(errno) => return Err(errno.into()),
        };
        let (state, tcp) = match kind.protocol {
            Protocol::Udp => (TcpState::Close, TcpInfo::default()),
            Protocol::Tcp | Protocol::Mptcp => tcp_info(socket)?,
        };
        Ok(Self {
            kind,
            local: has_local.then_some(local),
            remote,
            state,
            tcp,
            events: events(socket)?,
        })
    }

    /// Whether an error waits to be told.
    pub fn has_error(&self) -> bool {
        self.events.contains(PollFlags::ERR)
    }

    /// Whether something waits to be read, be it the end.
    pub fn is_readable(&self) -> bool {
        self.events.contains(PollFlags::IN)
    }

    /// The two addresses of a connection, in a form that both ends have in common.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((canonical(self.local?), canonical(self.remote?)))
    }

    /// Whether the program has shut down its writing side.
    pub fn shut_write(&self) -> bool {
        use TcpState::{Closing, FinWait1, FinWait2, LastAck};
        matches!(self.state, FinWait1 | FinWait2 | Closing | LastAck)
    }

    /// Whether the program has shut down its reading side. Once the peer's FIN has come that shows no
    /// more, and makes no difference.
    pub fn shut_read(&self) -> bool {
        use TcpState::{Established, FinWait1, FinWait2};
        let no_fin = match self.kind.protocol {
            Protocol::Udp => true,
            _ => matches!(self.state, Established | FinWait1 | FinWait2),
        };
        no_fin && self.ends_reading()
    }

    /// Whether the reading side is shut down, by the program or by the peer's FIN.
    pub fn ends_reading(&self) -> bool {
        self.events.contains(PollFlags::RDHUP)
    }

    /// How the connection ended, of a TCP socket in state [`TcpState::Close`]; nothing if it never
    /// tried to have one. One that ended has both sides shut down.
    pub fn ending(&self) -> Option<Ending> {
        if !self.ends_reading() && !self.has_error() {
            return None;
        }
        Some(match (self.tcp.round_trip, self.has_error()) {
            (0, _) => Ending::Refused,
            (_, true) => Ending::Reset,
            (_, false) => Ending::Closed,
        })
    }
}

fn events(socket: BorrowedFd<'_>) -> io::Result<PollFlags> {
    let mut polled = [PollFd::from_borrowed_fd(
        socket,
        PollFlags::IN | PollFlags::RDHUP,
    )];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&at_once))?;
    Ok(polled[0].revents())
}

fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<(TcpState, TcpInfo)> {
    let mut value = [0; 256];
    let length = sockopt::get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut value)?;
    let state = TcpState::from_number(value[0])
        .filter(|_| length >= 72)
        .ok_or_else(|| io::Error::other(format!("TCP state {} is not known", value[0])))?;
    let field = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&value[at..at + 4]);
        u32::from_ne_bytes(bytes)
    };
    let info = TcpInfo {
        waiting: field(24),
        backlog: field(28),
        last_received: field(52),
        round_trip: field(68),
    };
    Ok((state, info))
}

/// The state of a TCP socket now.
pub(super) fn state(socket: BorrowedFd<'_>) -> io::Result<TcpState> {
    tcp_info(socket).map(|(state, _)| state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    fn look(socket: impl AsFd) -> Observed {
        let kind = kind(socket.as_fd()).unwrap().unwrap();
        Observed::new(socket.as_fd(), kind).unwrap()
    }

    #[test]
    fn connections_are_told_from_what_is_left_of_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let seen = look(&listener);
        assert_eq!((seen.state, seen.tcp.waiting), (TcpState::Listen, 1));
        assert!(seen.tcp.backlog > 1);
        let (mut server, _) = listener.accept().unwrap();
        let seen = look(&client);
        assert_eq!(
            (seen.state, seen.remote, seen.local),
            (
                TcpState::Established,
                Some(address),
                client.local_addr().ok()
            )
        );
        assert!(!seen.is_readable() && !seen.ends_reading() && !seen.has_error());
        server.write_all(b"x").unwrap();
        server.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(look(&client).is_readable() && look(&client).ends_reading());
        assert_eq!(look(&client).state, TcpState::CloseWait);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(look(&client).state, TcpState::Close);
        assert_eq!(look(&client).ending(), Some(Ending::Closed));
        assert_eq!(look(&client).remote, None);
    }

    #[test]
    fn errors_are_seen_and_stay() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        drop(port);
        let kind = Kind {
            family: Family::Ipv4,
            protocol: Protocol::Tcp,
        };
        let socket = kind.socket().unwrap();
        assert_eq!(look(&socket).ending(), None);
        let _ = rustix::net::connect(&socket, &address);
        for _ in 0..2 {
            let seen = look(&socket);
            assert!(seen.has_error());
            assert_eq!(seen.ending(), Some(Ending::Refused));
        }
        let error = typed::socket_error(&socket).unwrap();
        assert_eq!(error, Err(rustix::io::Errno::CONNREFUSED));
        assert!(!look(&socket).has_error());
        assert_eq!(look(&socket).ending(), Some(Ending::Refused));
    }

    #[test]
    fn addresses_that_are_not_set_are_none() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(look(&socket).local, socket.local_addr().ok());
        assert_eq!(look(&socket).remote, None);
        let kind = Kind {
            family: Family::Ipv6,
            protocol: Protocol::Udp,
        };
        assert_eq!(look(kind.socket().unwrap()).local, None);
    }
}
