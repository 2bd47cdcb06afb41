//! Pages that are the same as one that is stored: they are told by their hashes, and are certain once both were compared.

use super::block::Filling;
use super::same::SamePages;
use crate::types::{PAGE, PAGE_SIZE};
use crate::{PageRange, PageSource, SpaceId};
use std::collections::HashMap;

/// More different pages than this are not remembered: that bounds the memory it takes.
const MOST: usize = 1 << 20;

/// Where a page was read.
type Place = (SpaceId, u64);

/// The pages that are stored so far, and those that are the same as one of them.
pub(super) struct Shared<'a> {
    source: &'a dyn PageSource,
    known: HashMap<u128, Place>,
    twins: Vec<SamePages>,
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
            let bytes = last.pages.bytes;
            let next = (last.pages.space, last.pages.start + bytes) == (space, start);
            if next && (last.original.0, last.original.1 + bytes) == original {
                last.pages.bytes += PAGE_SIZE;
                return;
            }
        }
        self.twins.push(SamePages {
            pages: PageRange {
                space,
                start,
                bytes: PAGE_SIZE,
            },
            original,
        });
    }

    /// The pages that were taken out. Every one of their originals is stored.
    pub(super) fn twins(&self) -> &[SamePages] {
        &self.twins
    }
}
