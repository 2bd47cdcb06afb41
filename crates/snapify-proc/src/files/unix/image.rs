//! UNIX sockets as they are stored.

use crate::error::ProcError;
use crate::path::ImagePath;
use rustix::net::SocketType;
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use snapify_sys::unix_socket::{LONGEST_ADDRESS, MOST_DESCRIPTORS};
use std::collections::BTreeMap;

/// A description of a UNIX socket. No two descriptions are of the same socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRef {
    /// Index into [`FilesImage::unix`](crate::files::FilesImage::unix).
    pub socket: usize,
}

/// A UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnixSocket {
    /// How it treats messages.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// What it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// How it is connected.
    #[serde(flatten)]
    pub link: Link,
    /// The process that `SO_PEERCRED` shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_pid: Option<i32>,
    /// 1 if it receives no more, 2 if it sends no more, 3 for both.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shutdown: u8,
    /// Whether the next call on it reports that its peer has reset the connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Options that are not as in a new socket, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, i64>,
    /// What it has received.
    #[serde(default, skip_serializing_if = "Queue::is_empty")]
    pub queue: Queue,
    /// What it has sent on a connection that nobody has accepted yet.
    #[serde(default, skip_serializing_if = "Queue::is_empty")]
    pub sent: Queue,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u8) -> bool {
    *value == 0
}

/// How a socket treats messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// As bytes, in a connection.
    Stream,
    /// One by one, each for itself.
    Datagram,
    /// One by one, in a connection.
    Packet,
}

impl Kind {
    /// The socket type of the system.
    #[must_use]
    pub fn socket_type(self) -> SocketType {
        match self {
            Self::Stream => SocketType::STREAM,
            Self::Datagram => SocketType::DGRAM,
            Self::Packet => SocketType::SEQPACKET,
        }
    }

    pub(crate) fn of(kind: u8) -> Option<Self> {
        match i32::from(kind) {
            libc::SOCK_STREAM => Some(Self::Stream),
            libc::SOCK_DGRAM => Some(Self::Datagram),
            libc::SOCK_SEQPACKET => Some(Self::Packet),
            _ => None,
        }
    }
}

/// What a socket is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// The address: a path as it was given to bind(2), or a zero byte and an abstract name.
    pub address: ImagePath,
    /// The file, if the path still led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<SocketFile>,
}

impl Name {
    /// Whether it is one that exists without a file.
    #[must_use]
    pub fn is_abstract(&self) -> bool {
        self.address.as_bytes().first() == Some(&0)
    }
}

/// The file of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    /// The directory that the address is relative to, if it is not absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<ImagePath>,
    /// Permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// How a socket is connected. Numbers are indices of sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "link", rename_all = "kebab-case")]
pub enum Link {
    /// Not at all.
    None,
    /// It takes connections.
    Listening {
        /// How many may wait.
        backlog: u32,
        /// Those that wait, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<usize>,
    },
    /// With this one. Only for datagrams may that one be connected to another, or to none.
    Connected {
        /// The other one.
        peer: usize,
    },
    /// It waits to be accepted.
    Waiting {
        /// By this one.
        listener: usize,
        /// The process that has connected it, 0 if it is not known.
        by: i32,
    },
    /// Its peer has been closed.
    Orphaned {
        /// The address that the peer had.
        #[serde(default, skip_serializing_if = "is_empty")]
        peer_name: ImagePath,
    },
    /// Datagrams go to a service of the system, as syslog.
    Service {
        /// Where it is found.
        address: ImagePath,
    },
}

fn is_empty(path: &ImagePath) -> bool {
    path.as_bytes().is_empty()
}

/// What a socket has received and its program has not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The object with the bytes of all messages, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<SpaceId>,
    /// The messages; of a stream the pieces in which it was sent.
    pub messages: Vec<Message>,
}

impl Queue {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Length of its content.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.messages.iter().map(|message| message.bytes).sum()
    }
}

/// A message in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Length.
    pub bytes: u64,
    /// Address of the sender of a datagram.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub sender: ImagePath,
    /// Open file descriptions on their way, as indices into
    /// [`FilesImage::descriptions`](crate::files::FilesImage::descriptions).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub descriptors: Vec<usize>,
    /// Who has sent it, if the kernel has noted that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Sender>,
    /// Whether it is the one byte that was sent out of band.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub urgent: bool,
}

