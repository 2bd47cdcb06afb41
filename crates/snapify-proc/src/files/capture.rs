//! Saving the descriptors of a frozen tree of processes.

use super::locks::LockImage;
use super::regular::{NamedType, OpenRemoved, RemovedFile};
use super::survey::{Found, Group, Seen, Subject, Survey, View};
use super::{
    Description, Descriptor, FilesImage, Object, can_read, can_write, fifo, has_flag, inet,
    input_signals, mqueue, pipe, regular, terminal, unix,
};
use crate::capture::Gathered;
use crate::error::{Obstacle, ProcError};
use crate::external::{Declared, Outside};
use crate::identity;
use crate::ids::{Pid, RemoteFd};
use crate::procfs::ProcDir;
use crate::remote::Tracee;
use snapify_store::SpaceId;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

/// The descriptor tables of the processes that were looked at, in the same order, and what they lead to.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) tables: Vec<Vec<Descriptor>>,
    pub(crate) files: FilesImage,
}

/// Makes remote calls in a process that is being saved, as we see it.
pub(crate) type Within<'a> = dyn FnMut(Pid, &mut RemoteWork<'_>) -> Result<i32, ProcError> + 'a;

/// What is done there.
pub(crate) type RemoteWork<'a> = dyn FnMut(&mut Tracee<'_>) -> Result<i32, ProcError> + 'a;

/// Saves all descriptors of frozen processes, each of which has a table of its own. What cannot be saved is noted in
/// `gathered`.
///
/// # Errors
/// If a process dies or a kernel interface that is needed is missing.
pub(crate) fn capture(
    subjects: &[Subject<'_>],
    members: HashMap<Pid, Pid>,
    declared: &[Declared],
    outside: Outside,
    gathered: &Gathered,
    within: &mut Within<'_>,
) -> Result<Tables, ProcError> {
    let us = Pid(std::process::id().cast_signed());
    let our_proc = ProcDir::open(us)?;
    let ours = Subject {
        proc: &our_proc,
        inner_pid: us,
    };
    let survey = Survey::new(subjects, Some(ours), members, declared, outside)?;
    survey
        .obstacles
        .into_iter()
        .for_each(|obstacle| gathered.refuse(obstacle));
    let mut builder = Builder {
        gathered,
        view: &survey.view,
        image: FilesImage::default(),
        pipes: HashMap::new(),
        removed: HashMap::new(),
        queues: HashMap::new(),
        unix: unix::capture::places(survey.view.unix.saved()),
        terminals: HashMap::new(),
    };
    let mut flying = HashMap::new();
    builder.image.outer_terminal = terminal::outer(&survey.view);
    let mut tables = vec![Vec::new(); subjects.len()];
    for group in &survey.groups {
        let described = match &group.found {
            Ok((_, found)) => builder.describe(group, found),
            Err(obstacle) => Err(obstacle.clone()),
        };
        match described {
            Ok(description) => builder.image.descriptions.push(description),
            Err(obstacle) => {
                gathered.refuse(obstacle);
                continue;
            }
        }
        let description = builder.image.descriptions.len() - 1;
        for seen in &group.descriptors {
            let Some(table) = tables.get_mut(seen.process) else {
                flying.insert(seen.fd, description);
                continue;
            };
            table.push(Descriptor {
                fd: seen.fd,
                description,
                close_on_exec: seen.close_on_exec(),
            });
        }
    }
    builder.fill_pipes(&survey.groups);
    builder.save_sockets();
    builder.save_unix(&survey.groups, &flying, within);
    for table in &mut tables {
        table.sort_unstable_by_key(|descriptor| descriptor.fd);
    }
    Ok(Tables {
        tables,
        files: builder.image,
    })
}

struct Builder<'a> {
    gathered: &'a Gathered,
    view: &'a View<'a>,
    image: FilesImage,
    /// Index of each pipe by device and inode number.
    pipes: HashMap<(u64, u64), usize>,
    /// Index of each removed file by device and inode number.
    removed: HashMap<(u64, u64), usize>,
    /// Index of each message queue by device and inode number.
    queues: HashMap<(u64, u64), usize>,
    /// Index of each UNIX socket by inode number.
    unix: HashMap<u64, usize>,
    /// Index of each pseudo-terminal by its index in the survey.
    terminals: HashMap<usize, usize>,
}

