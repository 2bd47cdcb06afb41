//! Open descriptors: which there are, what they lead to, and how they come back.
//!
//! Two things are kept apart, as in the kernel: a *descriptor* is a number in the process's table
//! with its close-on-exec flag; an *open file description* is what it refers to, with offset and
//! status flags. Several descriptors may share one description (dup(2)), and several descriptions
//! one object (a pipe, a file).
//!
//! Each kind of object has a module that recognizes it from what `/proc` shows, saves what `/proc`
//! does not show, and makes it again:
//!
//! | module | objects |
//! |---|---|
//! | [`external`] | what an agent has declared as its own |
//! | [`regular`] | files and directories with a name, and removed files with their content |
//! | [`directory`] | removed directories |
//! | [`pipe`], [`fifo`] | pipes within the tree, with their content |
//! | [`mqueue`] | POSIX message queues, with their messages |
//! | [`unix`] | UNIX sockets with their connections and queues |
//! | [`netlink`] | netlink sockets |
//! | [`device`] | `/dev/null` and its like |
//! | [`eventfd`], [`timerfd`], [`signalfd`] | counters, timers and signals that are read |
//! | [`epoll`], [`inotify`] | what waits for many, what watches files |
//! | [`inet`] | TCP and UDP sockets, with connections within |
//! | [`pidfd`], `namespace` | processes and namespaces |
//! | [`terminal`] | pseudo-terminals |
//! | [`inherit`] | standard input and output that lead outside |
//!
//! What none of them recognizes is an [`Obstacle`](crate::Obstacle), see [`survey`].
//!
//! Restoring has two steps. [`Prepared::new`] runs in the init process *before* the new processes are
//! cloned off it: it opens and makes all objects by ordinary calls, at numbers above all that the
//! image needs. All processes inherit them, and [`restore`] moves them to their numbers by remote
//! calls.

mod capture;
pub mod device;
pub mod directory;
pub mod epoll;
pub mod eventfd;
pub mod external;
pub mod fifo;
mod holders;
pub mod inet;
pub mod inherit;
pub mod inotify;
pub mod input_signals;
pub mod locks;
pub mod mqueue;
mod namespace;
pub mod netlink;
pub mod pidfd;
pub mod pipe;
mod prepare;
pub mod regular;
mod restore;
mod search;
mod share;
pub mod signalfd;
pub mod survey;
pub mod terminal;
pub mod timerfd;
pub mod unix;

pub(crate) use capture::{RemoteWork, Tables, capture};
pub use prepare::{Prepared, preflight};
pub(crate) use restore::{finish, restore};

use crate::error::ProcError;
use crate::ids::RemoteFd;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the descriptors of a tree of processes lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesImage {
    /// Open file descriptions.
    pub descriptions: Vec<Description>,
    /// Pipes that descriptions are ends of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipes: Vec<pipe::PipeImage>,
    /// Removed files that descriptions are open on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<regular::RemovedFile>,
    /// POSIX message queues that descriptions are open on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<mqueue::QueueImage>,
    /// TCP and UDP sockets.
    #[serde(default, skip_serializing_if = "inet::InetImage::is_empty")]
    pub inet: inet::InetImage,
    /// UNIX sockets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unix: Vec<unix::UnixSocket>,
    /// Pseudo-terminals whose master side is within the tree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terminals: Vec<terminal::TerminalImage>,
    /// The controlling terminal if its master side is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_terminal: Option<terminal::Outer>,
}

/// A number in the descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The number.
    pub fd: RemoteFd,
    /// Index into [`FilesImage::descriptions`].
    pub description: usize,
    /// Whether exec closes it.
    #[serde(default)]
    pub close_on_exec: bool,
}

