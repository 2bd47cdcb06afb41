//! Channels: ordered messages with descriptors between two processes of one machine.
//!
//! A channel is a connected UNIX socket of type `SOCK_SEQPACKET` (unix(7)): messages keep their boundaries
//! and order, and descriptors travel with the message they belong to (`SCM_RIGHTS`). Bodies are JSON. A body
//! that is too large for a packet travels in a sealed memory file (memfd_create(2)) beside an empty packet.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bodies up to this many bytes travel in the packet itself.
const INLINE: usize = 32 * 1024;

/// Largest body of a message in bytes (an environment block, at most 2 MiB by execve(2), and its JSON quoting).
const LARGEST: u64 = 16 * 1024 * 1024;

/// Most descriptors in one message (`SCM_MAX_FD` of the kernel is 253; one is kept for a large body).
pub const MAX_DESCRIPTORS: usize = 252;

/// First byte of a packet whose body follows in it.
const BODY_HERE: u8 = b'{';
/// A packet that consists of this byte has its body in a memory file, its last descriptor.
const BODY_IN_FILE: u8 = b'F';

/// Sending or receiving on a channel failed.
#[derive(thiserror::Error, Debug)]
pub enum ChannelError {
    /// The other end has closed the connection or is dead.
    #[error("the other end of the channel is gone")]
    Closed,
    /// The other end does not read; only from [`Channel::send_now`].
    #[error("the other end of the channel does not read its messages")]
    Full,
    /// A call on the socket failed.
    #[error("cannot {operation} on the channel: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A call that names a path failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Path {
        /// What was tried.
        operation: &'static str,
        /// The socket's path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A message is larger than any that the protocol has, or carries too many descriptors.
    #[error(
        "a message of {bytes} bytes with {descriptors} descriptors is larger than a channel takes"
    )]
    TooLarge {
        /// Bytes of the body.
        bytes: u64,
        /// Descriptors beside it.
        descriptors: usize,
    },
    /// What came is no message of the protocol.
    #[error("a message that came over the channel makes no sense: {0}")]
    Malformed(String),
}

impl ChannelError {
    fn io(operation: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            Errno::AGAIN => Self::Full,
            errno => Self::Io {
                operation,
                source: errno.into(),
            },
        }
    }

    fn path(operation: &'static str, path: &Path) -> impl Fn(Errno) -> Self {
        let path = path.to_owned();
        move |errno| Self::Path {
            operation,
            path: path.clone(),
            source: errno.into(),
        }
    }
}

/// Who is at the other end, as the kernel saw it when the connection was made (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCredentials {
    /// Process id in the caller's namespace.
    pub pid: i32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// One end of a connection. Can be polled by its descriptor; closes on exec.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Makes two connected ends.
    ///
    /// # Errors
    /// If the process has too many descriptors.
    pub fn pair() -> Result<(Self, Self), ChannelError> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(ChannelError::io("make a pair of sockets"))?;
        Ok((Self { socket: a }, Self { socket: b }))
    }

    /// Connects to a [`Listener`].
    ///
    /// # Errors
    /// If nobody listens at `path`, or the path is longer than socket addresses allow (107 bytes).
    pub fn connect(path: &Path) -> Result<Self, ChannelError> {
        let address = SocketAddrUnix::new(path).map_err(ChannelError::path("connect to", path))?;
        let socket = seqpacket_socket()?;
        retry(|| rustix::net::connect(&socket, &address))
            .map_err(ChannelError::path("connect to", path))?;
        Ok(Self { socket })
    }

    /// Takes over a connected socket.
    #[must_use]
    pub fn from_fd(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends one message and waits while the other end has too many unread ones.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] if the other end is gone; never a signal.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.send_with(message, descriptors, SendFlags::empty())
    }

    /// Sends one message, or fails with [`ChannelError::Full`] where [`send`](Self::send) would wait. For a
    /// process that must not depend on its peer's good will.
    ///
    /// # Errors
    /// As `send`, and `Full`.
    pub fn send_now<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.send_with(message, descriptors, SendFlags::DONTWAIT)
    }

    fn send_with<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
        let body = serde_json::to_vec(message)
            .map_err(|error| ChannelError::Malformed(error.to_string()))?;
        if descriptors.len() > MAX_DESCRIPTORS || body.len() as u64 > LARGEST {
            return Err(ChannelError::TooLarge {
                bytes: body.len() as u64,
                descriptors: descriptors.len(),
            });
        }
        if body.len() <= INLINE && body.first() == Some(&BODY_HERE) {
            return self.send_packet(&body, descriptors, flags);
        }
        let file = sealed_file(&body)?;
        let mut all = descriptors.to_vec();
        all.push(file.as_fd());
        self.send_packet(&[BODY_IN_FILE], &all, flags)
    }

    fn send_packet(
        &self,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
        let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(fds).size()];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent = retry(|| {
            rustix::net::sendmsg(
                &self.socket,
                &[IoSlice::new(body)],
                &mut ancillary,
                flags | SendFlags::NOSIGNAL,
            )
        });
        sent.map(|_| ()).map_err(ChannelError::io("send"))
    }

    /// Waits for one message. Its descriptors close on exec.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] if the other end is gone and everything it sent has been received;
    /// [`ChannelError::Malformed`] if the body is not a `T`.
    pub fn recv<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let mut packet = vec![0; INLINE];
        let mut space =
            vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS + 1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry(|| {
            rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut packet)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        })
        .map_err(ChannelError::io("receive"))?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC)
            || received.flags.contains(ReturnFlags::CTRUNC)
        {
            return Err(ChannelError::Malformed(
                "it is larger than any of the protocol, or this process has too many descriptors"
                    .into(),
            ));
        }
        let body = &packet[..received.bytes];
        let message = match body.first() {
            None => return Err(ChannelError::Closed),
            Some(&BODY_IN_FILE) if body.len() == 1 => {
                let file = descriptors
                    .pop()
                    .ok_or_else(|| ChannelError::Malformed("its body is missing".into()))?;
                parse(&sealed_content(file)?)?
            }
            Some(_) => parse(body)?,
        };
        Ok((message, descriptors))
    }

    /// Who connected, or was connected to.
    ///
    /// # Errors
    /// If this is no UNIX socket.
    pub fn peer_credentials(&self) -> Result<PeerCredentials, ChannelError> {
        let credentials = rustix::net::sockopt::socket_peercred(&self.socket)
            .map_err(ChannelError::io("read the peer's credentials"))?;
        Ok(PeerCredentials {
            pid: credentials.pid.as_raw_nonzero().get(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        })
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.socket
    }
}

