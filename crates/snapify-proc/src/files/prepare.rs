//! The first step of restoring descriptors: in init, before the new processes are cloned, all objects
//! are opened or made by ordinary calls. All processes inherit them at the same numbers.

use super::pidfd::PidFd;
use super::pipe::NewPipe;
use super::regular::{self, NamedType, RemovedFile};
use super::terminal::{self, Side};
use super::{
    ACCESS_MODE, Description, FilesImage, Object, epoll, has_flag, inet, inotify, mqueue, unix,
};
use crate::error::{Obstacle, ProcError};
use crate::identity;
use crate::ids::RemoteFd;
use crate::restore::RestoreContext;
use rustix::fs::{FileType, Mode, OFlags, SealFlags, SeekFrom, Timestamps};
use rustix::process::{Resource, Rlimit};
use snapify_store::SpaceId;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// What a description will be placed from.
#[derive(Debug)]
pub(super) enum Source {
    /// Ours alone.
    Own(OwnedFd),
    /// Kept by the context: an external, a standard stream.
    Context(RemoteFd),
    /// The first process that has it opens it, because it is about a process that is being made; others get it from that one.
    OpenedThere,
}

/// All objects that the descriptors of an image need, ready to be inherited.
#[derive(Debug)]
pub struct Prepared {
    /// One for each description.
    pub(super) sources: Vec<Source>,
    /// The pipes, held until their content is put in.
    pub(super) pipes: Vec<NewPipe>,
    /// TCP and UDP sockets, likewise.
    pub(super) inet: inet::NewSockets,
    /// The UNIX sockets, held until they have what they had received.
    pub(super) unix: unix::NewSockets,
    /// Pseudo-terminals, likewise.
    pub(super) terminals: terminal::NewTerminals,
}

/// What has changed since the snapshot was taken so that the descriptors cannot come back, but for what is made again
/// (`restorable`). Creates nothing.
#[must_use]
pub fn preflight(image: &FilesImage, restorable: &HashSet<&Path>) -> Vec<Obstacle> {
    let mut obstacles = inet::preflight(&image.inet);
    let names = image.pipes.iter().filter_map(|pipe| pipe.name.as_ref());
    let names = names.filter(|name| !restorable.contains(name.path.as_path()));
    obstacles.extend(names.filter_map(|name| name.verify().err()));
    for description in &image.descriptions {
        match &description.object {
            Object::Named(file) if restorable.contains(file.identity.path.as_path()) => {}
            Object::Named(file) => obstacles.extend(file.verify(description.flags).err()),
            Object::Inotify(inotify) => obstacles.extend(inotify.verify()),
            Object::Device(device) if device.usual_path().is_none() => {
                let why = format!(
                    "device {}:{} is none that can be opened again",
                    device.major, device.minor
                );
                obstacles.push(Obstacle::new(device.path.to_string(), why));
            }
            _ => {}
        }
    }
    obstacles.extend(unix::names::preflight(&image.unix, restorable));
    obstacles
}

impl Prepared {
    /// Opens and makes everything, at numbers from [`RestoreContext::first_inherited`] on.
    ///
    /// # Errors
    /// Any file or device that cannot be opened, any object that cannot be made.
    pub fn new(image: &FilesImage, ctx: &RestoreContext<'_>) -> Result<Self, ProcError> {
        raise_descriptor_limit()?;
        let mut pipes = image
            .pipes
            .iter()
            .map(|pipe| NewPipe::new(pipe, |text| ctx.warn(text)))
            .collect::<Result<Vec<_>, _>>()?;
        // First those without a name, which may have had that of another.
        let mut queues: Vec<Option<OwnedFd>> = image.queues.iter().map(|_| None).collect();
        for unlinked in [true, false] {
            for (made, queue) in queues.iter_mut().zip(&image.queues) {
                if queue.unlinked == unlinked {
                    *made = Some(queue.make()?);
                }
            }
        }
        let inet = inet::NewSockets::new(&image.inet, &|text| ctx.warn(text))?;
        let unix = unix::NewSockets::new(&image.unix, &|text| ctx.warn(text))?;
        let side = |index| image.master_side(index);
        let mut terminals = terminal::NewTerminals::new(&image.terminals, side, ctx)?;
        let mut made = Made {
            pipes: &mut pipes,
            queues: &queues,
            inet: &inet,
            unix: &unix,
            terminals: &terminals,
            originals: HashSet::new(),
        };
        let sources = image
            .descriptions
            .iter()
            .map(|description| source(description, image, &mut made, ctx))
            .collect::<Result<_, _>>()?;
        terminals.hang_up(&image.terminals);
        for (queue, made) in image.queues.iter().zip(queues.iter().flatten()) {
            queue.set_mode(made)?;
        }
        Ok(Self {
            sources,
            pipes,
            inet,
            unix,
            terminals,
        })
    }

    /// Descriptors of the terminals that are to control sessions, by session.
    pub(crate) fn controlling(&self, image: &FilesImage) -> HashMap<i32, i32> {
        self.terminals.controlling(&image.terminals)
    }

