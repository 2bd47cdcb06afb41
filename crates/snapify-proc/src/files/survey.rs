//! Looking at all descriptors of a tree of processes through `/proc`, and recognizing what they lead to. This
//! needs no stop, so that it serves `check` as well as capture.

use super::{
    Object, can_read, can_write, device, epoll, eventfd, external, fifo, has_flag, holders, inet,
    inherit, inotify, input_signals, namespace, netlink, pidfd, pipe, regular, share, signalfd,
    terminal, timerfd, unix,
};
use crate::error::{Obstacle, ProcError};
use crate::external::{Declared, Outside};
use crate::ids::{Pid, RemoteFd};
use crate::path::ImagePath;
use crate::procfs::ProcDir;
use crate::procfs::fdinfo::FdInfo;
use rustix::fs::{FileType, FsWord, Stat};
use rustix::process::PidfdGetfdFlags;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// A descriptor as `/proc` shows it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Whose it is: the index among the processes that are looked at.
    pub process: usize,
    pub fd: RemoteFd,
    pub info: FdInfo,
    pub stat: Stat,
    /// Target of the link: a path, or a name as `pipe:[5]`.
    pub link: ImagePath,
}

impl Seen {
    fn look(process: usize, proc: &ProcDir, fd: RemoteFd) -> Result<Self, ProcError> {
        let name = format!("fd/{fd}");
        Ok(Self {
            process,
            fd,
            info: proc.fdinfo(fd)?,
            stat: proc.stat_of(&name)?,
            link: proc.link(&name)?,
        })
    }

    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Which object it leads to.
    pub fn object_id(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// Access mode and status flags, without `O_CLOEXEC`.
    pub fn flags(&self) -> u32 {
        self.info.flags & !libc::O_CLOEXEC.cast_unsigned()
    }

    pub fn close_on_exec(&self) -> bool {
        has_flag(self.info.flags, libc::O_CLOEXEC)
    }

    /// An obstacle about this descriptor.
    pub fn obstacle(&self, why: impl Into<String>) -> Obstacle {
        Obstacle::new(format!("descriptor {} ({})", self.fd, self.link), why)
    }

    /// The descriptor among all that are looked at.
    pub fn place(&self) -> Place {
        Place {
            process: self.process,
            fd: self.fd,
        }
    }
}

/// What a descriptor was recognized as.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// Something whose image `/proc` shows completely.
    Whole(Object),
    /// A removed file: its content is to be saved.
    Removed,
    /// An end of a pipe within the process: its content is to be saved.
    PipeEnd,
    /// A POSIX message queue: its messages are to be saved.
    MessageQueue,
    /// A TCP or UDP socket: the one with this index is to be saved.
    Inet(usize),
    /// A UNIX socket whose connections are within the processes.
    Unix,
    /// A side of a pseudo-terminal of the tree.
    Terminal(terminal::End),
}

/// What a kind of object makes of a descriptor: nothing if it is not of its kind, or why it cannot
/// be saved.
pub(crate) type Recognized = Option<Result<Found, Obstacle>>;

/// A descriptor of one of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub process: usize,
    pub fd: RemoteFd,
}

/// One of the processes whose descriptors are looked at.
#[derive(Debug)]
pub(crate) struct Owner<'a> {
    pub proc: &'a ProcDir,
    /// The id that it has in its own PID namespace.
    pub inner_pid: Pid,
    /// Device number of its controlling terminal, 0 for none.
    pub terminal: i32,
    /// Foreground group of its controlling terminal, as we see it.
    pub foreground: i32,
    /// Descriptors 0 to 2, where open.
    pub stdio: [Option<Seen>; 3],
    pidfd: OwnedFd,
}

