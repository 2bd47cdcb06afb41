//! How a system call is made: from one stop at a call to the next (`PTRACE_SYSCALL`), or in a process under construction by a single
//! step, which is a stop less.
//!
//! The program notices nothing of the former. The end of a step is told by a SIGTRAP that the kernel forces on the thread: if the
//! signal is blocked or ignored, it is unblocked and gets its default disposition, and one that is pending cannot be told from it.
//! With SIGTRAP unblocked for that, the kernel also delivers signals of the kind that faults lead to, though they are blocked
//! themselves (`dequeue_synchronous_signal`).
//!
//! A call that is made where there is no way home has the trap flag set: should this process be killed in the middle of it, the
//! thread dies at the next instruction, before it does harm with registers that are not its own.

use super::{TRAP_FLAG, Tracee, home};
use crate::error::ProcError;
use crate::ids::{RemoteAddr, Tid};
use crate::ptrace::{FAULTS, Step, Stopped};
use snapify_sys::clone::CloneArgs;
use snapify_sys::ptrace::Registers;
use std::io;

/// The signals that are blocked during remote calls: all, but for SIGTRAP where they are made by steps.
pub(super) fn mask(steps: bool) -> u64 {
    match steps {
        true => !(1 << (libc::SIGTRAP - 1)),
        false => u64::MAX,
    }
}

impl Tracee<'_> {
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
        let wanted = match self.home(tid) {
            Some(slot) => call_registers(slot, nr, args, 0),
            None if self.steps => call_registers(self.instruction, nr, args, 0),
            None => self.without_home(nr, args),
        };
        self.call(tid, name, wanted)
    }

    /// Makes a fork in the leader: `clone3` with the arguments at `args`. Should the child ever run untraced, because this process was
    /// killed while it was being made, then it ends, or has the trap flag set and dies at its first instruction.
    pub(crate) fn fork(&mut self, args: RemoteAddr) -> Result<u64, ProcError> {
        let call = [args.0, size_of::<CloneArgs>() as u64, 0, 0, 0, 0];
        let nr = libc::SYS_clone3;
        let wanted = match self.home(self.leader) {
            Some(slot) => call_registers(home::fork_entry(slot), nr, call, 0),
            None => self.without_home(nr, call),
        };
        self.call(self.leader, "clone3", wanted)
    }

    /// From now on no steps are made in a process under construction, for one to which SIGTRAP means something.
    ///
    /// # Errors
    /// If a thread was killed.
    pub(crate) fn end_steps(&mut self) -> Result<(), ProcError> {
        self.steps = false;
        let mask = mask(self.steps);
        let mut seats = self.seats.values();
        seats.try_for_each(|seat| seat.thread.set_signal_mask(mask))
    }

    /// Brings the threads of a process under construction, after the last call, to a stop from which the kernel deals with an interrupted
    /// call in their registers: it does not at the exit of a call.
    ///
    /// # Errors
    /// If a thread was killed.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), ProcError> {
        if self.steps {
            return Ok(());
        }
        let mut seats = self.seats.values_mut();
        seats.try_for_each(|seat| seat.thread.come_to_rest())
    }

    fn home(&self, tid: Tid) -> Option<RemoteAddr> {
        self.seats.get(&tid).and_then(|seat| seat.home)
    }

    fn without_home(&self, nr: i64, args: [u64; 6]) -> Registers {
        call_registers(self.instruction, nr, args, TRAP_FLAG)
    }

    fn call(&mut self, tid: Tid, name: &'static str, wanted: Registers) -> Result<u64, ProcError> {
        let value = match self.steps {
            true => self.step_over(tid, wanted),
            false => self.run_over(tid, wanted),
        }?;
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

    /// Executes the `syscall` instruction at `wanted.rip`, with a stop at the entry and one at the exit of the call.
    fn run_over(&mut self, tid: Tid, wanted: Registers) -> Result<u64, ProcError> {
        let mut at_exit = true;
        self.execute(tid, wanted, Stopped::run_to_call, |thread| {
            at_exit = !at_exit;
            if !at_exit {
                return Ok(None);
            }
            // A call that something has interrupted is about to be made again.
            let value = thread.result_register()?;
            Ok((!(-516..=-512).contains(&(value as i64))).then_some(value))
        })
    }

    /// Executes the `syscall` instruction at `wanted.rip` by a single step.
    fn step_over(&mut self, tid: Tid, wanted: Registers) -> Result<u64, ProcError> {
        self.execute(tid, wanted, Stopped::step, |thread| {
            // The result is seldom the call's own number: only then is it worth asking for more.
            let value = thread.result_register()?;
            let done = value != wanted.rax || thread.registers()?.rip != wanted.rip;
            Ok(done.then_some(value))
        })
    }

    /// Executes the instruction at `wanted.rip` in thread `tid` of a process under construction; returns where the thread goes on.
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
        let (origin, mask) = (self.origin, mask(self.steps));
        self.calls += 1;
        let seat = self.seats.get_mut(&tid).ok_or_else(|| {
            ProcError::BadImage(format!("thread {tid} is not one of process {pid}"))
        })?;
        if !seat.prepared {
            seat.prepare(self.cpu.as_deref(), origin, mask)?;
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
                // An instruction could not be executed: it would come again and again.
                Step::HeldBack(signal) if FAULTS.contains(&signal) => {
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
