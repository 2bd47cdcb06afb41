//! Workers that read memory, leave out what needs no room, and write what is left.
//!
//! Each worker does all of it for one block at a time. On a disk there are more workers than processors,
//! and those that wait in a write past the page cache are what keeps its queue full; in memory the
//! processors are the limit, and there are as many workers as can use them.

use super::block::{Filling, LeftOut, Rules};
use super::output::Output;
use super::sequence::Sequence;
use super::slices::Slices;
use crate::{PageSource, Progress, StoreError};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// One page file being written, as its workers see it.
pub(super) struct Job<'a> {
    path: &'a Path,
    slices: &'a Slices<'a>,
    source: &'a dyn PageSource,
    rules: &'a Rules<'a>,
    progress: &'a dyn Progress,
    output: &'a Output,
    next_slice: AtomicU64,
    /// Set with the first failure, so that the others do not begin anything more.
    stop: AtomicBool,
    sequence: Mutex<Sequence<'a>>,
    turn: Condvar,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        path: &'a Path,
        slices: &'a Slices<'a>,
        source: &'a dyn PageSource,
        rules: &'a Rules<'a>,
        progress: &'a dyn Progress,
        sequence: Sequence<'a>,
    ) -> Self {
        Self {
            path,
            slices,
            source,
            rules,
            progress,
            output: sequence.output(),
            next_slice: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            sequence: Mutex::new(sequence),
            turn: Condvar::new(),
        }
    }

    /// Saves all slices.
    pub(super) fn run(self) -> Result<Sequence<'a>, StoreError> {
        let workers = u64::try_from(self.output.workers())
            .unwrap_or(u64::MAX)
            .min(self.slices.count());
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| self.work());
            }
        });
        let sequence = self.sequence.into_inner();
        let mut sequence = sequence.unwrap_or_else(PoisonError::into_inner);
        match sequence.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(sequence),
        }
    }

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
        let mut left_out = LeftOut::default();
        for piece in self.slices.pieces(slice) {
            bytes += piece.bytes;
            let more = block
                .read(&piece, self.source, self.rules)
                .map_err(|source| StoreError::Source {
                    path: self.path.to_owned(),
                    space: piece.space,
                    start: piece.start,
                    bytes: piece.bytes,
                    source,
                })?;
            left_out.zero += more.zero;
            left_out.same += more.same;
        }
        let Some(mut sequence) = self.take_turn(slice) else {
            return Ok(());
        };
        let offset = sequence.place(block, left_out)?;
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
