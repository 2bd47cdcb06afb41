//! What processes have in common since a fork: such pages are saved once.
//!
//! The kernel tells of each page whether one process alone has it mapped. Where neither of two processes has a page alone, and
//! both show the same at the same address, then most likely neither has written to it since the fork. It need not be so: that the
//! content is the same is all that counts, and it is compared.

use super::save::SavedMemory;
use crate::error::ProcError;
use crate::tracking::Spans;
use snapify_store::{PAGE_SIZE, PageRange, PageSource, SamePages, SpaceId};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bit of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst): nobody else has the page mapped.
const EXCLUSIVE: u64 = 1 << 56;
/// Bit of a pagemap entry: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Bytes that are compared at a time: they stay in the cache meanwhile.
const PIECE: u64 = 256 * 1024;
/// Pages in that.
const PAGES: usize = (PIECE / PAGE_SIZE) as usize;

/// Of all memories, what is to be read, and what is the same as something of that.
///
/// # Errors
/// If one of the processes is gone.
pub(super) fn split(
    memories: &[SavedMemory<'_>],
    source: &dyn PageSource,
) -> Result<(Vec<PageRange>, Vec<SamePages>), ProcError> {
    let mut same = Vec::new();
    if memories.iter().all(|m| m.ranges.relatives.is_empty()) {
        let ranges = memories.iter().flat_map(|memory| &memory.ranges.ranges);
        return Ok((ranges.copied().collect(), same));
    }
    let mut family = Family::new(memories, source)?;
    // First what children have from their parents, then what only siblings have.
    let rounds = memories.iter().map(|m| m.ranges.relatives.len()).max();
    for round in 0..rounds.unwrap_or(0) {
        family.compare(round);
    }
    let mut left = Vec::new();
    for (memory, common) in memories.iter().zip(family.origins()) {
        same.extend(common.iter().map(|&(start, end, origin)| SamePages {
            pages: PageRange {
                space: memory.space,
                start,
                bytes: end - start,
            },
            original: (origin, start),
        }));
        left.extend(without(&memory.ranges.ranges, &common));
    }
    Ok((left, same))
}

/// Processes that descend from each other.
struct Family<'a> {
    memories: &'a [SavedMemory<'a>],
    source: &'a dyn PageSource,
    /// By space: parents before children.
    places: HashMap<SpaceId, usize>,
    maps: Vec<File>,
    /// Of each memory: what it has in common with each of its relatives.
    common: Vec<Vec<Spans>>,
}

/// Start and end of pages that two memories may have in common.
struct Task {
    ours: usize,
    theirs: usize,
    start: u64,
    end: u64,
}

impl<'a> Family<'a> {
    fn new(memories: &'a [SavedMemory<'a>], source: &'a dyn PageSource) -> Result<Self, ProcError> {
        let spaces = memories.iter().map(|memory| memory.space);
        let maps = memories
            .iter()
            .map(|memory| memory.proc.open_file("pagemap"));
        Ok(Self {
            memories,
            source,
            places: spaces.zip(0..).collect(),
            maps: maps.collect::<Result<_, _>>()?,
            common: memories.iter().map(|_| Vec::new()).collect(),
        })
    }

    /// The relative of that number, if it precedes.
    fn relative(&self, of: usize, number: usize) -> Option<usize> {
        let space = self.memories[of].ranges.relatives.get(number)?;
        self.places.get(space).copied().filter(|&place| place < of)
    }

    /// Compares each memory with its relative of this number, where it has nothing in common with those before.
    fn compare(&mut self, number: usize) {
        let mut tasks = Vec::new();
        for (ours, memory) in self.memories.iter().enumerate() {
            let Some(theirs) = self.relative(ours, number) else {
                continue;
            };
            let mut open = memory.ranges.present();
            for known in &self.common[ours] {
                open = open.difference(known);
            }
            let open = open.intersection(&self.memories[theirs].ranges.present());
            for (mut start, last) in open.iter() {
                while start < last {
                    let end = last.min((start / PIECE + 1) * PIECE);
                    tasks.push(Task {
                        ours,
                        theirs,
                        start,
                        end,
                    });
                    start = end;
                }
            }
        }
        let mut found: Vec<Spans> = self.memories.iter().map(|_| Spans::default()).collect();
        for (task, runs) in tasks.iter().zip(self.carry_out(&tasks)) {
            for (start, end) in runs {
                found[task.ours].push(start, end);
            }
        }
        for (common, found) in self.common.iter_mut().zip(found) {
            common.push(found);
        }
    }

    /// What is common in each task, found by several threads.
    fn carry_out(&self, tasks: &[Task]) -> Vec<Vec<(u64, u64)>> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(vec![Vec::new(); tasks.len()]);
        let work = || {
            let mut pages = [vec![0; PIECE as usize], vec![0; PIECE as usize]];
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(number) else {
                    return;
                };
                // What cannot be read is not common: who is to save it will tell why.
                let runs = self.look(task, &mut pages).unwrap_or_default();
                if !runs.is_empty() {
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results[number] = runs;
                }
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        match tasks.len().div_ceil(PAGES).min(processors) {
            0 | 1 => work(),
            threads => std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(work);
                }
            }),
        }
        results.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runs of pages that are the same in both.
    fn look(&self, task: &Task, pages: &mut [Vec<u8>; 2]) -> std::io::Result<Vec<(u64, u64)>> {
        let &Task {
            ours,
            theirs,
            start,
            end,
        } = task;
        let count = ((end - start) / PAGE_SIZE) as usize;
        let mut shared = [true; PAGES];
        for map in [&self.maps[ours], &self.maps[theirs]] {
            let mut entries = [0_u8; PAGES * 8];
            let entries = &mut entries[..count * 8];
            map.read_exact_at(entries, start / PAGE_SIZE * 8)?;
            for (shared, entry) in shared.iter_mut().zip(entries.as_chunks::<8>().0) {
                let entry = u64::from_le_bytes(*entry);
                *shared &= entry & (PRESENT | EXCLUSIVE) == PRESENT;
            }
        }
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut first = 0;
        for group in shared[..count].chunk_by(|a, b| a == b) {
            let from = start + first as u64 * PAGE_SIZE;
            first += group.len();
            if !group[0] {
                continue;
            }
            let bytes = group.len() * PAGE_SIZE as usize;
            let [our_pages, their_pages] = pages;
            let (our_pages, their_pages) = (&mut our_pages[..bytes], &mut their_pages[..bytes]);
            let space = |memory: usize| self.memories[memory].space;
            self.source.read(space(ours), from, our_pages)?;
            self.source.read(space(theirs), from, their_pages)?;
            let page = PAGE_SIZE as usize;
            let pairs = our_pages
                .chunks_exact(page)
                .zip(their_pages.chunks_exact(page));
            for ((our_page, their_page), at) in pairs.zip((from..).step_by(page)) {
                if our_page != their_page {
                    continue;
                }
                match runs.last_mut() {
                    Some(last) if last.1 == at => last.1 += PAGE_SIZE,
                    _ => runs.push((at, at + PAGE_SIZE)),
                }
            }
        }
        Ok(runs)
    }

    /// Of each memory what it has in common with others, in ascending order: start, end, and the space of whoever it is saved
    /// with, who may be a relative's relative.
    fn origins(&self) -> Vec<Vec<(u64, u64, SpaceId)>> {
        let mut all: Vec<Vec<(u64, u64, SpaceId)>> = Vec::with_capacity(self.memories.len());
        for (ours, common) in self.common.iter().enumerate() {
            let mut origins = Vec::new();
            for (number, spans) in common.iter().enumerate() {
                if let Some(theirs) = self.relative(ours, number) {
                    let space = self.memories[theirs].space;
                    trace(spans, (&all[theirs], space), &mut origins);
                }
            }
            origins.sort_unstable();
            all.push(origins);
        }
        all
    }
}

