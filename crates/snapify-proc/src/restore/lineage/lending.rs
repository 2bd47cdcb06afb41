//! Tables of descriptors, and working directories, that a process shares with one further above than its parent: those between them
//! have shared it before (unshare(2), or execve(2), which unshares descriptors), and do so again until all are made.

use super::Node;
use std::collections::{BTreeMap, HashMap};

/// What is passed on by whom: the processes so that each shares with its parent, and who must stop to share what then.
pub(super) fn lend(
    nodes: &[Node],
    parents: &[Option<usize>],
    index: &HashMap<i32, usize>,
) -> (Vec<Node>, BTreeMap<usize, i32>) {
    let mut lending = nodes.to_vec();
    let mut lent = BTreeMap::new();
    let kinds: [(i32, Field); 2] = [
        (libc::CLONE_FILES, |node| &mut node.shares.files),
        (libc::CLONE_FS, |node| &mut node.shares.directory),
    ];
    for (flag, field) in kinds {
        for (n, &node) in nodes.iter().enumerate() {
            let owner = field(&mut { node }).and_then(|owner| index.get(&owner).copied());
            let Some(owner) = owner else { continue };
            let Some(between) = between(parents, n, owner) else {
                continue;
            };
            let pid = nodes[owner].kin.pid;
            let own = |at: usize| *field(&mut { nodes[at] });
            if between
                .iter()
                .any(|&at| own(at).is_some_and(|other| other != pid))
            {
                continue;
            }
            for at in between.into_iter().filter(|&at| own(at).is_none()) {
                *field(&mut lending[at]) = Some(nodes[at].kin.parent);
                *lent.entry(at).or_default() |= flag;
            }
            *field(&mut lending[n]) = Some(node.kin.parent);
        }
    }
    (lending, lent)
}

type Field = fn(&mut Node) -> &mut Option<i32>;

/// Who is between a process and one that is further above than its parent; none if it is not.
fn between(parents: &[Option<usize>], node: usize, above: usize) -> Option<Vec<usize>> {
    let upward = std::iter::successors(parents[node], |&at| parents[at]);
    let between: Vec<usize> = upward.take_while(|&at| at != above).collect();
    let top = between.last().copied()?;
    (parents[top] == Some(above)).then_some(between)
}
