//! The end of a page file: its index and its trailer.

use super::ranges;
use super::sequence::Sequence;
use crate::PageFileSummary;
use crate::aligned::AlignedBuf;
use crate::checksum::Xxh3;
use crate::format::header::Header;
use crate::format::index::{self, ENTRY, HASH};
use crate::format::trailer::{self, Trailer};
use crate::types::{PAGE, PAGE_SIZE};

/// Index and trailer of the file, and its figures.
pub(super) fn tail(
    sequence: &mut Sequence<'_>,
    header: Header,
    pages_scanned: u64,
) -> (AlignedBuf, PageFileSummary) {
    sequence
        .runs
        .sort_unstable_by_key(|run| (run.space, run.start));
    if let Some(shared) = &sequence.shared {
        let twins = shared.runs(&sequence.runs);
        sequence.runs.extend(twins);
        sequence
            .runs
            .sort_unstable_by_key(|run| (run.space, run.start));
    }
    ranges::join(&mut sequence.runs);
    if header.hash_seed.is_none() {
        // They served to find pages with the same content.
        sequence.hashes.clear();
    }
    let (blocks, runs) = (sequence.blocks.len(), sequence.runs.len());
    let entries = (blocks + runs) * ENTRY;
    let hashes = sequence.hashes.len() * HASH;
    let bytes = (entries + hashes + trailer::BYTES).next_multiple_of(PAGE);
    let mut tail = AlignedBuf::new(bytes);
    let (places, rest) = tail.split_at_mut(entries);
    let all = sequence
        .blocks
        .iter()
        .map(index::Block::encode)
        .chain(sequence.runs.iter().map(index::Run::encode));
    for (place, entry) in places.chunks_exact_mut(ENTRY).zip(all) {
        place.copy_from_slice(&entry);
    }
    for (place, hash) in rest.chunks_exact_mut(HASH).zip(&sequence.hashes) {
        place.copy_from_slice(&hash.to_le_bytes());
    }
    let (index, place) = tail.split_at_mut(bytes - trailer::BYTES);
    let mut hash = Xxh3::new();
    hash.update(&header.encode());
    hash.update(index);
    let left_out = sequence.left_out;
    let stored: u64 = (sequence.blocks.iter())
        .map(|block| u64::from(block.raw_bytes) / PAGE_SIZE)
        .sum();
    let trailer = Trailer {
        index_offset: sequence.offset,
        summary: PageFileSummary {
            pages_scanned,
            pages_zero: left_out.zero,
            pages_stored: stored,
            pages_shared: pages_scanned - left_out.zero - left_out.same - stored,
            pages_same: left_out.same,
            blocks: blocks as u64,
            runs: runs as u64,
            file_bytes: sequence.offset + bytes as u64,
            index_checksum: hash.digest(),
            parent: header.parent,
            stands_for: header.stands_for,
        },
    };
    place.copy_from_slice(&trailer.encode(header));
    (tail, trailer.summary)
}
