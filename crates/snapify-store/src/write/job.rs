//! Workers that read memory, leave out what needs no room, and write what is left.
//!
//! Unless there are stages behind it, each worker does all of it for one block at a time. On a disk there are more workers than processors,
//! and those that wait in a write past the page cache are what keeps its queue full; in memory the
//! processors are the limit, and there are as many workers as can use them.

use super::block::{Filling, LeftOut, Rules};
use super::output::Output;
use super::sequence::Sequence;
use super::slices::Slices;
use super::stages::{Ready, Stages};
use crate::cpu_time::cpu_time;
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
    /// Who compresses and stores the blocks, if workers do not store them themselves.
    stages: Option<&'a Stages<'a>>,
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
        stages: Option<&'a Stages<'a>>,
        sequence: Sequence<'a>,
    ) -> Self {
        Self {
            path,
            slices,
            source,
            rules,
            progress,
            output: sequence.output(),
            stages,
            next_slice: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            sequence: Mutex::new(sequence),
            turn: Condvar::new(),
        }
    }

    /// Saves all slices.
    pub(super) fn run(self) -> Result<Sequence<'a>, StoreError> {
        let workers = match self.stages {
            None => self.output.workers(),
            Some(stages) => stages.collectors(),
        };
        let workers = (workers as u64).min(self.slices.count());
        thread::scope(|scope| {
            let collectors: Vec<_> = (0..workers).map(|_| scope.spawn(|| self.work())).collect();
            let Some(stages) = self.stages else {
                return;
            };
            for _ in 0..stages.compressors() {
                scope.spawn(|| {
                    let _guard = StopOnPanic(&self);
                    stages.compress();
                });
            }
            for _ in 0..stages.storers(self.output.in_order()) {
                scope.spawn(|| {
                    let _guard = StopOnPanic(&self);
                    if let Err(failure) = stages.store(&self) {
                        self.fail(failure);
                    }
                });
            }
            // If one of them panics the guard stops everything.
            for collector in collectors {
                if let Err(panic) = collector.join() {
                    std::panic::resume_unwind(panic);
                }
            }
            self.rest_for(stages);
        });
        let sequence = self.sequence.into_inner();
        let mut sequence = sequence.unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = sequence.failure.take() {
            return Err(failure);
        }
        if let Some((rest, number)) = sequence.place_rest() {
            let offset = sequence.store_plain(number, &rest)?;
            self.output.write(rest.bytes(), offset)?;
        }
        Ok(sequence)
    }

    /// Hands the last block on, once all slices had their turn, and tells how many there are.
    fn rest_for(&self, stages: &Stages<'_>) {
        let mut sequence = self.lock();
        let rest = sequence.place_rest();
        let blocks = sequence.blocks.len() as u64;
        drop(sequence);
        if let Some((mut rest, number)) = rest {
            stages.collected(number, &mut rest);
        }
        stages.all_collected(blocks);
    }

    /// Where the file goes.
    pub(super) fn output(&self) -> &'a Output {
        self.output
    }

    /// Gives a block that is ready to be stored its place.
    pub(super) fn settle(&self, ready: &Ready) -> Result<u64, StoreError> {
        self.lock()
            .store(ready.number(), ready.codec, ready.bytes, ready.checksum)
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
        let begin = cpu_time();
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
        if let Some(stages) = self.stages {
            stages
                .rates
                .collected(cpu_time().saturating_sub(begin), bytes as usize);
        }
        let Some(mut sequence) = self.take_turn(slice) else {
            return Ok(());
        };
        let number = sequence.place(block, left_out);
        let mut place = None;
        if let (Some(number), None) = (number, self.stages) {
            let offset = sequence.store_plain(number, block)?;
            if self.output.in_order() {
                self.output.write(block.bytes(), offset)?;
            } else {
                place = Some(offset);
            }
        }
        sequence.next += 1;
        drop(sequence);
        self.turn.notify_all();
        if let Some(offset) = place {
            self.output.write(block.bytes(), offset)?;
        }
        if let (Some(number), Some(stages)) = (number, self.stages) {
            stages.collected(number, block);
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
        if let Some(stages) = self.stages {
            stages.stop();
        }
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
