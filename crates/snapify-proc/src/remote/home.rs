//! The way home: what a thread does by itself if the process that makes remote calls in it is killed in the middle of them.
//!
//! The kernel lets the threads of a dead tracer go with whatever registers they have then. So the `syscall` instruction with which
//! a frozen thread makes calls lies in the scratch memory, and the code behind it puts back what [`super::seat::Seat`] would have put
//! back: the affinity, the flags, the signal mask, and last all registers. The extended state needs nothing, as no remote call
//! changes it. The stack is not touched: there may be a red zone below its end.
//!
//! The thread is run from one stop at a system call to the next (`PTRACE_SYSCALL`). A single step would be a stop less, but the kernel
//! leaves the trap flag of a thread set whose tracer dies, and it then dies of SIGTRAP.
//!
//! All signals are blocked up to the call that restores the mask. From there on the stack pointer is the
//! program's own, so that a handler may run at any instruction.

use super::code::{Code, EDI, EDX, ESI, R10, RDX, RSI, RSP, Register};
use super::{SYSCALL, TRAP_FLAG};
use crate::ids::RemoteAddr;
use crate::threads::restart;
use snapify_sys::ptrace::Registers;

/// Bytes of code and data for one thread.
pub(super) const SLOT_BYTES: u64 = 512;

const FLAGS: usize = 0xc0;
const STACK: usize = 0xc8;
const MASK: usize = 0xd0;
const GENERAL: usize = 0xd8;
const TARGET: usize = 0x150;
const AFFINITY: usize = 0x158;

const FORK: usize = 0x1e0;

/// Longest mask of CPUs that is put back, in words: of 1,088 CPUs.
const AFFINITY_WORDS: usize = (FORK - AFFINITY) / 8;

/// Where in its slot a thread goes home.
pub(super) fn entry(slot: RemoteAddr) -> RemoteAddr {
    RemoteAddr(slot.0 + SYSCALL.len() as u64)
}

/// Where in its slot a thread makes a fork: the child goes nowhere, but ends.
pub(super) fn fork_entry(slot: RemoteAddr) -> RemoteAddr {
    RemoteAddr(slot.0 + FORK as u64)
}

/// Code and data with which a thread takes up `registers` and `mask` again, and these CPUs if they are given. It begins with a `syscall`
/// instruction, and can be anywhere in memory.
pub(super) fn slot(registers: &Registers, mask: u64, affinity: Option<&[u64]>) -> Vec<u8> {
    let affinity = affinity.filter(|words| words.len() <= AFFINITY_WORDS);
    let affinity = affinity.unwrap_or_default();
    let mut code = Code(SYSCALL.to_vec());
    // sched_setaffinity(0, bytes, words)
    code.load(EDI, 0);
    code.load(ESI, (affinity.len() * 8) as u32);
    code.address(RDX, AFFINITY);
    code.call(libc::SYS_sched_setaffinity);
    // popfq from here, not from the program's stack.
    code.address(RSP, FLAGS);
    code.0.push(0x9d);
    code.fetch(RSP, STACK);
    // rt_sigprocmask(SIG_SETMASK, mask, NULL, 8); neither it nor what follows changes the flags.
    code.load(EDI, libc::SIG_SETMASK as u32);
    code.address(RSI, MASK);
    code.load(EDX, 0);
    code.load(R10, 8);
    code.call(libc::SYS_rt_sigprocmask);
    let (rax, rip) = restart::resumption(registers);
    let general = general(registers, rax);
    for (n, &(register, _)) in general.iter().enumerate() {
        code.fetch(register, GENERAL + n * 8);
    }
    code.jump(TARGET);

    let mut slot = code.0;
    debug_assert!(slot.len() <= FLAGS);
    slot.resize(SLOT_BYTES as usize, 0);
    let fork = fork_code();
    slot[FORK..FORK + fork.len()].copy_from_slice(&fork);
    let mut put = |at: usize, value: u64| slot[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(FLAGS, registers.eflags & !TRAP_FLAG);
    put(STACK, registers.rsp);
    put(MASK, mask);
    for (n, &(_, value)) in general.iter().enumerate() {
        put(GENERAL + n * 8, value);
    }
    put(TARGET, rip);
    for (n, &word) in affinity.iter().enumerate() {
        put(AFFINITY + n * 8, word);
    }
    slot
}

/// `syscall`, and behind it the way home for the parent and `exit_group(0)` for the child.
fn fork_code() -> Vec<u8> {
    let mut code = Code(SYSCALL.to_vec());
    // test %eax, %eax; jne home
    code.0.extend([0x85, 0xc0, 0x0f, 0x85]);
    let end = FORK + code.0.len() + 4;
    code.0
        .extend((SYSCALL.len() as i32 - end as i32).to_le_bytes());
    code.load(EDI, 0);
    code.call(libc::SYS_exit_group);
    code.0
}

/// All general registers but the stack pointer, with what they are to hold.
fn general(registers: &Registers, rax: u64) -> [(Register, u64); 15] {
    [
        (0, rax),
        (1, registers.rcx),
        (2, registers.rdx),
        (3, registers.rbx),
        (5, registers.rbp),
        (6, registers.rsi),
        (7, registers.rdi),
        (8, registers.r8),
        (9, registers.r9),
        (10, registers.r10),
        (11, registers.r11),
        (12, registers.r12),
        (13, registers.r13),
        (14, registers.r14),
        (15, registers.r15),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_does_not_reach_into_its_data() {
        let slot = slot(&Registers::default(), 0, None);
        assert_eq!(slot.len() as u64, SLOT_BYTES);
        assert_eq!(slot[..2], SYSCALL);
        assert!(slot[FLAGS - 8..FLAGS].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn masks_that_do_not_fit_are_left_out() {
        let all = [u64::MAX; AFFINITY_WORDS + 1];
        let fits = slot(&Registers::default(), 0, Some(&all[1..]));
        assert!(FORK + fork_code().len() <= fits.len());
        assert_eq!(fits[AFFINITY..FORK], [0xff; AFFINITY_WORDS * 8]);
        let too_long = slot(&Registers::default(), 0, Some(&all));
        assert!(too_long[AFFINITY..FORK].iter().all(|&byte| byte == 0));
        // esi, the second argument, is the length.
        assert_eq!(fits[7..12], [0xbe, (AFFINITY_WORDS * 8) as u8, 0, 0, 0]);
        assert_eq!(too_long[7..12], [0xbe, 0, 0, 0, 0]);
    }

    #[test]
    fn a_call_that_was_interrupted_is_made_again() {
        let registers = Registers {
            orig_rax: libc::SYS_read as u64,
            rax: -512_i64 as u64,
            rip: 0x1002,
            ..Registers::default()
        };
        let slot = slot(&registers, 0, None);
        let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
        assert_eq!((word(GENERAL), word(TARGET)), (0, 0x1000));
    }
}
