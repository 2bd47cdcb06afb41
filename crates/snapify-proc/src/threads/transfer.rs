//! Transfers that a stop has cut short.
//!
//! A thread that writes more to a pipe, a socket or a terminal than there is room for waits in the middle of its system call, and so
//! does one that receives with `MSG_WAITALL`. A stop ends such a call, as a signal would: it returns how much it has done
//! so far (see pipe(7), "interrupted by a signal handler"), which a program without signal handlers need never expect. So the thread
//! makes a call for what is left instead, from a [page of code](super::slots) that is put into its memory, which then returns the sum.

use super::slots::{self, BUSY, SLOT_BYTES};
use crate::abi::Pod;
use crate::error::ProcError;
use crate::freeze::FrozenProcess;
use crate::ids::RemoteFd;
use crate::memory;
use crate::remote::SYSCALL;
use crate::remote::code::{Code, RAX};
use rustix::fs::FileType;
use rustix::net::SocketType;
use snapify_sys::ptrace::Registers;
use snapify_sys::vm;

/// Entries of an array of buffers that fit into a slot.
const MOST_BUFFERS: usize = 8;

// What is where in a slot: code, and then
const DONE: usize = 0x40;
const RETURN: usize = 0x48;
const BUFFERS: usize = 0x60;

/// Has the threads of a frozen process go on with the transfers that its stop has cut short. Nothing is done in most cases, and nothing
/// is an error: a call returns early then.
pub(crate) fn complete(process: &mut FrozenProcess) {
    let threads = process.threads.iter().enumerate();
    let cut: Vec<(usize, Cut)> = threads
        .filter_map(|(n, thread)| Some((n, Cut::of(process, &thread.registers)?)))
        .collect();
    if !cut.is_empty()
        && let Err(error) = go_on_with(process, &cut)
    {
        tracing::debug!(pid = process.pid.0, "transfers are cut short: {error}");
    }
}

/// A transfer that was cut short.
struct Cut {
    /// Bytes that have been transferred.
    done: u64,
    /// The registers of a call for the rest, but for the address of its buffers.
    rest: Registers,
    /// The buffers that are left, of a call that takes an array of them: address and length of each.
    buffers: Option<Vec<[u64; 2]>>,
    /// Where the call was made from.
    back: u64,
}

impl Cut {
    fn of(process: &FrozenProcess, registers: &Registers) -> Option<Self> {
        let number = registers.orig_rax as i64;
        let done = registers.rax;
        if number < 0 || (done as i64) <= 0 {
            return None;
        }
        let mut rest = Registers {
            orig_rax: u64::MAX,
            rax: registers.orig_rax,
            ..*registers
        };
        let mut buffers = None;
        match number {
            libc::SYS_write | libc::SYS_sendto if done < registers.rdx => {
                rest.rsi += done;
                rest.rdx -= done;
            }
            libc::SYS_recvfrom
                if done < registers.rdx && registers.r10 & libc::MSG_WAITALL as u64 != 0 =>
            {
                rest.rsi += done;
                rest.rdx -= done;
            }
            libc::SYS_writev => {
                let left = Self::buffers_left(process, registers)?;
                rest.rdx = left.len() as u64;
                buffers = Some(left);
            }
            _ => return None,
        }
        let flags = match number {
            libc::SYS_sendto | libc::SYS_recvfrom => registers.r10,
            _ => 0,
        };
        let cut = Self {
            done,
            rest,
            buffers,
            back: registers.rip,
        };
        let waits = flags & libc::MSG_DONTWAIT as u64 == 0
            && cut.can_wait(process, number == libc::SYS_recvfrom);
        waits.then_some(cut)
    }

