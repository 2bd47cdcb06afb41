//! Transfers that a stop has cut short.
//!
//! A thread that writes more to a pipe, a socket or a terminal than there is room for waits in the middle of its system call, and so
//! does one that receives with `MSG_WAITALL`, or several messages. A stop ends such a call, as a signal would: it returns how much it has done
//! so far (see pipe(7), "interrupted by a signal handler"), which a program without signal handlers need never expect. So the thread
//! makes a call for what is left instead, from a [page of code](super::slots) that is put into its memory, which then returns the sum.

use super::messages::{Message, buffers_left, messages_left};
use super::slots::{self, BUSY, SLOT_BYTES};
use crate::abi::Pod;
use crate::error::ProcError;
use crate::freeze::FrozenProcess;
use crate::ids::{Pid, RemoteAddr, RemoteFd};
use crate::memory;
use crate::remote::SYSCALL;
use crate::remote::code::{Code, R10, RAX, RDI, RDX, RSI};
use rustix::fs::FileType;
use rustix::net::SocketType;
use snapify_sys::ptrace::Registers;
use snapify_sys::vm;
use std::os::fd::OwnedFd;

// What is where in a slot: code, and then
const DONE: usize = 0x50;
const RETURN: usize = 0x58;
/// The registers that the call for the rest is made with others in.
const SAVED: usize = 0x60;
/// What the call for the rest points to, if there is room.
const DATA: usize = 0x80;

const RWF_NOWAIT: u64 = 8;

/// Bytes of `struct mmsghdr`.
const MESSAGE_BYTES: u64 = 64;

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
    /// Bytes, or messages, that have been transferred.
    done: u64,
    /// The registers of the call.
    call: Registers,
    /// The registers of a call for the rest, but for the address of what is new in memory.
    rest: Registers,
    /// What the second argument of that call is to point to.
    data: Data,
}

enum Data {
    /// What the first call had, or a part of it.
    None,
    /// An array of buffers: address and length of each.
    Buffers(Vec<[u64; 2]>),
    Message(Message),
}

/// What must be so for a call to wait for the rest: one that does not has rightly done a part only, as has one to a file on a full disk.
enum Waits {
    /// A pipe, socket or device that blocks.
    On(u64),
    /// A socket of a stream: datagrams are cut off.
    OnStream(u64),
    /// A socket from which several messages are received.
    OnMessages(u64),
    /// A device that always has more.
    OnEndless(u64),
    Always,
}

impl Cut {
    fn of(process: &FrozenProcess, registers: &Registers) -> Option<Self> {
        let number = registers.orig_rax as i64;
        let done = registers.rax;
        if number < 0 || (done as i64) <= 0 {
            return None;
        }
        let pid = process.pid;
        let Registers { rdi, rsi, rdx, .. } = *registers;
        let (r10, r9) = (registers.r10, registers.r9);
        let mut rest = Registers {
            orig_rax: u64::MAX,
            rax: registers.orig_rax,
            ..*registers
        };
        let mut data = Data::None;
        let flag = |flags: u64, flag: i32| flags & flag as u64 != 0;
        let waits = match number {
            libc::SYS_write => Waits::On(rdi),
            libc::SYS_sendto if !flag(r10, libc::MSG_DONTWAIT) => Waits::On(rdi),
            libc::SYS_recvfrom if waits_for_all(r10) => Waits::OnStream(rdi),
            libc::SYS_read => Waits::OnEndless(rdi),
            libc::SYS_writev => Waits::On(rdi),
            // To where the file is: a pipe takes nothing else.
            libc::SYS_pwritev2 if r10 == u64::MAX && r9 & RWF_NOWAIT == 0 => Waits::On(rdi),
            libc::SYS_sendmsg if !flag(rdx, libc::MSG_DONTWAIT) => Waits::OnStream(rdi),
            libc::SYS_recvmsg if waits_for_all(rdx) => Waits::OnStream(rdi),
            libc::SYS_sendmmsg if !flag(r10, libc::MSG_DONTWAIT) => Waits::On(rdi),
            libc::SYS_recvmmsg
                if !flag(r10, libc::MSG_DONTWAIT | libc::MSG_WAITFORONE)
                    && !is_over(pid, registers.r8) =>
            {
                Waits::OnMessages(rdi)
            }
            // To a pipe it gives only what fits, as splice(2) does.
            libc::SYS_sendfile => Waits::OnStream(rdi),
            libc::SYS_getrandom => Waits::Always,
            _ => return None,
        };
        match number {
            libc::SYS_write | libc::SYS_sendto | libc::SYS_recvfrom | libc::SYS_read => {
                rest.rsi = rsi.wrapping_add(done);
                rest.rdx = left(rdx, done)?;
            }
            libc::SYS_writev | libc::SYS_pwritev2 => {
                let buffers = buffers_left(pid, (rsi, rdx), done)?;
                rest.rdx = buffers.len() as u64;
                data = Data::Buffers(buffers);
            }
            libc::SYS_sendmsg => data = Data::Message(Message::left(pid, rsi, done)?),
            libc::SYS_recvmsg => {
                let message = Message::left(pid, rsi, done)?;
                // It ends where what is attached to the stream was received, and must be told of what comes later.
                if message.has_control {
                    return None;
                }
                data = Data::Message(message);
            }
            libc::SYS_sendmmsg | libc::SYS_recvmmsg => {
                if number == libc::SYS_sendmmsg {
                    messages_left(pid, rsi, done)?;
                }
                rest.rsi = rsi.wrapping_add(done.checked_mul(MESSAGE_BYTES)?);
                rest.rdx = left(rdx & u64::from(u32::MAX), done)?;
            }
            // What it reads from goes on where it was, by the file's offset or the one that the call was given.
            libc::SYS_sendfile => rest.r10 = left(r10, done)?,
            _ => {
                rest.rdi = rdi.wrapping_add(done);
                rest.rsi = left(rsi, done)?;
            }
        }
        waits.hold(process).then_some(Self {
            done,
            call: *registers,
            rest,
            data,
        })
    }

