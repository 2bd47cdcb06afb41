//! Addresses that are taken: by whom, and what can be done about it.
//!
//! When a program is killed, its connections with itself are closed one end after the other, and the
//! kernel remembers the end that was closed first for a minute (TIME_WAIT). Neither can that address be
//! bound meanwhile, unless the listener had `SO_REUSEADDR`, nor the same connection made again within
//! the first second. The kernel forgets it at once if the other end resets it; and the other end does
//! so if it tries to connect where nobody listens and gets an answer of the old connection. (Not with
//! `net.ipv4.tcp_rfc1337`; there one has to wait.)

use super::connect::{End, connecting};
use super::image::{Family, InetImage, InetSocket, Kind, Protocol, SocketState, is_any};
use super::options::Options;
use crate::error::{Obstacle, ProcError};
use crate::files::holders;
use rustix::io::Errno;
use snapify_sys::inet_diag::{InetSocket as Listed, TcpState, canonical, sockets};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Whether the kernel hands out this port by itself.
pub(super) fn is_ephemeral(port: u16) -> bool {
    static RANGE: OnceLock<(u16, u16)> = OnceLock::new();
    let (low, high) = *RANGE.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let text = text.unwrap_or_default();
        let mut numbers = text.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(low)), Some(Ok(high))) => (low, high),
            _ => (32768, 60999),
        }
    });
    (low..=high).contains(&port)
}

/// Whether an error says that an address is taken.
pub(super) fn is_taken(error: &ProcError) -> bool {
    let errno = error.errno();
    [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL]
        .iter()
        .any(|taken| errno == Some(taken.raw_os_error()))
}

