//! One connection between two given addresses, by ordinary calls.
//!
//! One end listens at its address for a moment, the other connects from its own. Who did which when
//! the connection was made first makes no difference to a connection, so both ways are tried: where
//! the address of one end cannot be bound, the other may do.

use super::image::{Family, Kind};
use super::options::{LOCAL_PORT_RANGE, Options};
use super::ports;
use crate::error::ProcError;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt as typed};
use snapify_sys::inet_diag::canonical;
use snapify_sys::sockopt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const IP: i32 = libc::IPPROTO_IP;
const IP_BIND_ADDRESS_NO_PORT: i32 = 24;

/// An end of a connection to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'a> {
    pub kind: Kind,
    /// Its address; with port 0 any will do.
    pub local: SocketAddr,
    pub options: &'a Options,
}

/// Connects two ends.
///
/// # Errors
/// If one of the addresses is taken.
pub(super) fn connect(
    a: End<'_>,
    b: End<'_>,
    warn: &dyn Fn(String),
) -> Result<(OwnedFd, OwnedFd), ProcError> {
    ports::patiently(&[a.local, b.local], || {
        // An address that the kernel has chosen is rather one of somebody who connected.
        let a_listens = !ports::is_ephemeral(a.local.port());
        let first = match a_listens {
            true => connect_to(b, a, warn).map(|(b, a)| (a, b)),
            false => connect_to(a, b, warn),
        };
        let first_error = match first {
            Err(error) if ports::is_taken(&error) => error,
            other => return other,
        };
        let second = match a_listens {
            true => connect_to(a, b, warn),
            false => connect_to(b, a, warn).map(|(b, a)| (a, b)),
        };
        second.map_err(|_| first_error)
    })
}

/// Has `from` connect to `to`.
fn connect_to(
    from: End<'_>,
    to: End<'_>,
    warn: &dyn Fn(String),
) -> Result<(OwnedFd, OwnedFd), ProcError> {
    let listener = bound(to, warn)?;
    // Would hide the connection until data comes.
    let _ = sockopt::set_int(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0);
    let what = |what: &str| format!("{what} a connection at {}", to.local);
    rustix::net::listen(&listener, 16).map_err(ProcError::system(what("waiting for")))?;
    let at = address_of(&listener).map_err(ProcError::system(what("waiting for")))?;
    let connecting = connecting(from, at, warn)?;
    finish_connecting(&connecting).map_err(ProcError::system(format!(
        "connecting from {} to {at}",
        from.local
    )))?;
    let own = address_of(&connecting).map_err(ProcError::system(what("making")))?;
    loop {
        wait_for(&listener, PollFlags::IN).map_err(ProcError::system(what("accepting")))?;
        let (accepted, who) =
            rustix::net::acceptfrom_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
                .map_err(ProcError::system(what("accepting")))?;
        // Anybody may have connected here meanwhile.
        let who = who.and_then(|who| SocketAddr::try_from(who).ok());
        if who.map(canonical) == Some(canonical(own)) {
            return Ok((connecting, accepted));
        }
    }
}

/// A new socket with the address of an end, which other sockets of this user may share.
///
/// # Errors
/// If the address is taken, or not one of this machine.
pub(super) fn bound(end: End<'_>, warn: &dyn Fn(String)) -> Result<OwnedFd, ProcError> {
    let what = || format!("making a socket with the address {}", end.local);
    let socket = end.kind.socket().map_err(ProcError::system(what()))?;
    end.options.set_early(socket.as_fd(), warn)?;
    typed::set_socket_reuseaddr(&socket, true).map_err(ProcError::system(what()))?;
    rustix::net::bind(&socket, &end.local).map_err(ProcError::system(what()))?;
    Ok(socket)
}

