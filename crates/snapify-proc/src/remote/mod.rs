//! System calls in a stopped tracee, made from outside with a `syscall` instruction: one that is found in it and single-stepped over;
//! and, once there is scratch memory in a running program, one there, behind which lies the [way home](home) should this process be
//! killed. The scratch memory is gone before the program goes on.
//!
//! A step costs 4 to 10 us if tracer and tracee share a CPU and ten times that if not, so a [`Tracee`]
//! pins itself and each thread it works in to one CPU and gives the affinities back when it is dropped.
//!
//! Kernel corner cases that are handled here:
//! - `orig_rax` is -1 during a remote call, or the kernel would take the registers for those of an interrupted
//!   call and "restart" it;
//! - signals are masked meanwhile, but for SIGTRAP (see [`Stopped::step`]); SIGSTOP cannot be masked, so it is held back and sent
//!   again at the end;
//! - a stop that had been asked for, or a group-stop, may come before the step: the step is repeated.

pub(crate) mod code;
mod headroom;
mod home;
mod pin;
mod seat;

pub(crate) use pin::{Pin, unpinned};

use crate::abi::Pod;
use crate::error::ProcError;
use crate::ids::{Pid, RemoteAddr, Tid};
use crate::ptrace::{Step, Stopped, signal_number};
use headroom::Headroom;
use seat::{Origin, Seat};
use snapify_sys::clone::CloneArgs;
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

