//! Threads that wait in vfork(2) for their child to call exec or to end.
//!
//! Such a thread (any call of clone with `CLONE_VFORK`, so posix_spawn(3) too) cannot be stopped, and nothing shows its registers. It waits
//! until the *thread* that it has made gives up its memory. So the child is given another thread, which has all that the first
//! one had and goes on in its place, and the first one ends. The parent comes out of its wait, and is stopped before it executes an instruction.
//!
//! What it waited for it then awaits in user mode, with all signals blocked, as it would have in the kernel: the new thread of the child
//! has an address registered that the kernel clears, and wakes those who wait for it, when the thread gives up the memory that
//! it shares (`CLONE_CHILD_CLEARTID`): at the same moment of exec or exit as it ends the wait in vfork. Parent and child are
//! two processes that share memory like others then, and are saved as such.

use super::capture;
use super::slots::{self, BUSY, SLOT_BYTES};
use crate::abi::SignalStack;
use crate::error::ProcError;
use crate::freeze::{FrozenProcess, FrozenThread};
use crate::ids::{Pid, RemoteAddr, Tid};
use crate::memory;
use crate::procfs::ProcDir;
use crate::ptrace::{Running, Stopped};
use crate::remote::Tracee;
use crate::remote::code::{Code, EAX, EDI, EDX, ESI, R10, RAX, RDI, RDX, RSI};
use snapify_sys::clone::{CloneArgs, THREAD_FLAGS};
use snapify_sys::kcmp::{self, kcmp};
use snapify_sys::process;
use snapify_sys::ptrace::{OPTION_TRACE_CLONE, Registers};
use snapify_sys::vm;
use std::io;
use std::time::Duration;

/// How long the new thread may take to stop.
const PATIENCE: Duration = Duration::from_secs(10);

// What is where in a slot: code, and then
/// Not zero as long as the child has the memory; 32 bits.
const WORD: usize = 0x90;
const MASK: usize = 0x98;
const RETURN: usize = 0xa0;
/// The registers that the code needs itself.
const SAVED: usize = 0xa8;

/// Ends the wait of thread `tid` in vfork, if it is in one. It is about to stop then; gives where [`wait_on`] is to send it.
///
/// # Errors
/// If the child cannot be stopped, or its thread not be replaced. It goes on as it was then.
pub(crate) fn end_wait(tid: Tid) -> Result<Option<RemoteAddr>, ProcError> {
    let Some(child) = child_of(tid)? else {
        return Ok(None);
    };
    let mut child = FrozenProcess::freeze(child)?;
    // Now that it stands still: it may have been faster.
    let shared = kcmp(tid.0, child.pid.0, kcmp::Kind::Vm, 0, 0);
    if !shared.is_ok_and(|order| order.is_eq()) || !waits(tid) {
        return Ok(None);
    }
    let at = memory::syscall_instruction(child.pid, &child.proc.maps()?)?;
    let (new, slot, affinity) = child.with_tracee(at, replace)?;

    let old = &child.threads[0];
    let (registers, mask) = (old.registers, old.mask);
    new.set_registers(&capture::independent(child.pid, registers))?;
    new.set_signal_mask(mask)?;
    let set = process::set_affinity(new.tid().0, &affinity);
    set.map_err(ProcError::ptrace("set affinity", new.tid()))?;
    // No handler may run in between.
    child.set_mask(0, u64::MAX)?;
    let exit = Registers {
        rip: at.0,
        rax: libc::SYS_exit as u64,
        rdi: 0,
        orig_rax: u64::MAX,
        ..registers
    };
    child.set_registers(0, exit)?;
    child.let_go()?;
    new.detach().map_err(|(_, error)| error)?;
    Ok(Some(slot))
}

/// Whether a thread is in a call of clone that waits for its child.
fn waits(tid: Tid) -> bool {
    flags_of_clone(tid).is_some_and(|flags| flags & libc::CLONE_VFORK as u64 != 0)
}

/// The flags of the call of clone that a thread is in.
fn flags_of_clone(tid: Tid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let first = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    match number {
        libc::SYS_vfork => Some(libc::CLONE_VFORK as u64),
        libc::SYS_clone => Some(first),
        libc::SYS_clone3 => {
            let mut flags = [0; 8];
            vm::read_exact(tid.0, first, &mut flags).ok()?;
            Some(u64::from_le_bytes(flags))
        }
        _ => None,
    }
}

