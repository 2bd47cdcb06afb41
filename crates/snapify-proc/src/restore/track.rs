//! Following what a restored program writes from its first instruction on, so that its next snapshot builds on the one that it
//! comes from.

use super::protocol::{FromInit, send};
use crate::error::ProcError;
use crate::ids::Pid;
use crate::image::{ProcessImage, TreeImage};
use crate::memory;
use crate::procfs::ProcDir;
use crate::remote::Tracee;
use crate::tracking;
use crate::tree;
use snapify_store::SpaceId;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

/// What tracks the memory of a process.
#[derive(Debug)]
pub(crate) struct Tracked {
    /// As the process itself knows it.
    pub(crate) pid: Pid,
    pub(crate) space: SpaceId,
    pub(crate) uffd: OwnedFd,
}

/// Has the kernel note what is written from now on to the memory of processes that have all of their content, and nothing else.
/// What cannot be tracked counts as changed.
pub(super) fn track(tracees: &mut [Tracee<'_>], image: &TreeImage) -> Vec<Tracked> {
    let mut tracked = Vec::new();
    for (tracee, process) in tracees.iter_mut().zip(&image.processes) {
        if process.shares.memory.is_some() {
            continue;
        }
        match track_one(tracee, process) {
            Ok(one) => tracked.push(one),
            Err(error) => tracing::debug!(pid = process.pid(), "{error}"),
        }
    }
    tracked
}

fn track_one(tracee: &mut Tracee<'_>, process: &ProcessImage) -> Result<Tracked, ProcError> {
    let pid = Pid(process.pid());
    let proc = ProcDir::open(pid)?;
    let ranges = memory::of_built(&proc, &process.memory)?;
    Ok(Tracked {
        pid,
        space: process.memory.space,
        uffd: tracking::arm_built(tracee, &proc, &ranges)?,
    })
}

/// Hands it to the creator of the init.
pub(super) fn hand_over(tracked: Vec<Tracked>, socket: &OwnedFd) -> std::io::Result<()> {
    tracked.iter().try_for_each(|one| {
        let (pid, space) = (one.pid, one.space);
        let message = FromInit::Tracked { pid, space };
        send(socket, &message, Some(one.uffd.as_fd()))
    })
}

/// The processes of the tree of `root` as this process sees them, by the ids that they have for themselves.
///
/// # Errors
/// If the tree cannot be looked at, as when it ends.
pub(super) fn outer_ids(root: Pid) -> Result<HashMap<Pid, Pid>, ProcError> {
    let mut outer = HashMap::new();
    for member in tree::find(root)? {
        let pid = member.pid();
        // One that has ended has no status, or soon will have none.
        if let Ok(status) = ProcDir::open(pid).and_then(|proc| proc.status()) {
            outer.insert(status.inner_tgid(), pid);
        }
    }
    Ok(outer)
}

/// The processes below `root`, as this process sees them, of which `tracked` was handed over.
///
/// # Errors
/// If the tree cannot be looked at, as when it ends.
pub(super) fn seen_from_here(
    root: Pid,
    tracked: Vec<Tracked>,
) -> Result<Vec<(Pid, SpaceId, OwnedFd)>, ProcError> {
    let outer = outer_ids(root)?;
    let found = tracked.into_iter().filter_map(|one| {
        let pid = outer.get(&one.pid)?;
        Some((*pid, one.space, one.uffd))
    });
    Ok(found.collect())
}
