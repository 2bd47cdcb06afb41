//! Which UNIX sockets belong together. All that is being saved are looked at as one set, with those
//! that are on their way through others: they may be the other ends of connections.

use super::image::Kind;
use super::queue::{self, Queued};
use crate::error::{Obstacle, ProcError};
use crate::files::holders;
use crate::ids::{Pid, RemoteFd};
use rustix::fs::FileType;
use rustix::net::{AddressFamily, sockopt};
use snapify_sys::unix_diag::{self, UnixSocketInfo};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};

/// State of a socket that listens (`TCP_LISTEN`), and of one that is connected (`TCP_ESTABLISHED`).
pub(super) const LISTENING: u8 = 10;
pub(super) const ESTABLISHED: u8 = 1;

/// A UNIX socket of what is being saved.
#[derive(Debug)]
pub(crate) struct Member {
    /// Inode number.
    pub inode: u64,
    /// Our own descriptor of it.
    pub socket: OwnedFd,
    /// What its user knows it by, as "descriptor 5".
    pub label: String,
    /// A process that has it open, as we see it, and its number there; `None` if it is on its way.
    pub holder: Option<(Pid, RemoteFd)>,
}

/// A message in a queue, and the places of its descriptors in [`SocketSet::flying`].
pub(super) type Received = (Queued, Vec<usize>);

/// The sockets, and what is in their queues.
#[derive(Debug, Default)]
pub(crate) struct SocketSet {
    pub(super) members: Vec<Member>,
    /// Index of each by its inode number.
    pub(super) place: HashMap<u64, usize>,
    /// All sockets of the system.
    pub(super) all: HashMap<u64, UnixSocketInfo>,
    /// What each has received, or why that cannot be seen.
    pub(super) queues: Vec<Result<Vec<Received>, String>>,
    /// Listening socket by the inode number of one that waits for it.
    pub(super) listener: HashMap<u64, u64>,
    flying: Vec<OwnedFd>,
}

/// How a socket leads to somebody who is not being saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// It is known in another network namespace.
    Namespace,
    /// This socket is its other end.
    Peer(u64),
    /// Its other end waits for somebody who cannot be seen.
    Nobody,
}

impl Foreign {
    /// In words.
    pub fn describe(self) -> String {
        match self {
            Self::Namespace => "it is a UNIX socket of another network namespace".into(),
            Self::Nobody => "it is a UNIX socket whose other end cannot be seen from here".into(),
            Self::Peer(peer) => format!(
                "the other end of this UNIX socket belongs to {}, which is not being saved",
                holders::of_socket(peer).map_or_else(|| "another process".into(), |(who, _)| who)
            ),
        }
    }
}

/// Whether a descriptor is a UNIX socket, as a duplicate of it shows.
pub(crate) fn is_unix(socket: &OwnedFd) -> bool {
    matches!(sockopt::socket_domain(socket), Ok(AddressFamily::UNIX))
}

impl SocketSet {
    /// Looks at sockets. Queues are looked at only if their programs are `frozen`: it would disturb them.
    ///
    /// # Errors
    /// If the kernel does not tell about sockets, or they cannot be examined.
    pub fn new(members: Vec<Member>, frozen: bool) -> Result<Self, ProcError> {
        let mut set = Self::default();
        if members.is_empty() {
            return Ok(set);
        }
        let all = unix_diag::all().map_err(ProcError::system("listing the UNIX sockets"))?;
        for info in all {
            for &client in info.pending.iter().filter(|&&client| client != 0) {
                set.listener.insert(client, info.inode);
            }
            set.all.insert(info.inode, info);
        }
        for member in members {
            set.add(member);
        }
        if frozen {
            set.look_at_all()?;
        }
        Ok(set)
    }

    fn add(&mut self, member: Member) {
        if let Entry::Vacant(vacant) = self.place.entry(member.inode) {
            vacant.insert(self.members.len());
            self.members.push(member);
            self.queues.push(Ok(Vec::new()));
        }
    }

    /// Looks at the queues, and at those of sockets that are on their way through others, and so on. A socket that leads
    /// to somebody else is left alone, unless its other end turns up on its way.
    fn look_at_all(&mut self) -> Result<(), ProcError> {
        let mut foreign: Vec<usize> = Vec::new();
        let mut done = 0;
        loop {
            let before = self.members.len();
            while done < self.members.len() {
                match self.foreign(self.members[done].inode) {
                    None => self.look_at(done)?,
                    Some(_) => foreign.push(done),
                }
                done += 1;
            }
            let (found, others) = std::mem::take(&mut foreign)
                .into_iter()
                .partition::<Vec<_>, _>(|&place| self.foreign(self.members[place].inode).is_none());
            foreign = others;
            for &place in &found {
                self.look_at(place)?;
            }
            if found.is_empty() && self.members.len() == before {
                return Ok(());
            }
        }
    }

