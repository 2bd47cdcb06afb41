//! UNIX domain sockets (unix(7)) whose other ends are within what is saved.
//!
//! A connection is saved as its two sockets that name each other. What a socket has received and not read yet
//! is its *queue*: messages with their senders, credentials and descriptors. It is looked at without
//! being taken out ([`queue`]), and comes back by being sent again, by the peer or by a temporary socket in
//! its place ([`fill`]).
//!
//! | module | what it does |
//! |---|---|
//! | [`set`] | finds out which sockets belong together, and what lies in their queues |
//! | [`capture`] | turns that into images |
//! | [`requeue`] | what was sent to connections that nobody has accepted |
//! | [`options`] | socket options |
//! | [`names`] | addresses that cannot be had again |
//! | [`make`] | makes, binds and connects sockets, with [`maker`] as whom and where |
//! | [`fill`] | queues, and what must come after them |

pub(crate) mod capture;
mod fill;
pub mod image;
pub(crate) mod inside;
mod make;
mod maker;
pub(crate) mod names;
pub(super) mod options;
mod queue;
pub(crate) mod requeue;
pub(crate) mod set;

pub(crate) use fill::Supplies;
pub use image::{Link, SocketRef, UnixSocket};
pub(crate) use make::NewSockets;

use super::holders;
use super::inherit::standard_stream;
use super::survey::{Found, Recognized, Seen, View};

/// Recognizes a UNIX socket. One that leads to somebody who is not being saved may be a standard stream, which is
/// asked next.
pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    let inode = seen.stat.st_ino;
    if !view.unix.contains(inode) {
        return None;
    }
    if let Some(foreign) = view.unix.foreign(inode) {
        return match standard_stream(seen, view) {
            Some(_) => None,
            None => Some(Err(seen.obstacle(foreign.describe()))),
        };
    }
    if let Some(holder) = view.socket_holders.get(&inode) {
        if standard_stream(seen, view).is_some() {
            return None;
        }
        if !holders::has_inherited(seen, view) {
            let why = format!("{holder}, which is not being saved, has this UNIX socket too");
            return Some(Err(seen.obstacle(why)));
        }
        tracing::warn!(
            "descriptor {} is a UNIX socket that {holder} has left open for the program; \
             after a restart they are not connected through it",
            seen.fd
        );
    }
    Some(match view.unix.obstacles(inode).into_iter().next() {
        None => Ok(Found::Unix),
        Some(obstacle) => Err(obstacle),
    })
}
