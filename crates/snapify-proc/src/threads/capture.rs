//! Describing stopped threads.

use super::image::{AlternateStackImage, RegistersImage, RseqImage, SchedulingImage, ThreadImage};
use super::{numa, restart};
use crate::abi::SignalStack;
use crate::attributes::ThreadAttributes;
use crate::capture::CaptureContext;
use crate::error::{Obstacle, ProcError};
use crate::freeze::FrozenThread;
use crate::ids::{Pid, RemoteAddr};
use crate::image::hex::HexBytes;
use crate::image::siginfo::SiginfoImage;
use crate::path::ImagePath;
use crate::procfs::ProcDir;
use crate::remote::Tracee;
use snapify_sys::process;
use snapify_sys::ptrace::Registers;
use snapify_sys::vm;

const PR_GET_TID_ADDRESS: u64 = libc::PR_GET_TID_ADDRESS as u64;
const PR_GET_TIMERSLACK: u64 = libc::PR_GET_TIMERSLACK as u64;
const ARCH_GET_XCOMP_PERM: u64 = 0x1022;
const SS_ONSTACK: i32 = libc::SS_ONSTACK;

/// Describes one thread.
///
/// # Errors
/// If the thread is killed meanwhile, or the kernel was built without what is needed (`CONFIG_CHECKPOINT_RESTORE`).
pub(crate) fn capture(
    tracee: &mut Tracee<'_>,
    proc: &ProcDir,
    frozen: &FrozenThread,
) -> Result<ThreadImage, ProcError> {
    let tid = frozen.tid;
    let scratch = tracee.scratch().addr;

    tracee.syscall_in(
        tid,
        "prctl(PR_GET_TID_ADDRESS)",
        libc::SYS_prctl,
        [PR_GET_TID_ADDRESS, scratch.0, 0, 0, 0, 0],
    )?;
    let clear_tid = RemoteAddr(tracee.get::<u64>(scratch)?);
    tracee.syscall_in(
        tid,
        "sigaltstack",
        libc::SYS_sigaltstack,
        [0, scratch.0, 0, 0, 0, 0],
    )?;
    let stack: SignalStack = tracee.get(scratch)?;

    // /proc shows it to root only.
    let timer_slack = tracee.syscall_in(
        tid,
        "prctl(PR_GET_TIMERSLACK)",
        libc::SYS_prctl,
        [PR_GET_TIMERSLACK, 0, 0, 0, 0, 0],
    )?;

    let memory_policy = numa::capture(tracee, tid)?;
    let attributes = ThreadAttributes::capture(tracee, tid)?;
    let stopped = tracee.thread(tid)?;
    let pending = stopped
        .pending_signals(false)?
        .iter()
        .map(SiginfoImage::new)
        .collect();
    let (robust, robust_bytes) =
        process::robust_list(tid.0).map_err(ProcError::ptrace("read robust list", tid))?;
    let scheduling =
        process::scheduling(tid.0).map_err(ProcError::ptrace("read scheduling", tid))?;
    let nice = super::nice(tid).map_err(ProcError::ptrace("read nice value", tid))?;
    let name = proc.read(&format!("task/{tid}/comm"))?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);

    Ok(ThreadImage {
        tid: frozen.inner.0,
        name: ImagePath::from_bytes(name),
        registers: (&independent(tracee.pid(), frozen.registers)).into(),
        extended_state: HexBytes(stopped.extended_state()?),
        extended_permission: 0,
        signal_mask: frozen.mask,
        pending,
        rseq: frozen.rseq.map(|r| RseqImage {
            address: RemoteAddr(r.pointer),
            bytes: r.size,
            signature: r.signature,
        }),
        robust_list: (RemoteAddr(robust), robust_bytes),
        clear_tid,
        alternate_stack: AlternateStackImage {
            address: RemoteAddr(stack.pointer),
            bytes: stack.size,
            // Whether the thread is on it follows from its stack pointer.
            flags: stack.flags & !SS_ONSTACK,
        },
        scheduling: SchedulingImage {
            policy: scheduling.policy,
            flags: scheduling.flags,
            nice,
            priority: scheduling.priority,
            deadline: [scheduling.runtime, scheduling.deadline, scheduling.period],
        },
        affinity: tracee.affinity(tid)?,
        timer_slack,
        memory_policy,
        attributes,
    })
}

