//! The order in which filled blocks enter the file.
//!
//! Workers fill blocks side by side, but a block's offset depends on how much the blocks before it hold. So
//! each slice has a turn, in the order of the slices, at which its pages get their place; the writing itself
//! happens outside. A slice of which little is left without its zero pages is gathered with others of that
//! kind, so that the file consists of large blocks whatever the memory looks like. All decisions are taken
//! in turn and from the contents alone: the same input gives the same file.

use super::block::{Filling, LeftOut};
use super::output::{Output, Room};
use super::ranges;
use crate::StoreError;
use crate::format::BLOCK_BYTES;
use crate::format::index::{Block, Run, RunKind};
use crate::types::PAGE_SIZE;
use std::mem;

/// A slice with at least this many bytes left makes a block of its own; less is gathered.
const OWN_BLOCK_BYTES: usize = BLOCK_BYTES / 2;

/// What is settled so far. Whoever holds it has the turn.
pub(super) struct Sequence<'a> {
    output: &'a Output,
    room: Room,
    /// The slice whose turn it is.
    pub(super) next: u64,
    /// Offset of the next block.
    pub(super) offset: u64,
    pub(super) blocks: Vec<Block>,
    pub(super) runs: Vec<Run>,
    pub(super) hashes: Vec<u128>,
    pub(super) left_out: LeftOut,
    gathering: Filling,
    /// What ended the work before its end.
    pub(super) failure: Option<StoreError>,
}

impl<'a> Sequence<'a> {
    pub(super) fn new(output: &'a Output, room: Room) -> Self {
        Self {
            output,
            room,
            next: 0,
            offset: PAGE_SIZE,
            blocks: Vec::new(),
            runs: Vec::new(),
            hashes: Vec::new(),
            left_out: LeftOut::default(),
            gathering: Filling::new(),
            failure: None,
        }
    }

    /// Where the file goes.
    pub(super) fn output(&self) -> &'a Output {
        self.output
    }

    /// Takes the pages that are left of the slice whose turn it is, of which `left_out` need no room.
    /// Afterwards `block` is either a block to be written at the offset that is returned, or empty.
    pub(super) fn place(
        &mut self,
        block: &mut Filling,
        left_out: LeftOut,
    ) -> Result<Option<u64>, StoreError> {
        self.left_out.zero += left_out.zero;
        self.left_out.same += left_out.same;
        for range in block.take_zeros() {
            self.runs.extend(ranges::runs(&range, RunKind::Zero));
        }
        if block.bytes().len() < OWN_BLOCK_BYTES {
            if self.gathering.has_room_for(block) {
                self.gathering.append(block);
                block.clear();
                return Ok(None);
            }
            // What was gathered is a block now, more than half full; this slice begins the next.
            mem::swap(&mut self.gathering, block);
        }
        self.append(block).map(Some)
    }

    /// Takes what is still being gathered once all slices had their turn.
    pub(super) fn place_rest(&mut self) -> Result<Option<(Filling, u64)>, StoreError> {
        let rest = mem::replace(&mut self.gathering, Filling::new());
        if rest.bytes().is_empty() {
            return Ok(None);
        }
        let offset = self.append(&rest)?;
        Ok(Some((rest, offset)))
    }

    /// Sees to it that the file can grow to `end` bytes.
    pub(super) fn reserve(&mut self, end: u64) -> Result<(), StoreError> {
        self.room.reserve(self.output, end)
    }

    /// Gives `block` its place at the end of the file, and notes it in the index.
    fn append(&mut self, block: &Filling) -> Result<u64, StoreError> {
        let offset = self.offset;
        let bytes = block.bytes().len() as u32;
        let entry = Block {
            offset,
            stored_bytes: bytes,
            raw_bytes: bytes,
            checksum: block.checksum(),
        };
        self.reserve(entry.end())?;
        let number = self.blocks.len() as u32;
        self.runs.extend(block.streaks().iter().map(|streak| Run {
            space: streak.space,
            start: streak.start,
            pages: streak.pages,
            kind: RunKind::Data {
                block: number,
                first_page: streak.first_page,
            },
        }));
        self.hashes.extend_from_slice(block.hashes());
        self.offset = entry.end();
        self.blocks.push(entry);
        Ok(offset)
    }
}
