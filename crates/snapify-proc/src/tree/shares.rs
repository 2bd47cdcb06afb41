//! What processes share that are not threads of each other (clone(2) with `CLONE_VM` and its like).

use crate::ids::Pid;
use crate::image::Shares;
use snapify_sys::kcmp::{Kind, kcmp};
use std::cmp::Ordering;
use std::io;

/// For each of `processes` what it shares with an earlier one, named by the index of the first that has it.
///
/// # Errors
/// If the kernel does not compare them (kcmp(2)).
pub(super) fn find(processes: &[Pid]) -> io::Result<Vec<[Option<usize>; 4]>> {
    let kinds = [Kind::Vm, Kind::Files, Kind::Fs, Kind::SignalHandlers];
    let mut shares = vec![[None; 4]; processes.len()];
    for (which, kind) in kinds.into_iter().enumerate() {
        for (index, first) in firsts(processes, kind)?.into_iter().enumerate() {
            shares[index][which] = (first != index).then_some(first);
        }
    }
    Ok(shares)
}

/// The index of the first process with the same object, for each. The kernel's answers give an order, by which they are
/// sorted: hundreds of processes take no hundreds squared questions.
fn firsts(processes: &[Pid], kind: Kind) -> io::Result<Vec<usize>> {
    let mut failed = None;
    let mut compare = |a: usize, b: usize| {
        kcmp(processes[a].0, processes[b].0, kind, 0, 0).unwrap_or_else(|error| {
            failed = Some(error);
            Ordering::Equal
        })
    };
    let mut order: Vec<usize> = (0..processes.len()).collect();
    // Stable: equal ones stay in ascending order.
    order.sort_by(|&a, &b| compare(a, b));
    let mut firsts: Vec<usize> = (0..processes.len()).collect();
    for pair in order.windows(2) {
        if compare(pair[0], pair[1]) == Ordering::Equal {
            firsts[pair[1]] = firsts[pair[0]];
        }
    }
    failed.map_or(Ok(firsts), Err)
}

/// As an image says it, with ids for indices.
pub(super) fn image(shares: [Option<usize>; 4], pid_of: impl Fn(usize) -> i32) -> Shares {
    let [memory, files, directory, handlers] = shares.map(|share| share.map(&pid_of));
    Shares {
        memory,
        files,
        directory,
        handlers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_forked_child_shares_nothing() {
        let mut child = Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let us = Pid(std::process::id().cast_signed());
        let other = Pid(child.id().cast_signed());
        let shares = find(&[us, other, us]).unwrap();
        assert_eq!(shares[0], [None; 4]);
        assert_eq!(shares[1], [None; 4]);
        assert_eq!(shares[2], [Some(0); 4]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