/// An open file description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Access mode and status flags (`O_*`), without `O_CLOEXEC`.
    pub flags: u32,
    /// What it is open on.
    #[serde(flatten)]
    pub object: Object,
    /// File locks held through it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<locks::LockImage>,
    /// Who is told of input by signals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_signals: Option<input_signals::InputSignals>,
    /// How long what is written is expected to live (`F_SET_RW_HINT`), 0 for no hint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub write_hint: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a description is open on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Object {
    /// Declared by an agent; the restart brings an open descriptor for it.
    External {
        /// The agent's name for it.
        key: String,
    },
    /// The restart's own standard input, output or error.
    Stdio(inherit::Stdio),
    /// A file or directory with a name.
    Named(regular::NamedFile),
    /// A file without a name.
    Removed(regular::OpenRemoved),
    /// A directory without a name.
    RemovedDirectory(directory::RemovedDirectory),
    /// One end of a pipe.
    Pipe(pipe::PipeEnd),
    /// A POSIX message queue.
    MessageQueue(mqueue::OpenQueue),
    /// A UNIX socket.
    Unix(unix::SocketRef),
    /// A netlink socket.
    Netlink(netlink::Netlink),
    /// A device that is the same everywhere.
    Device(device::Device),
    /// An event counter.
    EventFd(eventfd::EventFd),
    /// A timer that is read.
    TimerFd(timerfd::TimerFd),
    /// Signals that are read.
    SignalFd(signalfd::SignalFd),
    /// A set of watched descriptors.
    Epoll(epoll::Epoll),
    /// A TCP or UDP socket.
    Inet(inet::InetDescription),
    /// Watches of files.
    Inotify(inotify::Inotify),
    /// A process.
    PidFd(pidfd::PidFd),
    /// A side of a pseudo-terminal.
    Terminal(terminal::TerminalEnd),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::External { key } => write!(f, "external {key}"),
            Self::Stdio(stdio) => write!(f, "standard stream {}", stdio.fd),
            Self::Named(file) => file.identity.path.fmt(f),
            Self::Removed(_) => f.write_str("removed file"),
            Self::Pipe(_) => f.write_str("pipe"),
            Self::MessageQueue(_) => f.write_str("message queue"),
            Self::Netlink(_) => f.write_str("netlink socket"),
            Self::Unix(_) => f.write_str("UNIX socket"),
            Self::Device(device) => device.path.fmt(f),
            Self::EventFd(_) => f.write_str("eventfd"),
            Self::TimerFd(_) => f.write_str("timerfd"),
            Self::SignalFd(_) => f.write_str("signalfd"),
            Self::Epoll(_) => f.write_str("epoll"),
            Self::Inet(_) => f.write_str("TCP or UDP socket"),
            Self::Inotify(_) => f.write_str("inotify"),
            Self::PidFd(_) => f.write_str("pidfd"),
            Self::RemovedDirectory(_) => f.write_str("removed directory"),
            Self::Terminal(_) => f.write_str("pseudo-terminal"),
        }
    }
}

impl FilesImage {
    /// Checks that the parts refer to each other as they must.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] with the first contradiction.
    pub fn validate(&self) -> Result<(), ProcError> {
        if let Some(queue) = self.queues.iter().find(|queue| !queue.is_sound()) {
            return Err(ProcError::BadImage(format!(
                "message queue {} cannot be",
                queue.name
            )));
        }
        unix::image::validate(&self.unix, self.descriptions.len())?;
        let mut sockets = vec![false; self.unix.len()];
        for description in &self.descriptions {
            if let Object::Unix(end) = &description.object
                && let Some(taken) = sockets.get_mut(end.socket)
                && std::mem::replace(taken, true)
            {
                return Err(ProcError::BadImage(
                    "two descriptions are of one UNIX socket".into(),
                ));
            }
            let there = match &description.object {
                Object::Removed(open) => open.file < self.removed.len(),
                Object::Pipe(end) => end.pipe < self.pipes.len(),
                Object::MessageQueue(open) => open.queue < self.queues.len(),
                Object::Unix(end) => end.socket < self.unix.len(),
                Object::Netlink(socket) if !socket.is_valid() => {
                    return Err(ProcError::BadImage("a netlink socket cannot be".into()));
                }
                Object::Stdio(stdio) => stdio.fd < 3,
                Object::Inet(inet) => inet.socket < self.inet.sockets.len(),
                Object::Terminal(end) => end.terminal < self.terminals.len(),
                _ => true,
            };
            if !there {
                return Err(ProcError::BadImage(format!(
                    "a descriptor of a {} refers to nothing",
                    description.object
                )));
            }
        }
        terminal::validate(&self.terminals)?;
        self.inet.validate()
    }

