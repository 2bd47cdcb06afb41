//! Small facts about processes, and waiting on them.

use crate::error::JobError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// A handle of process `pid`, which must be the user's own.
///
/// # Errors
/// Where there is no such process, or it is someone else's.
pub(crate) fn own_process(pid: i32) -> Result<OwnedFd, JobError> {
    let gone = || JobError::NoSuchProcess { pid };
    let handle = Pid::from_raw(pid)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .ok_or_else(gone)?;
    let owner = std::fs::metadata(format!("/proc/{pid}"))
        .map_err(|_| gone())?
        .uid();
    let me = geteuid();
    // A process that is not dumpable shows as root's; the engine finds out and says so.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| gone())?;
    let real = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(owner);
    if real != me.as_raw() && !me.is_root() {
        return Err(JobError::NotYours { pid, owner: real });
    }
    Ok(handle)
}

/// Makes this process, which `parent` has started, get `signal` when that dies.
///
/// # Errors
/// [`JobError::Cancelled`] if it is dead already.
pub(crate) fn end_with(parent: i32, signal: rustix::process::Signal) -> Result<(), JobError> {
    rustix::process::set_parent_process_death_signal(Some(signal)).map_err(|errno| {
        JobError::System {
            operation: "ask for a signal at the parent's end".into(),
            source: errno.into(),
        }
    })?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if now == Some(parent) {
        Ok(())
    } else {
        Err(JobError::Cancelled)
    }
}

/// Waits until one of `fds` is readable or has hung up, and tells which are. None after `timeout`.
pub(crate) fn wait_readable(
    fds: &[BorrowedFd<'_>],
    timeout: Option<std::time::Duration>,
) -> Result<Vec<bool>, JobError> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    loop {
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => return Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                return Err(JobError::System {
                    operation: "wait for events".into(),
                    source: errno.into(),
                });
            }
        }
    }
}

/// Whether a process has ended, waited for or not.
pub(crate) fn has_ended(pid: i32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // Behind the name, which may have any characters.
    let state = stat.iter().rposition(|&byte| byte == b')');
    let state = state.and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

/// A process, its parent, the parent of that and so on.
pub(crate) fn ancestors(pid: i32) -> Vec<i32> {
    let parent = |&pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        parent?.trim().parse().ok().filter(|&parent| parent > 0)
    };
    std::iter::successors(Some(pid).filter(|&pid| pid > 0), parent).collect()
}

/// Finds the process that has id `inner` in the innermost namespace and is a descendant of `ancestor` (an id in ours).
pub(crate) fn descendant(ancestor: i32, inner_of_card: i32) -> Option<i32> {
    let mut queue = vec![ancestor];
    while let Some(pid) = queue.pop() {
        // NSpid lists the ids from our namespace inwards: ours, then the card's, then the process's own.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ids: Vec<i32> = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .map(|line| {
                line.split_whitespace()
                    .filter_map(|id| id.parse().ok())
                    .collect()
            })
            .unwrap_or_default();
        if ids.get(1) == Some(&inner_of_card) {
            return ids.first().copied();
        }
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        queue.extend(
            children
                .split_whitespace()
                .filter_map(|id| id.parse::<i32>().ok()),
        );
    }
    None
}
