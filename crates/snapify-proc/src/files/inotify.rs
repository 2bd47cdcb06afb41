//! Watches of files and directories (inotify(7)).
//!
//! The kernel tells only device and inode number of what is watched: its name is searched for, see [`super::search`]. It gives
//! watch descriptors in ascending order, so that watches come back under their numbers when those in the gaps between them are
//! used up.
//!
//! Events that have not been read cannot be looked at without taking them from the program. Where there are some, the restarted
//! program finds `IN_Q_OVERFLOW` in their place: that events were lost, and it has to look for itself.

use super::search::{self, FileId};
use super::survey::{Found, Recognized, Seen, View};
use super::{Object, has_flag};
use crate::error::{Obstacle, ProcError};
use crate::path::ImagePath;
use crate::procfs::fdinfo::InotifyEntry;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FileType, MemfdFlags};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// An inotify instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inotify {
    /// Its watches, ascending.
    pub watches: Vec<Watch>,
    /// Whether there were events that had not been read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

/// A watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Watch descriptor.
    pub wd: i32,
    /// Events and options (`IN_*`).
    pub mask: u32,
    /// What is watched.
    pub path: ImagePath,
}

/// Using up the numbers between two watches ends here: a tenth of a second for every 100,000.
const MOST_NUMBERS: i32 = 1 << 22;

/// Bytes of an event without a name.
const EVENT_BYTES: usize = 16;

/// Queues that may grow beyond this are not filled up.
const LONGEST_QUEUE: usize = 1 << 18;

const LINK: &[u8] = b"anon_inode:inotify";

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    (seen.link.as_bytes() == LINK).then(|| describe(seen, view))
}

/// What is watched, as stat(2) tells it.
fn id(entry: &InotifyEntry) -> FileId {
    // The kernel shows its own encoding of device numbers: 12 bits major, 20 bits minor.
    let device = rustix::fs::makedev(entry.device >> 20, entry.device & 0xf_ffff);
    (device, entry.inode)
}

/// What is watched so that somebody is told when it is read: a directory should not be looked through.
pub(crate) fn told_of_reading(seen: &Seen) -> impl Iterator<Item = FileId> {
    const ACCESS_OPEN_CLOSE: u32 = 0x1 | 0x10 | 0x20;
    let entries = seen.info.inotify.iter();
    entries
        .filter(|entry| entry.mask & ACCESS_OPEN_CLOSE != 0)
        .map(id)
}

fn describe(seen: &Seen, view: &View<'_>) -> Result<Found, Obstacle> {
    let unread = view
        .duplicate(seen)
        .is_ok_and(|fd| rustix::io::ioctl_fionread(&fd).is_ok_and(|waiting| waiting > 0));
    let entries = &seen.info.inotify;
    let found = search::find(
        entries.iter().map(id),
        &view.told_of_reading,
        likely(seen, view),
    );
    let mut watches = Vec::with_capacity(seen.info.inotify.len());
    for entry in &seen.info.inotify {
        let Some(path) = found.get(&id(entry)) else {
            let why = format!(
                "it watches a file (inode {} of device {}:{}) that was removed or not found",
                entry.inode,
                entry.device >> 20,
                entry.device & 0xf_ffff
            );
            let hint = "names are searched for near the working directory, open files, and in the usual places";
            return Err(seen.obstacle(why).with_hint(hint));
        };
        watches.push(Watch {
            wd: entry.wd,
            mask: entry.mask,
            path: path.clone(),
        });
    }
    watches.sort_by_key(|watch| watch.wd);
    if unread {
        tracing::warn!(
            "descriptor {}: its unread events are replaced by IN_Q_OVERFLOW after a restart",
            seen.fd
        );
    }
    Ok(Found::Whole(Object::Inotify(Inotify { watches, unread })))
}

/// Paths that the process has to do with.
fn likely(seen: &Seen, view: &View<'_>) -> Vec<PathBuf> {
    let proc = view.owner(seen).proc;
    let links = ["cwd", "root", "exe"].map(str::to_owned);
    let fds = proc.fds().unwrap_or_default();
    let names = fds.iter().map(|fd| format!("fd/{fd}")).chain(links);
    let open = names
        .filter_map(|name| proc.link(&name).ok())
        .map(|path| path.as_path().to_owned());
    let directory = proc.link("cwd").unwrap_or_default();
    let arguments = proc.cmdline().unwrap_or_default();
    let named = arguments.iter().map(|path| directory.join(path.as_path()));
    open.chain(named).collect()
}

