//! TCP and UDP sockets.
//!
//! An image can hold a connection if both of its ends do. Such a connection is made anew at restart,
//! by ordinary calls: one end listens for a moment at its own address, the other connects from its
//! own, and what was on its way or waited to be read is sent again. What the kernel shows of sockets
//! that nobody has a descriptor of (sock_diag(7)) tells the rest: connections that wait to be accepted,
//! and those whose other end is closed.
//!
//! | module | |
//! |---|---|
//! | [`image`] | what is saved |
//! | [`options`] | socket options |
//! | [`observe`] | looking at one socket without changing it |
//! | [`relate`] | which sockets are ends of one connection, and whose the other ends are |
//! | [`queue`] | reading what waits to be read, and what still waits to be sent |
//! | [`requeue`] | reading what was sent to a connection that nobody has accepted |
//! | [`survey`] | all sockets of a tree of processes, for `check` and capture |
//! | [`make`] | new sockets with their addresses and connections |
//! | [`connect`] | one connection between two given addresses |
//! | [`fill`] | their content, and what must come after it |
//! | [`ports`] | addresses that are taken |

use super::inherit::standard_stream;
use super::survey::{Found, Recognized, Seen, View};
use rustix::fs::FileType;
use std::os::fd::AsFd;

mod connect;
mod fill;
mod image;
mod make;
mod observe;
mod options;
mod ports;
mod queue;
mod relate;
mod requeue;
mod survey;

pub use image::{
    Connected, Datagram, Ending, Family, InetDescription, InetImage, InetSocket, OtherEnd,
    Protocol, SocketState, Urgent, Waiting,
};
pub use options::Options;

pub(crate) use image::Kind;
pub(crate) use make::NewSockets;
pub(crate) use ports::preflight;
pub(crate) use survey::InetSurvey;

use survey::{Held, Verdict};

/// Recognizes a socket that the survey has looked at.
pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    match view.inet.verdict(seen.stat.st_ino)? {
        Verdict::Saved(index) => Some(Ok(Found::Inet(*index))),
        // A standard stream that leads outside is the restart's.
        Verdict::Outside(_) if standard_stream(seen, view).is_some() => None,
        Verdict::Outside(obstacle) | Verdict::Refused(obstacle) => Some(Err(obstacle.clone())),
    }
}

/// A socket of IPv4 or IPv6, to be looked at together with all others. `duplicate` is our own
/// descriptor of what was seen.
pub(crate) fn hold(
    seen: &Seen,
    duplicate: impl FnOnce() -> std::io::Result<std::os::fd::OwnedFd>,
) -> Option<Held> {
    if seen.file_type() != FileType::Socket {
        return None;
    }
    // What cannot be duplicated is told to be a socket that is not supported.
    let socket = duplicate().ok()?;
    survey::is_inet(socket.as_fd()).then(|| Held {
        inode: seen.stat.st_ino,
        socket,
        name: seen.obstacle("").object,
    })
}
