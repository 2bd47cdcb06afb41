//! A fresh process with a wanted id, stopped, in which everything is then replaced.

use crate::error::ProcError;
use crate::ids::Tid;
use crate::procfs::maps::{self, Mapping};
use crate::ptrace::Running;
use crate::remote::Tracee;
use snapify_sys::clone::{Fork, fork};
use snapify_sys::process;
use snapify_sys::ptrace::{OPTION_EXIT_KILL, OPTION_TRACE_CLONE};
use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

const RSEQ_FLAG_UNREGISTER: u64 = 1;

/// Forks a process with id `pid` that does nothing, and stops it. It dies with us as long as it is traced.
///
/// # Errors
/// If the id is taken, or the kernel does not allow to choose it.
#[allow(unsafe_code)]
pub(super) fn spawn(pid: i32) -> Result<(Tracee<'static>, OwnedFd, Vec<Mapping>), ProcError> {
    // SAFETY: this process has one thread, and the child does nothing but wait.
    let pidfd = match unsafe { fork(0, Some(pid)) } {
        Ok(Fork::Child) => process::pause_for_ever(),
        Ok(Fork::Parent { pidfd, .. }) => pidfd,
        Err(source) => {
            return Err(ProcError::System {
                what: format!("make a process with id {pid}"),
                source,
            });
        }
    };
    // The child's mappings are a copy of ours.
    let path = "/proc/self/maps";
    let text = fs::read(path).map_err(ProcError::proc(path))?;
    let maps = maps::parse(&text).map_err(|e| ProcError::proc(path)(e.into()))?;

    let tid = Tid(pid);
    let running = Running::seize(tid, OPTION_TRACE_CLONE | OPTION_EXIT_KILL)?;
    running.interrupt()?;
    let stopped = match running.wait_stopped(Duration::from_secs(10)) {
        Ok(Some((stopped, _))) => stopped,
        Ok(None) => {
            return Err(ProcError::Died {
                pid: crate::ids::Pid(pid),
                during: "its creation",
            });
        }
        Err((_, e)) => return Err(e),
    };
    let rseq = stopped.rseq()?;
    let registers = stopped.registers()?;
    let instruction = crate::memory::syscall_instruction(crate::ids::Pid(pid), &maps)?;
    let mut tracee = Tracee::of_built(stopped, registers, instruction);
    if let Some(rseq) = rseq {
        // Or the kernel would kill the process for having its area unmapped.
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
    Ok((tracee, pidfd, maps))
}
