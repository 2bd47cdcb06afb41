//! Files and directories: those with a name are opened by it again, those without one come back
//! with their content.

use super::directory::RemovedDirectory;
use super::inherit::{Stdio, kept_file, standard_stream};
use super::survey::{Found, Recognized, Seen, View};
use super::{Object, can_read, can_write, has_flag, search};
use crate::error::{Obstacle, ProcError};
use crate::identity::{self, FileIdentity};
use crate::ids::Pid;
use crate::path::ImagePath;
use crate::reopen;
use rustix::fs::{Access, AtFlags, CWD, FileType, FsWord, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// An open file or directory that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// What it was like.
    #[serde(flatten)]
    pub identity: FileIdentity,
    /// Offset in bytes; for a directory whatever its file system takes for one.
    pub offset: i64,
    /// What it was.
    pub file_type: NamedType,
}

/// What a named file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link itself (opened with `O_PATH`).
    Link,
    /// A pipe, socket or device that is only a place in the file system (opened with `O_PATH`).
    Node,
    /// A file that the kernel makes up when it is read (`/proc`, `/sys`).
    Kernel,
    /// A file of `/proc` that is about a process that is saved, by the id that this one has for itself.
    OwnProc,
}

/// A file that had no name any more, or never had one. Several descriptions may be open on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedFile {
    /// The content.
    pub object: SpaceId,
    /// What it was called, for people.
    pub was: ImagePath,
    /// Seals (`F_ADD_SEALS`), for one made by memfd_create(2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seals: Option<u32>,
    /// When it was read and changed last, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_ns: Option<(i64, i64)>,
}

/// A description that is open on a [`RemovedFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRemoved {
    /// Index into [`FilesImage::removed`](super::FilesImage::removed).
    pub file: usize,
    /// Offset in bytes.
    pub offset: i64,
}

/// Flags of open(2) that a description is opened with again. Not among them are those that act only
/// once (`O_CREAT`, `O_TRUNC`) and what `O_TMPFILE` leaves behind.
const REOPEN_FLAGS: OFlags = OFlags::RWMODE
    .union(OFlags::APPEND)
    .union(OFlags::NONBLOCK)
    .union(OFlags::DSYNC)
    .union(OFlags::SYNC)
    .union(OFlags::DIRECT)
    .union(OFlags::LARGEFILE)
    .union(OFlags::NOATIME)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::DIRECTORY)
    .union(OFlags::PATH);

const ASYNC: OFlags = OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned());

/// Prefix of the names of files made by memfd_create(2).
const MEMFD: &[u8] = b"/memfd:";

// File system types (linux/magic.h) whose regular files are none.
const PROC: FsWord = 0x9fa0;
const KERNEL_MADE: [FsWord; 7] = [
    PROC,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
];
const MESSAGE_QUEUES: FsWord = 0x1980_0202;
const SECRET_MEMORY: FsWord = 0x5345_434d;
const DMA_BUFFERS: FsWord = 0x444d_4142;

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    let named_type = match seen.file_type() {
        FileType::RegularFile => NamedType::Regular,
        FileType::Directory => NamedType::Directory,
        FileType::Symlink => NamedType::Link,
        _ if has_flag(seen.flags(), libc::O_PATH) => NamedType::Node,
        _ => return None,
    };
    if seen.link.as_bytes().first() != Some(&b'/') {
        // Other kernel objects have links such as "mnt:[4026531841]".
        return seen
            .link
            .as_bytes()
            .starts_with(b"(unreachable)")
            .then(|| Err(seen.obstacle("its path lies outside of what can be reached from here")));
    }
    let found = match file_system(seen, view) {
        Err(obstacle) => Err(obstacle),
        Ok(PROC) => proc_file(seen, view),
        Ok(kind) if KERNEL_MADE.contains(&kind) => named(seen, view, NamedType::Kernel),
        Ok(MESSAGE_QUEUES) => Ok(Found::MessageQueue),
        Ok(SECRET_MEMORY) => Err(seen.obstacle("it is secret memory, which nobody else may read")),
        Ok(DMA_BUFFERS) => Err(seen.obstacle("it is a buffer of a device, which is not supported")),
        Ok(_) if seen.stat.st_nlink == 0 => removed(seen, named_type),
        Ok(_) => named(seen, view, named_type),
    };
    // A standard stream that we cannot open again, such as a log file that root has opened for a
    // user's program, is like a pipe to somebody else.
    let stream = || standard_stream(seen, view).or_else(|| kept_file(seen, view));
    match (&found, stream()) {
        (Err(_), Some(fd)) => Some(Ok(Found::Whole(Object::Stdio(Stdio::new(fd, seen))))),
        _ => Some(found),
    }
}