    /// The buffers of writev(2) behind what has been written.
    fn buffers_left(process: &FrozenProcess, registers: &Registers) -> Option<Vec<[u64; 2]>> {
        let count = usize::try_from(registers.rdx).ok()?;
        if count > libc::UIO_MAXIOV as usize {
            return None;
        }
        let mut all = vec![0; count * 16];
        vm::read_exact(process.pid.0, registers.rsi, &mut all).ok()?;
        let mut done = registers.rax;
        let mut left = Vec::new();
        for buffer in all.chunks_exact(16) {
            let mut words = [0_u64; 2];
            words.as_bytes_mut().copy_from_slice(buffer);
            let [address, bytes] = words;
            let skipped = done.min(bytes);
            done -= skipped;
            if skipped < bytes {
                left.push([address + skipped, bytes - skipped]);
            }
        }
        (1..=MOST_BUFFERS).contains(&left.len()).then_some(left)
    }

    /// Whether the call waits for the rest: a descriptor that does not has rightly done a part only, as has one of a file on a full
    /// disk. What is received must be a stream: datagrams are cut off.
    fn can_wait(&self, process: &FrozenProcess, receives: bool) -> bool {
        let fd = RemoteFd(self.rest.rdi as i32);
        let Ok(stat) = process.proc.stat_of(&format!("fd/{fd}")) else {
            return false;
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let waiting = process.proc.fdinfo(fd);
        waiting.is_ok_and(|info| info.flags & libc::O_NONBLOCK as u32 == 0)
            && match kind {
                FileType::Fifo | FileType::CharacterDevice => true,
                FileType::Socket => !receives || is_stream(process, fd).unwrap_or(false),
                _ => false,
            }
    }
}

fn is_stream(process: &FrozenProcess, fd: RemoteFd) -> rustix::io::Result<bool> {
    let pid = rustix::process::Pid::from_raw(process.pid.0).ok_or(rustix::io::Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let none = rustix::process::PidfdGetfdFlags::empty();
    let socket = rustix::process::pidfd_getfd(&pidfd, fd.0, none)?;
    Ok(rustix::net::sockopt::socket_type(&socket)? == SocketType::STREAM)
}

/// Writes the code, and sends the threads there.
fn go_on_with(process: &mut FrozenProcess, cut: &[(usize, Cut)]) -> Result<(), ProcError> {
    let maps = process.proc.maps()?;
    let instruction = memory::syscall_instruction(process.pid, &maps)?;
    let known = slots::known_page(process, &maps);
    let slots = process.with_tracee(instruction, |tracee, threads| {
        let slots = slots::find(tracee, threads, known, cut.len())?;
        for ((_, cut), slot) in cut.iter().zip(&slots) {
            tracee.write(*slot, &code(cut))?;
        }
        Ok(slots)
    })?;
    for ((thread, cut), slot) in cut.iter().zip(slots) {
        let mut registers = Registers {
            rip: slot.0,
            ..cut.rest
        };
        if cut.buffers.is_some() {
            registers.rsi = slot.0 + BUFFERS as u64;
        }
        process.set_registers(*thread, registers)?;
    }
    Ok(())
}

/// A call for the rest, which returns to where the first one was made from: with the sum, or, if it fails, with what the first one
/// has done, as the kernel would. `rcx` and the flags are free, as in any system call.
fn code(cut: &Cut) -> Vec<u8> {
    let mut code = Code(SYSCALL.to_vec());
    // lea 4095(%rax), %rcx; cmp $4094, %rcx: an error is one of -4095 to -1
    code.0.extend([0x48, 0x8d, 0x88, 0xff, 0x0f, 0x00, 0x00]);
    code.0.extend([0x48, 0x81, 0xf9, 0xfe, 0x0f, 0x00, 0x00]);
    // ja sum; xor %eax, %eax
    code.0.extend([0x77, 0x02, 0x31, 0xc0]);
    // sum:
    code.add(RAX, DONE);
    code.clear_byte(BUSY);
    code.jump(RETURN);
    let mut slot = code.0;
    debug_assert!(slot.len() <= DONE);
    slot.resize(SLOT_BYTES as usize, 0);
    let mut put = |at: usize, value: u64| slot[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(DONE, cut.done);
    put(RETURN, cut.back);
    put(BUSY, 1);
    for (n, [address, bytes]) in cut.buffers.iter().flatten().enumerate() {
        put(BUFFERS + n * 16, *address);
        put(BUFFERS + n * 16 + 8, *bytes);
    }
    slot
}
