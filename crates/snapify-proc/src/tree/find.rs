//! Which processes belong to a tree.

use crate::error::ProcError;
use crate::ids::Pid;
use crate::procfs::ProcDir;
use std::collections::{HashSet, VecDeque};

/// How inits of restored trees begin their names.
const INIT_NAME: &[u8] = b"snapify-init";

/// A process of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    /// It runs.
    Living(Pid),
    /// It has ended, and its parent has not waited for it.
    Ended(Pid),
}

impl Member {
    pub(crate) fn pid(self) -> Pid {
        match self {
            Self::Living(pid) | Self::Ended(pid) => pid,
        }
    }
}

/// Finds process `root` and all its descendants, parents before children, as they are at this moment.
///
/// A restored tree lives in a PID namespace of its own, whose init adopts orphans: these belong to it as well.
///
/// # Errors
/// If there is no process `root`.
pub(crate) fn find(root: Pid) -> Result<Vec<Member>, ProcError> {
    let proc = ProcDir::open(root)?;
    let parent = proc.status()?.parent;
    let mut waiting = VecDeque::from([root]);
    if is_our_init(parent)
        && let Ok(init) = ProcDir::open(parent)
    {
        waiting.extend(init.children()?.into_iter().filter(|&pid| pid != root));
    }
    let mut seen = HashSet::new();
    let mut members = Vec::new();
    while let Some(pid) = waiting.pop_front() {
        if !seen.insert(pid) {
            continue;
        }
        // Processes end at any time while they run.
        let Ok(proc) = ProcDir::open(pid) else {
            continue;
        };
        let Ok(status) = proc.status() else { continue };
        if status.is_dead() && status.threads <= 1 {
            members.push(Member::Ended(pid));
            continue;
        }
        members.push(Member::Living(pid));
        waiting.extend(proc.children().unwrap_or_default());
    }
    Ok(members)
}

/// Whether a process is the init of a restored tree, and the first of its PID namespace.
fn is_our_init(pid: Pid) -> bool {
    let Ok(proc) = ProcDir::open(pid) else {
        return false;
    };
    let first = proc
        .status()
        .is_ok_and(|status| status.ns_tgid.len() > 1 && status.inner_tgid() == Pid(1));
    first
        && proc
            .stat()
            .is_ok_and(|stat| stat.comm.starts_with(INIT_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn descendants_are_found_with_the_ended_ones() {
        let shell = |script: &str| {
            Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut ended = shell("exit 3");
        let mut living = shell("cat; :");
        let pid = |child: &std::process::Child| Pid(child.id().cast_signed());
        let us = Pid(std::process::id().cast_signed());
        // The shells go on at their own pace.
        let members = loop {
            let members = find(us).unwrap();
            let below = find(pid(&living)).unwrap();
            if members.contains(&Member::Ended(pid(&ended))) && below.len() == 2 {
                assert_eq!(below[0], Member::Living(pid(&living)));
                break members;
            }
            std::thread::yield_now();
        };
        assert_eq!(members[0], Member::Living(us));
        assert!(members.contains(&Member::Living(pid(&living))));
        drop(living.stdin.take());
        living.wait().unwrap();
        ended.wait().unwrap();
        assert!(find(pid(&ended)).is_err());
    }
}
