//! The ranges that a writer is given, and the runs that say of pages what needs no block.

use crate::format::index::{Run, RunKind};
use crate::types::PAGE_SIZE;
use crate::{PageRange, StoreError};
use std::path::Path;

/// Checks ranges that are to be mentioned in the file `path`: whole pages, inside memory, each page once.
pub(super) fn check<'a>(
    ranges: impl Iterator<Item = &'a PageRange>,
    path: &Path,
) -> Result<(), StoreError> {
    let refuse = |range: &PageRange, reason| {
        Err(StoreError::Range {
            path: path.to_owned(),
            space: range.space,
            start: range.start,
            bytes: range.bytes,
            reason,
        })
    };
    let mut order = Vec::new();
    for range in ranges {
        if !range.start.is_multiple_of(PAGE_SIZE) || !range.bytes.is_multiple_of(PAGE_SIZE) {
            return refuse(range, "it does not begin and end at a page");
        }
        if range.start.checked_add(range.bytes).is_none() {
            return refuse(range, "it reaches beyond the end of memory");
        }
        if range.bytes > 0 {
            order.push(range);
        }
    }
    if !order.is_sorted() {
        order.sort_unstable();
    }
    for pair in order.windows(2) {
        if pair[0].space == pair[1].space && pair[0].start + pair[0].bytes > pair[1].start {
            return refuse(pair[1], "it overlaps another range");
        }
    }
    Ok(())
}

/// Runs that say the same of all pages of `range`. A run counts fewer pages than a range may have.
pub(crate) fn runs(range: &PageRange, kind: RunKind) -> impl Iterator<Item = Run> {
    const MOST: u64 = (u32::MAX as u64) * PAGE_SIZE;
    let (space, begin, bytes) = (range.space, range.start, range.bytes);
    (0..bytes.div_ceil(MOST)).map(move |n| Run {
        space,
        start: begin + n * MOST,
        pages: ((bytes - n * MOST).min(MOST) / PAGE_SIZE) as u32,
        kind,
    })
}

/// Joins runs without data that follow each other. The runs ascend.
pub(super) fn join(runs: &mut Vec<Run>) {
    runs.dedup_by(|next, last| {
        let same = last.kind == next.kind && last.place().is_none();
        let follows = (last.space, last.end()) == (next.space, next.start);
        match last.pages.checked_add(next.pages) {
            Some(pages) if same && follows => {
                last.pages = pages;
                true
            }
            _ => false,
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;

    #[test]
    fn a_range_of_any_length_is_told_and_joined_again() {
        let range = PageRange {
            space: SpaceId(1),
            start: PAGE_SIZE,
            bytes: (u64::from(u32::MAX) + 5) * PAGE_SIZE,
        };
        let mut all: Vec<Run> = runs(&range, RunKind::Gone).collect();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].end(), all[1].start);
        assert_eq!(all[1].end(), range.start + range.bytes);
        join(&mut all);
        assert_eq!(all.len(), 2, "there is no run of so many pages");
        let short = |start, kind| Run {
            space: SpaceId(0),
            start,
            pages: 1,
            kind,
        };
        let mut all = vec![
            short(0, RunKind::Gone),
            short(4096, RunKind::Gone),
            short(8192, RunKind::Zero),
            short(16384, RunKind::Zero),
        ];
        join(&mut all);
        let found: Vec<_> = all.iter().map(|r| (r.start, r.pages)).collect();
        assert_eq!(found, [(0, 2), (8192, 1), (16384, 1)]);
    }
}
