//! Some of the pages of a page file.

use super::PageFile;
use crate::{PageSink, SpaceId, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Pages that are picked lie together in pieces of about this size.
const PIECE: u64 = 256 << 10;

/// Pages by their places.
#[derive(Default)]
struct Picked(Mutex<BTreeMap<(SpaceId, u64), Vec<u8>>>);

impl PageSink for Picked {
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.insert((space, start), data.to_vec());
        Ok(())
    }
}

impl PageFile {
    /// Reads some of the pages that [`PageFile::fill`] puts into place, evenly spread over all: some `most` bytes, or all if there
    /// are no more. In the order of spaces and addresses.
    ///
    /// # Errors
    /// As [`PageFile::fill`].
    pub fn sample(&self, most: u64) -> Result<Vec<u8>, StoreError> {
        let runs = || self.layers.iter().flat_map(|layer| &layer.index.runs);
        let stored = || runs().filter(|run| run.place().is_some());
        let all: u64 = stored().map(|run| run.bytes()).sum();
        // A piece of each stretch of this size.
        let stretch = all.div_ceil((most / PIECE).max(1)).max(PIECE);
        let mut wanted = BTreeSet::new();
        let (mut at, mut taken) = (0u128, 0u128);
        for run in stored() {
            if taken <= at * u128::from(PIECE) / u128::from(stretch) {
                wanted.insert((run.space, run.start));
                taken += u128::from(run.bytes());
            }
            at += u128::from(run.bytes());
        }
        let picked = Picked::default();
        let is_wanted = |run: &crate::Run| wanted.contains(&(run.space, run.start));
        self.fill_runs(&is_wanted, &picked, &())?;
        let picked = picked
            .0
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(picked.into_values().flatten().collect())
    }
}