/// What is known of all processes while their descriptors are looked at.
#[derive(Debug)]
pub(crate) struct View<'a> {
    /// Those with descriptor tables of their own; the first is the one that was asked for.
    pub owners: Vec<Owner<'a>>,
    /// Ids of all processes that are saved, as we see them and as they see themselves.
    pub members: HashMap<Pid, Pid>,
    /// What agents have declared.
    pub externals: external::Externals<'a>,
    /// For every pipe whether the processes can read and write it, by inode number.
    pub pipes: HashMap<u64, (bool, bool)>,
    /// Other processes that hold pipes of which these have both ends, by inode number.
    pub holders: HashMap<u64, String>,
    /// TCP and UDP sockets, which are looked at all together.
    pub inet: inet::InetSurvey,
    /// The UNIX sockets, and what is on its way through them.
    pub unix: unix::set::SocketSet,
    /// Other processes that hold UNIX sockets whose connections are within these, by inode number.
    pub socket_holders: HashMap<u64, String>,
    /// Files and directories of whose reading somebody is told, by device and inode number.
    pub told_of_reading: HashSet<(u64, u64)>,
    /// Pseudo-terminals, likewise.
    pub terminals: terminal::TerminalSurvey,
    /// The descriptors that lead to each object.
    by_object: HashMap<(u64, u64), Vec<Place>>,
    /// Types of the file systems met so far, by device number.
    pub file_systems: RefCell<HashMap<u64, FsWord>>,
}

impl<'a> View<'a> {
    /// Whether a process is saved, or may hold what those hold that are.
    pub fn is_known(&self, pid: Pid) -> bool {
        self.members.contains_key(&pid) || self.externals.is_partner(pid)
    }

    /// The process that a descriptor belongs to.
    pub fn owner(&self, seen: &Seen) -> &Owner<'a> {
        &self.owners[seen.process]
    }

    /// All descriptors that lead to an object.
    pub fn leading_to(&self, object: (u64, u64)) -> &[Place] {
        self.by_object.get(&object).map_or(&[], Vec::as_slice)
    }

    /// Our own descriptor of the same open file description (pidfd_getfd(2)).
    pub fn duplicate(&self, seen: &Seen) -> io::Result<OwnedFd> {
        self.owner(seen).duplicate(seen.fd)
    }

    /// As [`Self::duplicate`], of what has been seen at `place`.
    pub fn duplicate_at(&self, place: Place) -> io::Result<OwnedFd> {
        self.owners[place.process].duplicate(place.fd)
    }
}

/// A process whose descriptors are to be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub proc: &'a ProcDir,
    pub inner_pid: Pid,
}

impl Subject<'_> {
    fn has_ended(&self) -> bool {
        self.proc.status().map_or(true, |status| status.is_dead())
    }
}

/// An open file description, and the descriptors that refer to it.
#[derive(Debug)]
pub(crate) struct Group {
    /// In the order of processes and numbers.
    pub descriptors: Vec<Seen>,
    /// The one through which it was recognized, and as what.
    pub found: Result<(usize, Found), Obstacle>,
}

impl Group {
    /// The descriptor through which it was recognized.
    pub fn representative(&self) -> &Seen {
        let index = self.found.as_ref().map_or(0, |(index, _)| *index);
        &self.descriptors[index]
    }
}

/// All descriptors of the processes.
#[derive(Debug)]
pub(crate) struct Survey<'a> {
    pub view: View<'a>,
    /// All descriptions, in the order of their first descriptors.
    pub groups: Vec<Group>,
    /// What stands in the way beside descriptions that are not recognized.
    pub obstacles: Vec<Obstacle>,
}

