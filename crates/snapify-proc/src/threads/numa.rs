//! Memory policies of threads (set_mempolicy(2)): on which nodes of a NUMA machine the kernel takes new pages.

use crate::error::ProcError;
use crate::ids::Tid;
use crate::remote::Tracee;
use serde::{Deserialize, Serialize};

/// A policy that a thread has chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// `MPOL_*`, with the flags of modes (`MPOL_F_STATIC_NODES` and its like).
    pub mode: u32,
    /// The nodes, 64 to a word; zeros at the end are left out.
    pub nodes: Vec<u64>,
}

/// Nodes that the kernel can be built for, at most (`MAX_NUMNODES`).
const NODES: usize = 1024;
const WORDS: usize = NODES / 64;
/// The mode of threads that have chosen none.
const DEFAULT: u32 = 0;
/// Where in the scratch memory the nodes are.
const MASK_AT: u64 = 64;

/// The policy of a thread; none if it has not chosen any, or the kernel knows none.
///
/// # Errors
/// If the thread is killed.
pub(super) fn capture(
    tracee: &mut Tracee<'_>,
    tid: Tid,
) -> Result<Option<MemoryPolicy>, ProcError> {
    let at = tracee.scratch().addr;
    tracee.put(at, &0_u32)?;
    tracee.put(at.offset(MASK_AT), &[0_u64; WORDS])?;
    let args = [at.0, at.offset(MASK_AT).0, NODES as u64, 0, 0, 0];
    match tracee.syscall_in(tid, "get_mempolicy", libc::SYS_get_mempolicy, args) {
        Ok(_) => {}
        Err(error) if error.errno().is_some() => return Ok(None),
        Err(error) => return Err(error),
    }
    let mode: u32 = tracee.get(at)?;
    let nodes: [u64; WORDS] = tracee.get(at.offset(MASK_AT))?;
    let used = WORDS - nodes.iter().rev().take_while(|&&word| word == 0).count();
    Ok((mode != DEFAULT).then(|| MemoryPolicy {
        mode,
        nodes: nodes[..used].to_vec(),
    }))
}

impl MemoryPolicy {
    /// Gives a thread this policy. Nodes that are not here, or not allowed, are warned of.
    ///
    /// # Errors
    /// If the thread is killed.
    pub(super) fn restore(
        &self,
        tracee: &mut Tracee<'_>,
        tid: Tid,
        warn: impl Fn(String),
    ) -> Result<(), ProcError> {
        let at = tracee.scratch().addr;
        let mut nodes = [0_u64; WORDS];
        for (word, saved) in nodes.iter_mut().zip(&self.nodes) {
            *word = *saved;
        }
        tracee.put(at, &nodes)?;
        let mask = if self.nodes.is_empty() { 0 } else { at.0 };
        let args = [u64::from(self.mode), mask, NODES as u64, 0, 0, 0];
        match tracee.syscall_in(tid, "set_mempolicy", libc::SYS_set_mempolicy, args) {
            Err(error) if error.errno().is_some() => {
                warn(format!("thread {tid} loses its memory policy: {error}"));
                Ok(())
            }
            other => other.map(drop),
        }
    }
}
