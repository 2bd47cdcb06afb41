//! clone3(2) as a fork: into new namespaces, and with a wanted process id.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// New user namespace.
pub const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
/// New PID namespace: the child is its pid 1.
pub const NEW_PID: u64 = libc::CLONE_NEWPID as u64;
/// New mount namespace.
pub const NEW_MOUNT: u64 = libc::CLONE_NEWNS as u64;

/// New IPC namespace: System V objects and POSIX message queues of its own.
pub const NEW_IPC: u64 = libc::CLONE_NEWIPC as u64;

/// Flags of a new thread of the same process, as pthread_create would have them but for its TLS and tid words.
pub const THREAD_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u64;

/// A copy of a process, traced as the process is, that shares its descriptors and has no signal handlers.
pub const COPY_FLAGS: u64 = (libc::CLONE_FILES | libc::CLONE_PTRACE) as u64 | CLEAR_SIGHAND;

/// `CLONE_CLEAR_SIGHAND` (Linux 5.5).
const CLEAR_SIGHAND: u64 = 1 << 32;

/// `struct clone_args` (Linux 5.5; 88 bytes since 5.7).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneArgs {
    /// `CLONE_*`
    pub flags: u64,
    /// Where to store the pidfd.
    pub pidfd: u64,
    /// Where to store the child's id in its memory.
    pub child_tid: u64,
    /// Where to store the child's id in the parent's memory.
    pub parent_tid: u64,
    /// Signal that the parent gets at the child's end.
    pub exit_signal: u64,
    /// Lowest byte of the stack.
    pub stack: u64,
    /// Its size.
    pub stack_size: u64,
    /// Thread-local storage.
    pub tls: u64,
    /// Array of wanted ids, innermost namespace first.
    pub set_tid: u64,
    /// Its length.
    pub set_tid_size: u64,
    /// cgroup descriptor.
    pub cgroup: u64,
}

/// Which side of a fork runs.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The caller.
    Parent {
        /// The child's id as the caller sees it.
        pid: i32,
        /// The child.
        pidfd: OwnedFd,
    },
}

/// Forks like fork(2), but into the namespaces in `flags` and, if `wanted` is given, with that process id
/// in the innermost PID namespace.
///
/// Handlers registered with pthread_atfork are not run. The C library's idea of the thread id is kept
/// right in the child, as its own fork does.
///
/// # Safety
/// The calling process must have one thread only, or the child may only make async-signal-safe
/// calls: locks held by other threads stay locked for ever in it.
///
/// # Errors
/// `EEXIST` if `wanted` is taken; `EPERM` without `CAP_CHECKPOINT_RESTORE` over the namespace, or where
/// the flags need a privilege.
pub unsafe fn fork(flags: u64, wanted: Option<i32>) -> io::Result<Fork> {
    let mut pidfd: i32 = -1;
    let wanted_tid = wanted.unwrap_or(0);
    // glibc keeps the thread's id at the address that was registered with set_tid_address; its fork()
    // has the kernel write the new id there, and so do we.
    let mut tid_address = 0_u64;
    // SAFETY: PR_GET_TID_ADDRESS writes one pointer.
    if unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut tid_address) } != 0 {
        tid_address = 0;
    }
    let tid_flags = if tid_address == 0 {
        0
    } else {
        (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64
    };
    let args = CloneArgs {
        flags: flags | tid_flags | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        child_tid: tid_address,
        exit_signal: libc::SIGCHLD as u64,
        set_tid: if wanted.is_some() {
            &raw const wanted_tid as u64
        } else {
            0
        },
        set_tid_size: u64::from(wanted.is_some()),
        ..CloneArgs::default()
    };
    // SAFETY: all pointers in `args` are to live variables; without CLONE_VM the child goes on
    // with a copy of this stack. What the child may do is the caller's promise.
    let pid = crate::check(unsafe {
        libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>())
    })?;
    if pid == 0 {
        return Ok(Fork::Child);
    }
    Ok(Fork::Parent {
        pid: pid as i32,
        // SAFETY: CLONE_PIDFD made the kernel store a descriptor that nobody else owns.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
    })
}

/// unshare(2) with `CLONE_NEWTIME`: children that are forked from now on are in a new time namespace, whose offsets are
/// written to `/proc/self/timens_offsets` before the first of them (time_namespaces(7)). The caller stays in its own.
///
/// # Errors
/// `EINVAL` in a kernel without time namespaces, `EPERM` without CAP_SYS_ADMIN in the user namespace.
pub fn new_time_namespace() -> io::Result<()> {
    const CLONE_NEWTIME: i32 = 0x80;
    // SAFETY: no memory is passed, and nothing of the caller's own changes.
    crate::check(i64::from(unsafe { libc::unshare(CLONE_NEWTIME) })).map(drop)
}