impl<'a> Survey<'a> {
    /// Looks at all descriptors of `subjects`, which have tables of their own. `members` are the ids of all processes that
    /// are saved, as we see them and as they see themselves; `declared` is what their agents have. If the processes are
    /// frozen, descriptors on their way through their sockets are looked at too: those are `ours`, this process, which then
    /// comes last among the owners.
    ///
    /// # Errors
    /// If a process is gone or not ours. Descriptors that are closed meanwhile are passed over.
    pub fn new(
        subjects: &[Subject<'a>],
        ours: Option<Subject<'a>>,
        members: HashMap<Pid, Pid>,
        declared: &'a [Declared],
        outside: Outside,
    ) -> Result<Self, ProcError> {
        let externals = external::Externals::new(subjects, declared);
        let mut seen = Vec::new();
        let mut nameless = Vec::new();
        for (process, subject) in subjects.iter().enumerate() {
            let fds = match subject.proc.fds() {
                Ok(fds) => fds,
                // A process that has ended has none, and is not ours to look at any more.
                Err(_) if subject.has_ended() => continue,
                Err(error) => return Err(error),
            };
            for fd in fds {
                match Seen::look(process, subject.proc, fd) {
                    Ok(one) => seen.push(one),
                    Err(ProcError::Proc { source, .. })
                        if source.kind() == io::ErrorKind::NotFound || subject.has_ended() => {}
                    Err(error) if error.errno() == Some(libc::ENAMETOOLONG) => {
                        let why = "its path is longer than the kernel tells (4095 bytes)";
                        nameless.push(Obstacle::new(format!("descriptor {fd}"), why));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let mut obstacles = externals.missing(&seen);
        obstacles.append(&mut nameless);
        let mut owners = Vec::with_capacity(subjects.len() + 1);
        for subject in subjects {
            owners.push(Owner::new(subject)?);
        }
        let unix =
            unix::set::SocketSet::new(unix_sockets(&owners, &seen, &externals)?, ours.is_some())?;
        if let Some(ours) = ours {
            owners.push(Owner::new(&ours)?);
            for fd in unix.flying() {
                let number = RemoteFd(fd.as_raw_fd());
                seen.push(Seen::look(subjects.len(), ours.proc, number)?);
            }
        }
        let view = View::new(owners, unix, members, externals, outside, &seen)?;
        let mut groups: Vec<Group> = Vec::new();
        for descriptors in share::group(&view, seen)? {
            let found = recognize_any(&descriptors, &view);
            groups.push(Group { descriptors, found });
        }
        Ok(Self {
            view,
            groups,
            obstacles,
        })
    }

    /// All that stands in the way.
    pub fn into_obstacles(self) -> Vec<Obstacle> {
        let unrecognized = self
            .groups
            .into_iter()
            .filter_map(|group| group.found.err());
        self.obstacles.into_iter().chain(unrecognized).collect()
    }
}

impl<'a> View<'a> {
    fn new(
        mut owners: Vec<Owner<'a>>,
        unix: unix::set::SocketSet,
        members: HashMap<Pid, Pid>,
        externals: external::Externals<'a>,
        outside: Outside,
        seen: &[Seen],
    ) -> Result<Self, ProcError> {
        let mut pipes: HashMap<u64, (bool, bool)> = HashMap::new();
        let mut by_object: HashMap<(u64, u64), Vec<Place>> = HashMap::new();
        for one in seen {
            by_object
                .entry(one.object_id())
                .or_default()
                .push(one.place());
            let slot = usize::try_from(one.fd.0).ok();
            if let Some(slot) = slot.and_then(|fd| owners[one.process].stdio.get_mut(fd)) {
                *slot = Some(one.clone());
            }
            if pipe::is_anonymous(one) {
                let ends = pipes.entry(one.stat.st_ino).or_default();
                ends.0 |= can_read(one.flags());
                ends.1 |= can_write(one.flags());
            }
        }
        let whole: HashSet<u64> = pipes
            .iter()
            .filter(|(_, ends)| **ends == (true, true))
            .map(|(inode, _)| *inode)
            .collect();
        // What is on its way, and all that we look at, we have open ourselves.
        let us = Pid(std::process::id().cast_signed());
        let is_known =
            |pid: Pid| members.contains_key(&pid) || externals.is_partner(pid) || pid == us;
        let holders = holders::of_pipes(&whole, is_known)?;
        let socket_holders = holders::of_sockets(&unix.saved().collect(), is_known)?;
        // What an agent has declared its own is so wherever it was inherited.
        let mut inodes: HashSet<u64> = seen
            .iter()
            .filter(|one| externals.of(one).is_some())
            .map(|one| one.stat.st_ino)
            .collect();
        let sockets = seen
            .iter()
            .filter(|one| inodes.insert(one.stat.st_ino))
            .filter_map(|one| inet::hold(one, || owners[one.process].duplicate(one.fd)))
            .collect();
        let inet = inet::InetSurvey::new(sockets, outside)?;
        let is_member = |pid| members.contains_key(&pid) || externals.is_partner(pid);
        let terminals = terminal::TerminalSurvey::new(seen, &owners, is_member)?;
        Ok(Self {
            owners,
            members,
            externals,
            pipes,
            holders,
            socket_holders,
            inet,
            unix,
            told_of_reading: seen.iter().flat_map(inotify::told_of_reading).collect(),
            terminals,
            by_object,
            file_systems: RefCell::default(),
        })
    }
}

impl<'a> Owner<'a> {
    /// Our own descriptor of one that it has open (pidfd_getfd(2)).
    pub fn duplicate(&self, fd: RemoteFd) -> io::Result<OwnedFd> {
        let none = PidfdGetfdFlags::empty();
        Ok(rustix::process::pidfd_getfd(&self.pidfd, fd.0, none)?)
    }

    fn new(subject: &Subject<'a>) -> Result<Self, ProcError> {
        let pid = subject.proc.pid();
        let pidfd = super::pidfd::open(pid).map_err(ProcError::system(format!(
            "opening a descriptor of process {pid}"
        )))?;
        let stat = subject.proc.stat()?;
        Ok(Self {
            proc: subject.proc,
            inner_pid: subject.inner_pid,
            terminal: stat.tty,
            foreground: stat.foreground,
            stdio: [const { None }; 3],
            pidfd,
        })
    }
}

/// The UNIX sockets among the descriptors, but for those that an agent has declared its own.
fn unix_sockets(
    owners: &[Owner<'_>],
    seen: &[Seen],
    externals: &external::Externals<'_>,
) -> Result<Vec<unix::set::Member>, ProcError> {
    let is_socket = |one: &&Seen| one.file_type() == FileType::Socket;
    let external: HashSet<u64> = seen
        .iter()
        .filter(|one| externals.of(one).is_some())
        .map(|one| one.stat.st_ino)
        .collect();
    let mut found = HashMap::new();
    for one in seen.iter().filter(is_socket) {
        if external.contains(&one.stat.st_ino) || found.contains_key(&one.stat.st_ino) {
            continue;
        }
        let owner = &owners[one.process];
        let socket = match owner.duplicate(one.fd) {
            Ok(socket) => socket,
            // It was closed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => continue,
            Err(error) => {
                let what = format!(
                    "duplicating descriptor {} of process {}",
                    one.fd,
                    owner.proc.pid()
                );
                return Err(ProcError::system(what)(error));
            }
        };
        if unix::set::is_unix(&socket) {
            let member = unix::set::Member {
                inode: one.stat.st_ino,
                socket,
                label: format!("descriptor {} ({})", one.fd, one.link),
                holder: Some((owner.proc.pid(), one.fd)),
            };
            found.insert(member.inode, member);
        }
    }
    Ok(found.into_values().collect())
}

/// Recognizes a description by any of its descriptors: what it is may depend on whose it is and on its number.
fn recognize_any(descriptors: &[Seen], view: &View<'_>) -> Result<(usize, Found), Obstacle> {
    // What an agent has declared its own is so wherever it was inherited.
    let external = (0..)
        .zip(descriptors)
        .find_map(|(index, seen)| Some((index, external::recognize(seen, view)?)));
    if let Some((index, found)) = external {
        return found.map(|found| (index, found));
    }
    let mut refused = None;
    for (index, seen) in descriptors.iter().enumerate() {
        match recognize(seen, view) {
            Ok(found) => return Ok((index, found)),
            Err(obstacle) => refused = refused.or(Some(obstacle)),
        }
    }
    Err(refused.unwrap_or_else(|| Obstacle::new("a descriptor", "it is nobody's")))
}

/// Asks every kind in turn.
fn recognize(seen: &Seen, view: &View<'_>) -> Result<Found, Obstacle> {
    let recognized = input_signals::obstacle(seen, view)
        .map(Err)
        .or_else(|| regular::recognize(seen, view))
        .or_else(|| device::recognize(seen))
        .or_else(|| pipe::recognize(seen, view))
        .or_else(|| unix::recognize(seen, view))
        .or_else(|| netlink::recognize(seen, view))
        .or_else(|| fifo::recognize(seen, view))
        .or_else(|| eventfd::recognize(seen))
        .or_else(|| timerfd::recognize(seen, view))
        .or_else(|| signalfd::recognize(seen))
        .or_else(|| epoll::recognize(seen, view))
        .or_else(|| inet::recognize(seen, view))
        .or_else(|| inotify::recognize(seen, view))
        .or_else(|| pidfd::recognize(seen, view))
        .or_else(|| namespace::recognize(seen, view))
        .or_else(|| terminal::recognize(seen, view))
        .or_else(|| inherit::recognize(seen, view));
    recognized.unwrap_or_else(|| {
        Err(match pipe::is_anonymous(seen) {
            true => pipe::foreign(seen, view),
            false => seen.obstacle(describe_unknown(seen, view)),
        })
    })
}

/// Says in a user's words what an unsupported descriptor is.
fn describe_unknown(seen: &Seen, view: &View<'_>) -> String {
    let what = match (seen.file_type(), seen.link.as_bytes()) {
        (FileType::Socket, _) => socket_name(seen, view),
        (FileType::Fifo, _) => "a named pipe".into(),
        (FileType::CharacterDevice, b"/dev/ptmx" | b"/dev/pts/ptmx") => {
            "the master side of a pseudo-terminal".into()
        }
        (FileType::CharacterDevice, _) => "a device".into(),
        (FileType::BlockDevice, _) => "a block device".into(),
        (_, b"anon_inode:[io_uring]") => "an io_uring instance".into(),
        (_, b"anon_inode:[fanotify]") => "a fanotify group".into(),
        (_, b"anon_inode:[userfaultfd]") => "a userfaultfd".into(),
        (_, b"anon_inode:[perf_event]") => "a performance counter".into(),
        (_, link) if link.starts_with(b"anon_inode:") => {
            "a kernel object of a kind that is not known here".into()
        }
        (_, link) if link.contains(&b':') => "a namespace or another kernel object".into(),
        _ => "of a kind that is not known here".into(),
    };
    format!("it is {what}, which is not supported")
}

fn socket_name(seen: &Seen, view: &View<'_>) -> String {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let Ok(socket) = view.duplicate(seen) else {
        return "a socket".into();
    };
    let family = match sockopt::socket_domain(&socket) {
        Ok(AddressFamily::UNIX) => "a UNIX",
        Ok(AddressFamily::INET) => "an IPv4",
        Ok(AddressFamily::INET6) => "an IPv6",
        Ok(AddressFamily::NETLINK) => "a netlink",
        _ => return "a socket".into(),
    };
    let kind = match sockopt::socket_type(&socket) {
        Ok(SocketType::STREAM) => "stream",
        Ok(SocketType::DGRAM) => "datagram",
        Ok(SocketType::SEQPACKET) => "packet",
        _ => "raw",
    };
    format!("{family} {kind} socket")
}