/// Adds `spans` as common with somebody, or with whom that one has them in common with.
fn trace(
    spans: &Spans,
    (origins, space): (&[(u64, u64, SpaceId)], SpaceId),
    found: &mut Vec<(u64, u64, SpaceId)>,
) {
    for (start, end) in spans.iter() {
        let mut at = start;
        let first = origins.partition_point(|origin| origin.1 <= start);
        for &(from, to, origin) in origins[first..].iter().take_while(|o| o.0 < end) {
            if at < from {
                found.push((at, from, space));
            }
            at = to.min(end);
            found.push((from.max(start), at, origin));
        }
        if at < end {
            found.push((at, end, space));
        }
    }
}

/// What is left of ranges, each in one mapping, without pages that are common. Both ascend.
fn without(ranges: &[PageRange], common: &[(u64, u64, SpaceId)]) -> Vec<PageRange> {
    let mut left = Vec::with_capacity(ranges.len());
    let mut next = 0;
    for range in ranges {
        let end = range.start + range.bytes;
        let mut at = range.start;
        let mut keep = |from: u64, to: u64| {
            if from < to {
                let bytes = to - from;
                left.push(PageRange {
                    start: from,
                    bytes,
                    ..*range
                });
            }
        };
        while let Some(&(start, stop, _)) = common.get(next)
            && start < end
        {
            keep(at, start);
            at = at.max(stop.min(end));
            // It may go on in the next range.
            if stop > end {
                break;
            }
            next += 1;
        }
        keep(at, end);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_pages_are_taken_out_of_ranges() {
        let range = |start, end| PageRange {
            space: SpaceId(3),
            start,
            bytes: end - start,
        };
        let other = SpaceId(1);
        let ranges = [range(0, 10), range(10, 20), range(30, 40)];
        assert_eq!(without(&ranges, &[]), ranges);
        assert_eq!(without(&ranges, &[(0, 20, other), (30, 40, other)]), []);
        assert_eq!(
            without(&ranges, &[(2, 4, other), (8, 12, other), (35, 40, other)]),
            [range(0, 2), range(4, 8), range(12, 20), range(30, 35)]
        );
    }

    #[test]
    fn what_a_relative_has_from_another_is_that_ones() {
        let (old, older) = (SpaceId(1), SpaceId(0));
        let mut spans = Spans::default();
        [(0, 10), (20, 60)]
            .iter()
            .for_each(|&(a, b)| spans.push(a, b));
        let mut found = Vec::new();
        let origins = [(5, 30, older), (40, 50, older), (55, 90, older)];
        trace(&spans, (&origins, old), &mut found);
        let expected = [
            (0, 5, old),
            (5, 10, older),
            (20, 30, older),
            (30, 40, old),
            (40, 50, older),
            (50, 55, old),
            (55, 60, older),
        ];
        assert_eq!(found, expected);
    }
}
