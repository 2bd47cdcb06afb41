//! System calls in a stopped tracee, made from outside with a `syscall` instruction: one that is found in it; and, once there is
//! scratch memory in a running program, one there, behind which lies the [way home](home) should this process be
//! killed. The scratch memory is gone before the program goes on.
//!
//! A [call] costs 4 to 10 us if tracer and tracee share a CPU and ten times that if not, so a [`Tracee`]
//! pins itself and each thread it works in to one CPU and gives the affinities back when it is dropped.
//!
//! Kernel corner cases that are handled here:
//! - `orig_rax` is -1 during a remote call, or the kernel would take the registers for those of an interrupted
//!   call and "restart" it;
//! - signals are masked meanwhile; SIGSTOP cannot be masked, so it is held back and sent
//!   again at the end;
//! - a stop that had been asked for, or a group-stop, may come before the call: the thread is sent on again.

mod call;
pub(crate) mod code;
mod headroom;
mod home;
mod pin;
mod seat;

pub(crate) use pin::{Pin, unpinned};

use crate::abi::Pod;
use crate::error::ProcError;
use crate::ids::{Pid, RemoteAddr, Tid};
use crate::ptrace::{Stopped, signal_number};
use headroom::Headroom;
use seat::{Origin, Seat};
use snapify_sys::process;
use snapify_sys::ptrace::{RawSiginfo, Registers};
use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

/// The two bytes of the `syscall` instruction.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];

const TRAP_FLAG: u64 = 0x100;

/// Memory in the tracee that may be used for the arguments and results of remote calls.
///
/// Every remote call may use all of it: nothing is kept there between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Its first address, page aligned.
    pub addr: RemoteAddr,
    /// Its size in bytes, at least 64 KiB.
    pub len: u64,
}

/// Bytes of scratch memory in every tracee.
pub(crate) const SCRATCH_BYTES: u64 = 256 * 1024;

const PAGE_BYTES: u64 = 4096;

/// A process whose threads are all stopped and in which system calls can be made.
///
/// Used at capture on a running program (everything is put back when this is dropped) and at restore
/// on the process that is being built.
#[derive(Debug)]
pub struct Tracee<'a> {
    pid: Pid,
    leader: Tid,
    seats: HashMap<Tid, Seat>,
    instruction: RemoteAddr,
    scratch: Scratch,
    /// Bytes from the start of the scratch memory of a frozen program that are to be unmapped.
    mapped: u64,
    origin: Origin,
    /// Whether calls are made by single steps.
    steps: bool,
    cpu: Option<Rc<Pin>>,
    stop_held_back: bool,
    calls: u64,
    _frozen: PhantomData<&'a mut ()>,
}

impl<'a> Tracee<'a> {
    /// Prepares remote calls in a frozen program. `threads` are its stopped threads, the leader first, with the registers that
    /// each is to have in the end.
    ///
    /// # Errors
    /// If no `syscall` instruction is found at `instruction`, or scratch memory cannot be mapped.
    pub(crate) fn of_frozen(
        pid: Pid,
        threads: Vec<(Stopped, Registers)>,
        instruction: RemoteAddr,
    ) -> Result<Self, (Vec<Stopped>, ProcError)> {
        let mut tracee = Self::without_scratch(pid, threads, instruction);
        match tracee.map_scratch() {
            Ok(()) => Ok(tracee),
            Err(e) => Err((tracee.release(), e)),
        }
    }

    /// Maps scratch memory, and with it the way home of each thread where memory may be executed.
    fn map_scratch(&mut self) -> Result<(), ProcError> {
        let data = libc::PROT_READ | libc::PROT_WRITE;
        let homes = (self.seats.len() as u64 * home::SLOT_BYTES).next_multiple_of(PAGE_BYTES);
        let addr = match self.map(SCRATCH_BYTES + homes, data | libc::PROT_EXEC) {
            Ok(addr) => {
                self.mapped = SCRATCH_BYTES + homes;
                let slots = (addr + SCRATCH_BYTES..).step_by(home::SLOT_BYTES as usize);
                for (seat, slot) in self.seats.values_mut().zip(slots) {
                    seat.home = Some(RemoteAddr(slot));
                }
                addr
            }
            // SELinux, PR_SET_MDWE.
            Err(e) if matches!(e.errno(), Some(libc::EACCES | libc::EPERM)) => {
                let addr = self.map(SCRATCH_BYTES, data)?;
                self.mapped = SCRATCH_BYTES;
                addr
            }
            Err(e) => return Err(e),
        };
        self.scratch = Scratch {
            addr: RemoteAddr(addr),
            len: SCRATCH_BYTES,
        };
        // The thread that has mapped it is on its way already.
        let leader = self.seats.get_mut(&self.leader);
        leader.map_or(Ok(()), |seat| seat.show_home_again())
    }

