//! A fresh process with a wanted id, stopped, in which everything is then replaced.

use crate::error::ProcError;
use crate::ids::{Pid, RemoteAddr, Tid};
use crate::procfs::maps::{self, Mapping};
use crate::ptrace::Running;
use crate::remote::{Pin, Tracee};
use snapify_sys::clone::{Fork, fork};
use snapify_sys::process;
use snapify_sys::ptrace::{OPTION_EXIT_KILL, OPTION_TRACE_CLONE, OPTION_TRACE_FORK};
use std::fs;
use std::rc::Rc;
use std::time::Duration;

const RSEQ_FLAG_UNREGISTER: u64 = 1;

/// The mappings of this process, of which those of a child that it forks are a copy.
///
/// # Errors
/// If /proc cannot be read.
pub(super) fn our_maps() -> Result<Vec<Mapping>, ProcError> {
    let path = "/proc/self/maps";
    let text = fs::read(path).map_err(ProcError::proc(path))?;
    maps::parse(&text).map_err(|e| ProcError::proc(path)(e.into()))
}

/// An error of clone3(2) about the wanted id, in words.
pub(super) fn taken(error: ProcError, pid: i32) -> ProcError {
    match error {
        ProcError::RemoteSyscall { source, .. } => ProcError::System {
            what: format!("make a process with id {pid}"),
            source,
        },
        other => other,
    }
}

/// Forks a process with id `pid` that does nothing, and stops it. It dies with us as long as it is traced.
/// `instruction` is a `syscall` instruction of ours.
///
/// # Errors
/// If the id is taken, or the kernel does not allow to choose it.
#[allow(unsafe_code)]
pub(super) fn spawn(
    pid: i32,
    instruction: RemoteAddr,
    pin: Option<Rc<Pin>>,
) -> Result<Tracee<'static>, ProcError> {
    // SAFETY: this process has one thread, and the child does nothing but wait.
    match unsafe { fork(0, Some(pid)) } {
        Ok(Fork::Child) => process::pause_for_ever(),
        Ok(Fork::Parent { .. }) => {}
        Err(source) => {
            return Err(ProcError::System {
                what: format!("make a process with id {pid}"),
                source,
            });
        }
    }
    let options = OPTION_TRACE_CLONE | OPTION_TRACE_FORK | OPTION_EXIT_KILL;
    let running = Running::seize(Tid(pid), options)?;
    running.interrupt()?;
    let stopped = match running.wait_stopped(Duration::from_secs(10)) {
        Ok(Some((stopped, _))) => stopped,
        Ok(None) => {
            return Err(ProcError::Died {
                pid: Pid(pid),
                during: "its creation",
            });
        }
        Err((_, e)) => return Err(e),
    };
    let rseq = stopped.rseq()?;
    let registers = stopped.registers()?;
    let mut tracee = Tracee::of_built(stopped, registers, instruction, pin);
    if let Some(rseq) = rseq {
        // Or the kernel would kill the process for having its area unmapped. Its children inherit that it has none.
        let args = [
            rseq.pointer,
            u64::from(rseq.size),
            RSEQ_FLAG_UNREGISTER,
            u64::from(rseq.signature),
            0,
            0,
        ];
        tracee.syscall("rseq", libc::SYS_rseq, args)?;
    }
    Ok(tracee)
}