/// A new socket that has begun to connect from the address of an end to another.
///
/// # Errors
/// If the address is taken, or the other end cannot be reached.
pub(super) fn connecting(
    end: End<'_>,
    to: SocketAddr,
    warn: &dyn Fn(String),
) -> Result<OwnedFd, ProcError> {
    let to = in_family(to, end.kind.family);
    if ports::is_ephemeral(end.local.port())
        && let Ok(socket) = connecting_by_range(end, to, warn)
    {
        return Ok(socket);
    }
    let socket = bound(end, warn)?;
    begin(&socket, to).map_err(ProcError::system(format!(
        "connecting from {} to {to}",
        end.local
    )))?;
    Ok(socket)
}

/// Lets the kernel choose the port, among one: so it may be one that others use, for other
/// connections, or that a connection has just left (TIME_WAIT), and is given back as one that the kernel
/// has chosen.
fn connecting_by_range(
    end: End<'_>,
    to: SocketAddr,
    warn: &dyn Fn(String),
) -> Result<OwnedFd, ProcError> {
    let what = || format!("connecting from {} to {to}", end.local);
    let socket = end.kind.socket().map_err(ProcError::system(what()))?;
    end.options.set_early(socket.as_fd(), warn)?;
    typed::set_socket_reuseaddr(&socket, true).map_err(ProcError::system(what()))?;
    let port = i32::from(end.local.port());
    let only = (port | port << 16).to_ne_bytes();
    let begun = sockopt::set_int(&socket, IP, IP_BIND_ADDRESS_NO_PORT, 1)
        .and_then(|()| sockopt::set(&socket, IP, LOCAL_PORT_RANGE, &only))
        .and_then(|()| {
            let host = SocketAddr::new(end.local.ip(), 0);
            Ok(rustix::net::bind(&socket, &with_scope(host, end.local))?)
        })
        .and_then(|()| begin(&socket, to))
        .and_then(|()| sockopt::set_int(&socket, IP, LOCAL_PORT_RANGE, 0))
        .and_then(|()| sockopt::set_int(&socket, IP, IP_BIND_ADDRESS_NO_PORT, 0));
    begun.map_err(ProcError::system(what()))?;
    Ok(socket)
}

fn with_scope(mut address: SocketAddr, like: SocketAddr) -> SocketAddr {
    if let (SocketAddr::V6(address), SocketAddr::V6(like)) = (&mut address, like) {
        address.set_scope_id(like.scope_id());
    }
    address
}

fn begin(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    match rustix::net::connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until a connection is made.
pub(super) fn finish_connecting(socket: &OwnedFd) -> io::Result<()> {
    wait_for(socket, PollFlags::OUT)?;
    Ok(typed::socket_error(socket)??)
}

/// Waits for an event. What is waited for has happened already, unless a packet was lost.
pub(super) fn wait_for(socket: impl AsFd, event: PollFlags) -> io::Result<()> {
    const PATIENCE: Timespec = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(&socket, event)];
    match rustix::event::poll(&mut polled, Some(&PATIENCE)) {
        Ok(0) => Err(Errno::TIMEDOUT.into()),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The address that a socket has.
pub(super) fn address_of(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(socket)?)?)
}

/// An address as a socket of this family wants it: IPv4 is written `::ffff:127.0.0.1` for IPv6.
pub(super) fn in_family(address: SocketAddr, family: Family) -> SocketAddr {
    match (address.ip(), family) {
        (IpAddr::V4(ip), Family::Ipv6) => SocketAddr::from((ip.to_ipv6_mapped(), address.port())),
        (IpAddr::V6(_), Family::Ipv4) => canonical(address),
        _ => address,
    }
}

/// Ends a connection so that the peer is told of an error, and the kernel forgets it at once.
pub(super) fn reset(socket: OwnedFd) -> io::Result<()> {
    let value = [1_i32, 0].map(i32::to_ne_bytes).concat();
    sockopt::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &value)?;
    drop(socket);
    Ok(())
}

/// Takes the pending error of a socket, as a program does that asks for it.
pub(super) fn take_error(socket: BorrowedFd<'_>) {
    let _ = typed::socket_error(socket);
}
