//! Writing a page file: read, leave out zeros, checksum and write, in one pass over the memory.
//!
//! Each worker does all of it for one block at a time. On a disk there are more workers than processors,
//! and those that wait in a write past the page cache are what keeps its queue full; in memory the
//! processors are the limit, and there are as many workers as can use them.

mod block;
mod output;
mod sequence;
mod slices;

use crate::aligned::AlignedBuf;
use crate::checksum::Xxh3;
use crate::format::header::Header;
use crate::format::index::{self, ENTRY};
use crate::format::trailer::{self, Trailer};
use crate::types::{PAGE, PAGE_SIZE};
use crate::{PageFileSummary, PageRange, PageSource, Progress, StoreError};
use block::Filling;
use output::{Output, Room};
use sequence::Sequence;
use slices::Slices;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Writes the pages of `ranges` to `out` as a page file, and waits until it is on stable storage.
///
/// `out` is a regular file (written from its beginning; what it held is lost) or anything that takes bytes
/// in order: a pipe, a socket. `name` is what errors call it. Ranges are page aligned and do not overlap;
/// their order does not matter to the reader. Pages that hold only zeros are not stored. The same ranges
/// with the same contents give the same bytes. Several threads call `source` and `progress`.
///
/// # Errors
/// [`StoreError::Range`] before anything is written; [`StoreError::Source`], [`StoreError::DiskFull`],
/// [`StoreError::FileSizeLimit`], [`StoreError::IoAt`] and [`StoreError::Cancelled`] leave an incomplete file
/// that no reader takes for a page file.
pub fn write_pages(
    out: File,
    name: &str,
    ranges: &[PageRange],
    source: &dyn PageSource,
    progress: &dyn Progress,
) -> Result<PageFileSummary, StoreError> {
    let path = Path::new(name);
    let slices = Slices::new(ranges, path)?;
    let output = Output::new(out, path)?;
    let room = Room::new(&output, most_bytes(&slices, ranges.len()))?;
    let header = Header::WRITTEN.encode();
    if output.in_order() {
        output.write(&header, 0)?;
    }
    let job = Job {
        path,
        slices: &slices,
        source,
        progress,
        output: &output,
        next_slice: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        sequence: Mutex::new(Sequence::new(&output, room)),
        turn: Condvar::new(),
    };
    let workers = u64::try_from(output.workers())
        .unwrap_or(u64::MAX)
        .min(slices.count());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| job.work());
        }
    });
    let mut sequence = job
        .sequence
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = sequence.failure.take() {
        return Err(failure);
    }
    if let Some((rest, offset)) = sequence.place_rest()? {
        output.write(rest.bytes(), offset)?;
    }
    let (tail, summary) = tail(&mut sequence, &header, slices.total_bytes() / PAGE_SIZE);
    sequence.reserve(summary.file_bytes)?;
    if !output.in_order() {
        let mut first = AlignedBuf::new(PAGE);
        first.copy_from_slice(&header);
        output.write(&first, 0)?;
    }
    output.finish(&tail, sequence.offset)?;
    Ok(summary)
}

/// The size of the file if no page is zero and no range of it joins with another.
fn most_bytes(slices: &Slices<'_>, ranges: usize) -> u64 {
    let blocks = slices.count();
    let index = index::region_bytes(blocks, ranges as u64 + blocks).unwrap_or(u64::MAX);
    PAGE_SIZE
        .saturating_add(slices.total_bytes())
        .saturating_add(index)
}