    /// Another descriptor of a description.
    fn duplicate(&self, description: usize) -> Result<OwnedFd, ProcError> {
        match self.sources.get(description) {
            Some(Source::Own(fd)) => fd
                .try_clone()
                .map_err(ProcError::system("duplicating a descriptor")),
            Some(Source::Context(fd)) => duplicate(*fd),
            _ => Err(ProcError::BadImage(format!(
                "description {description} cannot be on its way through a socket"
            ))),
        }
    }

    /// Fills the UNIX sockets.
    ///
    /// # Errors
    /// If a message cannot be sent again.
    pub(super) fn fill_unix(
        &self,
        image: &FilesImage,
        ctx: &RestoreContext<'_>,
    ) -> Result<(), ProcError> {
        let supplies = Supplies {
            prepared: self,
            ctx,
        };
        self.unix.fill(&image.unix, &supplies)
    }
}

/// What UNIX sockets are filled with.
struct Supplies<'a> {
    prepared: &'a Prepared,
    ctx: &'a RestoreContext<'a>,
}

impl unix::Supplies for Supplies<'_> {
    fn content(&self, object: SpaceId, bytes: u64) -> Result<Vec<u8>, ProcError> {
        self.ctx.object_bytes(object, bytes)
    }

    fn description(&self, index: usize) -> Result<OwnedFd, ProcError> {
        self.prepared.duplicate(index)
    }

    fn warn(&self, text: String) {
        self.ctx.warn(text);
    }
}

/// Objects that several descriptions may be of, or that belong together.
struct Made<'a> {
    pipes: &'a mut [NewPipe],
    queues: &'a [Option<OwnedFd>],
    inet: &'a inet::NewSockets,
    unix: &'a unix::NewSockets,
    terminals: &'a terminal::NewTerminals,
    /// Memory files whose original description has been given away.
    originals: HashSet<usize>,
}

fn source(
    description: &Description,
    image: &FilesImage,
    made: &mut Made<'_>,
    ctx: &RestoreContext<'_>,
) -> Result<Source, ProcError> {
    let flags = description.flags;
    let fd = match &description.object {
        Object::External { key } => return ctx.external(key).map(Source::Context),
        Object::Stdio(stdio) => return stream(ctx.stdio()[stdio.fd as usize % 3], flags, ctx),
        Object::Named(file) if file.file_type == NamedType::OwnProc => {
            return Ok(Source::OpenedThere);
        }
        Object::PidFd(pidfd) if pidfd.process.is_some() => return Ok(Source::OpenedThere),
        Object::PidFd(_) => PidFd::make_ended()?,
        Object::Named(file) => file.open(flags)?,
        Object::RemovedDirectory(directory) => {
            let path = ctx.removed_directory(directory)?;
            regular::open_at(&path, flags & !libc::O_NOFOLLOW.cast_unsigned(), 0)?
        }
        Object::Removed(open) => {
            let object = ctx.object(image.removed[open.file].object)?;
            let is_memory = image.removed[open.file].seals.is_some();
            if is_memory && may_be_original(flags) && made.originals.insert(open.file) {
                return above(&original(object, flags, open.offset)?, ctx).map(Source::Own);
            }
            // The path is a link itself; a file that never had a name is said to be a directory (O_TMPFILE).
            let flags = flags & !(libc::O_NOFOLLOW | libc::O_DIRECTORY).cast_unsigned();
            regular::open_at(&descriptor_path(object), flags, open.offset)?
        }
        Object::Pipe(end) => made.pipes[end.pipe].description(*end, flags)?,
        Object::MessageQueue(open) => match &made.queues[open.queue] {
            Some(queue) => mqueue::open(queue, flags)?,
            None => return Err(ProcError::BadImage("a message queue was not made".into())),
        },
        Object::Netlink(socket) => socket.make(flags, &|text| ctx.warn(text))?,
        Object::Unix(end) => made.unix.description(end.socket, flags)?,
        Object::Device(device) => {
            let path = device.usual_path().ok_or_else(|| {
                ProcError::BadImage(format!(
                    "device {} is none that can be opened again",
                    device.path
                ))
            })?;
            regular::open_at(Path::new(path), flags, 0)?
        }
        Object::EventFd(eventfd) => eventfd.make(flags)?,
        Object::TimerFd(timer) => timer.make(flags)?,
        Object::SignalFd(signals) => signals.make(flags)?,
        Object::Epoll(_) => epoll::make()?,
        Object::Inet(inet) => made.inet.description(inet.socket, flags)?,
        Object::Inotify(_) => inotify::make(flags)?,
        Object::Terminal(end) if end.side == Side::Own => return Ok(Source::OpenedThere),
        Object::Terminal(end) => made.terminals.description(*end, flags)?,
    };
    above(&fd, ctx).map(Source::Own)
}

/// Whether a description of a memory file may be the one that memfd_create(2) made. What appends is opened anew: the content is still to be
/// written where it belongs.
fn may_be_original(flags: u32) -> bool {
    flags & ACCESS_MODE == libc::O_RDWR.cast_unsigned() && !has_flag(flags, libc::O_APPEND)
}