fn file_system(seen: &Seen, view: &View<'_>) -> Result<FsWord, Obstacle> {
    if let Some(&known) = view.file_systems.borrow().get(&seen.stat.st_dev) {
        return Ok(known);
    }
    let path = format!("/proc/{}/fd/{}", view.owner(seen).proc.pid(), seen.fd);
    let status = rustix::fs::statfs(path).map_err(|errno| {
        let error = io::Error::from(errno);
        seen.obstacle(format!("its file system cannot be looked at: {error}"))
    })?;
    let mut known = view.file_systems.borrow_mut();
    known.insert(seen.stat.st_dev, status.f_type);
    Ok(status.f_type)
}

fn removed(seen: &Seen, named_type: NamedType) -> Result<Found, Obstacle> {
    match named_type {
        NamedType::Regular => Ok(Found::Removed),
        NamedType::Directory => Ok(Found::Whole(Object::RemovedDirectory(
            RemovedDirectory::new(&seen.link, &seen.stat),
        ))),
        _ => Err(seen.obstacle("it was removed")),
    }
}

fn named(seen: &Seen, view: &View<'_>, file_type: NamedType) -> Result<Found, Obstacle> {
    let path = if identity::leads_to(&seen.link, &seen.stat) {
        seen.link.clone()
    } else {
        // The name that it was opened by was removed while it has others, or it lies in another mount namespace.
        let near = [seen.link.as_path().to_owned()];
        match search::find_near([seen.object_id()], &view.told_of_reading, near)
            .remove(&seen.object_id())
        {
            Some(other) => other,
            None if file_type == NamedType::Regular => {
                tracing::warn!(
                    "descriptor {} ({}): none of its names was found; it is saved with its content, and what is written after \
                     a restart is not seen under them",
                    seen.fd,
                    seen.link
                );
                return Ok(Found::Removed);
            }
            None => {
                let why = "this name leads to something else by now, or to nothing";
                return Err(seen.obstacle(why));
            }
        }
    };
    if let Err(errno) = may_reopen(&path, seen.flags()) {
        return Err(seen.obstacle(format!(
            "it could not be opened again: {}",
            io::Error::from(errno)
        )));
    }
    Ok(whole(seen, path, file_type))
}

fn whole(seen: &Seen, path: ImagePath, file_type: NamedType) -> Found {
    let identity = FileIdentity::new(path, &seen.stat);
    Found::Whole(Object::Named(NamedFile {
        identity,
        offset: seen.info.pos,
        file_type,
    }))
}

/// A file of `/proc`: that of the whole system, or of a process that is saved, whatever number its
/// directory has in the PID namespace that this `/proc` was mounted for.
fn proc_file(seen: &Seen, view: &View<'_>) -> Result<Found, Obstacle> {
    let path = seen.link.as_bytes();
    let mut parts = path.splitn(4, |&b| b == b'/').skip(2);
    let directory = parts.next().unwrap_or_default();
    if let Some(number) = crate::procfs::text::id(directory) {
        // Seen from outside, or by a process in its own namespace.
        let known = |pid: &Pid| view.members.values().any(|inner| inner == pid);
        let inner = view
            .members
            .get(&Pid(number))
            .copied()
            .or_else(|| Some(Pid(number)).filter(known));
        let Some(inner) = inner else {
            return Err(seen.obstacle("it is about another process"));
        };
        let rest = parts.next().unwrap_or_default();
        let path = [format!("/proc/{inner}/").as_bytes(), rest].concat();
        return Ok(whole(seen, ImagePath::from_bytes(path), NamedType::OwnProc));
    }
    // Numbers of /proc's inodes are made up as they are looked for, and another mount of it has
    // another device number.
    match may_open(&seen.link, seen.flags()) {
        Ok(()) => Ok(whole(seen, seen.link.clone(), NamedType::Kernel)),
        Err(errno) => Err(seen.obstacle(format!(
            "it could not be opened again: {}",
            io::Error::from(errno)
        ))),
    }
}

