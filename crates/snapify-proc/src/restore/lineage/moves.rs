//! Processes that are born further down than where they are in the end, with all that is below them.
//!
//! That explains how sessions have come to places to which they cannot have come from where the processes are now: for example
//! two siblings each of which has, below it, members of a session that was begun below the other. One was born below the other then,
//! and a subreaper has taken it over.

use super::{Node, Refusal};

/// So much is tried before it is taken that there is no way.
const MOST_TRIALS: usize = 100_000;

/// Tries the places where processes are in the end; then one process at a time elsewhere. The argument that counts down is how many
/// trials are left.
///
/// # Errors
/// What stands in the way if all are born where they are.
pub(super) fn find<T>(
    nodes: &[Node],
    parents: &[Option<usize>],
    mut attempt: impl FnMut(&[Option<usize>], &mut usize) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    // Each takes a time that grows with the processes.
    let mut trials = (MOST_TRIALS / nodes.len().max(1)).max(10);
    let refusal = match attempt(parents, &mut trials) {
        Ok(found) => return Ok(found),
        Err(refusal) => refusal,
    };
    let upward = |from: Option<usize>| std::iter::successors(from, |&at| parents[at]);
    let mut has_children = vec![false; nodes.len()];
    for &parent in parents.iter().flatten() {
        has_children[parent] = true;
    }
    let mut places = parents.to_vec();
    for (node, &parent) in parents.iter().enumerate() {
        for below in (0..nodes.len()).filter(|&below| has_children[below]) {
            // Further down, but not below itself.
            let is_below =
                parent.is_none_or(|parent| upward(parents[below]).any(|at| at == parent));
            if !is_below || upward(Some(below)).any(|at| at == node) {
                continue;
            }
            if trials == 0 {
                return Err(refusal);
            }
            trials -= 1;
            places[node] = Some(below);
            if let Ok(found) = attempt(&places, &mut trials) {
                return Ok(found);
            }
        }
        places[node] = parent;
    }
    Err(refusal)
}