/// The description of a memory file that was made with it. The file can be executed while that is open, and not while one is that was
/// opened for writing.
fn original(object: RemoteFd, flags: u32, offset: i64) -> Result<OwnedFd, ProcError> {
    let error = |what| ProcError::file(what, descriptor_path(object));
    let fd = duplicate(object)?;
    if has_flag(flags, libc::O_NONBLOCK) {
        rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK).map_err(error("set the flags of"))?;
    }
    let offset = SeekFrom::Start(u64::try_from(offset).unwrap_or(0));
    rustix::fs::seek(&fd, offset).map_err(error("set the offset of"))?;
    Ok(fd)
}

/// A standard stream of the restart. The description belongs to whoever started the restart as
/// well: if the program had it non-blocking and it is not, or the other way round, it gets one of
/// its own, where the object can be opened again.
fn stream(fd: RemoteFd, flags: u32, ctx: &RestoreContext<'_>) -> Result<Source, ProcError> {
    let path = descriptor_path(fd);
    let error =
        |what| move |errno: rustix::io::Errno| ProcError::file(what, descriptor_path(fd))(errno);
    let duplicate = duplicate(fd)?;
    let present = rustix::fs::fcntl_getfl(&duplicate).map_err(error("read the flags of"))?;
    let nonblocking = has_flag(flags, libc::O_NONBLOCK);
    if present.contains(OFlags::NONBLOCK) == nonblocking {
        return Ok(Source::Context(fd));
    }
    let mut wanted =
        OFlags::from_bits_retain(present.bits() & ACCESS_MODE) | OFlags::CLOEXEC | OFlags::NOCTTY;
    wanted.set(OFlags::NONBLOCK, nonblocking);
    wanted.set(OFlags::APPEND, present.contains(OFlags::APPEND));
    let is_file = rustix::fs::fstat(&duplicate)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    // Another description of a file would have another offset, and writes would overwrite each
    // other; files never block anyway.
    if is_file {
        return Ok(Source::Context(fd));
    }
    match rustix::fs::open(&path, wanted, Mode::empty()) {
        Ok(own) => above(&own, ctx).map(Source::Own),
        Err(_) => {
            // A socket, or a terminal that another user has opened. A program that waits for events
            // would hang if it blocked.
            let mut changed = present;
            changed.set(OFlags::NONBLOCK, nonblocking);
            rustix::fs::fcntl_setfl(&duplicate, changed).map_err(error("set the flags of"))?;
            Ok(Source::Context(fd))
        }
    }
}

/// Applies what filling a file without a name would undo or could not be done after: permission bits (a write clears set-user-id), times,
/// and the seals of memory files, as far as the kernel lets us.
pub(super) fn complete_removed(
    image: &FilesImage,
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    for removed in &image.removed {
        attributes(removed, ctx)?;
        let Some(seals) = removed.seals.map(SealFlags::from_bits_retain) else {
            continue;
        };
        let file = duplicate(ctx.object(removed.object)?)?;
        let result = match rustix::fs::fcntl_get_seals(&file) {
            Ok(present) if present.contains(seals) => Ok(()),
            _ => rustix::fs::fcntl_add_seals(&file, seals),
        };
        if let Err(errno) = result {
            ctx.warn(format!(
                "{} comes back without its seals: {errno}",
                removed.was
            ));
        }
    }
    Ok(())
}

fn attributes(removed: &RemovedFile, ctx: &RestoreContext<'_>) -> Result<(), ProcError> {
    let mut objects = ctx.image.objects.iter();
    let (Some(object), Some((read, modified))) = (
        objects.find(|object| object.space == removed.object),
        removed.times_ns,
    ) else {
        return Ok(());
    };
    let file = duplicate(ctx.object(removed.object)?)?;
    let times = Timestamps {
        last_access: identity::timespec(read),
        last_modification: identity::timespec(modified),
    };
    let set = rustix::fs::fchmod(&file, Mode::from_raw_mode(object.mode & 0o7777))
        .and_then(|()| rustix::fs::futimens(&file, &times));
    if let Err(errno) = set {
        ctx.warn(format!(
            "{} comes back with other permissions or times: {errno}",
            removed.was
        ));
    }
    Ok(())
}

fn descriptor_path(fd: RemoteFd) -> std::path::PathBuf {
    format!("/proc/self/fd/{fd}").into()
}

/// A second descriptor of one that the context keeps.
fn duplicate(fd: RemoteFd) -> Result<OwnedFd, ProcError> {
    snapify_sys::fd::duplicate(fd.0, 0)
        .map_err(ProcError::system(format!("duplicating descriptor {fd}")))
}

/// Moves a descriptor to a number that the image does not use.
fn above(fd: &OwnedFd, ctx: &RestoreContext<'_>) -> Result<OwnedFd, ProcError> {
    rustix::io::fcntl_dupfd_cloexec(fd, ctx.first_inherited().0).map_err(ProcError::system(
        format!(
            "moving descriptor {} out of the way of the program's",
            fd.as_raw_fd()
        ),
    ))
}

/// Makes room for all numbers; the program's own limits are set at the end.
fn raise_descriptor_limit() -> Result<(), ProcError> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, raised)
        .map_err(ProcError::system("raising the limit of open files"))
}
