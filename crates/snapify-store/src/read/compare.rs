//! What a page was in the last snapshot, told from its hash: an incremental one without knowing what changed.
//!
//! Who can follow the changes of memory saves what changed. Where nobody could, memory is read and compared
//! by 128-bit hashes with what is stored already. The hashes are XXH3 with a seed that is chosen at random
//! for a chain: a program cannot arrange its memory so that pages of it collide, unless it reads the snapshot
//! of itself; by accident two of 2^40 pages are the same with a probability of 2^-49.

use super::PageFile;
use crate::format::index::Run;
use crate::types::PAGE_SIZE;
use crate::{SpaceId, StoreError};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The hash of a page.
pub(crate) fn page_hash(page: &[u8], seed: u64) -> u128 {
    xxh3_128_with_seed(page, seed)
}

/// What a snapshot has at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// A page with this hash.
    Page(u128),
    /// A page that has no hash.
    Unknown,
    /// Nothing, or zeros.
    Zero,
}

/// The hashes of the pages of a snapshot, by place.
pub(crate) struct Hashes<'a> {
    layers: Vec<LayerHashes<'a>>,
}

struct LayerHashes<'a> {
    runs: &'a [Run],
    /// Pages in the blocks before each one.
    before: Vec<u64>,
    /// None if there are none that can be compared.
    hashes: Vec<u128>,
}

impl<'a> Hashes<'a> {
    /// Reads the hashes of `pages` and of those that it builds on. Hashes of another seed are passed over.
    pub(crate) fn of(pages: &'a PageFile, seed: u64) -> Result<Self, StoreError> {
        let layers = pages.layers.iter().map(|layer| {
            let comparable = layer.header.hash_seed == Some(seed);
            let blocks = layer.index.blocks.iter();
            Ok(LayerHashes {
                runs: &layer.index.runs,
                before: blocks
                    .scan(0, |sum, block| {
                        let before = *sum;
                        *sum += u64::from(block.raw_bytes) / PAGE_SIZE;
                        Some(before)
                    })
                    .collect(),
                hashes: if comparable {
                    layer.hashes()?
                } else {
                    Vec::new()
                },
            })
        });
        Ok(Self {
            layers: layers.collect::<Result<_, StoreError>>()?,
        })
    }

    /// What the snapshot has at `start` of `space`, a page's place.
    pub(crate) fn at(&self, space: SpaceId, start: u64) -> Before {
        for layer in &self.layers {
            let after = layer
                .runs
                .partition_point(|run| (run.space, run.start) <= (space, start));
            let Some(run) = after.checked_sub(1).map(|at| &layer.runs[at]) else {
                continue;
            };
            if run.space != space || run.end() <= start {
                continue;
            }
            // Pages that a newer file speaks of are in no older one.
            let Some((block, first_page)) = run.place() else {
                return Before::Zero;
            };
            let page = u64::from(first_page) + (start - run.start) / PAGE_SIZE;
            let hash = (layer.before.get(block as usize))
                .and_then(|before| layer.hashes.get((before + page) as usize));
            return hash.map_or(Before::Unknown, |hash| Before::Page(*hash));
        }
        Before::Zero
    }
}
