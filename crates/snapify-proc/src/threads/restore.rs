//! Making threads, and giving each its state.

use super::image::ThreadImage;
use crate::abi::SignalStack;
use crate::error::{Obstacle, ProcError};
use crate::ids::Tid;
use crate::memory::Trampoline;
use crate::ptrace::Running;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use snapify_sys::clone::{CloneArgs, THREAD_FLAGS};
use snapify_sys::process::{self, SchedulingAttributes};
use snapify_sys::ptrace::Registers;
use std::time::Duration;

const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
/// Number of the AMX tile data among the extended features, and its bit.
const TILE_DATA: u64 = 18;
/// Offset in the XSAVE area of the bit mask of features that are not in their initial state.
const FEATURES_AT: usize = 512;

/// Whether this machine's CPU has the registers of the image. Creates nothing.
pub(crate) fn preflight(threads: &[ThreadImage]) -> Option<Obstacle> {
    // Leaf 0xd, subleaf 0: bytes of the state of all features that the kernel has enabled, in the layout that ptrace uses.
    let here = std::arch::x86_64::__cpuid_count(0xd, 0).ebx as usize;
    let other = threads
        .iter()
        .find(|thread| thread.extended_state.0.len() != here)?;
    let why = format!(
        "its extended registers take {} bytes, those of this machine's CPU {here}",
        other.extended_state.0.len()
    );
    let hint = "restart it on the kind of CPU that it was saved on";
    Some(Obstacle::new(format!("thread {}", other.tid), why).with_hint(hint))
}

/// Makes all threads but the first, with the ids of the image. They stay stopped from their first instruction on.
///
/// # Errors
/// If one cannot be made.
pub(crate) fn create(tracee: &mut Tracee<'_>, threads: &[ThreadImage]) -> Result<(), ProcError> {
    let scratch = tracee.scratch().addr;
    let wanted = scratch.offset(256);
    let args = CloneArgs {
        flags: THREAD_FLAGS,
        set_tid: wanted.0,
        set_tid_size: 1,
        ..CloneArgs::default()
    };
    let leader = tracee.leader();
    for thread in &threads[1..] {
        tracee.put(scratch, &args)?;
        tracee.put(wanted, &thread.tid)?;
        let call = [scratch.0, size_of::<CloneArgs>() as u64, 0, 0, 0, 0];
        tracee.syscall_in(leader, "clone3", libc::SYS_clone3, call)?;
        let tid = Tid(thread.tid);
        match Running::attached(tid).wait_stopped(Duration::from_secs(10)) {
            Ok(Some((stopped, _))) => tracee.add_thread(stopped),
            Ok(None) => {
                return Err(ProcError::Died {
                    pid: tracee.pid(),
                    during: "making its threads",
                });
            }
            Err((_, e)) => return Err(e),
        }
    }
    Ok(())
}

/// Gives each thread what it must ask the kernel for itself.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn finish(
    tracee: &mut Tracee<'_>,
    threads: &[ThreadImage],
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    threads
        .iter()
        .try_for_each(|thread| finish_one(tracee, thread, |text| ctx.warn(text)))
}

fn finish_one(
    tracee: &mut Tracee<'_>,
    thread: &ThreadImage,
    warn: impl Fn(String),
) -> Result<(), ProcError> {
    let tid = Tid(thread.tid);
    let scratch = tracee.scratch().addr;
    if let Some(rseq) = thread.rseq {
        let args = [
            rseq.address.0,
            u64::from(rseq.bytes),
            0,
            u64::from(rseq.signature),
            0,
            0,
        ];
        tracee.syscall_in(tid, "rseq", libc::SYS_rseq, args)?;
    }
    let (robust, bytes) = thread.robust_list;
    if robust.0 != 0 {
        tracee.syscall_in(
            tid,
            "set_robust_list",
            libc::SYS_set_robust_list,
            [robust.0, bytes, 0, 0, 0, 0],
        )?;
    }
    if let Some(policy) = &thread.memory_policy {
        policy.restore(tracee, tid, &warn)?;
    }
    let args = [thread.clear_tid.0, 0, 0, 0, 0, 0];
    let answer = tracee.syscall_in(tid, "set_tid_address", libc::SYS_set_tid_address, args)?;
    if answer != thread.tid as u64 {
        return Err(ProcError::BadImage(format!(
            "thread {tid} became thread {answer}"
        )));
    }
    let stack = &thread.alternate_stack;
    tracee.put(
        scratch,
        &SignalStack {
            pointer: stack.address.0,
            flags: stack.flags,
            pad: 0,
            size: stack.bytes,
        },
    )?;
    tracee.syscall_in(
        tid,
        "sigaltstack",
        libc::SYS_sigaltstack,
        [scratch.0, 0, 0, 0, 0, 0],
    )?;
    tracee.put_cstr(&thread.name)?;
    let args = [libc::PR_SET_NAME as u64, scratch.0, 0, 0, 0, 0];
    tracee.syscall_in(tid, "prctl(PR_SET_NAME)", libc::SYS_prctl, args)?;
    // 0 stands for the default, and is what threads of real-time policies have.
    let args = [
        libc::PR_SET_TIMERSLACK as u64,
        thread.timer_slack,
        0,
        0,
        0,
        0,
    ];
    tracee.syscall_in(tid, "prctl(PR_SET_TIMERSLACK)", libc::SYS_prctl, args)?;
    thread.attributes.restore(tracee, tid, warn)?;
    for signal in &thread.pending {
        let raw = signal
            .raw()
            .ok_or_else(|| ProcError::BadImage("a pending signal has no valid form".into()))?;
        let number = crate::ptrace::signal_number(&raw);
        if number == libc::SIGKILL || number == libc::SIGSTOP {
            // Acts on the whole process: see ProcessImage::stopped.
            continue;
        }
        tracee.queue_signal(tid, &raw)?;
    }
    Ok(())
}

