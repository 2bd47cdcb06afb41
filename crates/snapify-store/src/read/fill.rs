//! Workers that take the blocks of page files, verify them, and hand on their pages.

use super::layer::Layer;
use crate::aligned::AlignedBuf;
use crate::types::PAGE;
use crate::{PageSink, Progress, SpaceId, StoreError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Reads the blocks that hold pages of the `wanted` spaces, and puts those pages into `sink`. The order is from the
/// newest file to the oldest, and in each that of the file.
pub(super) fn fill(
    layers: &[Layer],
    wanted: &(dyn Fn(SpaceId) -> bool + Sync),
    sink: Option<&dyn PageSink>,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let needed = |layer: &Layer, number: &usize| match sink {
        // Whoever only verifies a file reads all of it.
        None => true,
        Some(_) => (layer.index.runs_of(*number)).any(|(run, _)| wanted(run.space)),
    };
    let tasks: Vec<(&Layer, usize)> = layers
        .iter()
        .flat_map(|layer| {
            (0..layer.index.blocks.len())
                .filter(move |number| needed(layer, number))
                .map(move |number| (layer, number))
        })
        .collect();
    let Some((first, _)) = tasks.first() else {
        return Ok(());
    };
    let room = tasks
        .iter()
        .map(|(layer, number)| layer.index.blocks[*number].stored_bytes);
    let room = (room.max().unwrap_or(0) as usize).next_multiple_of(PAGE);
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = || {
        let mut buf = AlignedBuf::new(room);
        while !stop.load(Ordering::Relaxed) {
            let Some(&(layer, number)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            if let Err(error) = take(layer, number, wanted, sink, progress, &mut buf) {
                stop.store(true, Ordering::Relaxed);
                failure
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..first.reader.workers().min(tasks.len()) {
            scope.spawn(work);
        }
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}

/// Deals with block `number` of `layer`.
fn take(
    layer: &Layer,
    number: usize,
    wanted: &(dyn Fn(SpaceId) -> bool + Sync),
    sink: Option<&dyn PageSink>,
    progress: &dyn Progress,
    buf: &mut [u8],
) -> Result<(), StoreError> {
    let block = &layer.index.blocks[number];
    if progress.cancelled() {
        return Err(StoreError::Cancelled {
            path: layer.path().to_owned(),
        });
    }
    let pages = layer.reader.read(number, block, buf)?;
    if let Some(sink) = sink {
        let runs = layer.index.runs_of(number);
        for (run, first_page) in runs.filter(|(run, _)| wanted(run.space)) {
            let begin = first_page as usize * PAGE;
            let data = &pages[begin..begin + run.pages as usize * PAGE];
            sink.write(run.space, run.start, data)
                .map_err(|source| StoreError::Sink {
                    path: layer.path().to_owned(),
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
