//! What must come after sockets have their addresses: what was on its way to them, the ends of what
//! they sent, and options that would be in the way before.

use super::connect::{address_of, in_family, reset, take_error, wait_for};
use super::image::{
    Connected, Datagram, Ending, InetImage, InetSocket, OtherEnd, SocketState, Urgent, is_any,
};
use super::make::NewSockets;
use super::queue::enlarge;
use crate::error::ProcError;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, sendto, shutdown};
use snapify_store::SpaceId;
use snapify_sys::inet_diag::canonical;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Gives the content of an object.
pub(crate) type Content<'a> = &'a dyn Fn(SpaceId) -> Result<Vec<u8>, ProcError>;

impl NewSockets {
    /// Fills the sockets and completes them. Nobody else may have descriptors of our own ends of
    /// connections any more: they are closed here.
    ///
    /// # Errors
    /// If content does not fit.
    pub fn finish(
        mut self,
        image: &InetImage,
        content: Content<'_>,
        warn: &dyn Fn(String),
    ) -> Result<(), ProcError> {
        for (index, socket) in image.sockets.iter().enumerate() {
            match &socket.state {
                SocketState::Connected(connected) => self.fill(index, connected, content)?,
                SocketState::Ended {
                    unread: Some(unread),
                    ..
                } => self.fill_from_own(index, &content(*unread)?)?,
                SocketState::Datagrams { unread, .. } if !unread.is_empty() => {
                    self.fill_datagrams(index, image, unread, content, warn)?;
                }
                _ => {}
            }
        }
        for (waiting, own) in image.waiting.iter().zip(&self.clients) {
            let client = waiting.client.map(|client| &self.sockets[client]);
            if let (Some(client), Some(unread)) = (client.or(own.as_ref()), waiting.unread) {
                send_to_nobody(client, &content(unread)?)?;
            }
        }
        self.clients.clear();
        for (index, socket) in image.sockets.iter().enumerate() {
            self.end(index, socket)
                .map_err(ProcError::system("shutting down a socket"))?;
        }
        for (socket, made) in image.sockets.iter().zip(&self.sockets) {
            // A datagram socket has had them before its content.
            if !matches!(socket.state, SocketState::Datagrams { .. }) {
                socket.options.set_buffers(made.as_fd(), warn);
            }
            socket.options.set_late(made.as_fd(), warn);
            socket.options.set_last(made.as_fd(), warn);
        }
        Ok(())
    }

    /// Sends what an end of a connection has not read, from the other end.
    fn fill(
        &self,
        index: usize,
        connected: &Connected,
        content: Content<'_>,
    ) -> Result<(), ProcError> {
        let bytes = match connected.unread {
            Some(unread) => content(unread)?,
            None => Vec::new(),
        };
        let sender = match connected.other {
            OtherEnd::Socket(other) => self.sockets.get(other),
            _ => self.peers[index].as_ref(),
        };
        let receiver = &self.sockets[index];
        match (sender, connected.urgent) {
            (Some(sender), None) => send_all(sender, receiver, &bytes),
            (Some(sender), Some(urgent)) => send_urgent(sender, receiver, &bytes, urgent),
            (None, _) if bytes.is_empty() => Ok(()),
            (None, _) => Err(ProcError::BadImage(
                "a connection that nobody has accepted has content".into(),
            )),
        }
    }

    fn fill_from_own(&self, index: usize, bytes: &[u8]) -> Result<(), ProcError> {
        match &self.peers[index] {
            Some(sender) => send_all(sender, &self.sockets[index], bytes),
            None => Err(ProcError::BadImage(
                "a connection that was refused has content".into(),
            )),
        }
    }

    /// Shuts down what was shut down, and closes our own end.
    fn end(&mut self, index: usize, socket: &InetSocket) -> io::Result<()> {
        let made = &self.sockets[index];
        let peer = self.peers[index].take();
        match &socket.state {
            SocketState::Connected(connected) => {
                if connected.shut_write {
                    shutdown(made, Shutdown::Write)?;
                }
                if connected.shut_read {
                    shutdown(made, Shutdown::Read)?;
                }
                match (connected.other, peer) {
                    // The end, and then an error for whoever writes all the same.
                    (OtherEnd::Outside, Some(peer)) => {
                        shutdown(&peer, Shutdown::Write)?;
                        reset(peer)?;
                    }
                    (_, peer) => drop(peer),
                }
            }
            SocketState::Ended {
                ending, pending, ..
            } => match (ending, peer) {
                (Ending::Closed, Some(peer)) => {
                    // Our own end is closed first, so that it is the one that the kernel remembers.
                    shutdown(&peer, Shutdown::Write)?;
                    wait_for(made, PollFlags::RDHUP)?;
                    shutdown(made, Shutdown::Both)?;
                }
                (Ending::Reset, Some(peer)) => {
                    reset(peer)?;
                    if !pending {
                        take_error(made.as_fd());
                    }
                }
                _ => {}
            },
            SocketState::Datagrams {
                shut_read: true, ..
            } => shutdown(made, Shutdown::Read)?,
            _ => {}
        }
        Ok(())
    }