/// Permits the use of AMX as it was permitted, and makes room in the kernel for the tiles of threads that have some. The kernel refuses to
/// set them before the thread has used the unit itself, so each executes two instructions: a tile configuration, and a tile of zeros.
///
/// Comes before alternate stacks, whose sizes the kernel checks at the permission; and as the instructions are single steps, before what
/// becomes of SIGTRAP is set, in any process that shares it.
///
/// # Errors
/// If the machine has no AMX.
pub(crate) fn prepare_tiles(
    tracee: &mut Tracee<'_>,
    threads: &[ThreadImage],
    trampoline: Trampoline,
) -> Result<(), ProcError> {
    let permission = threads[0].extended_permission;
    if permission >> TILE_DATA & 1 == 1 {
        // For the whole process.
        let args = [ARCH_REQ_XCOMP_PERM, TILE_DATA, 0, 0, 0, 0];
        tracee.syscall(
            "arch_prctl(ARCH_REQ_XCOMP_PERM)",
            libc::SYS_arch_prctl,
            args,
        )?;
    }
    let mut prepared = false;
    for thread in threads.iter().filter(|thread| has_tiles(thread)) {
        let configuration = tracee.scratch().addr.offset(64);
        if !prepared {
            let mut bytes = [0_u8; 64];
            // Palette 1; tile 0 with rows of 64 bytes, one row.
            bytes[0] = 1;
            bytes[16] = 64;
            bytes[48] = 1;
            tracee.put(configuration, &bytes)?;
            prepared = true;
        }
        let tid = Tid(thread.tid);
        let mut registers = Registers {
            rip: trampoline.tile_code().0,
            rdi: configuration.0,
            ..Registers::default()
        };
        for _ in 0..2 {
            registers.rip = tracee.step_from(tid, registers)?.0;
        }
    }
    Ok(())
}

fn has_tiles(thread: &ThreadImage) -> bool {
    let features = thread.extended_state.0.get(FEATURES_AT..FEATURES_AT + 8);
    features.is_some_and(|bytes| bytes[(TILE_DATA / 8) as usize] >> (TILE_DATA % 8) & 1 == 1)
}

/// Sets registers, masks and scheduling of all threads, after the last remote call. Returns what could not be done and does not
/// matter to the program's results.
///
/// # Errors
/// If the extended state does not fit this machine.
pub(crate) fn settle(
    tracee: &mut Tracee<'_>,
    threads: &[ThreadImage],
) -> Result<Vec<String>, ProcError> {
    let mut warnings = Vec::new();
    tracee.come_to_rest()?;
    for thread in threads {
        let tid = Tid(thread.tid);
        let stopped = tracee.thread(tid)?;
        stopped.set_extended_state(&thread.extended_state.0)?;
        stopped.set_registers(&Registers::from(&thread.registers))?;
        stopped.set_signal_mask(thread.signal_mask)?;
        schedule(thread, &mut warnings);
    }
    Ok(warnings)
}

fn schedule(thread: &ThreadImage, warnings: &mut Vec<String>) {
    let wanted = &thread.scheduling;
    let wanted = SchedulingAttributes {
        size: 0,
        policy: wanted.policy,
        flags: wanted.flags,
        nice: wanted.nice,
        priority: wanted.priority,
        runtime: wanted.deadline[0],
        deadline: wanted.deadline[1],
        period: wanted.deadline[2],
    };
    // One's own priority can be lowered, not raised: what the caller's is lower than cannot be had back.
    let now = process::scheduling(thread.tid).map(|now| SchedulingAttributes { size: 0, ..now });
    let set = if now.ok() == Some(wanted) {
        Ok(())
    } else {
        process::set_scheduling(thread.tid, &wanted)
    };
    let tid = Tid(thread.tid);
    let set = set.and_then(|()| match super::nice(tid)? == wanted.nice {
        true => Ok(()),
        false => super::set_nice(tid, wanted.nice),
    });
    if let Err(e) = set {
        warnings.push(format!(
            "thread {} keeps the caller's scheduling: {e}",
            thread.tid
        ));
    }
    thread.attributes.schedule(thread.tid, warnings);
    // The kernel leaves out CPUs that this machine lacks, and refuses if none is left.
    if let Err(e) = process::set_affinity(thread.tid, &thread.affinity) {
        warnings.push(format!(
            "thread {} may run on all CPUs that the caller may: {e}",
            thread.tid
        ));
    }
}