/// Who has sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Longest content of a queue: buffers of sockets have sizes that fit in an `int`.
const LONGEST_QUEUE: u64 = 1 << 31;

/// Checks that sockets refer to each other as they must.
///
/// # Errors
/// [`ProcError::BadImage`] with the first contradiction.
pub fn validate(sockets: &[UnixSocket], descriptions: usize) -> Result<(), ProcError> {
    for (index, socket) in sockets.iter().enumerate() {
        let bad = |why: &str| Err(ProcError::BadImage(format!("UNIX socket {index} {why}")));
        if !is_linked(sockets, index) {
            return bad("is connected with nothing, or with one that is not connected with it");
        }
        let addresses = [
            socket.name.as_ref().map(|name| &name.address),
            match &socket.link {
                Link::Orphaned { peer_name: other } | Link::Service { address: other } => {
                    Some(other)
                }
                _ => None,
            },
        ];
        let senders = socket.queue.messages.iter().map(|message| &message.sender);
        if addresses
            .into_iter()
            .flatten()
            .chain(senders)
            .any(|address| !is_address(address.as_bytes()))
        {
            return bad("has an address that cannot be");
        }
        if socket
            .name
            .as_ref()
            .is_some_and(|name| name.address.as_bytes().is_empty())
        {
            return bad("is bound to nothing");
        }
        if socket.shutdown > 3 {
            return bad("is shut down in a way that cannot be");
        }
        if !super::options::are_known(&socket.options) {
            return bad("has options that are not known here");
        }
        for message in socket.queue.messages.iter().chain(&socket.sent.messages) {
            if message.bytes > LONGEST_QUEUE
                || message.descriptors.len() > MOST_DESCRIPTORS
                || message.descriptors.iter().any(|&at| at >= descriptions)
                || message.urgent && (message.bytes != 1 || socket.kind != Kind::Stream)
            {
                return bad("has a message that cannot be");
            }
        }
        for queue in [&socket.queue, &socket.sent] {
            let count = queue.messages.len() as u64;
            // No sum of these overflows.
            if count > LONGEST_QUEUE
                || queue.bytes() > LONGEST_QUEUE
                || (queue.bytes() > 0) != queue.content.is_some()
            {
                return bad("has a queue that cannot be");
            }
        }
        let carries = |message: &Message| !message.descriptors.is_empty();
        let waits = matches!(socket.link, Link::Waiting { .. });
        if !waits && !socket.sent.is_empty() || socket.sent.messages.iter().any(carries) {
            return bad("has sent what it cannot have");
        }
        let has_sender = match socket.link {
            Link::Connected { .. } | Link::Orphaned { .. } => true,
            Link::Waiting { .. } | Link::Listening { .. } => false,
            Link::None | Link::Service { .. } => socket.kind == Kind::Datagram,
        };
        if !socket.queue.is_empty() && !has_sender {
            return bad("has received messages, but nobody could have sent them");
        }
    }
    Ok(())
}

fn is_address(bytes: &[u8]) -> bool {
    bytes.len() <= LONGEST_ADDRESS && (bytes.first() == Some(&0) || !bytes.contains(&0))
}

fn is_linked(sockets: &[UnixSocket], index: usize) -> bool {
    let this = &sockets[index];
    let is_connection = this.kind != Kind::Datagram;
    match &this.link {
        Link::None => true,
        Link::Orphaned { .. } => true,
        Link::Service { address } => !is_connection && !is_empty(address),
        Link::Connected { peer } => sockets.get(*peer).is_some_and(|other| {
            let mutual = other.link == Link::Connected { peer: index } && *peer != index;
            other.kind == this.kind && (mutual || !is_connection)
        }),
        Link::Listening { waiting, .. } => {
            let waits = |at: &usize| {
                sockets.get(*at).is_some_and(|other| {
                    other.kind == this.kind
                        && matches!(other.link, Link::Waiting { listener, .. } if listener == index)
                })
            };
            let mut distinct = waiting.clone();
            distinct.sort_unstable();
            distinct.dedup();
            is_connection
                && this.name.is_some()
                && distinct.len() == waiting.len()
                && waiting.iter().all(waits)
        }
        Link::Waiting { listener, .. } => {
            is_connection
                && sockets.get(*listener).is_some_and(
                    |other| matches!(&other.link, Link::Listening { waiting, .. } if waiting.contains(&index)),
                )
        }
    }
}

