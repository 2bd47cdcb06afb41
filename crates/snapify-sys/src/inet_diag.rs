//! IPv4 and IPv6 sockets of this network namespace, as sock_diag(7) lists them: those that nobody
//! has a descriptor of included (not accepted yet, closed and waiting for the peer, TIME_WAIT).

use crate::sock_diag::{SockDiag, u32_at};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// State of a TCP connection, with the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum TcpState {
    Established = 1,
    SynSent = 2,
    SynReceived = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    Close = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
}

impl TcpState {
    /// The state with this number. `TCP_NEW_SYN_RECV` (12) is a handshake that is not complete; a
    /// number that is not known is none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => return None,
        })
    }
}

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InetSocket {
    /// Its state; [`TcpState::Close`] for an unconnected UDP socket.
    pub state: TcpState,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's address; port 0 if it has none.
    pub remote: SocketAddr,
    /// Inode number of the socket; 0 if nobody has a descriptor of it.
    pub inode: u32,
    /// The user that it belongs to.
    pub uid: u32,
    /// Bytes that wait to be read, a FIN as one; for a listening socket the connections that wait to be accepted.
    pub receive_queue: u32,
    /// Bytes that are not acknowledged.
    pub send_queue: u32,
    /// Milliseconds until its timer expires; for TIME_WAIT until its end.
    pub expires: u32,
}

/// Sizes of `struct inet_diag_req_v2`, `struct inet_diag_sockid` and `struct inet_diag_msg`.
const REQUEST: usize = 56;
const ANSWER: usize = 72;

/// All sockets of a protocol (`IPPROTO_TCP`, `IPPROTO_UDP`) in any of `states`, of both families.
///
/// # Errors
/// As [`SockDiag::dump`].
pub fn sockets(protocol: i32, states: &[TcpState]) -> io::Result<Vec<InetSocket>> {
    let mut diag = SockDiag::open()?;
    let mask = states.iter().fold(0_u32, |mask, state| {
        let handshake = u32::from(*state == TcpState::SynReceived) << 12;
        mask | 1 << (*state as u8) | handshake
    });
    let mut all = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0_u8; REQUEST];
        request[0] = family as u8;
        request[1] = protocol as u8;
        request[4..8].copy_from_slice(&mask.to_ne_bytes());
        let found: io::Result<Vec<InetSocket>> =
            diag.dump(&request, |sockets: &mut Vec<_>, answer| {
                sockets.extend(parse(answer));
            });
        match found {
            // A kernel without IPv6.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && !all.is_empty() => {}
            other => all.extend(other?),
        }
    }
    Ok(all)
}

/// Reads a `struct inet_diag_msg`.
fn parse(answer: &[u8]) -> Option<InetSocket> {
    let answer: &[u8; ANSWER] = answer.first_chunk()?;
    let family = i32::from(answer[0]);
    let scope = u32_at(answer, 40)?;
    let address = |ip: usize, port: usize| {
        let port = u16::from_be_bytes([answer[port], answer[port + 1]]);
        let bytes: &[u8; 16] = answer[ip..].first_chunk()?;
        if family == libc::AF_INET {
            let [a, b, c, d, ..] = *bytes;
            return Some(SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port).into());
        }
        let ip = Ipv6Addr::from(*bytes);
        let scope = if ip.is_unicast_link_local() { scope } else { 0 };
        Some(SocketAddr::from(SocketAddrV6::new(ip, port, 0, scope)))
    };
    Some(InetSocket {
        state: TcpState::from_number(answer[1])?,
        local: address(8, 4)?,
        remote: address(24, 6)?,
        expires: u32_at(answer, 52)?,
        receive_queue: u32_at(answer, 56)?,
        send_queue: u32_at(answer, 60)?,
        uid: u32_at(answer, 64)?,
        inode: u32_at(answer, 68)?,
    })
}

/// The same address with an IPv4 address that is written as IPv6 (`::ffff:127.0.0.1`) as IPv4, so
/// that both ends of a connection between sockets of different families compare equal.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    fn inode(fd: impl std::os::fd::AsFd) -> u32 {
        let file = std::fs::File::from(fd.as_fd().try_clone_to_owned().unwrap());
        file.metadata().unwrap().ino() as u32
    }

    #[test]
    fn both_ends_and_a_listener_are_listed() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let server = listener.local_addr().unwrap();
            let client = TcpStream::connect(server).unwrap();
            let client_address = client.local_addr().unwrap();
            let all = sockets(
                libc::IPPROTO_TCP,
                &[TcpState::Established, TcpState::Listen],
            )
            .unwrap();
            let listening = all.iter().find(|s| s.inode == inode(&listener)).unwrap();
            assert_eq!(
                (listening.state, listening.local, listening.receive_queue),
                (TcpState::Listen, server, 1)
            );
            let connected = all.iter().find(|s| s.inode == inode(&client)).unwrap();
            assert_eq!(
                (connected.state, connected.local, connected.remote),
                (TcpState::Established, client_address, server)
            );
            let waiting = all
                .iter()
                .find(|s| s.local == server && s.remote == client_address)
                .unwrap();
            assert_eq!(waiting.inode, 0);
        }
    }

    #[test]
    fn mapped_addresses_are_those_of_ipv4() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(
            canonical(address("[::ffff:127.0.0.1]:80")),
            address("127.0.0.1:80")
        );
        assert_eq!(canonical(address("[::1]:80")), address("[::1]:80"));
        assert_eq!(canonical(address("10.0.0.1:80")), address("10.0.0.1:80"));
    }

    #[test]
    fn short_answers_are_passed_over() {
        assert_eq!(parse(&[2; 71]), None);
        assert!(parse(&[2; 72]).is_some());
        assert_eq!(parse(&[200; 72]), None);
    }
}