/// Makes an instance without watches. They come last, see [`Inotify::watch`].
///
/// # Errors
/// Those of inotify_init1(2).
pub(crate) fn make(flags: u32) -> Result<OwnedFd, ProcError> {
    let mut how = CreateFlags::CLOEXEC;
    how.set(CreateFlags::NONBLOCK, has_flag(flags, libc::O_NONBLOCK));
    inotify::init(how).map_err(ProcError::system("making an inotify instance"))
}

impl Inotify {
    /// What is gone of what it watches.
    pub(crate) fn verify(&self) -> impl Iterator<Item = Obstacle> {
        self.watches.iter().filter_map(|watch| {
            let errno = rustix::fs::lstat(watch.path.as_path()).err()?;
            let why = std::io::Error::from(errno).to_string();
            Some(Obstacle::new(format!("watched file {}", watch.path), why))
        })
    }

    /// Adds all watches. Nothing that the restart does to the watched files may follow, for the program would be told of it.
    ///
    /// # Errors
    /// A path that cannot be watched; [`ProcError::BadImage`] for numbers that cannot be.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, warn: impl Fn(String)) -> Result<(), ProcError> {
        let was = rustix::fs::fcntl_getfl(fd).map_err(ProcError::system("asking for flags"))?;
        set_nonblocking(fd, true)?;
        let dummy = Dummy::new()?;
        let mut last = 0;
        for watch in &self.watches {
            if watch.wd <= last || watch.wd > MOST_NUMBERS {
                return Err(ProcError::BadImage(format!(
                    "an inotify instance cannot have the watch {} after {last}",
                    watch.wd
                )));
            }
            for _ in last + 1..watch.wd {
                dummy.add_and_remove(fd)?;
                // Every removal leaves an event behind.
                if last % 1024 == 0 {
                    drain(fd);
                }
                last += 1;
            }
            let got = watch.add(fd)?;
            if got != watch.wd {
                return Err(ProcError::BadImage(format!(
                    "the watch of {} became {got}, not {}",
                    watch.path, watch.wd
                )));
            }
            last = watch.wd;
        }
        drain(fd);
        if self.unread && !overflow(fd, &dummy) {
            warn("events of files that had not been read are lost".into());
        }
        set_nonblocking(fd, was.contains(rustix::fs::OFlags::NONBLOCK))
    }
}

impl Watch {
    fn add(&self, fd: BorrowedFd<'_>) -> Result<i32, ProcError> {
        let path = self.path.as_path();
        let is_link = rustix::fs::lstat(path)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
        // How the path was looked up is not told; it was found without following links.
        let mut mask = WatchFlags::from_bits_retain(self.mask & TOLD);
        mask.set(WatchFlags::DONT_FOLLOW, is_link);
        inotify::add_watch(fd, path, mask).map_err(ProcError::file("watch", path))
    }
}

/// Events that a program can ask for, `IN_EXCL_UNLINK` and `IN_ONESHOT`.
const TOLD: u32 = 0xfff | 1 << 26 | 1 << 31;

/// A file that nobody else knows, to be watched for the sake of numbers.
struct Dummy(OwnedFd);

impl Dummy {
    fn new() -> Result<Self, ProcError> {
        rustix::fs::memfd_create("snapify-watch", MemfdFlags::CLOEXEC)
            .map(Self)
            .map_err(ProcError::system("making a file in memory"))
    }

    fn add(&self, fd: BorrowedFd<'_>) -> Result<i32, ProcError> {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        inotify::add_watch(fd, &path, WatchFlags::ATTRIB | WatchFlags::MODIFY)
            .map_err(ProcError::file("watch", path))
    }

    fn add_and_remove(&self, fd: BorrowedFd<'_>) -> Result<(), ProcError> {
        let wd = self.add(fd)?;
        inotify::remove_watch(fd, wd).map_err(ProcError::system("removing a watch"))
    }

