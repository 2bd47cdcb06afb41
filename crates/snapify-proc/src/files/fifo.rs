//! Named pipes (fifo(7)). One that has its name is opened by it; one that was removed is made again.
//!
//! What it holds comes back too, unless others have it open at the restart: then it has not lost its content, which is as
//! much theirs.

use super::survey::{Found, Recognized, Seen, View};
use super::{can_read, can_write, directory, holders, inherit, regular};
use crate::error::{Obstacle, ProcError};
use crate::identity;
use crate::path::ImagePath;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The name of a named pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FifoName {
    /// Absolute path, or what it was called when it had one.
    pub path: ImagePath,
    /// Whether it had no name any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Permission bits.
    pub mode: u32,
}

/// Whether it is a pipe with a name in a file system.
pub(crate) fn is_named(seen: &Seen) -> bool {
    seen.file_type() == FileType::Fifo && seen.link.as_bytes().first() == Some(&b'/')
}

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    if !is_named(seen) {
        return None;
    }
    // A standard stream to somebody else is the restart's, whatever it was.
    if inherit::standard_stream(seen, view).is_some() && holders::of_named_pipe(seen, view) {
        return None;
    }
    if seen.stat.st_nlink > 0 {
        if !identity::leads_to(&seen.link, &seen.stat) {
            let why = "this name leads to something else by now, or to nothing";
            return Some(Err(seen.obstacle(why)));
        }
        if let Err(errno) = regular::may_open(&seen.link, seen.flags()) {
            let error = io::Error::from(errno);
            return Some(Err(
                seen.obstacle(format!("it could not be opened again: {error}"))
            ));
        }
    }
    Some(Ok(Found::PipeEnd))
}

impl FifoName {
    /// The name of the pipe that a descriptor leads to, if it is a named one.
    pub(crate) fn of(seen: &Seen) -> Option<Self> {
        let removed = seen.stat.st_nlink == 0;
        let link = seen.link.as_bytes();
        let path = match removed {
            true => link.strip_suffix(directory::DELETED).unwrap_or(link),
            false => link,
        };
        is_named(seen).then(|| Self {
            path: ImagePath::from_bytes(path),
            removed,
            mode: seen.stat.st_mode & 0o7777,
        })
    }

    /// Whether it can be opened again.
    ///
    /// # Errors
    /// An obstacle that names it.
    pub(crate) fn verify(&self) -> Result<(), Obstacle> {
        let refuse = |why: String| Obstacle::new(format!("named pipe {}", self.path), why);
        if self.removed {
            return Ok(());
        }
        match rustix::fs::stat(self.path.as_path()) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo => Ok(()),
            Ok(_) => Err(refuse("it is no named pipe any more".into())),
            Err(errno) => Err(refuse(io::Error::from(errno).to_string())),
        }
    }

    /// Opens the reading end (or, if that is forbidden, the other), without waiting for a writer, and tells whether others have the pipe open.
    ///
    /// # Errors
    /// Those of open(2) and mknod(2).
    pub(crate) fn open(&self, warn: impl Fn(String)) -> Result<(OwnedFd, bool), ProcError> {
        if self.removed {
            return Ok((self.make()?, false));
        }
        let path = self.path.as_path();
        let writer = open(path, OFlags::WRONLY);
        let (end, in_use) = match open(path, OFlags::RDONLY) {
            Ok(reader) => {
                let has_readers = writer.is_ok();
                drop(writer);
                let in_use = has_readers || has_writers(&reader);
                (reader, in_use)
            }
            // Only its writing end may be opened, and somebody reads.
            Err(rustix::io::Errno::ACCESS) if writer.is_ok() => {
                (writer.map_err(ProcError::file("open", path))?, true)
            }
            Err(errno) => return Err(ProcError::file("open", path)(errno)),
        };
        if in_use {
            warn(format!(
                "{} is open in other processes and keeps what it holds",
                self.path
            ));
        }
        Ok((end, in_use))
    }

    /// Makes one and removes its name at once: under its old name if that is free, or in the directory for temporary files.
    fn make(&self) -> Result<OwnedFd, ProcError> {
        let mode = Mode::from_raw_mode(self.mode & 0o7777);
        let make = |path: &Path| {
            let kind = FileType::Fifo;
            rustix::fs::mknodat(
                rustix::fs::CWD,
                path,
                kind,
                mode | Mode::RUSR | Mode::WUSR,
                0,
            )?;
            let opened = open(path, OFlags::RDONLY);
            let changed = rustix::fs::chmod(path, mode);
            rustix::fs::unlink(path)?;
            changed.and(opened)
        };
        if let Ok(made) = make(self.path.as_path()) {
            return Ok(made);
        }
        let path = directory::temporary_name("fifo");
        make(&path).map_err(ProcError::file("make a pipe as", path))
    }
}

/// Whether the reading end awaits a first writer, or has one: poll(2) does not report the end of the file.
pub(crate) fn awaits_writer(seen: &Seen, reader: &OwnedFd) -> bool {
    if !is_named(seen) || !can_read(seen.flags()) || can_write(seen.flags()) {
        return false;
    }
    let mut polled = [PollFd::new(reader, PollFlags::empty())];
    let at_once = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&at_once)).is_ok()
        && !polled[0].revents().contains(PollFlags::HUP)
}

fn open(path: &Path, access: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(
        path,
        access | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Whether anybody has the pipe of a reading end open for writing. A pipe that holds something has a writer, or another
/// reader.
fn has_writers(reader: &OwnedFd) -> bool {
    use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};
    // Copies nothing out of a pipe without writers, and would wait for those of another.
    pipe_with(PipeFlags::CLOEXEC).and_then(|(_copy, to)| tee(reader, &to, 1, SpliceFlags::NONBLOCK))
        != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fifo(folder: &Path) -> FifoName {
        let path = folder.join("fifo");
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
        FifoName {
            path: ImagePath::from(path.as_path()),
            removed: false,
            mode: 0o640,
        }
    }

    #[test]
    fn others_who_have_it_open_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let name = fifo(folder.path());
        let (reader, in_use) = name.open(|_| {}).unwrap();
        assert!(!in_use && !has_writers(&reader));
        assert!(name.open(|_| {}).unwrap().1, "there is a reader");
        let writer = open(name.path.as_path(), OFlags::WRONLY).unwrap();
        drop(reader);
        assert!(name.open(|_| {}).unwrap().1, "there is a writer");
        drop(writer);
        assert!(!name.open(|_| {}).unwrap().1);
    }

    #[test]
    fn a_removed_one_leaves_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = FifoName {
            removed: true,
            ..fifo(folder.path())
        };
        name.verify().unwrap();
        // Its old name belongs to somebody else by now, and stays.
        let (made, _) = name.open(|_| {}).unwrap();
        assert_eq!(rustix::fs::fstat(&made).unwrap().st_nlink, 0);
        assert!(name.path.as_path().exists());
        std::fs::remove_file(name.path.as_path()).unwrap();
        let (made, _) = name.open(|_| {}).unwrap();
        assert_eq!(rustix::fs::fstat(&made).unwrap().st_mode & 0o7777, 0o640);
        assert!(!name.path.as_path().exists());
    }
}
