//! Removing old points, whole.
//!
//! A point that goes is renamed first, to a name that no reader looks at, and removed once the rename is on stable
//! storage: after a crash it is there whole, or not at all. What a crash leaves under that name goes with the next
//! writer.

use super::in_use::InUse;
use super::lock::ChainLock;
use super::manifest::Manifest;
use super::{Contents, STAGING_PREFIX, files, point_name};
use crate::{Snapshot, StoreError};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// What came of removing old points.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Retained {
    /// Numbers of the points that were removed.
    pub removed: Vec<u32>,
    /// Numbers of those that would have been, were they not being read.
    pub in_use: Vec<u32>,
}

/// Removes points of the chain in `dir` so that of those that can be restarted from the `keep` newest remain, with all
/// that they build on. A point that is newer than the oldest of these is never removed, and neither is one that
/// somebody reads; and if no point can be restarted from, none is.
///
/// # Errors
/// [`StoreError::Busy`] while a point is being written; [`StoreError::Missing`] if there is no such directory;
/// [`StoreError::Io`].
pub fn retain(dir: &Path, keep: u32) -> Result<Retained, StoreError> {
    let lock = ChainLock::acquire(dir, Vec::new())?;
    remove_old(dir, keep, lock)
}

/// As [`retain`], for whoever has the right to write.
pub(super) fn remove_old(dir: &Path, keep: u32, lock: ChainLock) -> Result<Retained, StoreError> {
    let mut done = Retained::default();
    let victims = superseded(dir, keep)?;
    let mut condemned = Vec::new();
    for number in victims {
        let folder = dir.join(point_name(number));
        let Some(claim) = InUse::remove(&folder)? else {
            done.in_use.push(number);
            continue;
        };
        let aside = dir.join(format!("{STAGING_PREFIX}removed-{}", point_name(number)));
        // One of that name is left from a removal that was interrupted.
        if aside.exists() {
            files::remove(&aside)?;
        }
        std::fs::rename(&folder, &aside).map_err(StoreError::io("put aside", &folder))?;
        // Before the next one, which this one may build on: a point that is still to be seen is whole.
        files::sync_dir(dir)?;
        drop(claim);
        condemned.push(aside);
        done.removed.push(number);
    }
    for aside in condemned {
        files::remove(&aside)?;
    }
    drop(lock);
    done.removed.sort_unstable();
    Ok(done)
}

/// The points that nobody needs any more, newest first: what builds on another goes before it.
fn superseded(dir: &Path, keep: u32) -> Result<Vec<u32>, StoreError> {
    let points = Contents::of(dir)?.points;
    let mut needed = BTreeSet::new();
    let mut oldest = None;
    let mut left = keep.max(1);
    for &number in points.iter().rev() {
        if left == 0 {
            break;
        }
        if Snapshot::open(dir, Some(number)).is_err() {
            continue;
        }
        left -= 1;
        oldest = Some(number);
        let mut next = Some(number);
        // Each builds on an earlier one, so that this ends.
        while let Some(at) = next.filter(|at| needed.insert(*at)) {
            let manifest = Manifest::read(&dir.join(point_name(at)), at)?.0;
            next = manifest.parent.filter(|parent| *parent < at);
        }
    }
    let Some(oldest) = oldest else {
        return Ok(Vec::new());
    };
    let old = points.into_iter().rev().filter(|number| *number < oldest);
    Ok(old.filter(|number| !needed.contains(number)).collect())
}