    /// What is new in memory, as it must be at `address`.
    fn data(&self, address: u64) -> Vec<u8> {
        match &self.data {
            Data::None => Vec::new(),
            Data::Buffers(buffers) => bytes_of(buffers),
            Data::Message(message) => message.bytes(address),
        }
    }
}

/// What is left of a number of bytes or messages, if anything is.
fn left(wanted: u64, done: u64) -> Option<u64> {
    wanted.checked_sub(done).filter(|left| *left > 0)
}

/// Whether the time limit of a call, of which the kernel has stored what is left, is over.
fn is_over(pid: Pid, limit: u64) -> bool {
    let mut left = [0_u64; 2];
    limit != 0 && (vm::read_exact(pid.0, limit, left.as_bytes_mut()).is_err() || left == [0, 0])
}

fn waits_for_all(flags: u64) -> bool {
    let looked_at = (libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_PEEK) as u64;
    flags & looked_at == libc::MSG_WAITALL as u64
}

/// An array of buffers as it is in memory.
pub(super) fn bytes_of(buffers: &[[u64; 2]]) -> Vec<u8> {
    buffers.iter().flat_map(|b| b.as_bytes().to_vec()).collect()
}

impl Waits {
    fn hold(&self, process: &FrozenProcess) -> bool {
        let (Self::On(fd) | Self::OnStream(fd) | Self::OnMessages(fd) | Self::OnEndless(fd)) = self
        else {
            return true;
        };
        let fd = RemoteFd(*fd as i32);
        let Ok(stat) = process.proc.stat_of(&format!("fd/{fd}")) else {
            return false;
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if let Self::OnEndless(_) = self {
            // zero, random and urandom
            let (major, minor) = (
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            );
            return kind == FileType::CharacterDevice && major == 1 && matches!(minor, 5 | 8 | 9);
        }
        let waiting = process.proc.fdinfo(fd);
        waiting.is_ok_and(|info| info.flags & libc::O_NONBLOCK as u32 == 0)
            && match (self, kind) {
                (Self::On(_), kind) => matches!(
                    kind,
                    FileType::Fifo | FileType::CharacterDevice | FileType::Socket
                ),
                (Self::OnStream(_), FileType::Socket) => is_stream(process, fd).unwrap_or(false),
                (Self::OnMessages(_), FileType::Socket) => interrupted(process, fd).is_ok(),
                _ => false,
            }
    }
}

fn socket(process: &FrozenProcess, fd: RemoteFd) -> rustix::io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(process.pid.0).ok_or(rustix::io::Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let none = rustix::process::PidfdGetfdFlags::empty();
    rustix::process::pidfd_getfd(&pidfd, fd.0, none)
}

fn is_stream(process: &FrozenProcess, fd: RemoteFd) -> rustix::io::Result<bool> {
    let socket = socket(process, fd)?;
    Ok(rustix::net::sockopt::socket_type(&socket)? == SocketType::STREAM)
}

/// Whether recvmmsg(2) was interrupted. Takes back the pending error that the kernel has given to the socket then: its own ERESTARTSYS, which the next
/// call would return.
fn interrupted(process: &FrozenProcess, fd: RemoteFd) -> rustix::io::Result<()> {
    const RESTART: i32 = 512;
    match rustix::net::sockopt::socket_error(&socket(process, fd)?)? {
        Err(error) if error.raw_os_error() == RESTART => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(rustix::io::Errno::INVAL),
    }
}

/// Writes the code, and sends the threads there.
fn go_on_with(process: &mut FrozenProcess, cut: &[(usize, Cut)]) -> Result<(), ProcError> {
    let maps = process.proc.maps()?;
    let instruction = memory::syscall_instruction(process.pid, &maps)?;
    let known = slots::known_page(process, &maps);
    let slots = process.with_tracee(instruction, |tracee, threads| {
        let slots = slots::find(tracee, threads, known, cut.len())?;
        let mut places = Vec::with_capacity(cut.len());
        for ((_, cut), slot) in cut.iter().zip(slots) {
            tracee.write(slot, &code(cut))?;
            let bytes = cut.data(0).len();
            let at = match bytes <= BUSY - DATA {
                true => RemoteAddr(slot.0 + DATA as u64),
                false => slots::room(tracee, bytes as u64)?,
            };
            tracee.write(at, &cut.data(at.0))?;
            places.push((slot, at));
        }
        Ok(places)
    })?;
    for ((thread, cut), (slot, data)) in cut.iter().zip(slots) {
        let mut registers = Registers {
            rip: slot.0,
            ..cut.rest
        };
        if !matches!(cut.data, Data::None) {
            registers.rsi = data.0;
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
    for (n, register) in [RDI, RSI, RDX, R10].into_iter().enumerate() {
        code.fetch(register, SAVED + n * 8);
    }
    code.clear_byte(BUSY);
    code.jump(RETURN);
    let mut slot = code.0;
    debug_assert!(slot.len() <= DONE);
    slot.resize(SLOT_BYTES as usize, 0);
    let mut put = |at: usize, value: u64| slot[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(DONE, cut.done);
    put(RETURN, cut.call.rip);
    let Registers {
        rdi, rsi, rdx, r10, ..
    } = cut.call;
    for (n, value) in [rdi, rsi, rdx, r10].into_iter().enumerate() {
        put(SAVED + n * 8, value);
    }
    put(BUSY, 1);
    slot
}
