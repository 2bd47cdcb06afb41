//! Where a page file goes: a disk, memory, or a pipe or socket.

use crate::StoreError;
use crate::aligned::AlignedBuf;
use crate::error::is_no_space;
use crate::storage::{free_bytes, in_memory, set_direct};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

/// Writes of 1 MiB that are in flight at a time on a disk. Four fill the queue of a fast disk; the others
/// are what the processors are filling meanwhile.
const DISK_WRITES: usize = 6;

/// On a file in memory writers take turns (the file's lock), so that more of them than this only wait.
const MEMORY_WORKERS: usize = 4;

/// Space is set aside in steps of this size where it may not be enough for everything: zero pages may yet
/// make it so.
const RESERVE_STEP: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A file on a file system with storage behind it.
    Disk,
    /// A file in memory: no storage to wait for, no use in setting aside.
    Memory,
    /// Whatever takes bytes only one after another.
    Stream,
}

/// The destination of a page file.
pub(super) struct Output {
    file: File,
    path: PathBuf,
    kind: Kind,
    /// Whether writes go past the page cache. Taken back when the file system refuses one.
    direct: AtomicBool,
}

/// The room that has been set aside for a file.
pub(super) struct Room {
    /// RLIMIT_FSIZE, if there is one: a write beyond it is answered by SIGXFSZ, so it must not be tried.
    limit: Option<u64>,
    /// Bytes of the file that have room set aside.
    reserved: u64,
    /// Whether the file system can.
    possible: bool,
}

impl Output {
    /// Prepares `file`. A regular file loses what it held.
    pub(super) fn new(file: File, path: &Path) -> Result<Self, StoreError> {
        let meta = file.metadata().map_err(StoreError::io("look at", path))?;
        let kind = if !meta.is_file() {
            Kind::Stream
        } else if in_memory(&file) {
            Kind::Memory
        } else {
            Kind::Disk
        };
        if kind != Kind::Stream {
            file.set_len(0).map_err(StoreError::io("empty", path))?;
        }
        let direct = kind == Kind::Disk && set_direct(&file, true);
        Ok(Self {
            file,
            path: path.to_owned(),
            kind,
            direct: AtomicBool::new(direct),
        })
    }

    /// Whether blocks must be written one after another, in the order of their offsets.
    pub(super) fn in_order(&self) -> bool {
        self.kind == Kind::Stream
    }

    /// How many workers keep both the processors and the destination busy.
    pub(super) fn workers(&self) -> usize {
        let processors = available_parallelism().map_or(1, usize::from);
        match self.kind {
            Kind::Disk if self.direct.load(Ordering::Relaxed) => processors.min(16) + DISK_WRITES,
            Kind::Disk | Kind::Memory | Kind::Stream => processors.clamp(2, MEMORY_WORKERS),
        }
    }

    /// Writes whole pages at `offset`: aligned memory, reserved before.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        let result = match self.kind {
            Kind::Stream => (&self.file).write_all(bytes),
            Kind::Disk | Kind::Memory => match self.file.write_all_at(bytes, offset) {
                // Blocks larger than a page, or a file system that refuses only now. Other threads may be in
                // here too, and none may try again before the flag is off.
                Err(error)
                    if error.kind() == io::ErrorKind::InvalidInput && self.kind == Kind::Disk =>
                {
                    self.direct.store(false, Ordering::Relaxed);
                    set_direct(&self.file, false);
                    self.file.write_all_at(bytes, offset)
                }
                other => other,
            },
        };
        result.map_err(|source| {
            if is_no_space(&source) {
                return self.full(offset + bytes.len() as u64, source);
            }
            StoreError::IoAt {
                operation: "write",
                path: self.path.clone(),
                offset,
                source,
            }
        })
    }

    /// Ends the file with `tail` at `offset`, cuts what was set aside and not used, and waits until all of
    /// it is on stable storage.
    pub(super) fn finish(&self, tail: &AlignedBuf, offset: u64) -> Result<(), StoreError> {
        let end = offset + tail.len() as u64;
        self.write(tail, offset)?;
        if self.kind == Kind::Stream {
            return (&self.file)
                .flush()
                .map_err(StoreError::io("write", &self.path));
        }
        self.file
            .set_len(end)
            .map_err(StoreError::io("set the length of", &self.path))?;
        self.file
            .sync_data()
            .map_err(StoreError::io("flush to disk", &self.path))
    }

    fn full(&self, needed: u64, source: io::Error) -> StoreError {
        StoreError::DiskFull {
            path: self.path.clone(),
            needed,
            available: free_bytes(&self.file),
            source,
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.direct.load(Ordering::Relaxed) {
            // The flag belongs to the open file, which others may hold and not expect it on.
            set_direct(&self.file, false);
        }
    }
}

impl Room {
    /// Sets aside room for `most` bytes, the most that may come, if there is as much.
    pub(super) fn new(output: &Output, most: u64) -> Result<Self, StoreError> {
        let mut room = Self {
            limit: (output.kind != Kind::Stream)
                .then(|| getrlimit(Resource::Fsize).current)
                .flatten(),
            reserved: 0,
            possible: output.kind == Kind::Disk,
        };
        // With less it may still do, since zero pages are not stored: room is then found step by step.
        let enough = free_bytes(&output.file).is_some_and(|free| most <= free);
        if room.possible && enough && most > 0 && room.limit.is_none_or(|limit| most <= limit) {
            room.allocate(output, most)?;
        }
        Ok(room)
    }

    /// Sees to it that the file can grow to `end` bytes. Called in the order of offsets.
    pub(super) fn reserve(&mut self, output: &Output, end: u64) -> Result<(), StoreError> {
        if let Some(limit) = self.limit
            && end > limit
        {
            return Err(StoreError::FileSizeLimit {
                path: output.path.clone(),
                needed: end,
                limit,
            });
        }
        if !self.possible || end <= self.reserved {
            return Ok(());
        }
        let goal = end
            .max(self.reserved.saturating_add(RESERVE_STEP))
            .min(self.limit.unwrap_or(u64::MAX));
        match self.allocate(output, goal) {
            // Less than a whole step may still do.
            Err(StoreError::DiskFull { .. }) if goal > end => self.allocate(output, end),
            other => other,
        }
    }

    /// Sets aside room for the first `goal` bytes. The file gets as long as that, since a write inside a
    /// file needs no exclusive lock on it, and one that makes it longer does (ext4, xfs).
    fn allocate(&mut self, output: &Output, goal: u64) -> Result<(), StoreError> {
        loop {
            let more = goal - self.reserved;
            match fallocate(&output.file, FallocateFlags::empty(), self.reserved, more) {
                Ok(()) => {
                    self.reserved = goal;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(errno) if is_no_space(&errno.into()) => {
                    return Err(output.full(goal, errno.into()));
                }
                Err(errno) => {
                    // Not every file system can; writing then finds out as it goes.
                    tracing::debug!(path = %output.path.display(), %errno, "no room set aside");
                    self.possible = false;
                    return Ok(());
                }
            }
        }
    }
}