/// The signals that are blocked during remote calls: all but SIGTRAP, see [`Stopped::step`].
pub(crate) const MASK: u64 = !(1 << (libc::SIGTRAP - 1));

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

    /// Makes a system call in the leader.
    ///
    /// # Errors
    /// The kernel's error as [`ProcError::RemoteSyscall`]; [`ProcError::Died`] if the process was killed.
    pub fn syscall(
        &mut self,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
    ) -> Result<u64, ProcError> {
        self.syscall_in(self.leader, name, nr, args)
    }

    /// Makes a system call in thread `tid`.
    ///
    /// # Errors
    /// As [`Self::syscall`].
    pub fn syscall_in(
        &mut self,
        tid: Tid,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
    ) -> Result<u64, ProcError> {
        match self.home(tid) {
            Some(slot) => self.call_from(slot, tid, name, nr, args),
            None => self.step_over(tid, name, nr, args, 0),
        }
    }

    /// Makes a call with the `syscall` instruction at `instruction`, stopping at its entry and its exit.
    fn call_from(
        &mut self,
        instruction: RemoteAddr,
        tid: Tid,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
    ) -> Result<u64, ProcError> {
        let wanted = call_registers(instruction, nr, args, 0);
        let mut at_exit = true;
        let value = self.execute(tid, wanted, Stopped::run_to_call, |thread| {
            at_exit = !at_exit;
            if !at_exit {
                return Ok(None);
            }
            // A call that something has interrupted is about to be made again.
            let value = thread.result_register()?;
            Ok((!(-516..=-512).contains(&(value as i64))).then_some(value))
        })?;
        self.result(name, value)
    }

    /// Makes a fork in the leader: `clone3` with the arguments at `args`. Should the child ever run untraced, because this process was
    /// killed while it was being made, then it ends, or has the trap flag set and dies at its first instruction.
    pub(crate) fn fork(&mut self, args: RemoteAddr) -> Result<u64, ProcError> {
        let call = [args.0, size_of::<CloneArgs>() as u64, 0, 0, 0, 0];
        let (tid, nr) = (self.leader, libc::SYS_clone3);
        match self.home(tid) {
            Some(slot) => self.call_from(home::fork_entry(slot), tid, "clone3", nr, call),
            None => self.step_over(tid, "clone3", nr, call, TRAP_FLAG),
        }
    }

    fn home(&self, tid: Tid) -> Option<RemoteAddr> {
        self.seats.get(&tid).and_then(|seat| seat.home)
    }

    /// Makes a call by a single step, with these flags set besides.
    fn step_over(
        &mut self,
        tid: Tid,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
        eflags: u64,
    ) -> Result<u64, ProcError> {
        let instruction = self.instruction;
        let wanted = call_registers(instruction, nr, args, eflags);
        let value = self.execute(tid, wanted, Stopped::step, |thread| {
            // The result is seldom the call's own number: only then is it worth asking for more.
            let value = thread.result_register()?;
            let done = value != nr as u64 || thread.registers()?.rip != instruction.0;
            Ok(done.then_some(value))
        })?;
        self.result(name, value)
    }

    fn result(&self, name: &'static str, value: u64) -> Result<u64, ProcError> {
        let signed = value as i64;
        if (-4095..0).contains(&signed) {
            return Err(ProcError::RemoteSyscall {
                name,
                pid: self.pid,
                source: io::Error::from_raw_os_error(-signed as i32),
            });
        }
        Ok(value)
    }

    /// Executes the instruction at `wanted.rip` in thread `tid`; returns where the thread goes on.
    pub(crate) fn step_from(
        &mut self,
        tid: Tid,
        wanted: Registers,
    ) -> Result<RemoteAddr, ProcError> {
        self.execute(tid, wanted, Stopped::step, |thread| {
            let rip = thread.registers()?.rip;
            Ok((rip != wanted.rip).then_some(RemoteAddr(rip)))
        })
    }

    /// Goes on in thread `tid` with the given rip, rax, argument registers and further flags, all others as in the thread's own
    /// registers, by as many times `advance` as `done` asks for: a stop that had been asked for, or a trap that was not ours, may come first.
    fn execute<T>(
        &mut self,
        tid: Tid,
        wanted: Registers,
        advance: impl Fn(&mut Stopped) -> Result<Step, ProcError>,
        mut done: impl FnMut(&Stopped) -> Result<Option<T>, ProcError>,
    ) -> Result<T, ProcError> {
        let pid = self.pid;
        let origin = self.origin;
        self.calls += 1;
        let seat = self.seats.get_mut(&tid).ok_or_else(|| {
            ProcError::BadImage(format!("thread {tid} is not one of process {pid}"))
        })?;
        if !seat.prepared {
            seat.prepare(self.cpu.as_deref(), origin)?;
        }
        let registers = Registers {
            rip: wanted.rip,
            rax: wanted.rax,
            rdi: wanted.rdi,
            rsi: wanted.rsi,
            rdx: wanted.rdx,
            r10: wanted.r10,
            r8: wanted.r8,
            r9: wanted.r9,
            orig_rax: u64::MAX,
            eflags: seat.base.eflags & !TRAP_FLAG | wanted.eflags,
            ..seat.base
        };
        let died = |error| match error {
            ProcError::Died { .. } => ProcError::Died {
                pid,
                during: "a remote system call",
            },
            other => other,
        };
        seat.thread.set_registers(&registers)?;
        loop {
            match advance(&mut seat.thread).map_err(died)? {
                Step::Done => {
                    if let Some(result) = done(&seat.thread)? {
                        return Ok(result);
                    }
                }
                Step::HeldBack(signal) if is_fault(signal) => {
                    return Err(ProcError::System {
                        what: format!("execute an instruction in process {pid}"),
                        source: io::Error::other(format!("it was answered by signal {signal}")),
                    });
                }
                Step::HeldBack(_) => self.stop_held_back = true,
                Step::Event(_) => {}
            }
        }
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

/// The registers that a call needs; of the others nothing is said.
fn call_registers(instruction: RemoteAddr, nr: i64, args: [u64; 6], eflags: u64) -> Registers {
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    Registers {
        rip: instruction.0,
        rax: nr as u64,
        rdi,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        eflags,
        ..Registers::default()
    }
}

/// Whether a signal says that an instruction could not be executed: it would come again and again.
fn is_fault(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE
    )
}

impl Drop for Tracee<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}
