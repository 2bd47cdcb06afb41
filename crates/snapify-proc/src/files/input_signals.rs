//! Signals that tell of input (fcntl(2): `F_SETOWN`, `F_SETSIG`, `O_ASYNC`), and hints for writing.

use super::pidfd;
use super::survey::{Seen, View};
use super::{Description, has_flag};
use crate::error::{Obstacle, ProcError};
use crate::ids::{Pid, RemoteFd};
use crate::procfs::ProcDir;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use snapify_sys::fd::{self, SignalOwner};
use std::os::fd::AsFd;

/// Who is told of input, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InputSignals {
    /// Who, if anybody (`F_SETOWN_EX`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The signal, 0 for SIGIO without details (`F_SETSIG`).
    pub signal: i32,
}

/// Who gets signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// One thread.
    Thread(i32),
    /// A process.
    Process(i32),
    /// All processes of a group.
    Group(i32),
}

const THREAD: i32 = 0;
const PROCESS: i32 = 1;
const GROUP: i32 = 2;

/// What the kernel keeps about a description beside its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub signals: Option<InputSignals>,
    pub write_hint: u64,
}

/// Asks for what `/proc` does not show of a description.
///
/// # Errors
/// An obstacle if signals go to a process that is not saved.
pub(crate) fn capture(seen: &Seen, view: &View<'_>) -> Result<Kept, Obstacle> {
    // Nothing can be asked of such a descriptor, and nothing be set.
    if has_flag(seen.flags(), libc::O_PATH) {
        return Ok(Kept::default());
    }
    let Ok(duplicate) = view.duplicate(seen) else {
        return Ok(Kept::default());
    };
    let asked = fd::signal_owner(duplicate.as_fd()).unwrap_or_default();
    let signals = InputSignals {
        owner: owner(asked, seen, view)?,
        signal: fd::input_signal(duplicate.as_fd()).unwrap_or(0),
    };
    let is_file = seen.file_type() == FileType::RegularFile;
    let write_hint = match is_file {
        true => fd::write_hint(duplicate.as_fd()).unwrap_or(0),
        false => 0,
    };
    Ok(Kept {
        signals: (signals != InputSignals::default()).then_some(signals),
        write_hint,
    })
}

fn owner(asked: SignalOwner, seen: &Seen, view: &View<'_>) -> Result<Option<Owner>, Obstacle> {
    let outer = Pid(asked.id);
    let inner = match asked {
        SignalOwner { id: 0, .. } => return Ok(None),
        SignalOwner { kind: THREAD, .. } => pidfd::inner(outer, view).map(|id| Owner::Thread(id.0)),
        SignalOwner { kind: PROCESS, .. } => {
            view.members.get(&outer).map(|id| Owner::Process(id.0))
        }
        _ => group(outer, view).map(Owner::Group),
    };
    match inner {
        Some(owner) => Ok(Some(owner)),
        // Nobody notices.
        None if !has_flag(seen.flags(), libc::O_ASYNC) => Ok(None),
        None => Err(seen.obstacle(format!(
            "its signals on input (O_ASYNC) go to process {outer}, which is not saved with it"
        ))),
    }
}

/// The id that a process group has for those of the saved processes that are in it.
fn group(outer: Pid, view: &View<'_>) -> Option<i32> {
    view.members.keys().find_map(|&member| {
        let status = ProcDir::open(member).and_then(|proc| proc.status()).ok()?;
        let is_in_it = status.ns_pgrp.first() == Some(&outer.0);
        (is_in_it && status.inner_pgrp() > 0).then(|| status.inner_pgrp())
    })
}

/// What is in the way: signals for somebody who is not saved, or a directory that tells of changes (`F_NOTIFY`): of which, the
/// kernel does not say. Setting that makes the caller the owner, which is otherwise of no use for a directory.
pub(crate) fn obstacle(seen: &Seen, view: &View<'_>) -> Option<Obstacle> {
    if has_flag(seen.flags(), libc::O_PATH) {
        return None;
    }
    if seen.file_type() != FileType::Directory {
        return has_flag(seen.flags(), libc::O_ASYNC)
            .then(|| capture(seen, view).err())
            .flatten();
    }
    let duplicate = view.duplicate(seen).ok()?;
    let owner = fd::signal_owner(duplicate.as_fd()).ok()?;
    (owner.id != 0).then(|| {
        seen.obstacle("it tells of changes by signals (F_NOTIFY), which is not supported")
            .with_hint("inotify is")
    })
}

/// Sets it all again, by calls of a process that has the description as `fd`: that is the number that its signals name. All
/// processes and threads must exist, and the contents of pipes be in place: what is there already is not told of again.
///
/// # Errors
/// Those of fcntl(2).
pub(crate) fn restore(
    tracee: &mut Tracee<'_>,
    fd: RemoteFd,
    description: &Description,
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    let at = tracee.scratch().addr;
    let fcntl = |tracee: &mut Tracee<'_>, what: i32, argument: u64| {
        let args = [fd.0 as u64, what as u64, argument, 0, 0, 0];
        tracee.syscall("fcntl", libc::SYS_fcntl, args)
    };
    if description.write_hint != 0 {
        tracee.put(at, &description.write_hint)?;
        if let Err(error) = fcntl(tracee, fd::F_SET_RW_HINT, at.0) {
            ctx.warn(format!(
                "{} comes back without its hint for writing: {error}",
                description.object
            ));
        }
    }
    let signals = description.input_signals.unwrap_or_default();
    if let Some(owner) = signals.owner {
        let (kind, id) = match owner {
            Owner::Thread(id) => (THREAD, id),
            Owner::Process(id) => (PROCESS, id),
            Owner::Group(id) => (GROUP, id),
        };
        tracee.put(at, &[kind, id])?;
        match fcntl(tracee, fd::F_SETOWN_EX, at.0) {
            Err(error) if error.errno() == Some(libc::ESRCH) => ctx.warn(format!(
                "nobody is told of input by {}: its owner {id} is gone",
                description.object
            )),
            other => drop(other?),
        }
    }
    if signals.signal != 0 {
        fcntl(tracee, fd::F_SETSIG, signals.signal as u64)?;
    }
    if has_flag(description.flags, libc::O_ASYNC) {
        let flags = fcntl(tracee, libc::F_GETFL, 0)?;
        fcntl(tracee, libc::F_SETFL, flags | libc::O_ASYNC as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_read_well() {
        let signals = InputSignals {
            owner: Some(Owner::Thread(7)),
            signal: 34,
        };
        let json = serde_json::to_string(&signals).unwrap();
        assert_eq!(json, r#"{"owner":{"thread":7},"signal":34}"#);
        assert_eq!(
            serde_json::from_str::<InputSignals>(&json).unwrap(),
            signals
        );
    }
}