/// Waits for connections at a path. The path is removed when the listener is dropped, unless it is to be kept.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    keeps_path: bool,
}

impl Listener {
    /// Makes the socket file (which must not exist) and listens. Who may connect is a matter of the
    /// directory's permissions.
    ///
    /// # Errors
    /// If the path exists, is too long (107 bytes) or cannot be made.
    pub fn bind(path: &Path) -> Result<Self, ChannelError> {
        let address =
            SocketAddrUnix::new(path).map_err(ChannelError::path("make the socket", path))?;
        let socket = seqpacket_socket()?;
        rustix::net::bind(&socket, &address)
            .map_err(ChannelError::path("make the socket", path))?;
        let listener = Self {
            socket,
            path: path.to_owned(),
            keeps_path: false,
        };
        rustix::net::listen(&listener.socket, 64).map_err(ChannelError::path("listen on", path))?;
        Ok(listener)
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// If the process has too many descriptors.
    pub fn accept(&self) -> Result<Channel, ChannelError> {
        let socket = retry(|| rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC))
            .map_err(ChannelError::path("accept a connection at", &self.path))?;
        Ok(Channel { socket })
    }

    /// Leaves it to the caller to remove the path.
    pub fn keep_path(&mut self) {
        self.keeps_path = true;
    }

    /// The path it listens at.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked copy that drops it would take the path away from the original: such copies end by `_exit`.
        if !self.keeps_path {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn seqpacket_socket() -> Result<OwnedFd, ChannelError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(ChannelError::io("make a socket"))
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ChannelError> {
    serde_json::from_slice(body).map_err(|error| ChannelError::Malformed(error.to_string()))
}

fn sealed_file(body: &[u8]) -> Result<File, ChannelError> {
    let io = ChannelError::io("make a memory file for a large message");
    let fd = memfd_create(
        "snapify-message",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )
    .map_err(&io)?;
    let mut file = File::from(fd);
    file.write_all(body).map_err(|source| ChannelError::Io {
        operation: "write a large message",
        source,
    })?;
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )
    .map_err(&io)?;
    Ok(file)
}

/// Reads a body from a file that its sender cannot change any more.
fn sealed_content(file: OwnedFd) -> Result<Vec<u8>, ChannelError> {
    let malformed = |what: &str| ChannelError::Malformed(what.to_owned());
    let seals = fcntl_get_seals(&file).map_err(|_| malformed("its body is no memory file"))?;
    if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) {
        return Err(malformed("its body is not sealed"));
    }
    let file = File::from(file);
    let io = |source| ChannelError::Io {
        operation: "read a large message",
        source,
    };
    let bytes = file.metadata().map_err(io)?.len();
    if bytes > LARGEST {
        return Err(ChannelError::TooLarge {
            bytes,
            descriptors: 0,
        });
    }
    // At most `LARGEST`, so it fits.
    let mut body = vec![0; bytes as usize];
    file.read_exact_at(&mut body, 0).map_err(io)?;
    Ok(body)
}

#[cfg(test)]
mod tests;
