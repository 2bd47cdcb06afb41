//! Workers that take the blocks of a page file, verify them, and hand on their pages.

use super::blocks::BlockReader;
use crate::aligned::AlignedBuf;
use crate::format::index::Index;
use crate::types::PAGE;
use crate::{PageSink, Progress, SpaceId, StoreError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Reads the blocks that hold pages of the `wanted` spaces, and puts those pages into `sink`.
pub(super) fn fill(
    reader: &BlockReader,
    index: &Index,
    wanted: &(dyn Fn(SpaceId) -> bool + Sync),
    sink: Option<&dyn PageSink>,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let blocks = index.blocks.len();
    let room = index.blocks.iter().map(|b| b.stored_bytes).max();
    let room = (room.unwrap_or(0) as usize).next_multiple_of(PAGE);
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = || {
        let mut buf = AlignedBuf::new(room);
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= blocks {
                return;
            }
            if let Err(error) = take(reader, index, number, wanted, sink, progress, &mut buf) {
                stop.store(true, Ordering::Relaxed);
                failure
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..reader.workers().min(blocks) {
            scope.spawn(work);
        }
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}

/// Deals with block `number`.
fn take(
    reader: &BlockReader,
    index: &Index,
    number: usize,
    wanted: &(dyn Fn(SpaceId) -> bool + Sync),
    sink: Option<&dyn PageSink>,
    progress: &dyn Progress,
    buf: &mut [u8],
) -> Result<(), StoreError> {
    let block = &index.blocks[number];
    if !index.runs_of(number).any(|run| wanted(run.space)) {
        return Ok(());
    }
    if progress.cancelled() {
        return Err(StoreError::Cancelled {
            path: reader.path().to_owned(),
        });
    }
    let pages = reader.read(number, block, buf)?;
    if let Some(sink) = sink {
        for run in index.runs_of(number).filter(|run| wanted(run.space)) {
            sink.write(run.space, run.start, &pages[run.within_block()])
                .map_err(|source| StoreError::Sink {
                    path: reader.path().to_owned(),
                    block: number,
                    offset: block.offset,
                    space: run.space,
                    start: run.start,
                    bytes: run.bytes(),
                    source,
                })?;
        }
    }
    progress.advance(u64::from(block.raw_bytes));
    Ok(())
}
