//! Which System V objects there are, as a process sees them.

use crate::abi::Pod;
use crate::capture::CaptureContext;
use crate::error::ProcError;
use crate::remote::Tracee;
use snapify_sys::ipc::{self, Status};

/// Whether a process lives in an IPC namespace that is not ours.
///
/// # Errors
/// If it is killed.
pub(super) fn in_another_namespace(ctx: &CaptureContext<'_>) -> Result<bool, ProcError> {
    is_in_another(ctx, "ns/ipc")
}

/// Whether we see the same objects as a process does, and their users and owners by the same numbers: then there is no need to ask it.
pub(super) fn sees_the_same(ctx: &CaptureContext<'_>) -> bool {
    let mut namespaces = ["ns/ipc", "ns/pid", "ns/user"].into_iter();
    namespaces.all(|namespace| matches!(is_in_another(ctx, namespace), Ok(false)))
}

fn is_in_another(ctx: &CaptureContext<'_>, namespace: &str) -> Result<bool, ProcError> {
    let ours = format!("/proc/self/{namespace}");
    match (ctx.proc.stat_of(namespace), rustix::fs::stat(&ours)) {
        (Ok(theirs), Ok(ours)) => Ok((theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)),
        // A kernel without such namespaces.
        (Err(e), _) if e.errno() == Some(libc::ENOENT) => Ok(false),
        (Err(e), _) => Err(e),
        (_, Err(e)) => Err(ProcError::file("look at", ours)(e)),
    }
}

/// All objects of a kind: ids and status. `here` tells whether [we see the same](sees_the_same).
///
/// # Errors
/// If the process is killed.
pub(super) fn all<S: Status + Pod>(
    tracee: &mut Tracee<'_>,
    here: bool,
) -> Result<Vec<(i32, S)>, ProcError> {
    if here {
        return ipc::all().map_err(ProcError::system("list System V objects"));
    }
    let name = match S::CALL {
        libc::SYS_shmctl => "shmctl",
        libc::SYS_semctl => "semctl",
        _ => "msgctl",
    };
    let buffer = tracee.scratch().addr;
    let (info, count_at) = S::INFO;
    let highest = match tracee.syscall(name, S::CALL, S::arguments(info, 0, buffer.0)) {
        Ok(highest) => highest,
        // A kernel without System V IPC.
        Err(e) if e.errno() == Some(libc::ENOSYS) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let count = tracee.get::<i32>(buffer.offset(count_at as u64))?.max(0) as usize;
    let mut found = Vec::new();
    for index in 0..=highest {
        if found.len() == count {
            break;
        }
        match tracee.syscall(name, S::CALL, S::arguments(S::STAT_ANY, index, buffer.0)) {
            Ok(id) => found.push((id as i32, tracee.get(buffer)?)),
            // Nothing has this index.
            Err(e) if is_not_ours(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Gone meanwhile, or somebody else's.
pub(super) fn is_not_ours(error: &ProcError) -> bool {
    matches!(
        error.errno(),
        Some(libc::EINVAL | libc::EIDRM | libc::EACCES)
    )
}

/// Whether a process that the tracee sees under this id exists.
///
/// # Errors
/// If the tracee is killed.
pub(super) fn lives(tracee: &mut Tracee<'_>, pid: i32) -> Result<bool, ProcError> {
    match tracee.syscall("kill", libc::SYS_kill, [pid as u64, 0, 0, 0, 0, 0]) {
        Ok(_) => Ok(true),
        Err(e) if e.errno() == Some(libc::ESRCH) => Ok(false),
        Err(e) if e.errno() == Some(libc::EPERM) => Ok(true),
        Err(e) => Err(e),
    }
}
