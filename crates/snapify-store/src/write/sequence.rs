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
use super::share::Shared;
use crate::StoreError;
use crate::codec::Codec;
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
    /// Offset of the next block to be stored.
    pub(super) offset: u64,
    /// Blocks that have a number; the first ones of them have a place in the file as well.
    pub(super) blocks: Vec<Block>,
    pub(super) runs: Vec<Run>,
    pub(super) hashes: Vec<u128>,
    pub(super) left_out: LeftOut,
    gathering: Filling,
    /// The pages that are stored, if others with the same content are not to be.
    pub(super) shared: Option<Shared<'a>>,
    /// Whether checksums are left to whoever stores.
    staged: bool,
    /// What ended the work before its end.
    pub(super) failure: Option<StoreError>,
}

impl<'a> Sequence<'a> {
    /// Of a file in `output`, for which `room` was set aside. With `staged` blocks are stored by later stages.
    pub(super) fn new(
        output: &'a Output,
        room: Room,
        shared: Option<Shared<'a>>,
        staged: bool,
    ) -> Self {
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
            shared,
            staged,
            failure: None,
        }
    }

    /// Where the file goes.
    pub(super) fn output(&self) -> &'a Output {
        self.output
    }

    /// Takes the pages that are left of the slice whose turn it is, of which `left_out` need no room.
    /// Afterwards `block` is either a block with the number that is returned, or empty.
    pub(super) fn place(&mut self, block: &mut Filling, left_out: LeftOut) -> Option<u32> {
        self.left_out.zero += left_out.zero;
        self.left_out.same += left_out.same;
        for range in block.take_zeros() {
            self.runs.extend(ranges::runs(&range, RunKind::Zero));
        }
        if let Some(shared) = &mut self.shared {
            shared.strip(block);
        }
        if block.bytes().len() < OWN_BLOCK_BYTES {
            if self.gathering.has_room_for(block) {
                self.gathering.append(block, self.staged);
                block.clear();
                return None;
            }
            // What was gathered is a block now, more than half full; this slice begins the next.
            mem::swap(&mut self.gathering, block);
        }
        Some(self.enter(block))
    }

    /// Takes what is still being gathered once all slices had their turn.
    pub(super) fn place_rest(&mut self) -> Option<(Filling, u32)> {
        let rest = mem::replace(&mut self.gathering, Filling::new());
        if rest.bytes().is_empty() {
            return None;
        }
        let number = self.enter(&rest);
        Some((rest, number))
    }

    /// Sees to it that the file can grow to `end` bytes.
    pub(super) fn reserve(&mut self, end: u64) -> Result<(), StoreError> {
        self.room.reserve(self.output, end)
    }

    /// Gives `block` its number, and notes its pages in the index.
    fn enter(&mut self, block: &Filling) -> u32 {
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
        self.blocks.push(Block {
            offset: 0,
            stored_bytes: 0,
            raw_bytes: block.bytes().len() as u32,
            codec: Codec::None,
            checksum: 0,
        });
        number
    }

    /// Gives block `number`, as it is stored, its place at the end of the file. Called in the order of numbers.
    pub(super) fn store(
        &mut self,
        number: u32,
        codec: Codec,
        stored_bytes: u32,
        checksum: u64,
    ) -> Result<u64, StoreError> {
        let offset = self.offset;
        let entry = Block {
            offset,
            stored_bytes,
            codec,
            checksum,
            ..self.blocks[number as usize]
        };
        self.reserve(entry.end())?;
        self.blocks[number as usize] = entry;
        self.offset = entry.end();
        Ok(offset)
    }

    /// Gives the uncompressed `block` its place.
    pub(super) fn store_plain(&mut self, number: u32, block: &Filling) -> Result<u64, StoreError> {
        let bytes = block.bytes().len() as u32;
        self.store(number, Codec::None, bytes, block.checksum())
    }
}
