//! The ranges to be saved, cut into equal slices that workers take one at a time.
//!
//! A slice spans as many ranges as it needs, so that thousands of tiny ranges fill a block like one large
//! range does. The cut depends on the ranges alone, so that the same input gives the same file.

use crate::format::BLOCK_BYTES;
use crate::{PageRange, StoreError};
use std::path::Path;

/// Most bytes read from the source at a time: small enough that zero scan and checksum find them in the
/// second-level cache.
pub(super) const PIECE_BYTES: u64 = 256 << 10;

/// Bytes of the ranges in a slice: what fits a block if nothing in it is zero.
const SLICE_BYTES: u64 = BLOCK_BYTES as u64;

/// The ranges, and how many bytes lie before each.
pub(super) struct Slices<'a> {
    ranges: &'a [PageRange],
    before: Vec<u64>,
    total: u64,
}

impl<'a> Slices<'a> {
    /// Checks the ranges that are to be written to the file `path`.
    pub(super) fn new(ranges: &'a [PageRange], path: &Path) -> Result<Self, StoreError> {
        super::ranges::check(ranges.iter(), path)?;
        let mut before = Vec::with_capacity(ranges.len());
        let mut total = 0u64;
        for range in ranges {
            before.push(total);
            match total.checked_add(range.bytes) {
                Some(sum) => total = sum,
                None => {
                    return Err(StoreError::Range {
                        path: path.to_owned(),
                        space: range.space,
                        start: range.start,
                        bytes: range.bytes,
                        reason: "the ranges amount to more than any file holds",
                    });
                }
            }
        }
        Ok(Self {
            ranges,
            before,
            total,
        })
    }

    /// Bytes in all ranges.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Number of slices.
    pub(super) fn count(&self) -> u64 {
        self.total.div_ceil(SLICE_BYTES)
    }

    /// The pieces of slice `number`, none longer than [`PIECE_BYTES`], in the order of the ranges.
    pub(super) fn pieces(&self, number: u64) -> impl Iterator<Item = PageRange> + '_ {
        let mut at = number * SLICE_BYTES;
        let end = (at + SLICE_BYTES).min(self.total);
        // The last range that begins at or before `at`: of several beginning there (all but the last of
        // them empty) the one that is not.
        let mut index = self.before.partition_point(|&b| b <= at).saturating_sub(1);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let mut range = self.ranges[index];
            while self.before[index] + range.bytes <= at {
                index += 1;
                range = self.ranges[index];
            }
            let skip = at - self.before[index];
            let bytes = (range.bytes - skip).min(end - at).min(PIECE_BYTES);
            at += bytes;
            Some(PageRange {
                space: range.space,
                start: range.start + skip,
                bytes,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;
    use crate::types::PAGE_SIZE;

    fn range(space: u32, first_page: u64, pages: u64) -> PageRange {
        PageRange {
            space: SpaceId(space),
            start: first_page * PAGE_SIZE,
            bytes: pages * PAGE_SIZE,
        }
    }

    fn new(ranges: &[PageRange]) -> Result<Slices<'_>, StoreError> {
        Slices::new(ranges, Path::new("p"))
    }

    #[test]
    fn pieces_cover_every_page_once_and_in_order() {
        let ranges = [
            range(0, 10, 0),
            range(0, 10, 3),
            range(0, 20, 0),
            range(0, 20, 700),
            range(1, 0, 1),
            range(1, 5, 0),
            range(1, 5, 255),
            range(0, 0, 1),
            range(2, 0, 0),
        ];
        let slices = new(&ranges).unwrap();
        assert_eq!(slices.count(), 960u64.div_ceil(256));
        let mut pages = Vec::new();
        for number in 0..slices.count() {
            let mut bytes = 0;
            for piece in slices.pieces(number) {
                assert!(piece.bytes > 0 && piece.bytes <= PIECE_BYTES);
                bytes += piece.bytes;
                pages.extend(
                    (piece.start..piece.start + piece.bytes)
                        .step_by(PAGE_SIZE as usize)
                        .map(|a| (piece.space, a)),
                );
            }
            assert!(bytes == SLICE_BYTES || number + 1 == slices.count());
        }
        let expected: Vec<_> = ranges
            .iter()
            .flat_map(|r| {
                (r.start..r.start + r.bytes)
                    .step_by(PAGE_SIZE as usize)
                    .map(|a| (r.space, a))
            })
            .collect();
        assert_eq!(pages, expected);
    }

    #[test]
    fn nothing_to_save_is_no_slice() {
        assert_eq!(new(&[]).unwrap().count(), 0);
        assert_eq!(new(&[range(0, 3, 0)]).unwrap().count(), 0);
    }

    #[test]
    fn odd_and_overlapping_ranges_are_refused() {
        let odd = PageRange {
            space: SpaceId(0),
            start: 1,
            bytes: 4096,
        };
        let short = PageRange {
            space: SpaceId(0),
            start: 0,
            bytes: 4095,
        };
        let beyond = PageRange {
            space: SpaceId(0),
            start: u64::MAX - 4095,
            bytes: 8192,
        };
        for ranges in [
            vec![odd],
            vec![short],
            vec![beyond],
            vec![range(0, 4, 2), range(0, 0, 5)],
            vec![range(0, 0, 1), range(0, 0, 1)],
        ] {
            assert!(
                matches!(new(&ranges), Err(StoreError::Range { .. })),
                "{ranges:?}"
            );
        }
        assert!(new(&[range(0, 4, 2), range(1, 0, 5), range(0, 0, 4)]).is_ok());
    }
}