    /// Looks at a queue, and adds the sockets that are on their way through it.
    fn look_at(&mut self, place: usize) -> Result<(), ProcError> {
        let member = &self.members[place];
        let label = format!("a socket on its way through {}", member.label);
        let queued = match self.look(member) {
            Ok(queued) => queued,
            Err(why) => {
                self.queues[place] = Err(why);
                return Ok(());
            }
        };
        let mut queue = Vec::with_capacity(queued.len());
        for mut one in queued {
            let first = self.flying.len();
            for fd in std::mem::take(&mut one.descriptors) {
                let stat = rustix::fs::fstat(&fd)
                    .map_err(ProcError::system("examining a descriptor on its way"))?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Socket && is_unix(&fd) {
                    let socket = fd
                        .try_clone()
                        .map_err(ProcError::system("duplicating a socket on its way"))?;
                    self.add(Member {
                        inode: stat.st_ino,
                        socket,
                        label: label.clone(),
                        holder: None,
                    });
                }
                self.flying.push(fd);
            }
            queue.push((one, (first..self.flying.len()).collect()));
        }
        self.queues[place] = Ok(queue);
        Ok(())
    }

    fn look(&self, member: &Member) -> Result<Vec<Queued>, String> {
        let info = self.all.get(&member.inode);
        match info.and_then(|info| Kind::of(info.kind).map(|kind| (kind, info))) {
            Some((kind, info)) if info.state != LISTENING => {
                queue::look(member.socket.as_fd(), kind, info.shutdown & 1 == 0)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Descriptors on their way through the sockets, ours alone. Some may be of the same description, or of one that a
    /// process has open.
    pub fn flying(&self) -> &[OwnedFd] {
        &self.flying
    }

    /// Whether a socket is one of the set.
    pub fn contains(&self, inode: u64) -> bool {
        self.place.contains_key(&inode)
    }

    /// How a socket leads to somebody who is not being saved; `None` if it does not.
    pub fn foreign(&self, inode: u64) -> Option<Foreign> {
        let Some(info) = self.all.get(&inode) else {
            return Some(Foreign::Namespace);
        };
        let is_ours = |inode: &u64| self.place.contains_key(inode);
        match info.peer {
            None => None,
            Some(0) if info.state != ESTABLISHED => None,
            Some(0) => match self.listener.get(&inode) {
                Some(listener) if is_ours(listener) => None,
                Some(&listener) => Some(Foreign::Peer(listener)),
                // A peer that was closed has shut it down, unless it is one for datagrams.
                None if info.shutdown == 3 || Kind::of(info.kind) == Some(Kind::Datagram) => None,
                None => Some(Foreign::Nobody),
            },
            Some(peer) if is_ours(&peer) => None,
            Some(_) if self.service(inode).is_some() => None,
            Some(peer) => Some(Foreign::Peer(peer)),
        }
    }

    /// The address of the foreign service that a socket sends datagrams to.
    pub(super) fn service(&self, inode: u64) -> Option<&[u8]> {
        let info = self.all.get(&inode)?;
        let peer = self.all.get(&info.peer?)?;
        let is_service = Kind::of(info.kind) == Some(Kind::Datagram)
            && !self.place.contains_key(&peer.inode)
            && !peer.name.is_empty()
            && peer.peer != Some(inode);
        is_service.then_some(&*peer.name)
    }

    /// What stands in the way of saving a socket that is not foreign.
    pub fn obstacles(&self, inode: u64) -> Vec<Obstacle> {
        let (Some(info), Some(&place)) = (self.all.get(&inode), self.place.get(&inode)) else {
            return Vec::new();
        };
        let member = &self.members[place];
        let mut whys = BTreeSet::new();
        if let Err(why) = &self.queues[place] {
            whys.insert(why.clone());
        }
        if super::options::has_filter(member.socket.as_fd()) {
            whys.insert(
                "it has a filter for messages (SO_ATTACH_FILTER), which is not supported".into(),
            );
        }
        for client in &info.pending {
            if *client != 0 && !self.place.contains_key(client) {
                let who = holders::of_socket(*client)
                    .map_or_else(|| "another process".into(), |(who, _)| who);
                whys.insert(format!(
                    "a connection from {who}, which is not being saved, waits to be accepted"
                ));
            }
        }
        let obstacle = |why| Obstacle::new(member.label.clone(), why);
        whys.into_iter().map(obstacle).collect()
    }

    /// The listening sockets of the set with connections that hold something, or may do so: those of clients that are gone.
    pub(super) fn with_content(&self) -> impl Iterator<Item = &UnixSocketInfo> {
        let infos = self
            .members
            .iter()
            .filter_map(|member| self.all.get(&member.inode));
        infos.filter(|info| {
            let mut pending = info.pending.iter();
            pending.any(|&client| client == 0 || self.has_sent(client))
        })
    }

    /// Whether somebody has not read yet what a socket has sent.
    fn has_sent(&self, inode: u64) -> bool {
        let member = self.place.get(&inode).map(|&place| &self.members[place]);
        member.is_some_and(|member| super::capture::charge(&member.socket) > 0)
    }
}