/// Which end of a connection between two sockets was accepted, and thus has only inherited its name; `None` if they were
/// made as a pair. A listening socket with the same name decides; without one it may have been the other end,
/// which makes no difference to the two.
pub(super) fn accepted_end(sockets: &[UnixSocket], a: usize, b: usize) -> Option<usize> {
    match (&sockets[a].name, &sockets[b].name) {
        (None, None) => None,
        (Some(_), None) => Some(a),
        (None, Some(_)) => Some(b),
        (Some(name), Some(_)) if is_listening_at(sockets, name) => Some(a),
        (Some(_), Some(_)) => Some(b),
    }
}

/// Whether one of the sockets listens at this address.
pub(super) fn is_listening_at(sockets: &[UnixSocket], name: &Name) -> bool {
    sockets.iter().any(|socket| {
        matches!(socket.link, Link::Listening { .. })
            && socket
                .name
                .as_ref()
                .is_some_and(|own| own.address == name.address)
    })
}

/// Whether a socket is bound to its name, rather than having inherited it as it was accepted.
pub(super) fn owns_name(sockets: &[UnixSocket], index: usize) -> bool {
    let socket = &sockets[index];
    let Some(name) = &socket.name else {
        return false;
    };
    match &socket.link {
        _ if socket.kind == Kind::Datagram => true,
        Link::Connected { peer } => accepted_end(sockets, index, *peer) != Some(index),
        Link::Orphaned { peer_name } => !is_empty(peer_name) && !is_listening_at(sockets, name),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn plain(kind: Kind, link: Link) -> UnixSocket {
        UnixSocket {
            kind,
            name: None,
            link,
            peer_pid: None,
            shutdown: 0,
            reset: false,
            options: BTreeMap::new(),
            queue: Queue::default(),
            sent: Queue::default(),
        }
    }

    #[test]
    fn links_must_be_mutual() {
        let to = |peer| Link::Connected { peer };
        let stream = |link| plain(Kind::Stream, link);
        let datagram = |link| plain(Kind::Datagram, link);
        assert!(validate(&[stream(to(1)), stream(to(0))], 0).is_ok());
        assert!(validate(&[stream(to(0))], 0).is_err());
        assert!(validate(&[stream(to(1)), stream(Link::None)], 0).is_err());
        assert!(validate(&[stream(to(1)), datagram(to(0))], 0).is_err());
        assert!(validate(&[datagram(to(1)), datagram(Link::None)], 0).is_ok());
        assert!(validate(&[datagram(to(2)), datagram(Link::None)], 0).is_err());
        let mut listening = stream(Link::Listening {
            backlog: 1,
            waiting: vec![1],
        });
        let client = stream(Link::Waiting { listener: 0, by: 0 });
        assert!(validate(&[listening.clone(), client.clone()], 0).is_err());
        listening.name = Some(Name {
            address: ImagePath::from_bytes("\0x"),
            file: None,
        });
        assert!(validate(&[listening.clone(), client.clone()], 0).is_ok());
        assert!(validate(&[client, listening], 0).is_err());
    }

    #[test]
    fn messages_must_be_possible() {
        let pair = |message: Message, content| {
            let mut a = plain(Kind::Stream, Link::Connected { peer: 1 });
            a.queue.messages.push(message);
            a.queue.content = content;
            vec![a, plain(Kind::Stream, Link::Connected { peer: 0 })]
        };
        let message = Message {
            bytes: 3,
            ..Message::default()
        };
        let content = Some(SpaceId(1));
        assert!(validate(&pair(message.clone(), content), 0).is_ok());
        assert!(validate(&pair(message.clone(), None), 0).is_err());
        let carrying = Message {
            descriptors: vec![4],
            ..message.clone()
        };
        assert!(validate(&pair(carrying.clone(), content), 5).is_ok());
        assert!(validate(&pair(carrying, content), 4).is_err());
        let long = Message {
            bytes: u64::MAX,
            ..message
        };
        assert!(validate(&pair(long, content), 0).is_err());
    }

    #[test]
    fn an_image_reads_well_and_comes_back() {
        let socket = plain(
            Kind::Packet,
            Link::Orphaned {
                peer_name: ImagePath::from_bytes("/a"),
            },
        );
        let json = serde_json::to_string(&socket).unwrap();
        assert_eq!(
            json,
            r#"{"type":"packet","link":"orphaned","peer_name":"/a"}"#
        );
        assert_eq!(serde_json::from_str::<UnixSocket>(&json).unwrap(), socket);
    }
}
