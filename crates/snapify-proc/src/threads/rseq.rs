//! Restartable sequences (rseq(2)) at a stop.
//!
//! A thread that is stopped within one would be sent to its abort handler when it next returns to user mode; but the
//! first remote call is such a return, from another place, and the kernel then forgets the sequence. So the abort is
//! made here, before any remote call.

use crate::abi::{Pod, RseqSequence};
use crate::ids::Pid;
use snapify_sys::ptrace::{Registers, RseqConfiguration};
use snapify_sys::vm;

/// Offset of `rseq_cs` in `struct rseq`.
const SEQUENCE: u64 = 8;

/// Sends a thread that is within a restartable sequence to its abort handler.
#[must_use]
pub fn aborted(pid: Pid, rseq: &RseqConfiguration, mut registers: Registers) -> Registers {
    // Memory that cannot be read makes the kernel kill the thread when it goes on: nothing to be done about here.
    let mut address = 0_u64;
    if vm::read_exact(pid.0, rseq.pointer + SEQUENCE, address.as_bytes_mut()).is_err()
        || address == 0
    {
        return registers;
    }
    let mut sequence = RseqSequence::zeroed();
    if vm::read_exact(pid.0, address, sequence.as_bytes_mut()).is_err() {
        return registers;
    }
    if registers.rip.wrapping_sub(sequence.start) < sequence.bytes {
        registers.rip = sequence.abort;
        // Not in a system call: one within a sequence is an error of the program.
        registers.orig_rax = u64::MAX;
    }
    registers
}
