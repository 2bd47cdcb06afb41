//! Pages that are stored once for several places.

use super::PageFile;
use crate::format::index::Run;
use crate::types::PAGE_SIZE;
use crate::{PageRange, SamePages, SpaceId};

impl PageFile {
    /// The pages of `space` that are stored in the same place as those at the same addresses of `other`, in ascending order:
    /// whatever they hold, it is the same.
    #[must_use]
    pub fn common(&self, space: SpaceId, other: SpaceId) -> Vec<PageRange> {
        let mut common = Vec::new();
        for layer in &self.layers {
            let of = |space| {
                let runs = &layer.index.runs;
                let begin = runs.partition_point(|run| run.space < space);
                let end = runs.partition_point(|run| run.space <= space);
                runs[begin..end].iter().peekable()
            };
            let (mut ours, mut theirs) = (of(space), of(other));
            while let (Some(our), Some(their)) = (ours.peek(), theirs.peek()) {
                let (start, end) = (our.start.max(their.start), our.end().min(their.end()));
                let place = |run: &Run| run.part(start, end).place();
                if start < end && place(our).is_some() && place(our) == place(their) {
                    common.push(PageRange {
                        space,
                        start,
                        bytes: end - start,
                    });
                }
                if our.end() <= their.end() {
                    ours.next();
                } else {
                    theirs.next();
                }
            }
        }
        joined(common)
    }

    /// All that [`PageFile::fill`] puts into place, that which is stored together with other pages apart.
    pub(crate) fn distinct(&self) -> (Vec<PageRange>, Vec<SamePages>) {
        let mut first = Vec::new();
        let mut same = Vec::new();
        for layer in &self.layers {
            // By their place in the file: (block, first page), (behind the last page), run.
            let placed = |run: &Run| {
                let (block, page) = run.place()?;
                Some((block, page, page + run.pages, *run))
            };
            let mut places: Vec<_> = layer.index.runs.iter().filter_map(placed).collect();
            places
                .sort_unstable_by_key(|&(block, page, _, run)| (block, page, run.space, run.start));
            // Runs that were the first in their place, of one block, in ascending order.
            let mut originals: Vec<(u32, u32, u32, Run)> = Vec::new();
            for (block, page, end, run) in places {
                if originals.last().is_some_and(|last| last.0 != block) {
                    originals.clear();
                }
                let known = originals.partition_point(|original| original.2 <= page);
                let mut at = page;
                for &(_, from, to, original) in &originals[known..] {
                    let to = to.min(end);
                    if at >= to {
                        continue;
                    }
                    let skip = u64::from(at - from) * PAGE_SIZE;
                    same.push(SamePages {
                        pages: range(&run, at - page, to - page),
                        original: (original.space, original.start + skip),
                    });
                    at = to;
                }
                if at < end {
                    let rest = range(&run, at - page, end - page);
                    let rest = run.part(rest.start, rest.start + rest.bytes);
                    originals.push((block, at, end, rest));
                    first.push(range(&rest, 0, rest.pages));
                }
            }
        }
        (joined(first), same)
    }
}

/// These ranges in ascending order, joined where they touch.
fn joined(mut ranges: Vec<PageRange>) -> Vec<PageRange> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = (last.space, last.start + last.bytes) == (next.space, next.start);
        if touches {
            last.bytes += next.bytes;
        }
        touches
    });
    ranges
}

/// The pages of a run from its page `from` to before its page `to`.
fn range(run: &Run, from: u32, to: u32) -> PageRange {
    PageRange {
        space: run.space,
        start: run.start + u64::from(from) * PAGE_SIZE,
        bytes: u64::from(to - from) * PAGE_SIZE,
    }
}
