//! Images of the sockets of a set.

use super::image::{Kind, Link, Message, Name, Queue, Sender, SocketFile, UnixSocket};
use super::inside::Question;
use super::options::Defaults;
use super::queue::{self, Events};
use super::requeue::{Sent, Unread};
use super::set::{LISTENING, Member, SocketSet};
use crate::error::Obstacle;
use crate::ids::{Pid, RemoteFd};
use crate::path::ImagePath;
use rustix::fs::{FileType, Stat};
use snapify_store::SpaceId;
use snapify_sys::unix_diag::UnixSocketInfo;
use snapify_sys::{sockopt, unix_socket};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the images of sockets need from those of the rest.
pub(crate) trait Surroundings {
    /// The id that a process, as we see it, has for itself; `None` if that can only be asked there.
    fn inner_pid(&self, pid: i32) -> Option<i32>;
    /// Asks a process, as we see it, that has a socket open under this number.
    fn ask(&mut self, holder: (Pid, RemoteFd), question: Question) -> Option<i32>;
    /// The description that number `flying` of [`SocketSet::flying`] is of, if it can be saved.
    fn description(&self, flying: usize) -> Option<usize>;
    /// Adds a content.
    fn add_bytes(&mut self, what: String, bytes: Vec<u8>) -> SpaceId;
}

/// The places that the sockets `inodes` (those that are not foreign) will have.
pub(crate) fn places(inodes: impl IntoIterator<Item = u64>) -> HashMap<u64, usize> {
    let mut place = HashMap::new();
    for inode in inodes {
        let next = place.len();
        place.entry(inode).or_insert(next);
    }
    place
}

/// Memory of the kernel that is in use for what a socket has sent and others have not read yet.
pub(super) fn charge(socket: &OwnedFd) -> u64 {
    sockopt::unacknowledged(socket).unwrap_or(0) as u64
}

impl SocketSet {
    /// The address through which a bound socket can be reached from any directory.
    pub fn reachable(&self, inode: u64, directories: &[PathBuf]) -> Option<Vec<u8>> {
        let member = &self.members[*self.place.get(&inode)?];
        let address = unix_socket::name(member.socket.as_fd()).ok()?;
        if address.first() == Some(&0) {
            return Some(address);
        }
        let file = find_file(&address, self.all.get(&inode)?.file?, directories)?;
        let base = file.directory.as_deref().unwrap_or(Path::new("/"));
        let path = base.join(std::ffi::OsStr::from_bytes(&address));
        let path = path.as_os_str().as_bytes().to_vec();
        (path.len() < unix_socket::LONGEST_ADDRESS).then_some(path)
    }

    /// The inode numbers of all sockets that can be saved, as far as their connections go.
    pub fn saved(&self) -> impl Iterator<Item = u64> {
        let inodes = self.members.iter().map(|member| member.inode);
        inodes.filter(|&inode| self.foreign(inode).is_none())
    }

    /// Saves the sockets at `place`. `directories` are those where relative addresses may be found.
    pub fn images(
        &self,
        place: &HashMap<u64, usize>,
        directories: &[PathBuf],
        unread: &Unread,
        around: &mut impl Surroundings,
    ) -> (Vec<UnixSocket>, Vec<Obstacle>) {
        let mut obstacles = Vec::new();
        let mut sockets: Vec<Option<UnixSocket>> = vec![None; place.len()];
        // Clients that are gone come behind those that are there.
        let mut gone: Vec<&(u64, usize)> = unread.keys().collect();
        gone.retain(|(listener, at)| {
            let pending = self.all.get(listener).map(|info| &info.pending);
            pending.and_then(|pending| pending.get(*at)) == Some(&0)
        });
        gone.sort_unstable();
        let mut capture = Capture {
            set: self,
            place,
            unread,
            gone: gone
                .iter()
                .enumerate()
                .map(|(n, &&key)| (key, place.len() + n))
                .collect(),
            directories,
            around,
            defaults: Defaults::default(),
            known: HashMap::new(),
        };
        for (&inode, &at) in place {
            obstacles.extend(self.obstacles(inode));
            match capture.socket(inode) {
                Ok(socket) => sockets[at] = Some(socket),
                Err(obstacle) => obstacles.push(obstacle),
            }
        }
        for key in gone {
            sockets.extend(capture.gone_client(*key).map(Some));
        }
        // With an obstacle there will be no image.
        (sockets.into_iter().flatten().collect(), obstacles)
    }
}