/// The child that a thread waits for: the last that it has made.
fn child_of(tid: Tid) -> Result<Option<Pid>, ProcError> {
    if !waits(tid) {
        return Ok(None);
    }
    let path = format!("/proc/{tid}/task/{tid}/children");
    let text = std::fs::read_to_string(&path).map_err(ProcError::file("read", &path))?;
    let last = text.split_whitespace().last();
    Ok(last.and_then(|id| id.parse().ok()).map(Pid))
}

/// Makes another thread in the child that has all that its only one has. Gives it, where the parent is to wait for it, and the CPUs that it
/// is to have.
fn replace(
    tracee: &mut Tracee<'_>,
    threads: &[FrozenThread],
) -> Result<(Stopped, RemoteAddr, Vec<u64>), ProcError> {
    let pid = tracee.pid();
    let [old] = threads else {
        return Err(refuse(pid, "it has several threads"));
    };
    let proc = ProcDir::open(pid)?;
    // They would be told of the end of who has made them (PR_SET_PDEATHSIG).
    if !proc.children()?.is_empty() {
        return Err(refuse(pid, "it has children"));
    }
    let own = Own::of(tracee, old)?;
    let slot = slots::find(tracee, threads, None, 1)?[0];
    tracee.write(slot, &code())?;

    let scratch = tracee.scratch().addr;
    let args = CloneArgs {
        flags: THREAD_FLAGS | libc::CLONE_CHILD_CLEARTID as u64,
        child_tid: slot.0 + WORD as u64,
        ..CloneArgs::default()
    };
    tracee.put(scratch, &args)?;
    let call = [scratch.0, size_of::<CloneArgs>() as u64, 0, 0, 0, 0];
    tracee.thread(old.tid)?.set_options(OPTION_TRACE_CLONE)?;
    tracee.syscall("clone3", libc::SYS_clone3, call)?;
    tracee.thread(old.tid)?.set_options(0)?;
    let died = || ProcError::Died {
        pid,
        during: "the making of a thread",
    };
    let mut others = proc.threads()?.into_iter().filter(|&tid| tid != old.tid);
    let new = others.next_back().ok_or_else(died)?;
    let stopped = match Running::attached(new).wait_stopped(PATIENCE) {
        Ok(Some((stopped, _))) => stopped,
        Ok(None) => return Err(died()),
        Err((_, error)) => return Err(error),
    };
    stopped.set_options(0)?;
    let affinity = tracee.affinity(old.tid)?;
    tracee.add_thread(stopped);
    own.give(tracee, new)?;
    Ok((Stopped::known(new), slot, affinity))
}

fn refuse(pid: Pid, why: &'static str) -> ProcError {
    ProcError::System {
        what: format!("have process {pid} go on in another thread"),
        source: io::Error::other(why),
    }
}

/// What a thread does not have from the one that has made it.
struct Own {
    stack: SignalStack,
    death_signal: u64,
}

impl Own {
    fn of(tracee: &mut Tracee<'_>, thread: &FrozenThread) -> Result<Self, ProcError> {
        let (pid, tid, at) = (tracee.pid(), thread.tid, tracee.scratch().addr);
        let mut word = |name, option: i32| {
            tracee.put(at, &0_u64)?;
            let args = [option as u64, at.0, 0, 0, 0, 0];
            tracee.syscall(name, libc::SYS_prctl, args)?;
            tracee.get::<u64>(at)
        };
        let clear_tid = word("prctl(PR_GET_TID_ADDRESS)", libc::PR_GET_TID_ADDRESS)?;
        let death_signal = word("prctl(PR_GET_PDEATHSIG)", libc::PR_GET_PDEATHSIG)?;
        let args = [0, at.0, 0, 0, 0, 0];
        tracee.syscall("sigaltstack", libc::SYS_sigaltstack, args)?;
        let stack: SignalStack = tracee.get(at)?;
        let robust = process::robust_list(tid.0);
        let (robust, _) = robust.map_err(ProcError::ptrace("read robust list", tid))?;
        let pending = !tracee.thread(tid)?.pending_signals(false)?.is_empty();
        // A process that vfork has just made has none of it.
        if clear_tid != 0 || robust != 0 || thread.rseq.is_some() {
            return Err(refuse(pid, "it has registered addresses of its own"));
        }
        if pending {
            return Err(refuse(pid, "its thread has pending signals"));
        }
        if stack.flags & libc::SS_ONSTACK != 0 {
            return Err(refuse(pid, "it is on its alternate signal stack"));
        }
        Ok(Self {
            stack,
            death_signal,
        })
    }

