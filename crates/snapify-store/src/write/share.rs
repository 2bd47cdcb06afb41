//! Pages that are the same as one that is stored: they are told by their hashes, and are certain once both were compared.

use super::block::Filling;
use crate::format::index::{Run, RunKind};
use crate::types::{PAGE, PAGE_SIZE};
use crate::{PageSource, SpaceId};
use std::collections::HashMap;

/// More different pages than this are not remembered: that bounds the memory it takes.
const MOST: usize = 1 << 20;

/// Where a page was read.
type Place = (SpaceId, u64);

/// The pages that are stored so far, and those that are the same as one of them.
pub(super) struct Shared<'a> {
    source: &'a dyn PageSource,
    known: HashMap<u128, Place>,
    twins: Vec<Twins>,
}

/// Pages that follow each other, and are the same as pages that follow each other elsewhere.
struct Twins {
    space: SpaceId,
    start: u64,
    pages: u64,
    original: Place,
}

impl<'a> Shared<'a> {
    pub(super) fn new(source: &'a dyn PageSource) -> Self {
        Self {
            source,
            known: HashMap::new(),
            twins: Vec::new(),
        }
    }

    /// Takes those pages out of `block` that are the same as one that came before.
    ///
    /// Hashes may be the same by accident, or because somebody wanted it so. Therefore the other page is read once
    /// more, and compared: memory does not change while it is written.
    pub(super) fn strip(&mut self, block: &mut Filling) {
        let mut other = [0; PAGE];
        block.retain(|hash, page, space, start| {
            if let Some(&original) = self.known.get(&hash) {
                let read = self.source.read(original.0, original.1, &mut other);
                if read.is_ok() && other == *page {
                    self.note(space, start, original);
                    return false;
                }
            } else if self.known.len() < MOST {
                self.known.insert(hash, (space, start));
            }
            true
        });
    }

    fn note(&mut self, space: SpaceId, start: u64, original: Place) {
        if let Some(last) = self.twins.last_mut() {
            let bytes = last.pages * PAGE_SIZE;
            let next = (last.space, last.start + bytes) == (space, start);
            if next && (last.original.0, last.original.1 + bytes) == original {
                last.pages += 1;
                return;
            }
        }
        self.twins.push(Twins {
            space,
            start,
            pages: 1,
            original,
        });
    }

    /// The runs of the pages that were taken out. `runs` are those of all others, in order.
    pub(super) fn runs(&self, runs: &[Run]) -> Vec<Run> {
        let mut found = Vec::new();
        for twins in &self.twins {
            let mut done = 0;
            while done < twins.pages {
                let at = (twins.original.0, twins.original.1 + done * PAGE_SIZE);
                let after = runs.partition_point(|run| (run.space, run.start) <= at);
                // Every original is stored, so there is a run that holds it.
                let Some(run) = after.checked_sub(1).map(|n| &runs[n]) else {
                    break;
                };
                let end = run.end().min(at.1 + (twins.pages - done) * PAGE_SIZE);
                if end <= at.1 {
                    break;
                }
                let part = run.part(at.1, end);
                debug_assert!(matches!(part.kind, RunKind::Data { .. }));
                found.push(Run {
                    space: twins.space,
                    start: twins.start + done * PAGE_SIZE,
                    ..part
                });
                done += u64::from(part.pages);
            }
        }
        found
    }
}
