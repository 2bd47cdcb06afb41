//! The pages of a chain as something to be saved: how what several files hold becomes one file.

use super::PageFile;
use super::fill::Unpacker;
use crate::aligned::AlignedBuf;
use crate::types::{PAGE, PAGE_SIZE};
use crate::{PageSource, SpaceId, StoreError};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks that are kept decoded. Pages are asked for in the order of addresses, and lie so in most blocks.
const KEPT: usize = 32;

/// Reads pages by their addresses. Every block is verified before any page of it is given out.
pub(crate) struct Merged<'a> {
    pages: &'a PageFile,
    kept: Mutex<VecDeque<Kept>>,
}

struct Kept {
    layer: usize,
    block: u32,
    pages: Arc<Vec<u8>>,
}

impl<'a> Merged<'a> {
    pub(crate) fn new(pages: &'a PageFile) -> Self {
        Self {
            pages,
            kept: Mutex::default(),
        }
    }

    /// The decoded block `block` of a layer.
    fn block(&self, layer: usize, block: u32) -> Result<Arc<Vec<u8>>, StoreError> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |kept: &VecDeque<Kept>| {
            let found = kept.iter().find(|k| (k.layer, k.block) == (layer, block));
            found.map(|kept| Arc::clone(&kept.pages))
        };
        if let Some(pages) = known(&lock()) {
            return Ok(pages);
        }
        // Two may read the same block at a time; that costs less than waiting for each other.
        let of = &self.pages.layers[layer];
        let entry = &of.index.blocks[block as usize];
        let mut buf = AlignedBuf::new((entry.stored_bytes as usize).next_multiple_of(PAGE));
        let stored = of.reader.read(block as usize, entry, &mut buf)?;
        let mut unpacker = Unpacker::new(entry.raw_bytes as usize);
        let pages = unpacker
            .unpack(entry, stored)
            .map_err(|what| StoreError::damaged(of.path(), entry.offset, what))?;
        let pages = Arc::new(pages.to_vec());
        let mut kept = lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(Kept {
            layer,
            block,
            pages: Arc::clone(&pages),
        });
        Ok(pages)
    }

    /// Layer, block, place in it and number of the pages that are stored together with that at `start`.
    fn find(&self, space: SpaceId, start: u64) -> Option<(usize, u32, u32, u32)> {
        self.pages.layers.iter().enumerate().find_map(|(n, layer)| {
            let runs = &layer.index.runs;
            let after = runs.partition_point(|run| (run.space, run.start) <= (space, start));
            let run = &runs[after.checked_sub(1)?];
            if run.space != space || run.end() <= start {
                return None;
            }
            let rest = run.part(start, run.end());
            let (block, first_page) = rest.place()?;
            Some((n, block, first_page, rest.pages))
        })
    }
}

impl PageSource for Merged<'_> {
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = start + done as u64;
            let (layer, block, first_page, pages) = self
                .find(space, at)
                .ok_or_else(|| io::Error::other("no file of the chain holds this page"))?;
            let content = self
                .block(layer, block)
                .map_err(|error| io::Error::other(error.in_full()))?;
            let bytes = (u64::from(pages) * PAGE_SIZE).min((buf.len() - done) as u64) as usize;
            let begin = first_page as usize * PAGE;
            buf[done..done + bytes].copy_from_slice(&content[begin..begin + bytes]);
            done += bytes;
        }
        Ok(())
    }
}