    fn give(&self, tracee: &mut Tracee<'_>, tid: Tid) -> Result<(), ProcError> {
        if self.stack.flags & libc::SS_DISABLE == 0 {
            let at = tracee.scratch().addr;
            tracee.put(at, &self.stack)?;
            let args = [at.0, 0, 0, 0, 0, 0];
            tracee.syscall_in(tid, "sigaltstack", libc::SYS_sigaltstack, args)?;
        }
        if self.death_signal != 0 {
            let option = libc::PR_SET_PDEATHSIG as u64;
            let args = [option, self.death_signal, 0, 0, 0, 0];
            tracee.syscall_in(tid, "prctl(PR_SET_PDEATHSIG)", libc::SYS_prctl, args)?;
        }
        Ok(())
    }
}

/// Has a thread that has come out of vfork, and is stopped, wait on at `slot` until the child gives up its memory, and return then.
///
/// # Errors
/// If it was killed.
pub(crate) fn wait_on(thread: &Stopped, slot: RemoteAddr) -> Result<(), ProcError> {
    let tid = thread.tid();
    let registers = thread.registers()?;
    let mask = thread.signal_mask()?;
    let put = |at: usize, value: u64| {
        let address = slot.0 + at as u64;
        let written = vm::write_all(tid.0, address, &value.to_le_bytes());
        written.map_err(|source| ProcError::Memory {
            op: "write",
            pid: Pid(tid.0),
            address,
            source,
        })
    };
    put(MASK, mask)?;
    put(RETURN, registers.rip)?;
    let Registers {
        rax,
        rdi,
        rsi,
        rdx,
        r10,
        ..
    } = registers;
    for (n, value) in [rax, rdi, rsi, rdx, r10].into_iter().enumerate() {
        put(SAVED + n * 8, value)?;
    }
    // A handler would run on the stack, which the child may be using.
    thread.set_signal_mask(u64::MAX)?;
    thread.set_registers(&Registers {
        rip: slot.0,
        orig_rax: u64::MAX,
        ..registers
    })
}

/// Waits while the word is not zero, then unblocks signals and returns. `rcx`, `r11` and the flags are free, as in any system call, and
/// the stack is not touched.
fn code() -> Vec<u8> {
    let mut code = Code::default();
    code.fetch(EAX, WORD);
    // test %eax, %eax; je done
    code.0.extend([0x85, 0xc0, 0x74, 0]);
    let jump = code.0.len();
    // futex(word, FUTEX_WAIT, 1, NULL): the kernel wakes whoever waits, of this process or another.
    code.address(RDI, WORD);
    code.load(ESI, libc::FUTEX_WAIT as u32);
    code.load(EDX, 1);
    code.load(R10, 0);
    code.call(libc::SYS_futex);
    // jmp to the beginning
    let distance = -(code.0.len() as i64 + 2);
    code.0.extend([0xeb, distance as u8]);
    code.0[jump - 1] = (code.0.len() - jump) as u8;
    // done: rt_sigprocmask(SIG_SETMASK, mask, NULL, 8)
    code.load(EDI, libc::SIG_SETMASK as u32);
    code.address(RSI, MASK);
    code.load(EDX, 0);
    code.load(R10, 8);
    code.call(libc::SYS_rt_sigprocmask);
    for (n, register) in [RAX, RDI, RSI, RDX, R10].into_iter().enumerate() {
        code.fetch(register, SAVED + n * 8);
    }
    code.clear_byte(BUSY);
    code.jump(RETURN);
    let mut slot = code.0;
    debug_assert!(slot.len() <= WORD);
    slot.resize(SLOT_BYTES as usize, 0);
    slot[WORD] = 1;
    slot[BUSY] = 1;
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_does_not_reach_into_its_data() {
        let slot = code();
        assert_eq!(slot.len() as u64, SLOT_BYTES);
        assert!(slot[WORD - 8..WORD].iter().all(|&byte| byte == 0));
        // The jump leads to where the mask is set: mov $2, %edi.
        let at = slot.iter().position(|&byte| byte == 0x74).unwrap();
        let done = at + 2 + usize::from(slot[at + 1]);
        assert_eq!(slot[done..done + 5], [0xbf, 2, 0, 0, 0]);
    }

    #[test]
    fn who_does_not_wait_is_left_alone() {
        let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get());
        assert!(end_wait(tid).unwrap().is_none());
    }
}
