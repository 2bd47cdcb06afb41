//! Processes that job control has stopped, as their parents know it: a parent is told of a stop once (SIGCHLD, and wait(2) with
//! `WUNTRACED`), and must not be told again by a restart.

use crate::error::ProcError;
use crate::remote::Tracee;

/// Bytes of a siginfo.
const SIGINFO_BYTES: usize = 128;

/// Asks a parent, by a call of its own, for the stop of a child; gives whether there was one that it has not taken note of yet.
fn ask(parent: &mut Tracee<'_>, child: i32, options: i32) -> Result<bool, ProcError> {
    let at = parent.scratch().addr;
    parent.put(at, &[0_u64; SIGINFO_BYTES / 8])?;
    let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL | options;
    let args = [
        u64::from(libc::P_PID),
        child as u64,
        at.0,
        options as u64,
        0,
        0,
    ];
    parent.syscall("waitid", libc::SYS_waitid, args)?;
    Ok(parent.get::<u64>(at)? != 0)
}

/// Whether a process has taken note of the stop of its child, which is stopped. Nothing is changed.
///
/// # Errors
/// Those of the remote call.
pub(crate) fn is_known(parent: &mut Tracee<'_>, child: i32) -> Result<bool, ProcError> {
    Ok(!ask(parent, child, libc::WNOWAIT)?)
}

/// Stops a process under construction, which has one thread. Its parent, which ignores SIGCHLD at this time, takes note of
/// it if the stop is to be `known` to it.
///
/// # Errors
/// Those of the remote call, and of ptrace.
pub(crate) fn stop(
    child: &mut Tracee<'_>,
    parent: &mut Tracee<'_>,
    known: bool,
) -> Result<(), ProcError> {
    child.stop_group()?;
    if known {
        ask(parent, child.pid().0, 0)?;
    }
    Ok(())
}