/// What the images of sockets need from the rest.
struct Surroundings<'a, 'w> {
    builder: &'a Builder<'a>,
    within: &'a mut Within<'w>,
    /// Descriptions that are on their way, by our numbers.
    flying: &'a HashMap<RemoteFd, usize>,
}

impl unix::capture::Surroundings for Surroundings<'_, '_> {
    fn inner_pid(&self, pid: i32) -> Option<i32> {
        let members = &self.builder.view.members;
        // Where they have the same namespace as we, so have those that have ended.
        let is_same = || members.iter().all(|(outer, inner)| outer == inner);
        match members.get(&Pid(pid)) {
            Some(inner) => Some(inner.0),
            None => is_same().then_some(pid),
        }
    }

    fn ask(&mut self, (pid, fd): (Pid, RemoteFd), question: unix::inside::Question) -> Option<i32> {
        let mut work = |tracee: &mut Tracee<'_>| unix::inside::ask(tracee, fd, question);
        let result = (self.within)(pid, &mut work);
        result
            .inspect_err(|error| tracing::debug!("asking for a process id: {error}"))
            .ok()
    }

    fn description(&self, flying: usize) -> Option<usize> {
        let fd = &self.builder.view.unix.flying()[flying];
        self.flying.get(&RemoteFd(fd.as_raw_fd())).copied()
    }

    fn add_bytes(&mut self, what: String, bytes: Vec<u8>) -> SpaceId {
        self.builder.gathered.objects_mut().add_bytes(what, bytes)
    }
}

/// The processes, as far as their sockets may have to be replaced.
struct Programs<'a, 'w> {
    view: &'a View<'a>,
    groups: &'a [Group],
    within: &'a mut Within<'w>,
}

impl unix::requeue::Programs for Programs<'_, '_> {
    fn numbers(&self, inode: u64) -> Option<unix::requeue::Numbers> {
        let all = || self.groups.iter().flat_map(|group| &group.descriptors);
        let is_it = |seen: &&Seen| {
            seen.stat.st_ino == inode && seen.file_type() == rustix::fs::FileType::Socket
        };
        let is_watched = all().any(|seen| seen.info.epoll.iter().any(|one| one.inode == inode));
        let first = all().find(is_it)?;
        let alone = all()
            .filter(is_it)
            .all(|seen| seen.process == first.process);
        let is_flying = first.process + 1 == self.view.owners.len();
        if is_watched || !alone || is_flying || has_flag(first.flags(), libc::O_ASYNC) {
            return None;
        }
        Some(unix::requeue::Numbers {
            pid: self.view.owner(first).proc.pid(),
            fds: all()
                .filter(is_it)
                .map(|seen| (seen.fd, seen.close_on_exec()))
                .collect(),
            flags: first.flags(),
        })
    }

    fn duplicate(&self, pid: Pid, fd: RemoteFd) -> io::Result<OwnedFd> {
        let mut owners = self.view.owners.iter();
        let owner = owners.find(|owner| owner.proc.pid() == pid);
        owner.ok_or(rustix::io::Errno::SRCH)?.duplicate(fd)
    }

    fn within(&mut self, pid: Pid, work: &mut RemoteWork<'_>) -> Result<i32, ProcError> {
        (self.within)(pid, work)
    }
}

