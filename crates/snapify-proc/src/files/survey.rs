//! Looking at all descriptors of a process through `/proc`, and recognizing what they lead to. This
//! needs no stop, so that it serves `check` as well as capture.

use super::{
    Object, can_read, can_write, device, epoll, eventfd, external, has_flag, holders, inet,
    inherit, pipe, regular, signalfd, timerfd,
};
use crate::error::{Obstacle, ProcError};
use crate::external::External;
use crate::ids::{Pid, RemoteFd};
use crate::path::ImagePath;
use crate::procfs::ProcDir;
use crate::procfs::fdinfo::{FdInfo, Lock, LockKind};
use rustix::fs::{FileType, FsWord, Stat};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;

/// A descriptor as `/proc` shows it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub fd: RemoteFd,
    pub info: FdInfo,
    pub stat: Stat,
    /// Target of the link: a path, or a name as `pipe:[5]`.
    pub link: ImagePath,
}

impl Seen {
    fn look(proc: &ProcDir, fd: RemoteFd) -> Result<Self, ProcError> {
        let name = format!("fd/{fd}");
        Ok(Self {
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
}

/// What a kind of object makes of a descriptor: nothing if it is not of its kind, or why it cannot
/// be saved.
pub(crate) type Recognized = Option<Result<Found, Obstacle>>;

/// What is known of a whole process while its descriptors are looked at.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub proc: &'a ProcDir,
    pub externals: &'a [External],
    /// The process's id in its own PID namespace.
    pub inner_pid: Pid,
    /// Device number of its controlling terminal, 0 for none.
    pub terminal: i32,
    /// Descriptors 0 to 2, where open.
    pub stdio: [Option<Seen>; 3],
    /// For every pipe whether the process can read and write it, by inode number.
    pub pipes: HashMap<u64, (bool, bool)>,
    /// Other processes that hold pipes of which this one has both ends, by inode number.
    pub holders: HashMap<u64, String>,
    /// TCP and UDP sockets, which are looked at all together.
    pub inet: inet::InetSurvey,
    /// The descriptors that lead to each object.
    by_object: HashMap<(u64, u64), Vec<RemoteFd>>,
    /// Types of the file systems met so far, by device number.
    pub file_systems: RefCell<HashMap<u64, FsWord>>,
    pidfd: OwnedFd,
}

impl View<'_> {
    /// All descriptors that lead to an object.
    pub fn leading_to(&self, object: (u64, u64)) -> &[RemoteFd] {
        self.by_object.get(&object).map_or(&[], Vec::as_slice)
    }

    /// Our own descriptor of the same open file description (pidfd_getfd(2)).
    pub fn duplicate(&self, fd: RemoteFd) -> io::Result<OwnedFd> {
        Ok(rustix::process::pidfd_getfd(
            &self.pidfd,
            fd.0,
            PidfdGetfdFlags::empty(),
        )?)
    }
}

/// All descriptors of a process.
#[derive(Debug)]
pub(crate) struct Survey<'a> {
    pub view: View<'a>,
    /// Those that can be saved.
    pub recognized: Vec<(Seen, Found)>,
    /// What stands in the way.
    pub obstacles: Vec<Obstacle>,
}