    /// Makes two events that the kernel does not take for one. What is written to a file that has no name in a file system is
    /// not told (Linux 6.14), but what changes the file itself is.
    fn touch(&self) -> rustix::io::Result<()> {
        rustix::fs::fchmod(&self.0, rustix::fs::Mode::RUSR)?;
        rustix::fs::ftruncate(&self.0, 0)
    }
}

/// Reads all events away.
fn drain(fd: BorrowedFd<'_>) {
    let mut buffer = [0; 16 << 10];
    while rustix::io::read(fd, &mut buffer).is_ok_and(|n| n > 0) {}
}

/// Leaves the queue with the one event that says that others were lost: the queue is filled until it overflows, and read up to
/// there.
fn overflow(fd: BorrowedFd<'_>, dummy: &Dummy) -> bool {
    const LIMIT: &str = "/proc/sys/fs/inotify/max_queued_events";
    let limit = std::fs::read_to_string(LIMIT).ok();
    let Some(limit) = limit.and_then(|text| text.trim().parse::<usize>().ok()) else {
        return false;
    };
    if limit > LONGEST_QUEUE {
        return false;
    }
    let Ok(wd) = dummy.add(fd) else {
        return false;
    };
    let filled = (0..=limit / 2).try_for_each(|_| dummy.touch());
    // In a full queue that leaves no event.
    let _ = inotify::remove_watch(fd, wd);
    let mut rest = limit * EVENT_BYTES;
    let mut buffer = vec![0; 64 << 10];
    while filled.is_ok() && rest > 0 {
        let bytes = rest.min(buffer.len());
        match rustix::io::read(fd, &mut buffer[..bytes]) {
            Ok(n) if n > 0 => rest -= n.min(rest),
            _ => return false,
        }
    }
    let left = rustix::io::ioctl_fionread(fd);
    let is_told = filled.is_ok() && left == Ok(EVENT_BYTES as u64);
    if !is_told {
        drain(fd);
    }
    is_told
}

fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> Result<(), ProcError> {
    rustix::io::ioctl_fionbio(fd, on).map_err(ProcError::system(
        "setting the flags of an inotify instance",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const CREATED: u32 = 0x100;

    fn read(fd: &OwnedFd) -> Vec<u32> {
        let mut buffer = [0; 4096];
        let n = rustix::io::read(fd, &mut buffer).unwrap_or(0);
        buffer[..n]
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    fn image(folder: &std::path::Path, wds: &[i32]) -> Inotify {
        let watch = |&wd: &i32| {
            let path = folder.join(wd.to_string());
            std::fs::create_dir_all(&path).unwrap();
            Watch {
                wd,
                mask: CREATED,
                path: path.into(),
            }
        };
        Inotify {
            watches: wds.iter().map(watch).collect(),
            unread: false,
        }
    }

    #[test]
    fn numbers_come_back_and_gaps_stay() {
        let folder = tempfile::tempdir().unwrap();
        let fd = make(libc::O_NONBLOCK.cast_unsigned()).unwrap();
        let image = image(folder.path(), &[2, 3, 3000]);
        image.watch(fd.as_fd(), |_| {}).unwrap();
        assert_eq!(read(&fd), [0; 0]);
        std::fs::write(folder.path().join("3000/new"), "").unwrap();
        assert_eq!(read(&fd)[..2], [3000, CREATED]);
        assert_eq!(image.verify().count(), 0);
    }

    #[test]
    fn lost_events_are_told_by_an_overflow() {
        let folder = tempfile::tempdir().unwrap();
        let fd = make(libc::O_NONBLOCK.cast_unsigned()).unwrap();
        let mut image = image(folder.path(), &[1]);
        image.unread = true;
        image.watch(fd.as_fd(), |text| panic!("{text}")).unwrap();
        const OVERFLOW: u32 = 0x4000;
        assert_eq!(read(&fd), [u32::MAX, OVERFLOW, 0, 0]);
        std::fs::write(folder.path().join("1/new"), "").unwrap();
        assert_eq!(read(&fd)[..2], [1, CREATED]);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for wds in [&[3, 3][..], &[0], &[-5], &[i32::MAX]] {
            let fd = make(0).unwrap();
            assert!(image(folder.path(), wds).watch(fd.as_fd(), |_| {}).is_err());
        }
    }
}