    /// By which name the master side of the terminal with this index was opened.
    fn master_side(&self, index: usize) -> Option<terminal::Side> {
        self.descriptions
            .iter()
            .find_map(|description| match &description.object {
                Object::Terminal(end) if end.terminal == index && end.side.is_master() => {
                    Some(end.side)
                }
                _ => None,
            })
    }

    /// Checks a process's table of descriptors.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] with the first contradiction.
    pub fn validate_table(&self, table: &[Descriptor]) -> Result<(), ProcError> {
        let mut last = -1;
        for descriptor in table {
            if descriptor.fd.0 <= last || descriptor.description >= self.descriptions.len() {
                return Err(ProcError::BadImage(format!(
                    "descriptor {} is out of order or of nothing",
                    descriptor.fd
                )));
            }
            last = descriptor.fd.0;
        }
        Ok(())
    }
}

/// The bits of the open flags that hold the access mode.
const ACCESS_MODE: u32 = libc::O_ACCMODE.cast_unsigned();

/// Whether `flags` has all bits of the libc constant `bits`.
fn has_flag(flags: u32, bits: libc::c_int) -> bool {
    flags & bits.cast_unsigned() == bits.cast_unsigned()
}

fn can_read(flags: u32) -> bool {
    flags & ACCESS_MODE != libc::O_WRONLY.cast_unsigned()
}

pub(crate) fn can_write(flags: u32) -> bool {
    flags & ACCESS_MODE != libc::O_RDONLY.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_reads_well_and_comes_back() {
        let image = FilesImage {
            descriptions: vec![Description {
                flags: 2,
                object: Object::EventFd(eventfd::EventFd {
                    count: 3,
                    semaphore: false,
                }),
                locks: Vec::new(),
                input_signals: None,
                write_hint: 0,
            }],
            ..FilesImage::default()
        };
        let json = serde_json::to_string(&image).unwrap();
        assert!(
            json.contains(r#"{"flags":2,"kind":"event-fd","count":3,"semaphore":false}"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<FilesImage>(&json).unwrap(), image);
        image.validate().unwrap();
    }

    #[test]
    fn references_to_nothing_are_refused() {
        let description = |object| Description {
            flags: 0,
            object,
            locks: Vec::new(),
            input_signals: None,
            write_hint: 0,
        };
        let of_nothing = [
            Object::MessageQueue(mqueue::OpenQueue { queue: 0 }),
            Object::Pipe(pipe::PipeEnd {
                pipe: 0,
                awaits_writer: false,
            }),
            Object::Removed(regular::OpenRemoved { file: 0, offset: 0 }),
            Object::Stdio(inherit::Stdio {
                fd: 3,
                was: String::new(),
            }),
        ];
        for object in of_nothing {
            let image = FilesImage {
                descriptions: vec![description(object)],
                ..FilesImage::default()
            };
            assert!(image.validate().is_err());
        }
        let image = FilesImage {
            descriptions: vec![description(Object::External { key: "a".into() })],
            ..FilesImage::default()
        };
        let descriptor = |(fd, description)| Descriptor {
            fd: RemoteFd(fd),
            description,
            close_on_exec: false,
        };
        for bad in [
            &[(3, 0), (3, 0)][..],
            &[(4, 0), (3, 0)],
            &[(-1, 0)],
            &[(3, 1)],
        ] {
            let table: Vec<Descriptor> = bad.iter().copied().map(descriptor).collect();
            assert!(image.validate_table(&table).is_err(), "{bad:?}");
        }
        image
            .validate_table(&[descriptor((3, 0)), descriptor((4, 0))])
            .unwrap();
    }
}