/// Index and trailer of the file, and its figures.
fn tail(
    sequence: &mut Sequence<'_>,
    header: &[u8; PAGE],
    pages_scanned: u64,
) -> (AlignedBuf, PageFileSummary) {
    sequence
        .runs
        .sort_unstable_by_key(|run| (run.space, run.start));
    let (blocks, runs) = (sequence.blocks.len(), sequence.runs.len());
    let bytes = ((blocks + runs) * ENTRY + trailer::BYTES).next_multiple_of(PAGE);
    let mut tail = AlignedBuf::new(bytes);
    let entries = sequence
        .blocks
        .iter()
        .map(index::Block::encode)
        .chain(sequence.runs.iter().map(index::Run::encode));
    for (place, entry) in tail.chunks_exact_mut(ENTRY).zip(entries) {
        place.copy_from_slice(&entry);
    }
    let (index, place) = tail.split_at_mut(bytes - trailer::BYTES);
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(index);
    let trailer = Trailer {
        index_offset: sequence.offset,
        summary: PageFileSummary {
            pages_scanned,
            pages_zero: sequence.pages_zero,
            pages_stored: pages_scanned - sequence.pages_zero,
            blocks: blocks as u64,
            runs: runs as u64,
            file_bytes: sequence.offset + bytes as u64,
            index_checksum: hash.digest(),
        },
    };
    place.copy_from_slice(&trailer.encode());
    (tail, trailer.summary)
}

/// One call of [`write_pages`], as its workers see it.
struct Job<'a> {
    path: &'a Path,
    slices: &'a Slices<'a>,
    source: &'a dyn PageSource,
    progress: &'a dyn Progress,
    output: &'a Output,
    next_slice: AtomicU64,
    /// Set with the first failure, so that the others do not begin anything more.
    stop: AtomicBool,
    sequence: Mutex<Sequence<'a>>,
    turn: Condvar,
}

impl<'a> Job<'a> {
    /// A worker: takes slices until there are none left, or something fails.
    fn work(&self) {
        let _guard = StopOnPanic(self);
        let mut block = Filling::new();
        while !self.stop.load(Ordering::Relaxed) {
            let slice = self.next_slice.fetch_add(1, Ordering::Relaxed);
            if slice >= self.slices.count() {
                return;
            }
            if let Err(failure) = self.save(slice, &mut block) {
                self.fail(failure);
            }
        }
    }

    fn save(&self, slice: u64, block: &mut Filling) -> Result<(), StoreError> {
        if self.progress.cancelled() {
            return Err(StoreError::Cancelled {
                path: self.path.to_owned(),
            });
        }
        block.clear();
        let mut bytes = 0;
        let mut zero = 0;
        for piece in self.slices.pieces(slice) {
            bytes += piece.bytes;
            zero += block
                .read(&piece, self.source)
                .map_err(|source| StoreError::Source {
                    path: self.path.to_owned(),
                    space: piece.space,
                    start: piece.start,
                    bytes: piece.bytes,
                    source,
                })?;
        }
        let Some(mut sequence) = self.take_turn(slice) else {
            return Ok(());
        };
        sequence.pages_zero += zero;
        let offset = sequence.place(block)?;
        if let Some(offset) = offset
            && self.output.in_order()
        {
            self.output.write(block.bytes(), offset)?;
        }
        sequence.next += 1;
        drop(sequence);
        self.turn.notify_all();
        if let Some(offset) = offset
            && !self.output.in_order()
        {
            self.output.write(block.bytes(), offset)?;
        }
        self.progress.advance(bytes);
        Ok(())
    }

    /// Waits until it is `slice`'s turn; `None` once the work has failed.
    fn take_turn(&self, slice: u64) -> Option<MutexGuard<'_, Sequence<'a>>> {
        let guard = self
            .turn
            .wait_while(self.lock(), |sequence| {
                sequence.next != slice && !self.stop.load(Ordering::Relaxed)
            })
            .unwrap_or_else(PoisonError::into_inner);
        (!self.stop.load(Ordering::Relaxed)).then_some(guard)
    }

    fn lock(&self) -> MutexGuard<'_, Sequence<'a>> {
        self.sequence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: StoreError) {
        let mut sequence = self.lock();
        sequence.failure.get_or_insert(failure);
        self.stop_all(&sequence);
    }

    /// Ends the work. Asks for the lock so that nobody is just between looking and waiting.
    fn stop_all(&self, _turn: &MutexGuard<'_, Sequence<'a>>) {
        self.stop.store(true, Ordering::Relaxed);
        self.turn.notify_all();
    }
}

/// Lets the other workers go when a source panics; the scope then hands the panic on.
struct StopOnPanic<'a, 'b>(&'a Job<'b>);

impl Drop for StopOnPanic<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop_all(&self.0.lock());
        }
    }
}
