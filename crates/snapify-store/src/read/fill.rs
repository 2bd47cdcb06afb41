//! Workers that take the blocks of page files, verify them, and hand on their pages.

use super::layer::Layer;
use crate::aligned::AlignedBuf;
use crate::codec::{Codec, Decoder};
use crate::format::index::{Block, Run};
use crate::types::PAGE;
use crate::{PageSink, Progress, StoreError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Reads the blocks that hold pages of the `wanted` runs, and puts those pages into `sink`. The order is from the
/// newest file to the oldest, and in each that of the file.
pub(super) fn fill(
    layers: &[Layer],
    wanted: &(dyn Fn(&Run) -> bool + Sync),
    sink: Option<&dyn PageSink>,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let needed = |layer: &Layer, number: &usize| match sink {
        // Whoever only verifies a file reads all of it.
        None => true,
        Some(_) => (layer.index.runs_of(*number)).any(|(run, _)| wanted(run)),
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
    let blocks = || (tasks.iter()).map(|(layer, number)| &layer.index.blocks[*number]);
    let room = blocks().map(|block| block.stored_bytes).max();
    let room = (room.unwrap_or(0) as usize).next_multiple_of(PAGE);
    let packed = blocks().filter(|block| block.codec != Codec::None);
    let unpacked = packed.map(|block| block.raw_bytes).max().unwrap_or(0) as usize;
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = || {
        let mut buf = AlignedBuf::new(room);
        let mut unpacker = Unpacker::new(unpacked);
        while !stop.load(Ordering::Relaxed) {
            let Some(&(layer, number)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            if let Err(error) = take(
                layer,
                number,
                wanted,
                sink,
                progress,
                &mut buf,
                &mut unpacker,
            ) {
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
    wanted: &(dyn Fn(&Run) -> bool + Sync),
    sink: Option<&dyn PageSink>,
    progress: &dyn Progress,
    buf: &mut [u8],
    unpacker: &mut Unpacker,
) -> Result<(), StoreError> {
    let block = &layer.index.blocks[number];
    if progress.cancelled() {
        return Err(StoreError::Cancelled {
            path: layer.path().to_owned(),
        });
    }
    let stored = layer.reader.read(number, block, buf)?;
    let pages = unpacker.unpack(block, stored).map_err(|what| {
        let what = format!("block {number} cannot be decompressed: {what}");
        StoreError::damaged(layer.path(), block.offset, what)
    })?;
    if let Some(sink) = sink {
        let runs = layer.index.runs_of(number);
        for (run, first_page) in runs.filter(|(run, _)| wanted(run)) {
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

/// What a worker undoes codecs with.
pub(super) struct Unpacker {
    pages: Vec<u8>,
    decoders: Vec<(Codec, Box<dyn Decoder>)>,
}

impl Unpacker {
    /// For blocks of up to `room` bytes.
    pub(super) fn new(room: usize) -> Self {
        Self {
            pages: vec![0; room],
            decoders: Vec::new(),
        }
    }

    /// The pages of `block`, of which `stored` is what the file holds.
    pub(super) fn unpack<'b>(
        &'b mut self,
        block: &Block,
        stored: &'b [u8],
    ) -> Result<&'b [u8], String> {
        let known = self
            .decoders
            .iter()
            .position(|(codec, _)| *codec == block.codec);
        let at = match known {
            Some(at) => at,
            None => {
                let Some(decoder) = block.codec.decoder() else {
                    return Ok(stored);
                };
                self.decoders.push((block.codec, decoder));
                self.decoders.len() - 1
            }
        };
        let pages = &mut self.pages[..block.raw_bytes as usize];
        self.decoders[at].1.decode(stored, pages)?;
        Ok(pages)
    }
}
