//! Filling a fresh local store, by a forked copy of the daemon: from a page file, or from another card's store.

use super::fork::{Worker, spawn};
use super::sparse::data_ranges;
use crate::steps::now;
use snapify_fabric::SharedFile;
use snapify_store::{PageFile, PageSink, SpaceId};
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

/// The name that errors about the local store's page file give it.
const STORE_FILE: &str = "store.snap";

/// A copy between two stores goes in pieces of a huge page, at multiples of it: of a huge page that is written in part the kernel
/// first fills the rest with zeros. A cache holds a piece, so that what was read is hot when it is written.
const PIECE: u64 = 2 << 20;

/// Copies between two stores use so many threads, if there are as many processors: while one writes, which only one can do to a
/// file, the other reads.
const COPIERS: usize = 2;

/// What a store is filled from.
pub enum Origin {
    /// A page file and those that it builds on, from the newest to a full one.
    Pages(Vec<File>),
    /// The store itself, on another card, of a process that stands still.
    Store(File),
}

/// A store being filled.
pub struct Filling {
    worker: Worker,
    complaint: PipeReader,
    /// When it began, as `CLOCK_MONOTONIC` shows it.
    pub began: u64,
}

impl Filling {
    /// Begins to fill `store`, on a card with `memory` bytes.
    ///
    /// # Errors
    /// If the kernel refuses another process, in words.
    pub fn begin(store: &SharedFile, origin: Origin, memory: u64) -> Result<Self, String> {
        let began = now();
        let (complaint, complain) =
            io::pipe().map_err(|error| format!("cannot make a pipe: {error}"))?;
        let work = || {
            let done = match origin {
                Origin::Pages(saved) => fill_from_pages(store, saved, memory),
                Origin::Store(other) => fill_from_store(store, other, memory),
            };
            match done {
                // That it is done shows in its status; when, only it can tell.
                Ok(()) => {
                    let _ = (&complain).write_all(now().to_string().as_bytes());
                    0
                }
                Err(why) => {
                    let _ = (&complain).write_all(why.as_bytes());
                    1
                }
            }
        };
        let worker =
            spawn(work).map_err(|error| format!("cannot start another process: {error}"))?;
        Ok(Self {
            worker,
            complaint,
            began,
        })
    }

    /// Gives it up. It still has to be finished.
    pub fn abort(&self) {
        self.worker.kill();
    }

    /// Waits for its end, and gives the moment at which the store was full, as `CLOCK_MONOTONIC` shows it.
    ///
    /// # Errors
    /// Why the store is not filled, in words.
    pub fn finish(mut self) -> Result<u64, String> {
        let mut why = String::new();
        let _ = self.complaint.read_to_string(&mut why);
        match self.worker.wait() {
            Some(0) => Ok(why.parse().unwrap_or_else(|_| now())),
            _ if why.is_empty() => Err("the filling of the local store died".into()),
            _ => Err(why),
        }
    }
}

impl AsFd for Filling {
    /// Readable when it is over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.worker.as_fd()
    }
}

fn fill_from_pages(store: &SharedFile, saved: Vec<File>, memory: u64) -> Result<(), String> {
    let pages = PageFile::open_chain(saved, Path::new(STORE_FILE));
    let pages = pages.map_err(|error| error.to_string())?;
    let stored = pages.pages().saturating_mul(snapify_store::PAGE_SIZE);
    check_room(stored, memory)?;
    let sink = StoreSink {
        file: open(store)?,
        bytes: store.bytes(),
    };
    pages
        .fill(&sink, &())
        .map_err(|error| match error_number(&error) {
            Some(libc::ENOSPC) => too_small(stored, memory),
            _ => error.to_string(),
        })
}

