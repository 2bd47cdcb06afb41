//! What clients have sent before their connections were accepted.
//!
//! Nobody can read that but who accepts the connection; and a connection that was accepted cannot be
//! put back. So it is accepted and read here, and then made again: the client's own socket is
//! disconnected and connects again from its old address, and sends the same again. The program is
//! stopped meanwhile, and finds everything as it was, but for counters (`TCP_INFO`). If this process is
//! killed within these microseconds, the client sees its connection reset.
//!
//! Accepting them also tells their order.

use super::connect::{self, End, address_of, in_family, reset};
use super::fill::fill_up;
use super::image::{Family, Kind, Protocol, Waiting};
use super::options::{LOCAL_PORT_RANGE, Options};
use super::queue;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{Shutdown, SocketFlags, shutdown};
use snapify_sys::inet_diag::canonical;
use snapify_sys::sockopt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most bytes that such a connection may hold: as much fits again in any case.
pub(super) const MOST: usize = 1 << 15;

/// A client of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client<'a> {
    pub socket: BorrowedFd<'a>,
    /// Whether it has shut down its writing side.
    pub shut_write: bool,
}

/// A connection that was accepted for a moment.
struct Accepted {
    socket: OwnedFd,
    waiting: Waiting,
    bytes: Vec<u8>,
}

/// Reads what all connections in the queue of a listener hold, and gives them back in their order.
/// `known` are those that were listed, and `client` finds the socket of one of them.
///
/// # Errors
/// If one cannot be read, or made again.
pub(super) fn requeue<'a>(
    listener: BorrowedFd<'_>,
    known: &[Waiting],
    client: impl Fn(usize) -> Client<'a>,
) -> io::Result<Vec<(Waiting, Vec<u8>)>> {
    let mut queue = Vec::new();
    while is_waiting(listener)? {
        queue.push(rustix::net::accept_with(
            listener,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        )?);
    }
    let mut accepted = Vec::new();
    let mut failed = None;
    for socket in queue {
        match read(socket, known, &client) {
            Ok(one) => accepted.push(one),
            Err(error) => failed = Some(error),
        }
    }
    let mut done = Vec::new();
    // Whatever goes wrong with one, the others are made again.
    for one in accepted {
        let (waiting, bytes) = (one.waiting, one.bytes.clone());
        match make_again(one, &client) {
            Ok(()) => done.push((waiting, bytes)),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(done),
    }
}

fn is_waiting(listener: BorrowedFd<'_>) -> io::Result<bool> {
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
    Ok(rustix::event::poll(&mut polled, Some(&at_once))? > 0)
}

fn read<'a>(
    socket: OwnedFd,
    known: &[Waiting],
    client: &impl Fn(usize) -> Client<'a>,
) -> io::Result<Accepted> {
    let to = address_of(&socket)?;
    let from = rustix::net::getpeername(&socket)?.ok_or(rustix::io::Errno::NOTCONN)?;
    let from = SocketAddr::try_from(from)?;
    let waiting = known
        .iter()
        .find(|waiting| canonical(waiting.from) == canonical(from))
        .copied()
        .ok_or_else(|| io::Error::other(format!("{from} has connected meanwhile")))?;
    if let Some(index) = waiting.client {
        queue::settle(client(index).socket, socket.as_fd())?;
    }
    let bytes = queue::unread(socket.as_fd(), None)?.bytes;
    let waiting = Waiting {
        from,
        to,
        ..waiting
    };
    Ok(Accepted {
        socket,
        waiting,
        bytes,
    })
}