/// Whether a restart could open a path with these flags; the process is of the same user.
///
/// A file of the user's own can be opened whatever its mode has become since: the restart has CAP_DAC_OVERRIDE in its user namespace, which
/// the kernel grants for files whose owner and group that knows (user_namespaces(7)).
pub(super) fn may_open(path: &Path, flags: u32) -> rustix::io::Result<()> {
    if has_flag(flags, libc::O_PATH) {
        return Ok(());
    }
    let mut access = Access::empty();
    access.set(Access::READ_OK, can_read(flags));
    access.set(Access::WRITE_OK, can_write(flags));
    match rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS) {
        Err(Errno::ACCESS) if is_own(path) => Ok(()),
        other => other,
    }
}

/// Whether a file belongs to our user and our group.
fn is_own(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| {
        stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_gid == rustix::process::getegid().as_raw()
    })
}

/// As [`may_open`], for a file that its owner may have taken permissions from since.
fn may_reopen(path: &Path, flags: u32) -> rustix::io::Result<()> {
    match may_open(path, flags) {
        Err(Errno::ACCESS) if reopen::is_own(path) => Ok(()),
        other => other,
    }
}

/// A descriptor of ours, with an offset of its own, from which the content of a removed file can be
/// read: the link of `/proc` opens the file itself. As far as we may, the file is not told of it.
pub(crate) fn content(seen: &Seen, view: &View<'_>) -> io::Result<OwnedFd> {
    let open = |flags| {
        let directory = view.owner(seen).proc.dir();
        let path = format!("fd/{}", seen.fd);
        rustix::fs::openat(directory, path, flags | OFlags::CLOEXEC, Mode::empty())
    };
    match open(OFlags::RDONLY | OFlags::NOATIME) {
        Err(Errno::PERM) => Ok(open(OFlags::RDONLY)?),
        other => Ok(other?),
    }
}

/// The directory that a removed file was in, for making its successor on the same file system.
pub(crate) fn directory(seen: &Seen) -> Option<ImagePath> {
    if seen.link.as_bytes().starts_with(MEMFD) {
        return None;
    }
    let directory = seen.link.parent()?;
    rustix::fs::stat(directory)
        .is_ok_and(|stat| stat.st_dev == seen.stat.st_dev)
        .then(|| directory.into())
}

/// The seals of a file made by memfd_create(2).
pub(crate) fn seals(seen: &Seen, file: &OwnedFd) -> Option<u32> {
    let is_memfd = seen.link.as_bytes().starts_with(MEMFD);
    is_memfd.then(|| rustix::fs::fcntl_get_seals(file).map_or(0, |seals| seals.bits()))
}

impl NamedFile {
    /// Whether the file can be opened again and is long enough to go on with. It may have grown
    /// since: the program itself may have written more after the snapshot, and writes that again.
    ///
    /// # Errors
    /// An obstacle that names it.
    pub fn verify(&self, flags: u32) -> Result<(), Obstacle> {
        let path = self.identity.path.as_path();
        let refuse = |why: String| Obstacle::new(format!("open file {}", self.identity.path), why);
        let look = if self.file_type == NamedType::Link {
            rustix::fs::lstat
        } else {
            rustix::fs::stat
        };
        let stat: Stat = match (self.file_type, look(path)) {
            (NamedType::OwnProc, _) => return Ok(()),
            (_, Ok(stat)) => stat,
            (_, Err(errno)) => return Err(refuse(io::Error::from(errno).to_string())),
        };
        let same_type = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                matches!(self.file_type, NamedType::Regular | NamedType::Kernel)
            }
            FileType::Directory => {
                matches!(self.file_type, NamedType::Directory | NamedType::Kernel)
            }
            FileType::Symlink => self.file_type == NamedType::Link,
            _ => self.file_type == NamedType::Node,
        };
        if !same_type {
            return Err(refuse(
                "it is of another type than when the snapshot was taken".into(),
            ));
        }
        let (before, now) = (
            self.identity.bytes,
            u64::try_from(stat.st_size).unwrap_or(0),
        );
        if self.file_type == NamedType::Regular && now < before {
            let why = format!(
                "it was changed after the snapshot was taken: it had {before} bytes and has {now} now"
            );
            return Err(refuse(why));
        }
        if self.file_type == NamedType::Regular
            && !can_write(flags)
            && identity::modified_ns(&stat) != self.identity.modified_ns
        {
            tracing::warn!(
                "{}: changed since the snapshot was taken; the program goes on reading it",
                self.identity.path
            );
        }
        may_reopen(path, flags).map_err(|errno| refuse(io::Error::from(errno).to_string()))
    }

    /// Opens the file as it was open.
    ///
    /// # Errors
    /// Those of open(2) and lseek(2).
    pub(crate) fn open(&self, flags: u32) -> Result<OwnedFd, ProcError> {
        let flags = match self.file_type {
            // Left behind by O_TMPFILE, of a file that has got a name since.
            NamedType::Regular => flags & !libc::O_DIRECTORY.cast_unsigned(),
            _ => flags,
        };
        let mut wanted = reopen_flags(flags);
        // Of no effect on a file, but shown.
        wanted.set(
            ASYNC,
            self.file_type == NamedType::Regular && has_flag(flags, libc::O_ASYNC),
        );
        open_with(&self.identity.path, wanted, self.offset)
    }

    /// Flags for open(2).
    pub(crate) fn open_flags(&self, flags: u32) -> OFlags {
        reopen_flags(flags)
    }
}

