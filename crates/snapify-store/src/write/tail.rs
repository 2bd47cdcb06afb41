//! The end of a page file: its index and its trailer.

use super::same::SamePages;
use super::sequence::Sequence;
use super::{ranges, same};
use crate::PageFileSummary;
use crate::aligned::AlignedBuf;
use crate::checksum::Xxh3;
use crate::format::header::Header;
use crate::format::index::{self, ENTRY, HASH, Run};
use crate::format::trailer::{self, Trailer};
use crate::types::{PAGE, PAGE_SIZE};

/// Index and trailer of the file, and its figures. `alike` are pages that were not read because they are the same as others.
pub(super) fn tail(
    sequence: &mut Sequence<'_>,
    header: Header,
    pages_read: u64,
    alike: &[SamePages],
) -> (AlignedBuf, PageFileSummary) {
    let sort = |runs: &mut Vec<Run>| runs.sort_unstable_by_key(|run| (run.space, run.start));
    sort(&mut sequence.runs);
    if let Some(shared) = &sequence.shared {
        let twins = same::runs(shared.twins(), &sequence.runs);
        sequence.runs.extend(twins);
        sort(&mut sequence.runs);
    }
    let alike_pages: u64 = alike.iter().map(|same| same.pages.bytes / PAGE_SIZE).sum();
    let alike = same::runs(alike, &sequence.runs);
    let alike_stored: u64 = alike.iter().map(|run| u64::from(run.pages)).sum();
    sequence.left_out.zero += alike_pages - alike_stored;
    sequence.runs.extend(alike);
    sort(&mut sequence.runs);
    let pages_scanned = pages_read + alike_pages;
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