impl<'a> Survey<'a> {
    /// Looks at all descriptors.
    ///
    /// # Errors
    /// If the process is gone or not ours. Descriptors that are closed meanwhile are passed over.
    pub fn new(proc: &'a ProcDir, externals: &'a [External]) -> Result<Self, ProcError> {
        let mut seen = Vec::new();
        for fd in proc.fds()? {
            match Seen::look(proc, fd) {
                Ok(one) => seen.push(one),
                Err(ProcError::Proc { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                }
                Err(error) => return Err(error),
            }
        }
        let view = View::new(proc, externals, &seen)?;
        let mut survey = Self {
            view,
            recognized: Vec::with_capacity(seen.len()),
            obstacles: Vec::new(),
        };
        survey.obstacles.extend(external::missing(externals, &seen));
        for one in seen {
            match recognize(&one, &survey.view) {
                Ok(found) => survey.recognized.push((one, found)),
                Err(obstacle) => survey.obstacles.push(obstacle),
            }
        }
        Ok(survey)
    }
}

impl<'a> View<'a> {
    fn new(proc: &'a ProcDir, externals: &'a [External], seen: &[Seen]) -> Result<Self, ProcError> {
        let pid = proc.pid();
        let pidfd = rustix::process::Pid::from_raw(pid.0)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()))
            .map_err(ProcError::system(format!(
                "opening a descriptor of process {pid}"
            )))?;
        let mut stdio = [const { None }; 3];
        let mut pipes: HashMap<u64, (bool, bool)> = HashMap::new();
        let mut by_object: HashMap<(u64, u64), Vec<RemoteFd>> = HashMap::new();
        for one in seen {
            by_object.entry(one.object_id()).or_default().push(one.fd);
            if let Some(slot) = usize::try_from(one.fd.0)
                .ok()
                .and_then(|fd| stdio.get_mut(fd))
            {
                *slot = Some(one.clone());
            }
            if pipe::is_anonymous(one) {
                let ends = pipes.entry(one.stat.st_ino).or_default();
                ends.0 |= can_read(one.flags());
                ends.1 |= can_write(one.flags());
            }
        }
        let whole: Vec<u64> = pipes
            .iter()
            .filter(|(_, ends)| **ends == (true, true))
            .map(|(inode, _)| *inode)
            .collect();
        let holders = if whole.is_empty() {
            HashMap::new()
        } else {
            holders::of_pipes(&whole, pid)?
        };
        let duplicate = |seen: &Seen| {
            let fd = rustix::process::pidfd_getfd(&pidfd, seen.fd.0, PidfdGetfdFlags::empty())?;
            Ok(fd)
        };
        let is_external = |seen: &Seen| externals.iter().any(|one| one.fds.contains(&seen.fd));
        let mut inodes = HashSet::new();
        let sockets = seen
            .iter()
            .filter(|one| !is_external(one) && inodes.insert(one.stat.st_ino))
            .filter_map(|one| inet::hold(one, || duplicate(one)))
            .collect();
        let inet = inet::InetSurvey::new(sockets, false)?;
        let terminal = proc.stat()?.tty;
        let inner_pid = proc.status()?.inner_tgid();
        Ok(Self {
            proc,
            externals,
            inner_pid,
            terminal,
            stdio,
            pipes,
            holders,
            inet,
            by_object,
            file_systems: RefCell::default(),
            pidfd,
        })
    }
}

/// Asks every kind in turn.
fn recognize(seen: &Seen, view: &View<'_>) -> Result<Found, Obstacle> {
    let recognized = external::recognize(seen, view)
        .or_else(|| lease(seen))
        .or_else(|| signals_on_input(seen))
        .or_else(|| regular::recognize(seen, view))
        .or_else(|| device::recognize(seen))
        .or_else(|| pipe::recognize(seen, view))
        .or_else(|| eventfd::recognize(seen))
        .or_else(|| timerfd::recognize(seen))
        .or_else(|| signalfd::recognize(seen))
        .or_else(|| epoll::recognize(seen, view))
        .or_else(|| inet::recognize(seen, view))
        .or_else(|| inherit::recognize(seen, view));
    recognized.unwrap_or_else(|| {
        Err(match pipe::is_anonymous(seen) {
            true => pipe::foreign(seen, view),
            false => seen.obstacle(describe_unknown(seen, view)),
        })
    })
}

/// A lease (`F_SETLEASE`), for whose breaking the holder gets signals.
fn lease(seen: &Seen) -> Recognized {
    let is_lease = |lock: &Lock| lock.kind == LockKind::Lease;
    let why = "it holds a lease on the file, which is not supported";
    (seen.info.locks.iter().any(is_lease)).then(|| Err(seen.obstacle(why)))
}

/// `O_ASYNC`: who gets the signals is not saved.
fn signals_on_input(seen: &Seen) -> Recognized {
    has_flag(seen.info.flags, libc::O_ASYNC).then(|| {
        Err(seen.obstacle("it has signals on input switched on (O_ASYNC), which is not supported"))
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
        (_, b"anon_inode:inotify") => "an inotify instance".into(),
        (_, b"anon_inode:[fanotify]") => "a fanotify group".into(),
        (_, b"anon_inode:[pidfd]") => "a pidfd".into(),
        (_, b"anon_inode:[userfaultfd]") => "a userfaultfd".into(),
        (_, b"anon_inode:[perf_event]") => "a performance counter".into(),
        (_, link) if link.starts_with(b"pidfd:") => "a pidfd".into(),
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
    let Ok(socket) = view.duplicate(seen.fd) else {
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