    /// Maps private memory somewhere, if need be beyond the soft limits.
    fn map(&mut self, len: u64, protection: i32) -> Result<u64, ProcError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let args = [0, len, protection as u64, flags as u64, u64::MAX, 0];
        let pid = self.pid;
        let mut map = || self.syscall("mmap", libc::SYS_mmap, args);
        match map() {
            Err(e) if matches!(e.errno(), Some(libc::ENOMEM | libc::EAGAIN)) => {
                let Some(_headroom) = Headroom::make(pid) else {
                    return Err(e);
                };
                map()
            }
            other => other,
        }
    }

    /// As [`Self::of_frozen`], for calls that need no memory: other threads may run meanwhile, and would see it.
    pub(crate) fn without_scratch(
        pid: Pid,
        threads: Vec<(Stopped, Registers)>,
        instruction: RemoteAddr,
    ) -> Self {
        let cpu = Pin::choose(threads.first().map_or(pid.leader(), |(t, _)| t.tid()));
        Self::new(pid, threads, instruction, Origin::Frozen, cpu.map(Rc::new))
    }

    /// Prepares remote calls in a process under construction, from a first thread and a `syscall` instruction in it.
    /// There is no scratch memory until [`Self::set_scratch`].
    /// `pin` is that of the other processes that are being built; without one this thread is pinned now.
    pub(crate) fn of_built(
        leader: Stopped,
        base: Registers,
        instruction: RemoteAddr,
        pin: Option<Rc<Pin>>,
    ) -> Self {
        let pid = Pid(leader.tid().0);
        let pin = pin.or_else(|| Pin::choose(leader.tid()).map(Rc::new));
        Self::new(pid, vec![(leader, base)], instruction, Origin::Built, pin)
    }

    fn new(
        pid: Pid,
        threads: Vec<(Stopped, Registers)>,
        instruction: RemoteAddr,
        origin: Origin,
        cpu: Option<Rc<Pin>>,
    ) -> Self {
        let leader = threads.first().map_or(pid.leader(), |(t, _)| t.tid());
        let mut tracee = Self {
            pid,
            leader,
            seats: HashMap::with_capacity(threads.len()),
            instruction,
            scratch: Scratch {
                addr: RemoteAddr(0),
                len: 0,
            },
            mapped: 0,
            origin,
            steps: origin == Origin::Built,
            cpu,
            stop_held_back: false,
            calls: 0,
            _frozen: PhantomData,
        };
        for (thread, base) in threads {
            tracee.seat(thread, base);
        }
        tracee
    }

    fn seat(&mut self, mut thread: Stopped, base: Registers) {
        let leads = thread.tid() == self.leader;
        thread.set_leads_others(leads && !self.seats.is_empty());
        if let Some(leader) = self.seats.get_mut(&self.leader) {
            leader.thread.set_leads_others(true);
        }
        let seat = Seat {
            thread,
            base,
            mask: None,
            affinity: None,
            prepared: false,
            home: None,
        };
        self.seats.insert(seat.thread.tid(), seat);
    }

    /// Has job control stop the process under construction, which has one thread yet, by this signal. Calls are made in it as before.
    pub(crate) fn stop_group(&mut self, signal: i32) -> Result<(), ProcError> {
        self.first_thread()?.stop_group(signal)
    }

    /// Has job control continue it again.
    pub(crate) fn continue_group(&mut self) -> Result<(), ProcError> {
        self.first_thread()?.continue_group()
    }

    fn first_thread(&mut self) -> Result<&mut Stopped, ProcError> {
        let pid = self.pid;
        let leader = self.seats.get_mut(&self.leader);
        leader.map(|seat| &mut seat.thread).ok_or(ProcError::Died {
            pid,
            during: "its stop",
        })
    }

    /// Takes in a thread that the process under construction has just created.
    pub(crate) fn add_thread(&mut self, thread: Stopped) {
        let base = self.seats[&self.leader].base;
        self.seat(thread, base);
    }

    /// From now on, calls are made at `instruction`.
    pub(crate) fn set_instruction(&mut self, instruction: RemoteAddr) {
        self.instruction = instruction;
    }

    /// Tells where scratch memory is.
    pub(crate) fn set_scratch(&mut self, scratch: Scratch) {
        self.scratch = scratch;
    }

    /// Number of remote calls made so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// The process, as this process sees it.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The thread-group leader, as this process sees it.
    #[must_use]
    pub fn leader(&self) -> Tid {
        self.leader
    }

    /// Scratch memory for arguments.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        self.scratch
    }

    /// A thread for calls that have the same effect in all: not the leader if there is another, for which it takes
    /// longer to wait (see [`Stopped::set_leads_others`]).
    pub(crate) fn any_thread(&self) -> Tid {
        let others = self.seats.keys().filter(|&&tid| tid != self.leader);
        others.min().copied().unwrap_or(self.leader)
    }

    /// A stopped thread, to look at.
    pub(crate) fn thread(&self, tid: Tid) -> Result<&Stopped, ProcError> {
        self.seats
            .get(&tid)
            .map(|seat| &seat.thread)
            .ok_or_else(|| {
                ProcError::BadImage(format!("thread {tid} is not one of process {}", self.pid))
            })
    }

    /// Reads memory of the tracee.
    ///
    /// # Errors
    /// `EFAULT` for memory that the tracee itself may not read.
    pub fn read(&self, addr: RemoteAddr, buffer: &mut [u8]) -> Result<(), ProcError> {
        snapify_sys::vm::read_exact(self.pid.0, addr.0, buffer).map_err(|source| {
            ProcError::Memory {
                op: "read",
                pid: self.pid,
                address: addr.0,
                source,
            }
        })
    }

    /// Writes memory of the tracee.
    ///
    /// # Errors
    /// `EFAULT` for memory that the tracee itself may not write.
    pub fn write(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<(), ProcError> {
        snapify_sys::vm::write_all(self.pid.0, addr.0, bytes).map_err(|source| ProcError::Memory {
            op: "write",
            pid: self.pid,
            address: addr.0,
            source,
        })
    }

    /// Writes a value.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn put<T: Pod>(&self, addr: RemoteAddr, value: &T) -> Result<(), ProcError> {
        self.write(addr, value.as_bytes())
    }

    /// Reads a value.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn get<T: Pod>(&self, addr: RemoteAddr) -> Result<T, ProcError> {
        let mut value = T::zeroed();
        self.read(addr, value.as_bytes_mut())?;
        Ok(value)
    }

    /// Writes a path, with its ending zero, to the start of the scratch memory and returns its address.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if it does not fit, `EINVAL` if it holds a zero byte.
    pub fn put_cstr(&self, path: impl AsRef<Path>) -> Result<RemoteAddr, ProcError> {
        self.put_cstr_at(self.scratch.addr, path)
    }

    /// Writes a path, with its ending zero, to `addr` and returns `addr`.
    ///
    /// # Errors
    /// As [`Self::put_cstr`].
    pub fn put_cstr_at(
        &self,
        addr: RemoteAddr,
        path: impl AsRef<Path>,
    ) -> Result<RemoteAddr, ProcError> {
        let path = path.as_ref();
        let refuse = |code| ProcError::File {
            path: path.to_owned(),
            what: "use the name",
            source: io::Error::from_raw_os_error(code),
        };
        let mut bytes = path.as_os_str().as_bytes().to_vec();
        if bytes.contains(&0) {
            return Err(refuse(libc::EINVAL));
        }
        if bytes.len() >= 16 * 1024 {
            return Err(refuse(libc::ENAMETOOLONG));
        }
        bytes.push(0);
        self.write(addr, &bytes)?;
        Ok(addr)
    }

    /// Gives this thread its CPUs back, while no remote calls are made: threads that are started now inherit them.
    pub(crate) fn unpin(&mut self) {
        self.cpu = None;
    }

    /// Where calls are made.
    pub(crate) fn instruction(&self) -> RemoteAddr {
        self.instruction
    }

    /// A CPU for this thread and the tracee, to which this thread is pinned from now on.
    pub(crate) fn choose_pin(&self) -> Option<Rc<Pin>> {
        Pin::choose(self.leader).map(Rc::new)
    }

    /// Works on the CPU of `pin` from now on.
    pub(crate) fn pin(&mut self, pin: Option<Rc<Pin>>) {
        self.cpu = pin;
    }

    /// What this thread is pinned with, for other tracees.
    pub(crate) fn shared_pin(&self) -> Option<Rc<Pin>> {
        self.cpu.clone()
    }

    /// The registers that a thread starts remote calls from.
    pub(crate) fn base(&self, tid: Tid) -> Result<Registers, ProcError> {
        self.seats.get(&tid).map(|seat| seat.base).ok_or_else(|| {
            ProcError::BadImage(format!("thread {tid} is not one of process {}", self.pid))
        })
    }

    /// The threads, in no particular order.
    pub(crate) fn tids(&self) -> Vec<Tid> {
        self.seats.keys().copied().collect()
    }

    /// The affinity that a thread had before it was pinned for remote calls, as the kernel's bit mask.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn affinity(&self, tid: Tid) -> Result<Vec<u64>, ProcError> {
        match self.seats.get(&tid).and_then(|seat| seat.affinity.clone()) {
            Some(mask) => Ok(mask),
            None => process::affinity(tid.0).map_err(ProcError::ptrace("read affinity", tid)),
        }
    }

    /// Ends the work with the tracee and hands the threads back, in no particular order.
    pub(crate) fn release(mut self) -> Vec<Stopped> {
        self.put_back();
        std::mem::take(&mut self.seats)
            .into_values()
            .map(|seat| seat.thread)
            .collect()
    }

    /// Has a thread of a process under construction (whose ids are ours too) send itself a signal, which may then carry anything, even that it came from the kernel.
    pub(crate) fn queue_signal(&mut self, tid: Tid, info: &RawSiginfo) -> Result<(), ProcError> {
        let scratch = self.scratch.addr;
        self.write(scratch, info)?;
        let number = signal_number(info) as u64;
        let args = [self.pid.0 as u64, tid.0 as u64, number, scratch.0, 0, 0];
        self.syscall_in(tid, "rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo, args)?;
        Ok(())
    }

    /// Puts back what remote calls changed. Errors are not reported: they mean that the thread was killed.
    fn put_back(&mut self) {
        if self.origin == Origin::Frozen && self.scratch.len > 0 {
            let (addr, len) = (self.scratch.addr, self.mapped);
            self.scratch.len = 0;
            // What leads home is unmapped too: only the leader is still away then, and for this one call.
            for seat in self.seats.values_mut().filter(|seat| seat.prepared) {
                if seat.thread.tid() != self.leader
                    && let Err(e) = seat.put_back(self.origin)
                {
                    tracing::debug!(pid = self.pid.0, "putting back: {e}");
                }
            }
            if let Some(leader) = self.seats.get_mut(&self.leader) {
                leader.home = None;
            }
            if let Err(e) = self.syscall("munmap", libc::SYS_munmap, [addr.0, len, 0, 0, 0, 0]) {
                tracing::debug!(pid = self.pid.0, "scratch memory was not unmapped: {e}");
            }
        }
        for seat in self.seats.values_mut().filter(|seat| seat.prepared) {
            if let Err(e) = seat.put_back(self.origin) {
                tracing::debug!(pid = self.pid.0, "putting back: {e}");
            }
        }
        if self.stop_held_back {
            self.stop_held_back = false;
            let _ = process::kill(self.pid.0, libc::SIGSTOP);
        }
        self.cpu = None;
    }
}

impl Drop for Tracee<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}
