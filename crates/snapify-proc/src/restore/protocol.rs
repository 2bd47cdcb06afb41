//! What an init and its creator tell each other over their socket: one JSON text per message.

use crate::error::ProcError;
use crate::ids::Pid;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use snapify_store::SpaceId;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest message in bytes. A long error is cut.
const LIMIT: usize = 64 * 1024;
/// Longest error text.
const TEXT_LIMIT: usize = 16 * 1024;

/// From the creator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToInit {
    /// Let the process go.
    Start {
        /// Whether its foreground group is put in the foreground of the terminal.
        foreground: bool,
    },
}

/// From the init, in this order: any number of `Progress`, any number of `Tracked`, then `Ready`, `Started`, any number of `Stopped`, `Ended`; at any time before
/// `Ended` instead a `Failed`, after which the init ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromInit {
    /// So many bytes more have been restored.
    Progress(u64),
    /// It did not work.
    Failed {
        /// The whole error as text.
        message: String,
        /// Whether it was a refusal, with what stands in the way.
        obstacles: Vec<crate::error::Obstacle>,
    },
    /// What is written to the memory of a process is followed. The userfaultfd that does so comes along.
    Tracked {
        /// The process, as it knows itself.
        pid: Pid,
        /// Its page space.
        space: SpaceId,
    },
    /// The process is complete and stopped. Its pidfd comes along.
    Ready {
        /// What is not quite as it was.
        warnings: Vec<String>,
    },
    /// The process runs.
    Started,
    /// The process has been stopped, as by job control.
    Stopped,
    /// The process has ended.
    Ended {
        /// With this wait status.
        status: i32,
        /// Whether the init goes on, because others of its namespace do.
        survive: bool,
    },
}

impl FromInit {
    pub(crate) fn failed(error: &ProcError) -> Self {
        let mut message = error.to_string();
        let mut end = message.len().min(TEXT_LIMIT);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        let obstacles = match error {
            ProcError::Unsupported { obstacles, .. } => {
                obstacles.iter().take(64).cloned().collect()
            }
            _ => Vec::new(),
        };
        Self::Failed { message, obstacles }
    }
}

/// Sends one message, with a descriptor if there is one.
pub(crate) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let bytes = serde_json::to_vec(message)?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    loop {
        match sendmsg(
            socket.as_fd(),
            &[io::IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

/// Receives one message; `None` when the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut bytes = vec![0; LIMIT];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let n = loop {
        let buffer = &mut [io::IoSliceMut::new(&mut bytes)];
        match recvmsg(
            socket.as_fd(),
            buffer,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(e) => return Err(e.into()),
            Ok(received) => break received.bytes,
        }
    };
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last();
        }
    }
    if n == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..n])?, fd)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn messages_and_descriptors_pass() {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(
            &a,
            &FromInit::Ready { warnings: vec![] },
            Some(file.as_fd()),
        )
        .unwrap();
        send(
            &a,
            &FromInit::failed(&ProcError::BadImage("\u{e4}".repeat(TEXT_LIMIT))),
            None,
        )
        .unwrap();
        drop(a);
        let (message, fd) = receive::<FromInit>(&b).unwrap().unwrap();
        assert_eq!(message, FromInit::Ready { warnings: vec![] });
        assert!(fd.is_some());
        assert!(matches!(
            receive(&b).unwrap(),
            Some((FromInit::Failed { .. }, None))
        ));
        assert!(receive::<FromInit>(&b).unwrap().is_none());
    }
}