/// A first thread that has ended while others go on: it comes back to end at once, by the `syscall` instruction at
/// `instruction`. `other` is one of the others.
///
/// # Errors
/// If the process is killed meanwhile.
pub(crate) fn ended_leader(
    ctx: &CaptureContext<'_>,
    other: &ThreadImage,
    instruction: RemoteAddr,
) -> Result<ThreadImage, ProcError> {
    let leader = ProcDir::open(ctx.status.tgid)?;
    let stat = leader.stat()?;
    let registers = RegistersImage {
        rax: libc::SYS_exit as u64,
        // Of a status as of wait(2).
        rdi: (stat.exit_code >> 8) as u64 & 0xff,
        orig_rax: u64::MAX,
        rip: instruction.0,
        ..other.registers
    };
    Ok(ThreadImage {
        tid: ctx.status.inner_tgid().0,
        name: ImagePath::from_bytes(stat.comm),
        registers,
        signal_mask: u64::MAX,
        pending: Vec::new(),
        // All that it had registered was done with at its end.
        rseq: None,
        robust_list: (RemoteAddr(0), other.robust_list.1),
        clear_tid: RemoteAddr(0),
        alternate_stack: AlternateStackImage {
            address: RemoteAddr(0),
            bytes: 0,
            flags: libc::SS_DISABLE,
        },
        ..other.clone()
    })
}

/// Extended features that the process may use on request (AMX); the same for all its threads.
///
/// # Errors
/// If the process is killed.
pub(crate) fn extended_permission(tracee: &mut Tracee<'_>) -> Result<u64, ProcError> {
    let scratch = tracee.scratch().addr;
    let args = [ARCH_GET_XCOMP_PERM, scratch.0, 0, 0, 0, 0];
    match tracee.syscall(
        "arch_prctl(ARCH_GET_XCOMP_PERM)",
        libc::SYS_arch_prctl,
        args,
    ) {
        Ok(_) => tracee.get(scratch),
        // Before Linux 5.16 there was nothing to ask for.
        Err(e) if e.errno() == Some(libc::EINVAL) => Ok(0),
        Err(e) => Err(e),
    }
}

/// What about a stopped thread cannot be saved.
pub(crate) fn obstacle(stopped: &crate::ptrace::Stopped) -> Option<Obstacle> {
    stopped.has_shadow_stack().then(|| {
        Obstacle::new(
            format!("thread {}", stopped.tid()),
            "it has a user-mode shadow stack (CET), which is not supported",
        )
    })
}

/// Registers with which another thread goes on like this one.
pub(crate) fn independent(pid: Pid, registers: Registers) -> Registers {
    restart::restorable(registers, continued_call(pid, &registers))
}

/// The call that a thread in restart_syscall(2) has made, if it can be told.
fn continued_call(pid: Pid, registers: &Registers) -> Option<i64> {
    if restart::is_continued(registers) {
        told_by_code(pid, registers)
    } else {
        None
    }
}

/// The call that the code before the thread's next instruction makes, if it is one that the kernel continues.
fn told_by_code(pid: Pid, registers: &Registers) -> Option<i64> {
    let mut code = [0; restart::CODE_BYTES];
    let at = registers.rip.checked_sub(code.len() as u64)?;
    vm::read_exact(pid.0, at, &mut code).ok()?;
    restart::continued_call(code)
}

/// Registers with which a stopped thread goes on as if it had not been stopped, so that it can be saved again later.
pub(crate) fn undisturbed(pid: Pid, registers: Registers) -> Registers {
    if restart::needs_block(&registers) && told_by_code(pid, &registers).is_none() {
        // The kernel would continue it as restart_syscall(2), and nobody could tell any more what that stands for.
        restart::restorable(registers, None)
    } else {
        restart::undisturbed(registers)
    }
}