impl Builder<'_> {
    fn describe(&mut self, group: &Group, found: &Found) -> Result<Description, Obstacle> {
        let seen = group.representative();
        let object = match found {
            Found::Whole(object) => object.clone(),
            Found::Removed => Object::Removed(OpenRemoved {
                file: self.removed_file(seen)?,
                offset: seen.info.pos,
            }),
            Found::PipeEnd => Object::Pipe(self.pipe_end(seen)?),
            Found::MessageQueue => Object::MessageQueue(mqueue::OpenQueue {
                queue: self.queue(seen)?,
            }),
            Found::Inet(socket) => Object::Inet(inet::InetDescription { socket: *socket }),
            Found::Unix => Object::Unix(unix::SocketRef {
                socket: self.unix[&seen.stat.st_ino],
            }),
            Found::Terminal(end) => Object::Terminal(self.terminal(*end)?),
        };
        let kept = match object {
            // Belongs to whoever supplies it.
            Object::External { .. } => input_signals::Kept::default(),
            _ => input_signals::capture(seen, self.view)?,
        };
        let locks = self.locks(group, &object);
        let is_flying = |seen: &Seen| seen.process + 1 == self.view.owners.len();
        // What is about a process is opened there, when all sockets have been filled.
        let comes_late = match &object {
            Object::PidFd(pidfd) => pidfd.process.is_some(),
            Object::Named(file) => file.file_type == NamedType::OwnProc,
            Object::Terminal(end) => end.side == terminal::Side::Own,
            _ => false,
        };
        if comes_late && group.descriptors.iter().any(is_flying) {
            let why = "it is on its way through a socket, which is not supported for what is about a process";
            return Err(seen.obstacle(why));
        }
        // What is restored by a process that has it open needs one.
        let needs_process =
            matches!(object, Object::Epoll(_)) || !locks.is_empty() || kept.signals.is_some();
        if needs_process && group.descriptors.iter().all(is_flying) {
            let why = "it is on its way through a socket and no process has it open, which is not supported for its kind";
            return Err(seen.obstacle(why));
        }
        Ok(Description {
            flags: seen.flags(),
            locks,
            object,
            input_signals: kept.signals,
            write_hint: kept.write_hint,
        })
    }

    fn removed_file(&mut self, seen: &Seen) -> Result<usize, Obstacle> {
        if let Some(&file) = self.removed.get(&seen.object_id()) {
            return Ok(file);
        }
        let unreadable =
            |error: io::Error| seen.obstacle(format!("its content cannot be read: {error}"));
        let content = regular::content(seen, self.view).map_err(unreadable)?;
        let seals = regular::seals(seen, &content);
        let object = self
            .gathered
            .objects_mut()
            .add_file(seen.link.to_string(), content, regular::directory(seen))
            .map_err(unreadable)?;
        self.image.removed.push(RemovedFile {
            object,
            was: seen.link.clone(),
            seals,
            times_ns: Some((
                identity::read_ns(&seen.stat),
                identity::modified_ns(&seen.stat),
            )),
        });
        let file = self.image.removed.len() - 1;
        self.removed.insert(seen.object_id(), file);
        Ok(file)
    }

    fn pipe_end(&mut self, seen: &Seen) -> Result<pipe::PipeEnd, Obstacle> {
        let end = self
            .view
            .duplicate(seen)
            .map_err(|error| seen.obstacle(format!("it cannot be looked at: {error}")))?;
        let pipe = match self.pipes.get(&seen.object_id()) {
            Some(&pipe) => pipe,
            None => {
                let capacity = rustix::pipe::fcntl_getpipe_size(&end).map_err(|errno| {
                    let error = io::Error::from(errno);
                    seen.obstacle(format!("its size cannot be read: {error}"))
                })?;
                self.image.pipes.push(pipe::PipeImage {
                    capacity,
                    name: fifo::FifoName::of(seen),
                    ..pipe::PipeImage::default()
                });
                let pipe = self.image.pipes.len() - 1;
                self.pipes.insert(seen.object_id(), pipe);
                pipe
            }
        };
        Ok(pipe::PipeEnd {
            pipe,
            awaits_writer: fifo::awaits_writer(seen, &end),
        })
    }

    fn queue(&mut self, seen: &Seen) -> Result<usize, Obstacle> {
        if let Some(&queue) = self.queues.get(&seen.object_id()) {
            return Ok(queue);
        }
        let path = format!("/proc/{}/fd/{}", self.view.owner(seen).proc.pid(), seen.fd);
        let image = mqueue::capture(seen, path.as_ref())?;
        self.image.queues.push(image);
        let queue = self.image.queues.len() - 1;
        self.queues.insert(seen.object_id(), queue);
        Ok(queue)
    }

    fn terminal(&mut self, end: terminal::End) -> Result<terminal::TerminalEnd, Obstacle> {
        let terminals = &mut self.image.terminals;
        let (terminal, side) = match end {
            terminal::End::HungUp(number) => {
                terminals.push(terminal::TerminalImage {
                    number,
                    hung_up: true,
                    ..terminal::TerminalImage::default()
                });
                (terminals.len() - 1, terminal::Side::Program)
            }
            terminal::End::Of(index, side) => {
                let terminal = match self.terminals.get(&index) {
                    Some(&terminal) => terminal,
                    None => {
                        terminals.push(terminal::capture(self.view, index)?);
                        self.terminals.insert(index, terminals.len() - 1);
                        terminals.len() - 1
                    }
                };
                (terminal, side)
            }
        };
        Ok(terminal::TerminalEnd { terminal, side })
    }

    /// Saves all TCP and UDP sockets.
    fn save_sockets(&mut self) {
        let (image, obstacles) = self
            .view
            .inet
            .save(|what, bytes| self.gathered.objects_mut().add_bytes(what, bytes));
        self.image.inet = image;
        obstacles
            .into_iter()
            .for_each(|obstacle| self.gathered.refuse(obstacle));
    }

    /// Saves the contents of the pipes, each through any of its read ends. A pipe that nobody can
    /// read needs none.
    fn fill_pipes(&mut self, groups: &[Group]) {
        let packet_mode = |group: &&Group| {
            let flags = group.representative().flags();
            can_write(flags) && has_flag(flags, libc::O_DIRECT)
        };
        let in_packets: HashSet<(u64, u64)> = groups
            .iter()
            .filter(packet_mode)
            .map(|group| group.representative().object_id())
            .collect();
        for group in groups {
            let seen = group.representative();
            if !matches!(group.found, Ok((_, Found::PipeEnd))) || !can_read(seen.flags()) {
                continue;
            }
            // Each pipe once, whatever the number of its read ends.
            let Some(pipe) = self.pipes.remove(&seen.object_id()) else {
                continue;
            };
            match self.view.duplicate(seen).and_then(|reader| {
                pipe::content(reader.as_fd(), in_packets.contains(&seen.object_id()))
            }) {
                Ok((content, _)) if content.is_empty() => {}
                Ok((content, packets)) => {
                    let object = self
                        .gathered
                        .objects_mut()
                        .add_bytes(seen.link.to_string(), content);
                    self.image.pipes[pipe].content = Some(object);
                    if packets.len() > 1 || in_packets.contains(&seen.object_id()) {
                        self.image.pipes[pipe].packets = packets;
                    }
                }
                Err(error) => self
                    .gathered
                    .refuse(seen.obstacle(format!("its content cannot be read: {error}"))),
            }
        }
    }

    /// Saves the UNIX sockets with their queues.
    fn save_unix(
        &mut self,
        groups: &[Group],
        flying: &HashMap<RemoteFd, usize>,
        within: &mut Within<'_>,
    ) {
        let owners = self.view.owners.iter();
        let mut directories: Vec<PathBuf> = owners
            .filter_map(|owner| Some(owner.proc.link("cwd").ok()?.as_path().to_owned()))
            .collect();
        directories.dedup();
        // Nothing is touched in a program that is refused.
        let unread = match self.gathered.is_refused() {
            true => Ok(HashMap::new()),
            false => {
                let mut programs = Programs {
                    view: self.view,
                    groups,
                    within: &mut *within,
                };
                let address = |inode| self.view.unix.reachable(inode, &directories);
                unix::requeue::requeue(&self.view.unix, address, &mut programs)
            }
        };
        let unread = unread.unwrap_or_else(|obstacles| {
            obstacles
                .into_iter()
                .for_each(|obstacle| self.gathered.refuse(obstacle));
            HashMap::new()
        });
        let mut around = Surroundings {
            builder: self,
            within,
            flying,
        };
        let (sockets, obstacles) =
            self.view
                .unix
                .images(&self.unix, &directories, &unread, &mut around);
        obstacles
            .into_iter()
            .for_each(|obstacle| self.gathered.refuse(obstacle));
        self.image.unix = sockets;
    }

    /// The locks that are held through a description. Those that belong to a process show only with that process, those that
    /// belong to the description with all who have it.
    fn locks(&self, group: &Group, object: &Object) -> Vec<LockImage> {
        // Locks on what the restart supplies are the supplier's business.
        if matches!(object, Object::External { .. } | Object::Stdio(_)) {
            return Vec::new();
        }
        let mut locks: Vec<LockImage> = Vec::new();
        for seen in &group.descriptors {
            let flags = seen.flags();
            // Locks of a process show with every descriptor of the file. They come back through one that they can be taken
            // through, which there must be: closing it would have dropped them.
            let takes = |lock: &LockImage| {
                lock.process.is_none()
                    || !has_flag(flags, libc::O_PATH)
                        && if lock.exclusive {
                            can_write(flags)
                        } else {
                            can_read(flags)
                        }
            };
            let holder = self.view.owner(seen).inner_pid;
            for lock in seen
                .info
                .locks
                .iter()
                .map(|lock| LockImage::new(lock, holder))
            {
                if takes(&lock) && !locks.contains(&lock) {
                    locks.push(lock);
                }
            }
        }
        locks
    }
}