struct Capture<'a, S> {
    set: &'a SocketSet,
    place: &'a HashMap<u64, usize>,
    directories: &'a [PathBuf],
    unread: &'a Unread,
    /// Indices of clients that are gone.
    gone: HashMap<(u64, usize), usize>,
    around: &'a mut S,
    defaults: Defaults,
    /// Ids that were asked for.
    known: HashMap<i32, i32>,
}

impl<'a, S: Surroundings> Capture<'a, S> {
    fn socket(&mut self, inode: u64) -> Result<UnixSocket, Obstacle> {
        let set = self.set;
        let (Some(info), Some(member)) = (
            set.all.get(&inode),
            set.place.get(&inode).map(|&at| &set.members[at]),
        ) else {
            let why = "the kernel does not tell about it";
            return Err(Obstacle::new(format!("socket:[{inode}]"), why));
        };
        let refuse = |why: String| Obstacle::new(member.label.clone(), why);
        let unreadable = |error: io::Error| refuse(format!("it cannot be looked at: {error}"));
        let kind = Kind::of(info.kind)
            .ok_or_else(|| refuse("it is a UNIX socket of an unknown type".into()))?;
        let options = self
            .defaults
            .changed(member.socket.as_fd(), kind)
            .map_err(unreadable)?;
        let events = Events::of(member.socket.as_fd()).map_err(unreadable)?;
        let sent = self.sent_by(inode);
        let peer = unix_socket::peer_credentials(member.socket.as_fd()).map_err(unreadable)?;
        Ok(UnixSocket {
            kind,
            name: self.name(member).map_err(unreadable)?,
            link: self.link(info, member).map_err(unreadable)?,
            peer_pid: self.pid(peer.pid, |around| {
                around.ask(member.holder?, Question::Peer)
            }),
            shutdown: info.shutdown,
            // The old one was reset when its connection was read.
            reset: events.error && sent.is_none(),
            options,
            queue: self.queue(member)?,
            sent: sent.map_or_else(Queue::default, |sent| self.sent(sent)),
        })
    }