fn make_again<'a>(accepted: Accepted, client: &impl Fn(usize) -> Client<'a>) -> io::Result<()> {
    let Accepted {
        socket,
        waiting,
        bytes,
    } = accepted;
    let Some(index) = waiting.client else {
        // Its client is gone; another with the same address takes its place, and goes too.
        reset(socket)?;
        let family = match waiting.from {
            SocketAddr::V4(_) => Family::Ipv4,
            SocketAddr::V6(_) => Family::Ipv6,
        };
        let end = End {
            kind: Kind {
                family,
                protocol: Protocol::Tcp,
            },
            local: waiting.from,
            options: &Options::default(),
        };
        let client = connect::connecting(end, waiting.to, &|_| ()).map_err(io::Error::other)?;
        connect::finish_connecting(&client)?;
        return fill_up(client, &bytes);
    };
    let Client {
        socket: client,
        shut_write,
    } = client(index);
    let local = SocketAddr::try_from(rustix::net::getsockname(client)?)?;
    rustix::net::connect_unspec(client)?;
    drop(socket);
    reconnect(client, local, waiting.to)?;
    fill_up(client, &bytes)?;
    if shut_write {
        shutdown(client, Shutdown::Write)?;
    }
    Ok(())
}

/// Connects a socket again, from its old port: one that the kernel had chosen it has given back, although
/// it still shows it. One that the program had chosen is used whatever the range is.
fn reconnect(client: BorrowedFd<'_>, local: SocketAddr, to: SocketAddr) -> io::Result<()> {
    let family = match local {
        SocketAddr::V4(_) => Family::Ipv4,
        SocketAddr::V6(_) => Family::Ipv6,
    };
    let to = in_family(to, family);
    let port = i32::from(local.port());
    let usual = sockopt::get_int(client, libc::IPPROTO_IP, LOCAL_PORT_RANGE)?;
    sockopt::set_int(
        client,
        libc::IPPROTO_IP,
        LOCAL_PORT_RANGE,
        port | port << 16,
    )?;
    let connected = rustix::net::connect(client, &to);
    sockopt::set_int(client, libc::IPPROTO_IP, LOCAL_PORT_RANGE, usual)?;
    match connected {
        // The connection is within this machine: it is made by now.
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connections_are_read_and_wait_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let mut clients: Vec<TcpStream> = (0..3)
            .map(|_| TcpStream::connect(server).unwrap())
            .collect();
        clients[0].write_all(b"first").unwrap();
        clients[2].write_all(b"third").unwrap();
        clients[2].shutdown(std::net::Shutdown::Write).unwrap();
        let mut gone = TcpStream::connect(server).unwrap();
        gone.write_all(b"gone").unwrap();
        let waiting = |client: &TcpStream, index| Waiting {
            listener: 0,
            to: server,
            from: client.local_addr().unwrap(),
            client: index,
            unread: None,
        };
        let mut known: Vec<Waiting> = clients
            .iter()
            .enumerate()
            .map(|(index, client)| waiting(client, Some(index)))
            .collect();
        known.push(waiting(&gone, None));
        drop(gone);
        let addresses: Vec<_> = known.iter().map(|one| one.from).collect();
        for _ in 0..2 {
            let found = requeue(listener.as_fd(), &known, |index| Client {
                socket: clients[index].as_fd(),
                shut_write: index == 2,
            })
            .unwrap();
            let contents: Vec<&[u8]> = found.iter().map(|(_, bytes)| &**bytes).collect();
            assert_eq!(contents, [&b"first"[..], b"", b"third", b"gone"]);
            let order: Vec<_> = found.iter().map(|(waiting, _)| waiting.client).collect();
            assert_eq!(order, [Some(0), Some(1), Some(2), None]);
        }
        for (n, address) in addresses.iter().enumerate() {
            let (mut accepted, from) = listener.accept().unwrap();
            assert_eq!(from, *address);
            let mut text = [0; 5];
            match n {
                0 => accepted.read_exact(&mut text).unwrap(),
                1 => {
                    clients[1].write_all(b"later").unwrap();
                    accepted.read_exact(&mut text).unwrap();
                }
                _ => {
                    let mut text = String::new();
                    accepted.read_to_string(&mut text).unwrap();
                    assert_eq!(text, ["third", "gone"][n - 2]);
                }
            }
            if n < 3 {
                accepted.write_all(b"answer").unwrap();
                let mut answer = [0; 6];
                clients[n].read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"answer");
            }
        }
    }
}
