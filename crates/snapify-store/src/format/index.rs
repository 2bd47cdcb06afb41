//! The index of a page file: which pages lie where.

use super::header::{Header, place};
use super::trailer;
use super::{Fields, u32_at, u64_at};
use crate::codec::Codec;
use crate::types::PAGE_SIZE;
use crate::{SpaceId, StoreError};
use std::path::Path;

/// Bytes of a block's entry, and of a run's.
pub(crate) const ENTRY: usize = 32;

/// Bytes of the hash of a page.
pub(crate) const HASH: usize = 16;

const RUN_DATA: u32 = 0;
const RUN_ZERO: u32 = 1;
const RUN_GONE: u32 = 2;

/// A piece of a page file that is read, verified and decoded as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Byte offset in the file, a multiple of the page size.
    pub offset: u64,
    /// Bytes in the file, without the padding to the next page.
    pub stored_bytes: u32,
    /// Bytes after decoding, a multiple of the page size.
    pub raw_bytes: u32,
    /// How it is stored.
    pub codec: Codec,
    /// XXH3-64 of the stored bytes.
    pub checksum: u64,
}

/// What a run says of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// They are stored: they follow each other in a block as well.
    Data {
        /// The block that holds them.
        block: u32,
        /// The first one's place in the decoded block, in pages.
        first_page: u32,
    },
    /// They are zero now, whatever the file that this one builds on has of them.
    Zero,
    /// They do not exist any more, or are not saved any more.
    Gone,
}

/// Pages that follow each other in their space, and of which the same is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The space the pages belong to.
    pub space: SpaceId,
    /// Address or offset of the first page in that space.
    pub start: u64,
    /// Number of pages.
    pub pages: u32,
    /// What is said of them.
    pub kind: RunKind,
}

impl Run {
    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_SIZE
    }

    /// What follows the last page. No run reaches beyond the end of memory.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes()
    }

    /// The block that holds the pages, and the first one's place in it, if they are stored.
    pub(crate) fn place(&self) -> Option<(u32, u32)> {
        match self.kind {
            RunKind::Data { block, first_page } => Some((block, first_page)),
            RunKind::Zero | RunKind::Gone => None,
        }
    }

    /// The pages of the run from `start` to before `end`, which lie in it.
    pub(crate) fn part(&self, start: u64, end: u64) -> Self {
        let skip = ((start - self.start) / PAGE_SIZE) as u32;
        Self {
            start,
            pages: ((end - start) / PAGE_SIZE) as u32,
            kind: match self.kind {
                RunKind::Data { block, first_page } => RunKind::Data {
                    block,
                    first_page: first_page + skip,
                },
                other => other,
            },
            ..*self
        }
    }
}

/// Bytes from the beginning of the index to the end of the file. `None` if no file can be so long.
pub(crate) fn region_bytes(blocks: u64, runs: u64, hashes: u64) -> Option<u64> {
    blocks
        .checked_add(runs)?
        .checked_mul(ENTRY as u64)?
        .checked_add(hashes.checked_mul(HASH as u64)?)?
        .checked_add(trailer::BYTES as u64)?
        .checked_next_multiple_of(PAGE_SIZE)
}

impl Block {
    pub(crate) fn encode(&self) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        Fields::new(&mut entry)
            .u64(self.offset)
            .u32(self.stored_bytes)
            .u32(self.raw_bytes)
            .u32(self.codec.number())
            .u32(0)
            .u64(self.checksum);
        entry
    }
}

impl Run {
    pub(crate) fn encode(&self) -> [u8; ENTRY] {
        let (kind, block, first_page) = match self.kind {
            RunKind::Data { block, first_page } => (RUN_DATA, block, first_page),
            RunKind::Zero => (RUN_ZERO, 0, 0),
            RunKind::Gone => (RUN_GONE, 0, 0),
        };
        let mut entry = [0; ENTRY];
        Fields::new(&mut entry)
            .u64(self.start)
            .u32(self.space.0)
            .u32(self.pages)
            .u32(block)
            .u32(first_page)
            .u32(kind)
            .u32(0);
        entry
    }
}