    /// Sends datagrams again, each from the address that it came from, if that can be had.
    fn fill_datagrams(
        &self,
        index: usize,
        image: &InetImage,
        unread: &[Datagram],
        content: Content<'_>,
        warn: &dyn Fn(String),
    ) -> Result<(), ProcError> {
        let socket = &image.sockets[index];
        let receiver = &self.sockets[index];
        let local = address_of(receiver)
            .map_err(ProcError::system("looking for the address of a UDP socket"))?;
        let mut senders: Vec<(SocketAddr, OwnedFd)> = Vec::new();
        for datagram in unread {
            let bytes = match datagram.content {
                Some(object) => content(object)?,
                None => Vec::new(),
            };
            let sent = self
                .sender(image, datagram.from, socket, &mut senders)
                .and_then(|(sender, family)| {
                    let host = match is_any(local.ip()) {
                        true => datagram.from.ip(),
                        false => local.ip(),
                    };
                    let to = in_family(SocketAddr::new(host, local.port()), family);
                    self.deliver(receiver, socket, &datagram.from, || {
                        sendto(&sender, &bytes, SendFlags::DONTWAIT, &to)
                    })
                });
            if let Err(error) = sent {
                warn(format!(
                    "a datagram of {} bytes from {} to {local} that had not been read is lost: {error}",
                    bytes.len(),
                    datagram.from
                ));
            }
        }
        Ok(())
    }

    /// Does the sending. Of several sockets with one address the kernel chooses one; but it prefers one
    /// that is connected to the sender.
    fn deliver(
        &self,
        receiver: &OwnedFd,
        socket: &InetSocket,
        from: &SocketAddr,
        send: impl FnOnce() -> Result<usize, Errno>,
    ) -> io::Result<()> {
        let shares = |name| socket.options.number(name) != 0;
        let chosen = socket.peer().is_none() && (shares("SO_REUSEPORT") || shares("SO_REUSEADDR"));
        if chosen {
            rustix::net::connect(receiver, from)?;
        }
        let sent = send();
        if chosen {
            rustix::net::connect_unspec(receiver)?;
        }
        sent?;
        Ok(())
    }

    /// A socket with this address: one of the image's, or one of our own for the time being.
    fn sender(
        &self,
        image: &InetImage,
        from: SocketAddr,
        receiver: &InetSocket,
        own: &mut Vec<(SocketAddr, OwnedFd)>,
    ) -> io::Result<(OwnedFd, super::Family)> {
        let is_it = |socket: &InetSocket| {
            matches!(socket.state, SocketState::Datagrams { .. })
                && socket.local.is_some_and(|local| {
                    let (local, from) = (canonical(local), canonical(from));
                    local.port() == from.port() && (local.ip() == from.ip() || is_any(local.ip()))
                })
        };
        if let Some(index) = image.sockets.iter().position(is_it) {
            let family = image.sockets[index].family;
            return Ok((self.sockets[index].try_clone()?, family));
        }
        if let Some((_, sender)) = own.iter().find(|(address, _)| *address == from) {
            return Ok((sender.try_clone()?, receiver.family));
        }
        let sender = receiver.kind().socket()?;
        rustix::net::bind(&sender, &from)?;
        own.push((from, sender.try_clone()?));
        Ok((sender, receiver.family))
    }
}

fn send_urgent(
    sender: &OwnedFd,
    receiver: &OwnedFd,
    bytes: &[u8],
    urgent: Urgent,
) -> Result<(), ProcError> {
    let Some((before, after)) = bytes.split_at_checked(urgent.after) else {
        return Err(ProcError::BadImage(
            "an urgent byte is behind the end of what was received".into(),
        ));
    };
    send_all(sender, receiver, before)?;
    send(sender, &[urgent.byte], SendFlags::OOB | SendFlags::NOSIGNAL)
        .map_err(ProcError::system("sending an urgent byte"))?;
    send_all(sender, receiver, after)
}

/// Sends bytes to one who is not there yet.
fn send_to_nobody(sender: &OwnedFd, bytes: &[u8]) -> Result<(), ProcError> {
    fill_up(sender, bytes).map_err(ProcError::system(format!(
        "filling a connection that waits to be accepted with {} bytes",
        bytes.len()
    )))
}

/// Sends bytes that the receiver does not read. What does not fit into its buffer stays in the
/// sender's.
fn send_all(sender: &OwnedFd, receiver: &OwnedFd, bytes: &[u8]) -> Result<(), ProcError> {
    const ALWAYS_FITS: usize = 1 << 14;
    let what = || format!("filling a TCP connection with {} bytes", bytes.len());
    if bytes.len() > ALWAYS_FITS {
        enlarge(receiver.as_fd(), bytes.len()).map_err(ProcError::system(what()))?;
    }
    fill_up(sender, bytes).map_err(ProcError::system(what()))
}

pub(super) fn fill_up(sender: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match send(&sender, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent..],
            Err(Errno::AGAIN) => wait_for(&sender, PollFlags::OUT)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