/// Tries something that needs these addresses until those who have just left them are forgotten.
///
/// # Errors
/// Those of the attempts, at once if they are about something else.
pub(super) fn patiently<T>(
    addresses: &[SocketAddr],
    mut attempt: impl FnMut() -> Result<T, ProcError>,
) -> Result<T, ProcError> {
    let begin = Instant::now();
    // Those who were killed may not be quite gone.
    let mut patience = Duration::from_secs(2);
    loop {
        let error = match attempt() {
            Err(error) if is_taken(&error) => error,
            other => return other,
        };
        if let Some(left) = forget(addresses) {
            patience = patience.max(begin.elapsed() + left + Duration::from_millis(100));
        }
        if begin.elapsed() > patience {
            return Err(error);
        }
        // Nothing tells when the kernel has forgotten a connection.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has the kernel forget the closed connections that keep these addresses. Tells how long it will
/// remember those that are left.
fn forget(addresses: &[SocketAddr]) -> Option<Duration> {
    let list = || {
        let listed =
            sockets(libc::IPPROTO_TCP, &[TcpState::TimeWait, TcpState::Listen]).unwrap_or_default();
        let (listening, closed): (Vec<_>, Vec<_>) = listed
            .into_iter()
            .filter(|one| addresses.iter().any(|at| overlap(*at, one.local)))
            .partition(|one| one.state == TcpState::Listen);
        (listening, closed)
    };
    let (listening, closed) = list();
    for one in closed {
        // Somebody who listens there would be connected to.
        if !listening
            .iter()
            .any(|listener| overlap(listener.local, one.local))
        {
            knock(&one);
        }
    }
    let left = list().1.iter().map(|one| one.expires).max()?;
    Some(Duration::from_millis(left.into()))
}

/// Connects from the other end of a closed connection.
fn knock(closed: &Listed) {
    let family = match closed.remote.is_ipv4() {
        true => Family::Ipv4,
        false => Family::Ipv6,
    };
    let end = End {
        kind: Kind {
            family,
            protocol: Protocol::Tcp,
        },
        local: closed.remote,
        options: &Options::default(),
    };
    // It is not to be connected, and where it cannot even begin to, time helps.
    let _ = connecting(end, closed.local, &|_| ());
}

/// Whether two addresses cannot both be bound: the port is the same, and the host too, or one stands
/// for all.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let (a, b) = (canonical(a), canonical(b));
    a.port() == b.port() && (a.ip() == b.ip() || is_any(a.ip()) || is_any(b.ip()))
}

/// How long is waited for processes that are ending: they close their sockets when they have given back their memory.
const PATIENCE: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(10);

/// Addresses of an image that others have taken, and do not give back.
pub(crate) fn preflight(image: &InetImage) -> Vec<Obstacle> {
    let begin = Instant::now();
    loop {
        let found = taken(image);
        let passes = |(_, passes): &(Obstacle, bool)| *passes;
        if begin.elapsed() > PATIENCE || !found.iter().any(passes) {
            return found.into_iter().map(|(obstacle, _)| obstacle).collect();
        }
        std::thread::sleep(MOMENT);
    }
}

/// Addresses of an image that others have taken, and whether that will soon be over.
fn taken(image: &InetImage) -> Vec<(Obstacle, bool)> {
    use TcpState::{Close, CloseWait, Established, FinWait1, FinWait2, Listen};
    let of = |protocol, states: &[TcpState]| sockets(protocol, states).unwrap_or_default();
    let is_used = |udp| {
        let mut used = image.sockets.iter();
        used.any(|socket| (socket.protocol == Protocol::Udp) == udp)
    };
    let mut listed = (Vec::new(), Vec::new());
    if is_used(false) {
        let states = [Listen, Established, CloseWait, FinWait1, FinWait2];
        listed.0 = of(libc::IPPROTO_TCP, &states);
    }
    if is_used(true) {
        listed.1 = of(libc::IPPROTO_UDP, &[Established, Close]);
    }
    let mut obstacles: Vec<(Obstacle, bool)> = Vec::new();
    for socket in &image.sockets {
        let others = match socket.protocol {
            Protocol::Udp => &listed.1,
            _ => &listed.0,
        };
        let Some(taken) = others.iter().find(|other| takes(other, socket)) else {
            continue;
        };
        let obstacle = obstacle(socket, taken);
        if !obstacles.contains(&obstacle) {
            obstacles.push(obstacle);
        }
    }
    obstacles
}

/// Whether a socket that exists keeps one from coming back.
fn takes(other: &Listed, socket: &InetSocket) -> bool {
    let Some(local) = socket.local.filter(|local| local.port() != 0) else {
        return false;
    };
    // One of IPv6 that stands for all hosts may take IPv4 as well; binding tells.
    let same_family = canonical(local).is_ipv4() == canonical(other.local).is_ipv4();
    match &socket.state {
        _ if !same_family => false,
        SocketState::Listening { .. } => {
            other.state == TcpState::Listen
                && overlap(local, other.local)
                && socket.options.number("SO_REUSEPORT") == 0
        }
        SocketState::Connected(connected) => {
            // One that nobody has any more is about to be forgotten.
            other.inode != 0
                && canonical(other.local) == canonical(local)
                && canonical(other.remote) == canonical(connected.peer)
        }
        SocketState::Datagrams { .. } => {
            let shares = |name| socket.options.number(name) != 0;
            overlap(local, other.local) && !shares("SO_REUSEPORT") && !shares("SO_REUSEADDR")
        }
        _ => false,
    }
}

fn obstacle(socket: &InetSocket, taken: &Listed) -> (Obstacle, bool) {
    let protocol = match socket.protocol {
        Protocol::Udp => "UDP",
        _ => "TCP",
    };
    let address = socket
        .local
        .map_or_else(String::new, |local| local.to_string());
    let (who, passes) = holders::of_socket(taken.inode.into()).unwrap_or_else(|| {
        // One of our own user would be found, if it were not just closing the socket.
        let closes = taken.uid == rustix::process::geteuid().as_raw();
        (format!("a process of user {}", taken.uid), closes)
    });
    let why = match &socket.state {
        SocketState::Listening { .. } => format!("{who} listens at {}", taken.local),
        SocketState::Connected(_) => {
            format!("{who} has the connection from there to {}", taken.remote)
        }
        _ => format!("{who} has a socket at {}", taken.local),
    };
    let obstacle = Obstacle::new(format!("{protocol} address {address}"), why)
        .with_hint("the program needs this address again: end what has it");
    (obstacle, passes)
}

#[cfg(test)]
mod tests {
    use super::super::image::{Connected, OtherEnd};
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_overlap() {
        assert!(overlap(at("127.0.0.1:80"), at("0.0.0.0:80")));
        assert!(overlap(at("[::]:80"), at("127.0.0.1:80")));
        assert!(overlap(at("[::ffff:127.0.0.1]:80"), at("127.0.0.1:80")));
        assert!(!overlap(at("127.0.0.1:80"), at("127.0.0.1:81")));
        assert!(!overlap(at("127.0.0.2:80"), at("127.0.0.1:80")));
    }

    fn socket(local: SocketAddr, state: SocketState) -> InetSocket {
        InetSocket {
            family: Family::Ipv4,
            protocol: Protocol::Tcp,
            local: Some(local),
            options: Options::default(),
            state,
        }
    }

    #[test]
    fn who_has_an_address_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let image = InetImage {
            sockets: vec![socket(local, SocketState::Listening { backlog: 1 })],
            waiting: Vec::new(),
        };
        let obstacles = preflight(&image);
        let us = format!("process {}", std::process::id());
        assert_eq!(obstacles.len(), 1);
        assert!(obstacles[0].why.contains(&us), "{obstacles:?}");
        assert!(
            obstacles[0].object.contains(&local.to_string()),
            "{obstacles:?}"
        );

        let client = TcpStream::connect(local).unwrap();
        let connected = SocketState::Connected(Connected {
            peer: local,
            other: OtherEnd::Closed,
            unread: None,
            urgent: None,
            shut_read: false,
            shut_write: false,
        });
        let image = InetImage {
            sockets: vec![socket(client.local_addr().unwrap(), connected)],
            waiting: Vec::new(),
        };
        assert!(preflight(&image)[0].why.contains(&us));
        drop((client, listener));
        assert_eq!(preflight(&image), []);
    }

    /// Without `SO_REUSEADDR` an address whose connections were closed can be had at once all the
    /// same, at either end.
    #[test]
    fn closed_connections_are_forgotten() {
        let kind = Kind {
            family: Family::Ipv4,
            protocol: Protocol::Tcp,
        };
        for server_first in [true, false] {
            let plain = kind.socket().unwrap();
            rustix::net::bind(&plain, &at("127.0.0.1:0")).unwrap();
            rustix::net::listen(&plain, 1).unwrap();
            let listener = TcpListener::from(plain);
            let server = listener.local_addr().unwrap();
            let connection = TcpStream::connect(server).unwrap();
            let client = connection.local_addr().unwrap();
            listener.set_nonblocking(false).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            drop(listener);
            if server_first {
                drop(accepted);
                drop(connection);
            } else {
                drop(connection);
                drop(accepted);
            }
            // The last holder of an end may be the child of another test on its way to its program.
            let until = Instant::now() + Duration::from_secs(30);
            while !sockets(libc::IPPROTO_TCP, &[TcpState::TimeWait])
                .unwrap()
                .iter()
                .any(|one| one.local == server || one.local == client)
            {
                assert!(Instant::now() < until, "the connection does not end");
                std::thread::yield_now();
            }
            let begin = Instant::now();
            let options = Options::default();
            let end = |local| End {
                kind,
                local,
                options: &options,
            };
            super::super::connect::connect(end(server), end(client), &|_| ()).unwrap();
            // TIME_WAIT lasts for a minute.
            assert!(begin.elapsed().as_secs() < 30, "{:?}", begin.elapsed());
        }
    }
}