/// Takes the entries of an index one by one, in the order of the file, and holds only what is sound.
///
/// Blocks must follow each other without a gap from the header to the index, and every page of every block
/// must belong to a run (in version 1 to exactly one); so no byte of the file is unaccounted for. Runs ascend and
/// do not overlap.
pub(crate) struct Decoder<'a> {
    path: &'a Path,
    header: Header,
    index_offset: u64,
    expected_blocks: u64,
    blocks: Vec<Block>,
    runs: Vec<Run>,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(
        path: &'a Path,
        header: Header,
        index_offset: u64,
        expected_blocks: u64,
    ) -> Self {
        Self {
            path,
            header,
            index_offset,
            expected_blocks,
            blocks: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Takes the next entry, which lies at `offset` of the file.
    pub(crate) fn entry(&mut self, entry: &[u8; ENTRY], offset: u64) -> Result<(), StoreError> {
        if (self.blocks.len() as u64) < self.expected_blocks {
            self.block(entry, offset)
        } else {
            self.run(entry, offset)
        }
    }

    fn block(&mut self, entry: &[u8; ENTRY], offset: u64) -> Result<(), StoreError> {
        let damaged = |what: &str| Err(StoreError::damaged(self.path, offset, what));
        let number = u32_at(entry, 16);
        let codec = Codec::from_number(number)
            .filter(|codec| *codec == Codec::None || self.header.version > 1)
            .ok_or_else(|| StoreError::Newer {
                path: self.path.to_owned(),
                found: format!("blocks of codec {number}"),
                known: "none, lz4, zstd and deflate".into(),
            })?;
        let block = Block {
            offset: u64_at(entry, 0),
            stored_bytes: u32_at(entry, 8),
            raw_bytes: u32_at(entry, 12),
            codec,
            checksum: u64_at(entry, 24),
        };
        if u32_at(entry, 20) != 0 {
            return damaged("reserved bytes of a block are in use");
        }
        if block.raw_bytes == 0
            || block.raw_bytes > self.header.block_bytes
            || !u64::from(block.raw_bytes).is_multiple_of(PAGE_SIZE)
            || match codec {
                Codec::None => block.stored_bytes != block.raw_bytes,
                // What would not have become smaller is stored as it is.
                _ => block.stored_bytes == 0 || block.stored_bytes >= block.raw_bytes,
            }
        {
            return damaged("a block of impossible length");
        }
        let expected = self.blocks.last().map_or(PAGE_SIZE, Block::end);
        if block.offset != expected {
            return damaged("a block that does not follow the one before");
        }
        if block.end() > self.index_offset {
            return damaged("a block that reaches into the index");
        }
        self.blocks.push(block);
        Ok(())
    }

    fn run(&mut self, entry: &[u8; ENTRY], offset: u64) -> Result<(), StoreError> {
        let damaged = |what: &str| Err(StoreError::damaged(self.path, offset, what));
        let (block, first_page) = (u32_at(entry, 16), u32_at(entry, 20));
        let number = u32_at(entry, 24);
        let kind = match (number, self.header.parent) {
            (RUN_DATA, _) => RunKind::Data { block, first_page },
            (RUN_ZERO, Some(_)) => RunKind::Zero,
            (RUN_GONE, Some(_)) => RunKind::Gone,
            (RUN_ZERO | RUN_GONE, None) if self.header.version > 1 => {
                return damaged("a run without data in a file that builds on no other");
            }
            _ => {
                return Err(StoreError::Newer {
                    path: self.path.to_owned(),
                    found: format!("runs of kind {number}"),
                    known: "runs of data, of zeros and of nothing".into(),
                });
            }
        };
        let run = Run {
            start: u64_at(entry, 0),
            space: SpaceId(u32_at(entry, 8)),
            pages: u32_at(entry, 12),
            kind,
        };
        if u32_at(entry, 28) != 0 || (run.place().is_none() && (block, first_page) != (0, 0)) {
            return damaged("reserved bytes of a run are in use");
        }
        if run.pages == 0 || !run.start.is_multiple_of(PAGE_SIZE) {
            return damaged("a run without pages, or not at a page");
        }
        if run.start.checked_add(run.bytes()).is_none() {
            return damaged("a run beyond the end of memory");
        }
        let fits = run.place().is_none_or(|(block, first_page)| {
            self.blocks.get(block as usize).is_some_and(|block| {
                let pages = u64::from(block.raw_bytes) / PAGE_SIZE;
                u64::from(first_page) + u64::from(run.pages) <= pages
            })
        });
        if !fits {
            return damaged("a run outside its block");
        }
        if let Some(last) = self.runs.last()
            && (last.space, last.end()) > (run.space, run.start)
        {
            return damaged(&format!(
                "runs out of order at {}",
                place(run.space, run.start)
            ));
        }
        self.runs.push(run);
        Ok(())
    }

    /// The whole index, once every entry has been taken.
    pub(crate) fn finish(self) -> Result<Index, StoreError> {
        let damaged = |what: &str| Err(StoreError::damaged(self.path, self.index_offset, what));
        if self.blocks.last().map_or(PAGE_SIZE, Block::end) != self.index_offset {
            return damaged("bytes between the last block and the index");
        }
        let index = Index::new(self.blocks, self.runs);
        for (number, block) in index.blocks.iter().enumerate() {
            let mut next_page = 0u64;
            for (run, first_page) in index.runs_of(number) {
                let first_page = u64::from(first_page);
                if first_page > next_page || (first_page < next_page && self.header.version == 1) {
                    return damaged(&format!("pages of block {number} in no run, or in two"));
                }
                next_page = next_page.max(first_page + u64::from(run.pages));
            }
            if next_page * PAGE_SIZE != u64::from(block.raw_bytes) {
                return damaged(&format!("pages of block {number} in no run"));
            }
        }
        Ok(index)
    }
}

impl Block {
    /// Byte offset of what follows the block and its padding.
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.stored_bytes).next_multiple_of(PAGE_SIZE)
    }
}