    /// What a client has sent on its connection that waits, for which another socket has taken the place of its own.
    fn sent_by(&self, inode: u64) -> Option<&'a Sent> {
        let listener = self.set.all.get(self.set.listener.get(&inode)?)?;
        let mut clients = listener.pending.iter();
        let at = clients.position(|&client| client == inode)?;
        self.unread.get(&(listener.inode, at))
    }

    fn sent(&mut self, sent: &Sent) -> Queue {
        let mut content = Vec::new();
        let mut messages = Vec::with_capacity(sent.messages.len());
        for one in &sent.messages {
            content.extend_from_slice(&one.bytes);
            messages.push(Message {
                bytes: one.bytes.len() as u64,
                urgent: one.urgent,
                ..Message::default()
            });
        }
        let what = "sent before it is accepted".to_owned();
        Queue {
            content: (!content.is_empty()).then(|| self.around.add_bytes(what, content)),
            messages,
        }
    }

    /// The socket of a client that is gone, for its connection to be made again.
    fn gone_client(&mut self, key: (u64, usize)) -> Option<UnixSocket> {
        let sent = &self.unread[&key];
        let info = self.set.all.get(&key.0)?;
        Some(UnixSocket {
            kind: Kind::of(info.kind)?,
            name: None,
            link: Link::Waiting {
                listener: *self.place.get(&key.0)?,
                by: self.around.inner_pid(sent.by).unwrap_or(0),
            },
            peer_pid: None,
            shutdown: 0,
            reset: false,
            options: std::collections::BTreeMap::new(),
            queue: Queue::default(),
            sent: self.sent(sent),
        })
    }

    fn name(&self, member: &Member) -> io::Result<Option<Name>> {
        let address = unix_socket::name(member.socket.as_fd())?;
        let info = &self.set.all[&member.inode];
        Ok((!address.is_empty()).then(|| Name {
            file: info
                .file
                .and_then(|file| find_file(&address, file, self.directories)),
            address: ImagePath::from_bytes(address),
        }))
    }

    fn link(&self, info: &UnixSocketInfo, member: &Member) -> io::Result<Link> {
        let place = |inode: &u64| self.place.get(inode).copied();
        if info.state == LISTENING {
            return Ok(Link::Listening {
                backlog: info.backlog,
                waiting: info
                    .pending
                    .iter()
                    .enumerate()
                    .filter_map(|(at, client)| match client {
                        0 => self.gone.get(&(info.inode, at)).copied(),
                        client => place(client),
                    })
                    .collect(),
            });
        }
        Ok(match info.peer {
            None => Link::None,
            Some(0) => match self.set.listener.get(&info.inode).and_then(place) {
                Some(listener) => Link::Waiting {
                    listener,
                    by: member
                        .holder
                        .and_then(|(pid, _)| self.around.inner_pid(pid.0))
                        .unwrap_or(0),
                },
                None => Link::Orphaned {
                    peer_name: ImagePath::from_bytes(unix_socket::peer_name(
                        member.socket.as_fd(),
                    )?),
                },
            },
            Some(peer) => match place(&peer) {
                Some(peer) => Link::Connected { peer },
                None => Link::Service {
                    address: ImagePath::from_bytes(
                        self.set.service(info.inode).unwrap_or_default(),
                    ),
                },
            },
        })
    }

    fn queue(&mut self, member: &Member) -> Result<Queue, Obstacle> {
        let Ok(queued) = &self.set.queues[self.set.place[&member.inode]] else {
            // Told among the obstacles of the set.
            return Ok(Queue::default());
        };
        let mut content = Vec::new();
        let mut messages = Vec::with_capacity(queued.len());
        for (at, (one, flying)) in queued.iter().enumerate() {
            let offset = content.len();
            content.extend_from_slice(&one.bytes);
            let descriptors: Option<Vec<usize>> = flying
                .iter()
                .map(|&number| self.around.description(number))
                .collect();
            let descriptors = descriptors.ok_or_else(|| {
                Obstacle::new(
                    member.label.clone(),
                    "a descriptor is on its way through it that cannot be saved",
                )
            })?;
            // One that is empty is shown only once, unless it is the first.
            let can_ask = at == 0 || !one.bytes.is_empty();
            let offset = (at > 0).then_some(offset);
            let credentials = one.credentials.and_then(|sender| {
                let pid = self.pid(sender.pid, |around| {
                    let mut options = queue::Options::of(member.socket.as_fd());
                    options.aim(offset).ok().filter(|()| can_ask)?;
                    around.ask(member.holder?, Question::Sender)
                })?;
                Some(Sender {
                    pid,
                    uid: sender.uid,
                    gid: sender.gid,
                })
            });
            messages.push(Message {
                bytes: one.bytes.len() as u64,
                sender: ImagePath::from_bytes(one.sender.clone()),
                descriptors,
                credentials,
                urgent: one.urgent,
            });
        }
        let what = format!("queue of {}", member.label);
        Ok(Queue {
            content: (!content.is_empty()).then(|| self.around.add_bytes(what, content)),
            messages,
        })
    }

    /// The id that a process has for itself; `None` if nobody was noted.
    fn pid(&mut self, pid: i32, ask: impl FnOnce(&mut S) -> Option<i32>) -> Option<i32> {
        if pid <= 0 {
            return None;
        }
        let known = self
            .around
            .inner_pid(pid)
            .or_else(|| self.known.get(&pid).copied());
        let inner = known.or_else(|| ask(self.around))?;
        self.known.insert(pid, inner);
        Some(inner).filter(|&inner| inner > 0)
    }
}

/// The file of a bound socket, if the path still leads to it. The kernel keeps an address as it was given; a relative
/// one is tried in all directories that the program works in now.
fn find_file(address: &[u8], file: (u32, u32), directories: &[PathBuf]) -> Option<SocketFile> {
    let path = Path::new(std::ffi::OsStr::from_bytes(address));
    let is_it = |stat: &Stat| {
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        // Device numbers are compared by nobody: some file systems show others than the kernel's own.
        is_socket && stat.st_ino as u32 == file.1
    };
    let candidates: Vec<Option<&PathBuf>> = match path.is_absolute() {
        true => vec![None],
        false => directories.iter().map(Some).collect(),
    };
    candidates.into_iter().find_map(|directory| {
        let whole = directory.map_or_else(|| path.to_owned(), |base| base.join(path));
        let stat = rustix::fs::stat(&whole).ok().filter(is_it)?;
        Some(SocketFile {
            directory: directory.map(|base| base.as_path().into()),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    })
}