/// Opens what `path` leads to with the flags of a description, at an offset.
pub(crate) fn open_at(path: &Path, flags: u32, offset: i64) -> Result<OwnedFd, ProcError> {
    open_with(path, reopen_flags(flags), offset)
}

fn open_with(path: &Path, flags: OFlags, offset: i64) -> Result<OwnedFd, ProcError> {
    let open = |flags| {
        reopen::as_owner(
            path,
            |errno| *errno == Errno::ACCESS,
            || {
                rustix::fs::open(
                    path,
                    flags | OFlags::CLOEXEC | OFlags::NOCTTY,
                    Mode::empty(),
                )
            },
        )
    };
    let fd = match open(flags) {
        // O_NOATIME is for the owner only, and it is no more than a hint.
        Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => open(flags - OFlags::NOATIME),
        other => other,
    };
    let fd = fd.map_err(ProcError::file("open", path))?;
    if offset != 0 && !flags.contains(OFlags::PATH) {
        let offset = u64::try_from(offset).map_err(|_| {
            ProcError::BadImage(format!("{} is open at offset {offset}", path.display()))
        })?;
        rustix::fs::seek(&fd, SeekFrom::Start(offset))
            .map_err(ProcError::file("set the offset of", path))?;
    }
    Ok(fd)
}

pub(super) fn reopen_flags(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags) & REOPEN_FLAGS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_file(path: &Path, offset: i64) -> NamedFile {
        let identity = FileIdentity::new(path.into(), &rustix::fs::stat(path).unwrap());
        NamedFile {
            identity,
            offset,
            file_type: NamedType::Regular,
        }
    }

    #[test]
    fn a_file_is_opened_where_it_was() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789").unwrap();
        let flags = (libc::O_RDWR | libc::O_APPEND | libc::O_TRUNC | libc::O_CREAT).cast_unsigned();
        let fd = named_file(file.path(), 4).open(flags).unwrap();
        assert_eq!(rustix::fs::tell(&fd), Ok(4));
        assert_eq!(std::fs::read(file.path()).unwrap().len(), 10);
        assert!(
            rustix::fs::fcntl_getfl(&fd)
                .unwrap()
                .contains(OFlags::APPEND | OFlags::RDWR)
        );
        assert!(matches!(
            named_file(file.path(), -4).open(flags),
            Err(ProcError::BadImage(_))
        ));
    }

    #[test]
    fn a_file_may_grow_but_not_shrink_or_change_its_type() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789").unwrap();
        let mut image = named_file(file.path(), 4);
        std::fs::write(file.path(), "0123456789ab").unwrap();
        image.verify(0).unwrap();
        std::fs::write(file.path(), "012345678").unwrap();
        assert!(
            image
                .verify(0)
                .unwrap_err()
                .why
                .contains("had 10 bytes and has 9")
        );
        image.identity.path = ImagePath::from_bytes("/");
        assert!(image.verify(0).unwrap_err().why.contains("another type"));
        image.identity.path = ImagePath::from_bytes("/nowhere/at/all");
        assert!(
            image
                .verify(0)
                .unwrap_err()
                .object
                .contains("/nowhere/at/all")
        );
    }
}