/// The index of an open page file, or what is left of it below newer ones.
pub(crate) struct Index {
    /// In the order of the file.
    pub(crate) blocks: Vec<Block>,
    /// In the order of spaces and addresses.
    pub(crate) runs: Vec<Run>,
    /// Numbers of runs with data, in the order of their places in blocks.
    by_block: Vec<u32>,
    /// For each block, where its runs begin in `by_block`; one more for the end.
    firsts: Vec<usize>,
}

impl Index {
    pub(crate) fn new(blocks: Vec<Block>, runs: Vec<Run>) -> Self {
        let place = |r: u32| runs[r as usize].place();
        let mut by_block: Vec<u32> = (0..runs.len() as u32)
            .filter(|&r| place(r).is_some())
            .collect();
        by_block.sort_unstable_by_key(|&r| place(r));
        let mut firsts = Vec::with_capacity(blocks.len() + 1);
        let mut at = 0;
        for number in 0..blocks.len() {
            firsts.push(at);
            let ours = |&r: &u32| place(r).is_some_and(|(block, _)| block as usize == number);
            while by_block.get(at).is_some_and(ours) {
                at += 1;
            }
        }
        firsts.push(at);
        Self {
            blocks,
            runs,
            by_block,
            firsts,
        }
    }

    /// The runs in block `number` with the place of their first page, in the order in which they lie there.
    pub(crate) fn runs_of(&self, number: usize) -> impl Iterator<Item = (&Run, u32)> {
        self.by_block[self.firsts[number]..self.firsts[number + 1]]
            .iter()
            .filter_map(|&r| {
                let run = &self.runs[r as usize];
                Some((run, run.place()?.1))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageFileId;

    const PAGE: u32 = PAGE_SIZE as u32;

    fn block(offset: u64, pages: u32) -> Block {
        Block {
            offset,
            stored_bytes: pages * PAGE,
            raw_bytes: pages * PAGE,
            codec: Codec::None,
            checksum: 1,
        }
    }

    fn run(start: u64, pages: u32, block: u32, first_page: u32) -> Run {
        Run {
            space: SpaceId(0),
            start,
            pages,
            kind: RunKind::Data { block, first_page },
        }
    }

    fn decode(blocks: &[Block], runs: &[Run], index_offset: u64) -> Result<Index, StoreError> {
        decode_as(Header::PLAIN, blocks, runs, index_offset)
    }

    fn decode_as(
        header: Header,
        blocks: &[Block],
        runs: &[Run],
        index_offset: u64,
    ) -> Result<Index, StoreError> {
        let mut decoder = Decoder::new(Path::new("p"), header, index_offset, blocks.len() as u64);
        for block in blocks {
            decoder.entry(&block.encode(), 0)?;
        }
        for run in runs {
            decoder.entry(&run.encode(), 0)?;
        }
        decoder.finish()
    }

    #[test]
    fn a_sound_index_comes_back_and_is_found_by_block() {
        let blocks = [block(4096, 2), block(12288, 1)];
        let runs = [run(0, 1, 0, 1), run(8192, 1, 1, 0), run(1 << 40, 1, 0, 0)];
        let index = decode(&blocks, &runs, 16384).unwrap();
        assert_eq!(index.blocks, blocks);
        assert_eq!(index.runs, runs);
        let of_first: Vec<u64> = index.runs_of(0).map(|(r, _)| r.start).collect();
        assert_eq!(of_first, [1 << 40, 0]);
        assert_eq!(index.runs_of(1).count(), 1);
        assert_eq!(index.runs_of(0).next().unwrap().1, 0);
    }

    #[test]
    fn an_unsound_index_is_refused() {
        let two = [block(4096, 2)];
        let sound = [run(0, 2, 0, 0)];
        assert!(decode(&two, &sound, 12288).is_ok());
        let cases: &[(&str, &[Block], &[Run], u64)] = &[
            ("block missing before the index", &two, &sound, 16384),
            ("block in the index", &two, &sound, 8192),
            (
                "block not after the header",
                &[block(8192, 1)],
                &[run(0, 1, 0, 0)],
                12288,
            ),
            ("empty block", &[block(4096, 0)], &[], 4096),
            (
                "block too long",
                &[block(4096, 257)],
                &[run(0, 257, 0, 0)],
                4096 + 257 * 4096,
            ),
            ("page in no run", &two, &[run(0, 1, 0, 0)], 12288),
            ("first page in no run", &two, &[run(0, 1, 0, 1)], 12288),
            (
                "page in two runs",
                &two,
                &[run(0, 2, 0, 0), run(8192, 1, 0, 1)],
                12288,
            ),
            (
                "run of no pages",
                &two,
                &[run(0, 0, 0, 0), run(0, 2, 0, 0)],
                12288,
            ),
            ("run off a page", &two, &[run(1, 2, 0, 0)], 12288),
            ("run in no block", &two, &[run(0, 2, 1, 0)], 12288),
            ("run beyond its block", &two, &[run(0, 2, 0, 1)], 12288),
            (
                "run beyond any block",
                &two,
                &[run(0, u32::MAX, 0, u32::MAX)],
                12288,
            ),
            (
                "run around the end of memory",
                &two,
                &[run(u64::MAX - 4095, 2, 0, 0)],
                12288,
            ),
            (
                "runs out of order",
                &two,
                &[run(4096, 1, 0, 0), run(0, 1, 0, 1)],
                12288,
            ),
            (
                "overlapping runs",
                &two,
                &[run(0, 1, 0, 0), run(0, 1, 0, 1)],
                12288,
            ),
        ];
        for (what, blocks, runs, index_offset) in cases {
            assert!(
                matches!(
                    decode(blocks, runs, *index_offset),
                    Err(StoreError::Damaged { .. })
                ),
                "{what}"
            );
        }
    }

    #[test]
    fn an_unknown_codec_or_kind_is_refused_in_words() {
        let mut decoder = Decoder::new(Path::new("p"), Header::PLAIN, 8192, 1);
        let mut entry = block(4096, 1).encode();
        entry[16] = 1;
        let error = decoder.entry(&entry, 0).unwrap_err();
        assert!(error.to_string().contains("newer"), "{error}");
        decoder.entry(&block(4096, 1).encode(), 0).unwrap();
        let mut entry = run(0, 1, 0, 0).encode();
        entry[24] = 1;
        let error = decoder.entry(&entry, 0).unwrap_err();
        assert!(error.to_string().contains("newer"), "{error}");
    }

    #[test]
    fn pages_may_be_shared_zero_or_gone_in_version_2_only() {
        let two = [block(4096, 2)];
        let shared = [run(0, 2, 0, 0), run(8192, 1, 0, 1)];
        let full = Header {
            version: 2,
            ..Header::PLAIN
        };
        let incremental = Header {
            parent: Some(PageFileId(1)),
            ..full
        };
        assert!(decode(&two, &shared, 12288).is_err());
        assert!(decode_as(full, &two, &shared, 12288).is_ok());
        let of_none = |kind| Run {
            kind,
            ..run(0, 3, 0, 0)
        };
        for kind in [RunKind::Zero, RunKind::Gone] {
            assert!(decode(&[], &[of_none(kind)], 4096).is_err());
            assert!(decode_as(full, &[], &[of_none(kind)], 4096).is_err());
            let index = decode_as(incremental, &[], &[of_none(kind)], 4096).unwrap();
            assert_eq!(index.runs, [of_none(kind)]);
        }
        // A gap is damage in every version.
        assert!(decode_as(full, &two, &[run(0, 1, 0, 1)], 12288).is_err());
    }

    #[test]
    fn a_part_of_a_run_keeps_its_place() {
        let whole = run(4096, 4, 3, 2);
        assert_eq!(whole.part(8192, 16384), run(8192, 2, 3, 3));
        assert_eq!(whole.part(4096, whole.end()), whole);
    }

    #[test]
    fn blocks_may_be_smaller_than_what_they_hold_in_version_2_only() {
        let full = Header {
            version: 2,
            ..Header::PLAIN
        };
        let packed = Block {
            stored_bytes: 100,
            codec: Codec::Zstd,
            ..block(4096, 3)
        };
        let runs = [run(0, 3, 0, 0)];
        assert_eq!(
            decode_as(full, &[packed], &runs, 8192).unwrap().blocks,
            [packed]
        );
        assert!(matches!(
            decode(&[packed], &runs, 8192),
            Err(StoreError::Newer { .. })
        ));
        for stored_bytes in [0, 3 * PAGE, 4 * PAGE] {
            let odd = Block {
                stored_bytes,
                ..packed
            };
            assert!(decode_as(full, &[odd], &runs, odd.end()).is_err());
        }
    }
}
