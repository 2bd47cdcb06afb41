//! Cards that the programs of one user on this machine share.
//!
//! `cards/<number>` in the runtime directory is the socket of a card's daemon. Who needs the card and finds nobody there
//! starts the daemon, which ends when the last supervisor that is connected with it has gone. Nothing is counted or noted
//! that a crash could leave wrong: the kernel closes the connections of the dead. Starting a daemon and removing a socket
//! happen under a lock on the directory.

use crate::card::Card;
use crate::error::JobError;
use crate::layout::Layout;
use crate::runtime_dir::{RuntimeDir, failed};
use crate::signals::Signals;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, open, statat, unlinkat};
use rustix::io::Errno;
use snapify_fabric::{Channel, ChannelError, Listener};
use snapify_offload::control::CardToSupervisor;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Memory in bytes of a card of which nobody says how large it is.
pub const DEFAULT_CARD_MEMORY: u64 = 4 << 30;

/// Which cards an application gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// So many of its own, of these sizes in bytes.
    Own(Vec<u64>),
    /// The first ones of those that are shared.
    Shared {
        /// The sizes in bytes of those that are not there yet: so many are wanted.
        otherwise: Vec<u64>,
        /// Bytes of memory that each must have, if that matters.
        memory: Option<u64>,
    },
}

impl Wanted {
    /// How many cards that are.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Own(memories) => memories.len(),
            Self::Shared { otherwise, .. } => otherwise.len(),
        }
    }
}

/// The directory of a user's shared cards.
pub(crate) struct SharedCards {
    dir: PathBuf,
}

impl SharedCards {
    /// Opens the directory; makes it if it is missing.
    pub(crate) fn open() -> Result<Self, JobError> {
        let dir = RuntimeDir::open()?.cards()?;
        Ok(Self { dir })
    }

    /// Connects with the card of that number, or starts it with `otherwise` bytes of memory, and waits until it is up.
    ///
    /// # Errors
    /// If it cannot be started, or has another size than `memory`, if one is given.
    pub(crate) fn join(
        &self,
        layout: &Layout,
        signals: &Signals,
        index: u32,
        memory: Option<u64>,
        otherwise: u64,
    ) -> Result<(Card, Vec<String>), JobError> {
        let _lock = lock_path(&self.dir)?;
        let socket = self.dir.join(index.to_string());
        if let Some(channel) = connect(&socket)? {
            let mut card = Card::of_others(index, channel);
            match card.await_ready() {
                Ok(warnings) => {
                    let has = card.info.memory;
                    if let Some(wanted) = memory.filter(|wanted| *wanted != has) {
                        return Err(JobError::Refused(format!(
                            "card {index} is shared and has {has} bytes of memory, not {wanted}: leave --card-memory \
                             out, or wait until the programs that share it have ended"
                        )));
                    }
                    return Ok((card, warnings));
                }
                // It was just ending.
                Err(JobError::Connection {
                    source: ChannelError::Closed,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        remove(&socket)?;
        let memory = memory.unwrap_or(otherwise);
        let mut card = Card::start(layout, signals, index, memory, Some(&socket))?;
        let warnings = card.await_ready()?;
        Ok((card, warnings))
    }

    /// Removes the socket of a card whose daemon was killed, unless there is a new one.
    pub(crate) fn forget(&self, index: u32) -> Result<(), JobError> {
        let _lock = lock_path(&self.dir)?;
        let socket = self.dir.join(index.to_string());
        let dead = match connect(&socket)? {
            None => true,
            // One that is just dying takes connections up to its end.
            Some(channel) => matches!(
                channel.recv::<CardToSupervisor>(),
                Err(ChannelError::Closed)
            ),
        };
        if dead { remove(&socket) } else { Ok(()) }
    }
}

/// The socket of a daemon, as the daemon's outer process has it. That sees the sandbox's files, among which the path leads
/// nowhere: hence the directory is held open.
pub(crate) struct CardSocket {
    dir: OwnedFd,
    name: OsString,
    /// Keeps its inode number from being given to another.
    pinned: OwnedFd,
}

impl CardSocket {
    /// Makes the socket.
    pub(crate) fn bind(path: &Path) -> Result<(Self, Listener), JobError> {
        let mut listener = Listener::bind(path).map_err(|source| JobError::Connection {
            peer: "the programs that share the card".into(),
            source,
        })?;
        // A new daemon may have its own there by the time that this one ends.
        listener.keep_path();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pinned = open(path, flags, Mode::empty());
        let socket = Self {
            dir: open_dir(path.parent().unwrap_or(Path::new("/")))?,
            name: path.file_name().unwrap_or_default().to_owned(),
            pinned: pinned.map_err(|errno| failed("open", path)(errno.into()))?,
        };
        Ok((socket, listener))
    }

    /// The daemon has ended: removes its socket, unless that is another's by now.
    pub(crate) fn remove(self) -> Result<(), JobError> {
        let name = Path::new(&self.name);
        let failed = |errno: Errno| failed("remove", name)(errno.into());
        lock(&self.dir).map_err(failed)?;
        let ours = fstat(&self.pinned).map_err(failed)?;
        match statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) => {
                unlinkat(&self.dir, name, AtFlags::empty()).map_err(failed)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}

fn open_dir(dir: &Path) -> Result<OwnedFd, JobError> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    open(dir, flags, Mode::empty()).map_err(|errno| failed("open", dir)(errno.into()))
}

/// Waits for the lock on a directory, which lasts until that is closed.
fn lock(dir: &OwnedFd) -> Result<(), Errno> {
    loop {
        match flock(dir, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// The same by its path.
fn lock_path(dir: &Path) -> Result<OwnedFd, JobError> {
    let locked = open_dir(dir)?;
    lock(&locked).map_err(|errno| failed("lock", dir)(errno.into()))?;
    Ok(locked)
}

/// Connects with whoever listens at a socket; nothing if nobody does.
fn connect(socket: &Path) -> Result<Option<Channel>, JobError> {
    match Channel::connect(socket) {
        Ok(channel) => Ok(Some(channel)),
        Err(ChannelError::Path { source, .. })
            if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&source.kind()) =>
        {
            Ok(None)
        }
        Err(source) => Err(JobError::Connection {
            peer: "a shared card".into(),
            source,
        }),
    }
}

fn remove(socket: &Path) -> Result<(), JobError> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", socket)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_removes_its_own_socket_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0");
        let (first, listener) = CardSocket::bind(&path).unwrap();
        assert!(connect(&path).unwrap().is_some());
        drop(listener);
        assert!(path.exists(), "it is the daemon's to remove");
        assert!(connect(&path).unwrap().is_none());
        // A successor has taken its place.
        remove(&path).unwrap();
        let (second, _listener) = CardSocket::bind(&path).unwrap();
        first.remove().unwrap();
        assert!(connect(&path).unwrap().is_some());
        second.remove().unwrap();
        assert!(!path.exists());
    }
}
