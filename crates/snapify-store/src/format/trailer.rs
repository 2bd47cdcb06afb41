//! The last bytes of a page file: where its index lies, and what it must amount to.

use super::header::Header;
use super::{Fields, u32_at, u64_at};
use crate::checksum::xxh3_64;
use crate::types::PAGE_SIZE;
use crate::{PageFileSummary, StoreError};
use std::path::Path;

/// Bytes of the trailer.
pub(crate) const BYTES: usize = 128;

const MAGIC: &[u8; 8] = b"SNAPTAIL";

/// Where the trailer's own checksum lies; it covers everything before.
const CHECKSUM_AT: usize = 120;

/// Where the index lies, and the figures of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// Byte offset of the index; the blocks end there.
    pub(crate) index_offset: u64,
    /// The figures, among them the numbers of blocks and runs in the index.
    pub(crate) summary: PageFileSummary,
}

impl Trailer {
    pub(crate) fn encode(&self, header: Header) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let s = &self.summary;
        Fields::new(&mut bytes)
            .raw(MAGIC)
            .u32(header.version)
            .u32(BYTES as u32)
            .u64(s.file_bytes)
            .u64(self.index_offset)
            .u64(s.blocks)
            .u64(s.runs)
            .u64(s.pages_scanned)
            .u64(s.pages_zero)
            .u64(s.pages_stored)
            .u64(s.index_checksum)
            .u64(s.pages_shared)
            .u64(s.pages_same);
        let checksum = xxh3_64(&bytes[..CHECKSUM_AT]);
        Fields::new(&mut bytes[CHECKSUM_AT..]).u64(checksum);
        bytes
    }

    /// Reads the last bytes of the file `path` of `file_bytes` bytes.
    ///
    /// What it returns is consistent in itself: the index lies inside the file, behind at least the header,
    /// and is exactly as long as its two tables, padding and trailer are. No more blocks and runs are
    /// announced than the bytes before the index can hold.
    pub(crate) fn decode(
        bytes: &[u8; BYTES],
        file_bytes: u64,
        header: Header,
        path: &Path,
    ) -> Result<Self, StoreError> {
        let at = file_bytes - BYTES as u64;
        let damaged = |offset: u64, what: &str| Err(StoreError::damaged(path, at + offset, what));
        if &bytes[..8] != MAGIC {
            return damaged(
                0,
                "it does not end as a page file does: cut off, or never completed",
            );
        }
        if u64_at(bytes, CHECKSUM_AT) != xxh3_64(&bytes[..CHECKSUM_AT]) {
            return damaged(0, "the trailer's checksum does not match");
        }
        if u32_at(bytes, 8) != header.version {
            return damaged(8, "header and trailer are of different versions");
        }
        if u32_at(bytes, 12) != BYTES as u32 {
            return damaged(12, "a trailer of another length");
        }
        let summary = PageFileSummary {
            file_bytes: u64_at(bytes, 16),
            blocks: u64_at(bytes, 32),
            runs: u64_at(bytes, 40),
            pages_scanned: u64_at(bytes, 48),
            pages_zero: u64_at(bytes, 56),
            pages_stored: u64_at(bytes, 64),
            index_checksum: u64_at(bytes, 72),
            pages_shared: u64_at(bytes, 80),
            pages_same: u64_at(bytes, 88),
            parent: header.parent,
            stands_for: header.stands_for,
        };
        let index_offset = u64_at(bytes, 24);
        if summary.file_bytes != file_bytes {
            return damaged(
                16,
                &format!(
                    "the file has {file_bytes} bytes and should have {}",
                    summary.file_bytes
                ),
            );
        }
        if index_offset < PAGE_SIZE || !index_offset.is_multiple_of(PAGE_SIZE) {
            return damaged(24, "an impossible place for the index");
        }
        let hashes = header.hash_seed.map_or(0, |_| summary.pages_stored);
        let end = super::index::region_bytes(summary.blocks, summary.runs, hashes)
            .and_then(|bytes| index_offset.checked_add(bytes));
        if end != Some(file_bytes) {
            return damaged(32, "the index does not fit its place");
        }
        let parts = [
            summary.pages_stored,
            summary.pages_shared,
            summary.pages_same,
        ];
        let scanned = parts
            .iter()
            .try_fold(summary.pages_zero, |sum, part| sum.checked_add(*part));
        if scanned != Some(summary.pages_scanned) {
            return damaged(48, "the page counts contradict each other");
        }
        let pages_per_block = u64::from(header.block_bytes) / PAGE_SIZE;
        if summary.blocks > (index_offset - PAGE_SIZE) / PAGE_SIZE
            || summary.pages_stored > summary.blocks.saturating_mul(pages_per_block)
            || (header.version == 1 && summary.runs > summary.pages_stored)
            || summary.runs > u64::from(u32::MAX)
        {
            return damaged(32, "more blocks, runs or pages than there is room for");
        }
        let used = if header.version == 1 { 80 } else { 96 };
        if bytes[used..CHECKSUM_AT].iter().any(|&b| b != 0) {
            return damaged(used as u64, "reserved bytes are in use");
        }
        Ok(Self {
            index_offset,
            summary,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Trailer {
        Trailer {
            index_offset: 3 * PAGE_SIZE,
            summary: PageFileSummary {
                pages_scanned: 5,
                pages_zero: 3,
                pages_stored: 2,
                blocks: 1,
                runs: 2,
                file_bytes: 4 * PAGE_SIZE,
                index_checksum: 7,
                pages_shared: 0,
                pages_same: 0,
                parent: None,
                stands_for: None,
            },
        }
    }

    #[test]
    fn it_comes_back() {
        let trailer = sample();
        let back = Trailer::decode(
            &trailer.encode(Header::PLAIN),
            4 * PAGE_SIZE,
            Header::PLAIN,
            Path::new("p"),
        )
        .unwrap();
        assert_eq!(back, trailer);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample().encode(Header::PLAIN);
        for at in 0..BYTES {
            for bit in 0..8 {
                let mut bad = good;
                bad[at] ^= 1 << bit;
                assert!(
                    Trailer::decode(&bad, 4 * PAGE_SIZE, Header::PLAIN, Path::new("p")).is_err()
                );
            }
        }
    }

    #[test]
    fn counts_beyond_the_file_are_refused_even_with_a_good_checksum() {
        for change in [
            (|t: &mut Trailer| t.summary.blocks = u64::MAX) as fn(&mut Trailer),
            |t| t.summary.runs = u64::MAX / 32,
            |t| t.summary.runs = 200,
            |t| t.index_offset = u64::MAX - 4095,
            |t| (t.summary.pages_stored, t.summary.pages_zero) = (1, 4),
            |t| (t.summary.pages_stored, t.summary.pages_scanned) = (257, 260),
            |t| t.index_offset = 0,
            |t| t.index_offset = 12289,
            |t| t.summary.pages_zero = u64::MAX,
        ] {
            let mut trailer = sample();
            change(&mut trailer);
            let result = Trailer::decode(
                &trailer.encode(Header::PLAIN),
                4 * PAGE_SIZE,
                Header::PLAIN,
                Path::new("p"),
            );
            assert!(
                matches!(result, Err(StoreError::Damaged { .. })),
                "{trailer:?}"
            );
        }
    }
}