fn fill_from_store(store: &SharedFile, other: File, memory: u64) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot copy the local store: {error}");
    let bytes = other.metadata().map_err(failed)?.len();
    if bytes != store.bytes() {
        return Err(format!(
            "the other card's local store has {bytes} bytes, not {}",
            store.bytes()
        ));
    }
    let ranges = data_ranges(&other, bytes).map_err(failed)?;
    let total = ranges.iter().map(|range| range.bytes).sum();
    check_room(total, memory)?;
    let file = open(store)?;
    let pieces = ranges.iter().flat_map(|range| {
        let end = range.start + range.bytes;
        (range.start / PIECE * PIECE..end)
            .step_by(PIECE as usize)
            .map(move |piece| {
                let at = piece.max(range.start);
                (at, end.min(piece + PIECE) - at)
            })
    });
    let pieces = Mutex::new(pieces);
    let copy = || -> io::Result<()> {
        let mut buffer = vec![0; PIECE as usize];
        loop {
            let next = pieces.lock().map_or(None, |mut pieces| pieces.next());
            let Some((at, bytes)) = next else {
                return Ok(());
            };
            let piece = &mut buffer[..bytes as usize];
            other.read_exact_at(piece, at)?;
            file.write_all_at(piece, at)?;
        }
    };
    let copiers = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(COPIERS);
    let copied = std::thread::scope(|scope| {
        let others: Vec<_> = (1..copiers).map(|_| scope.spawn(copy)).collect();
        let mut copied = copy();
        for other in others {
            let died = || Err(io::Error::other("a thread of the copy died"));
            copied = copied.and(other.join().unwrap_or_else(|_| died()));
        }
        copied
    });
    copied.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSPC) => too_small(total, memory),
        _ => failed(error),
    })
}

fn check_room(needed: u64, memory: u64) -> Result<(), String> {
    if needed > memory {
        return Err(format!(
            "the local store takes {needed} bytes and the card has {memory}"
        ));
    }
    Ok(())
}

fn too_small(needed: u64, memory: u64) -> String {
    format!(
        "the card's memory ({memory} bytes) is too small for the local store ({needed} bytes) beside what else is on it"
    )
}

fn open(store: &SharedFile) -> Result<File, String> {
    let file = store.as_fd().try_clone_to_owned();
    file.map(File::from).map_err(|error| error.to_string())
}

fn error_number(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(number) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return Some(number);
        }
        cause = error.source();
    }
    None
}

struct StoreSink {
    file: File,
    bytes: u64,
}

impl PageSink for StoreSink {
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        let end = start.checked_add(data.len() as u64);
        if space != SpaceId(0) || end.is_none_or(|end| end > self.bytes) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it lies outside the local store",
            ));
        }
        self.file.write_all_at(data, start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::STORE_BYTES;

    fn store() -> SharedFile {
        SharedFile::create_in(Path::new("/dev/shm"), STORE_BYTES).unwrap()
    }

    #[test]
    fn a_store_is_copied_to_another_card() {
        let (source, target) = (store(), store());
        let file = open(&source).unwrap();
        let noise: Vec<u8> = (0..3_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        file.write_all_at(&noise, 16 << 20).unwrap();
        file.write_all_at(&noise[..5000], (1 << 40) - 8192).unwrap();
        fill_from_store(&target, open(&source).unwrap(), 1 << 30).unwrap();
        let mut got = vec![0; noise.len()];
        let copy = open(&target).unwrap();
        copy.read_exact_at(&mut got, 16 << 20).unwrap();
        assert!(got == noise);
        copy.read_exact_at(&mut got[..5000], (1 << 40) - 8192)
            .unwrap();
        assert!(got[..5000] == noise[..5000]);
        assert_eq!(target.allocated().unwrap(), source.allocated().unwrap());
        let full = fill_from_store(&store(), open(&source).unwrap(), 1 << 20).unwrap_err();
        assert!(full.contains("the card has 1048576"), "{full}");
        let short = SharedFile::create_in(Path::new("/dev/shm"), 4096).unwrap();
        assert!(fill_from_store(&target, open(&short).unwrap(), 1 << 30).is_err());
    }
}
