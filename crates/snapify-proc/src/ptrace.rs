//! A thread under ptrace, as a type-state: [`Running`] (attached) becomes [`Stopped`], and only a
//! stopped one can be looked at, stepped and let go.

use crate::error::ProcError;
use crate::ids::Tid;
use snapify_sys::process::{self, WaitStatus, wait, wait_alone};
use snapify_sys::ptrace::{self as sys, RawSiginfo, Registers, RseqConfiguration};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// An attached thread that has not been stopped, or not been seen to be.
#[derive(Debug)]
pub struct Running {
    tid: Tid,
}

/// Why a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Stopped by our request.
    Requested,
    /// Group-stopped: job control has stopped the process, and a later detach keeps it stopped.
    Group,
}

/// A thread in a ptrace-stop.
#[derive(Debug)]
pub struct Stopped {
    tid: Tid,
    /// Whether other threads of the process that it leads may be traced: its end is reported after theirs only.
    leads_others: bool,
}

/// The number of a signal for a program, in the first bytes of its siginfo.
#[must_use]
pub fn signal_number(info: &RawSiginfo) -> i32 {
    i32::from_ne_bytes([info[0], info[1], info[2], info[3]])
}

/// A signal in a mask.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl Running {
    /// Attaches to a thread without stopping it (`PTRACE_SEIZE`).
    ///
    /// # Errors
    /// `EPERM` if the thread belongs to someone else, is traced already or has ended; `ESRCH` if it is gone.
    pub fn seize(tid: Tid, options: u64) -> Result<Self, ProcError> {
        let options = options | sys::OPTION_SYSGOOD;
        sys::seize(tid.0, options).map_err(ProcError::ptrace("attach", tid))?;
        Ok(Self { tid })
    }

    /// A thread that a tracee created with thread tracing on: it is attached and about to stop.
    pub(crate) fn attached(tid: Tid) -> Self {
        Self { tid }
    }

    /// Asks the thread to stop.
    ///
    /// # Errors
    /// `ESRCH` if it has ended.
    pub fn interrupt(&self) -> Result<(), ProcError> {
        sys::interrupt(self.tid.0).map_err(ProcError::ptrace("interrupt", self.tid))
    }

    /// The thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Waits until the thread stops as it was asked to; `None` if it ended instead.
    ///
    /// If it is about to take a signal, it is let do so: it then stops before the first instruction of the handler, with its
    /// registers as the kernel has set them up. The kernel would otherwise have to be given the signal when the thread is
    /// let go, which it takes only in the very stop in which it reported it. The same goes for a fault that the request has come before.
    ///
    /// # Errors
    /// [`ProcError::NotStopping`] after `limit`: a thread that waits uninterruptibly in the kernel
    /// (a dead network file system, vfork) does not stop.
    pub fn wait_stopped(
        self,
        limit: Duration,
    ) -> Result<Option<(Stopped, Stop)>, (Self, ProcError)> {
        let tid = self.tid;
        loop {
            let status = match wait_within(tid, limit) {
                Ok(Some(status)) => status,
                Ok(None) => {
                    let error = ProcError::NotStopping {
                        tid,
                        seconds: limit.as_secs(),
                        state: state_letter(tid).unwrap_or('?'),
                    };
                    return Err((self, error));
                }
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
                Err(e) => return Err((self, ProcError::ptrace("wait", tid)(e))),
            };
            let stop = match (status.stop_signal(), status.event()) {
                (None, _) => return Ok(None),
                (Some(signal), 0) => match go_on_with(tid, signal) {
                    Ok(()) => continue,
                    Err(e) => return Err((self, e)),
                },
                (Some(libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU), _) => {
                    Stop::Group
                }
                (Some(_), _) => match has_fault(tid) {
                    Ok(false) => Stop::Requested,
                    // It is reported before anything is executed.
                    Ok(true) => match go_on_with(tid, 0) {
                        Ok(()) => continue,
                        Err(e) => return Err((self, e)),
                    },
                    Err(e) => return Err((self, e)),
                },
            };
            return Ok(Some((Stopped::known(tid), stop)));
        }
    }
}

/// Lets a thread go on from a stop, with a signal or none (0). A signal that it takes leads to another request to stop, as the one
/// before may have been answered already.
fn go_on_with(tid: Tid, signal: i32) -> Result<(), ProcError> {
    let go_on = || {
        if signal != 0 {
            sys::interrupt(tid.0)?;
        }
        sys::resume(tid.0, signal)
    };
    match go_on() {
        // Killed; the next wait tells.
        Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(ProcError::ptrace("resume", tid)(e)),
        _ => Ok(()),
    }
}

/// The signals that an instruction of the program can cause.
pub(crate) const FAULTS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGFPE,
    libc::SIGSYS,
];

/// Whether the thread is about to take a signal that an instruction of its own has caused. What its handler is told of the cause beyond the
/// siginfo (`REG_CR2`, `REG_ERR`, `REG_TRAPNO`) is in the kernel only, where nothing can be put back.
fn has_fault(tid: Tid) -> Result<bool, ProcError> {
    let stopped = Stopped::known(tid);
    let look = || {
        let pending = stopped.pending_signals(false)?;
        let mut faults = pending.iter().map(signal_number);
        let Some(signal) = faults.find(|signal| FAULTS.contains(signal)) else {
            return Ok(false);
        };
        Ok(stopped.signal_mask()? & 1 << (signal - 1) == 0)
    };
    match look() {
        // Killed; whoever goes on with it learns of it.
        Err(ProcError::Ptrace { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => {
            Ok(false)
        }
        other => other,
    }
}

/// Waits for `tid` to change state. No descriptor reports a ptrace-stop, and SIGCHLD belongs to the
/// program that uses this library, so this polls: threads stop within microseconds of being asked,
/// and the few that do not are looked at every quarter of a millisecond.
///
/// The end of a thread-group leader is reported only once its other threads have been reaped, and those that we trace are
/// ours to reap: such a leader is answered for with `ECHILD`, as a thread that is gone.
fn wait_within(tid: Tid, limit: Duration) -> io::Result<Option<WaitStatus>> {
    let begin = Instant::now();
    let mut rounds = 0_u32;
    loop {
        if let Some((_, status)) = wait(tid.0, false)? {
            return Ok(Some(status));
        }
        rounds += 1;
        if rounds < 200 {
            std::thread::yield_now();
        } else if begin.elapsed() > limit {
            return Ok(None);
        } else {
            std::thread::sleep(Duration::from_micros(250));
            if rounds.is_multiple_of(16) && state_letter(tid) == Some('Z') {
                // Unless it has just become one.
                let reported = wait(tid.0, false)?.map(|(_, status)| status);
                let gone = || io::Error::from_raw_os_error(libc::ECHILD);
                return reported.map(Some).ok_or_else(gone);
            }
        }
    }
}

fn state_letter(tid: Tid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// What a single step ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The instruction was executed, or the call reached.
    Done,
    /// A signal that cannot be blocked (SIGSTOP) was about to be delivered; it has been held back.
    HeldBack(i32),
    /// An event of ptrace: a new thread, or a stop that had been asked for. The instruction has
    /// perhaps not been executed yet.
    Event(i32),
}

impl Stopped {
    /// A thread that is known to be stopped, when the token for it was lost in an unwinding.
    pub(crate) fn known(tid: Tid) -> Self {
        Self {
            tid,
            leads_others: true,
        }
    }

    /// Tells whether it leads other threads that are traced.
    pub(crate) fn set_leads_others(&mut self, leads_others: bool) {
        self.leads_others = leads_others;
    }

    /// Waits for the thread to stop again; `None` if it is gone.
    fn wait(&self) -> Result<Option<WaitStatus>, ProcError> {
        // Waiting for this thread alone is much cheaper where there are many.
        let waited = match self.leads_others {
            true => wait(self.tid.0, true).map(|waited| waited.map(|(_, status)| status)),
            false => wait_alone(self.tid.0).map(Some),
        };
        waited.map_err(ProcError::ptrace("wait", self.tid))
    }

    /// The thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Sets the options of ptrace (`PTRACE_O_*`), in place of those it had. As at [`Running::seize`], stops at system calls are
    /// told from others.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub(crate) fn set_options(&self, options: u64) -> Result<(), ProcError> {
        let options = options | sys::OPTION_SYSGOOD;
        sys::set_options(self.tid.0, options).map_err(ProcError::ptrace("set options", self.tid))
    }

    /// The general-purpose registers.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed; [`io::ErrorKind::Unsupported`] if it runs 32-bit code.
    pub fn registers(&self) -> Result<Registers, ProcError> {
        sys::registers(self.tid.0).map_err(ProcError::ptrace("read registers", self.tid))
    }

    /// The register that holds the result of a system call.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn result_register(&self) -> Result<u64, ProcError> {
        sys::result_register(self.tid.0).map_err(ProcError::ptrace("read a register", self.tid))
    }

    /// Sets the general-purpose registers.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn set_registers(&self, registers: &Registers) -> Result<(), ProcError> {
        sys::set_registers(self.tid.0, registers)
            .map_err(ProcError::ptrace("set registers", self.tid))
    }

    /// The extended state (x87, SSE, AVX, AVX-512, AMX) in the kernel's own size.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn extended_state(&self) -> Result<Vec<u8>, ProcError> {
        sys::register_set(self.tid.0, sys::NT_X86_XSTATE)
            .map_err(ProcError::ptrace("read extended state", self.tid))
    }

    /// Sets the extended state.
    ///
    /// # Errors
    /// `EINVAL`/`EFAULT` if this machine's state is of another form.
    pub fn set_extended_state(&self, state: &[u8]) -> Result<(), ProcError> {
        sys::set_register_set(self.tid.0, sys::NT_X86_XSTATE, state)
            .map_err(ProcError::ptrace("set extended state", self.tid))
    }

    /// Whether the thread has a user-mode shadow stack in use.
    #[must_use]
    pub fn has_shadow_stack(&self) -> bool {
        // ENODEV where the kernel or machine has none, or the thread has not enabled it.
        sys::register_set(self.tid.0, sys::NT_X86_SHSTK).is_ok()
    }

    /// The mask of blocked signals.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn signal_mask(&self) -> Result<u64, ProcError> {
        sys::signal_mask(self.tid.0).map_err(ProcError::ptrace("read signal mask", self.tid))
    }

    /// Sets the mask of blocked signals.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn set_signal_mask(&self, mask: u64) -> Result<(), ProcError> {
        sys::set_signal_mask(self.tid.0, mask)
            .map_err(ProcError::ptrace("set signal mask", self.tid))
    }

    /// The signals queued for this thread, or for its whole process.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn pending_signals(&self, shared: bool) -> Result<Vec<RawSiginfo>, ProcError> {
        sys::pending_signals(self.tid.0, shared)
            .map_err(ProcError::ptrace("read pending signals", self.tid))
    }

    /// The restartable-sequence registration; none in a kernel without it.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub fn rseq(&self) -> Result<Option<RseqConfiguration>, ProcError> {
        match sys::rseq_configuration(self.tid.0) {
            Ok(configuration) if configuration.pointer == 0 => Ok(None),
            Ok(configuration) => Ok(Some(configuration)),
            Err(e) if e.raw_os_error() == Some(libc::EIO) => Ok(None),
            Err(e) => Err(ProcError::ptrace("read rseq registration", self.tid)(e)),
        }
    }

    /// Executes one instruction of a process under construction, with all signals masked but SIGTRAP.
    ///
    /// That one must not be: the kernel reports the end of a step by forcing a SIGTRAP on the thread, and if it is blocked or
    /// ignored, unblocks it and sets its disposition back to the default.
    ///
    /// # Errors
    /// [`ProcError::Died`] if the thread was killed.
    pub fn step(&mut self) -> Result<Step, ProcError> {
        self.advance(sys::single_step, libc::SIGTRAP)
    }

    /// Goes on to the next entry or exit of a system call. If the tracer is killed meanwhile, the thread simply goes on.
    ///
    /// # Errors
    /// [`ProcError::Died`] if the thread was killed.
    pub fn run_to_call(&mut self) -> Result<Step, ProcError> {
        self.advance(sys::resume_to_call, sys::CALL_STOP)
    }

    fn advance(
        &mut self,
        resume: impl FnOnce(i32) -> io::Result<()>,
        done: i32,
    ) -> Result<Step, ProcError> {
        let died = |tid: Tid| ProcError::Died {
            pid: crate::ids::Pid(tid.0),
            during: "a remote system call",
        };
        match resume(self.tid.0) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Err(died(self.tid)),
            Err(e) => return Err(ProcError::ptrace("advance", self.tid)(e)),
        }
        let Some(status) = self.wait()? else {
            return Err(died(self.tid));
        };
        match (status.stop_signal(), status.event()) {
            (None, _) => Err(died(self.tid)),
            (Some(signal), 0) if signal == done => Ok(Step::Done),
            (Some(signal), 0) => Ok(Step::HeldBack(signal)),
            (Some(_), event) => Ok(Step::Event(event)),
        }
    }

    /// Moves a thread that has been stepped to a stop of the kind that a request leads to, without letting it execute anything.
    ///
    /// If the tracer is killed, the kernel lets its tracees go; but one that has been stepped goes on stepping (only a detach
    /// undoes that), and dies of SIGTRAP at its next instruction.
    ///
    /// # Errors
    /// [`ProcError::Died`] if the thread was killed.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), ProcError> {
        // The request is pending when the thread is resumed, so that it stops again before it returns to user mode.
        sys::interrupt(self.tid.0).map_err(ProcError::ptrace("interrupt", self.tid))?;
        loop {
            sys::resume(self.tid.0, 0).map_err(ProcError::ptrace("resume", self.tid))?;
            let Some(status) = self.wait()? else {
                continue;
            };
            match (status.stop_signal(), status.event()) {
                (None, _) => {
                    return Err(ProcError::Died {
                        pid: crate::ids::Pid(self.tid.0),
                        during: "its stop",
                    });
                }
                // A signal may come first only if it cannot be masked: SIGSTOP, which is sent again when all is done.
                (Some(_), 0) => {}
                (Some(_), _) => return Ok(()),
            }
        }
    }

    /// Has job control stop the process, of which this is the only thread, by a signal whose action is the default one, without letting it
    /// execute anything. It is then still traced, and works as before; let go, it stays stopped.
    ///
    /// Where the kernel ignores the signal, because the process group is orphaned (setpgid(2)), it is SIGSTOP that stops it.
    ///
    /// # Errors
    /// [`ProcError::Died`] if the thread was killed.
    pub(crate) fn stop_group(&mut self, signal: i32) -> Result<(), ProcError> {
        let mask = self.signal_mask()?;
        self.set_signal_mask(mask & !bit(signal))?;
        let stopped = match self.stop_by(signal)? {
            true => Ok(()),
            false => self.stop_by(libc::SIGSTOP).map(drop),
        };
        self.set_signal_mask(mask)?;
        stopped
    }

    /// Sends SIGSTOP, which comes in any case, and makes another signal of it when it is delivered. False if that did not stop the process.
    fn stop_by(&mut self, signal: i32) -> Result<bool, ProcError> {
        self.send(libc::SIGSTOP)?;
        self.resume_until(libc::SIGSTOP)?;
        // If it is ignored, the thread must stop before its next instruction all the same.
        sys::interrupt(self.tid.0).map_err(ProcError::ptrace("interrupt", self.tid))?;
        let mut status = self.resume_and_wait(signal)?;
        while status.event() == 0 {
            status = self.resume_and_wait(0)?;
        }
        Ok(status.stop_signal() == Some(signal))
    }

    /// Has job control continue the process, of which this is the only thread and which is stopped, without letting it execute anything.
    /// No handler is run.
    ///
    /// # Errors
    /// [`ProcError::Died`] if the thread was killed.
    pub(crate) fn continue_group(&mut self) -> Result<(), ProcError> {
        let mask = self.signal_mask()?;
        self.set_signal_mask(mask & !bit(libc::SIGCONT))?;
        self.send(libc::SIGCONT)?;
        self.resume_until(libc::SIGCONT)?;
        self.come_to_rest()?;
        self.set_signal_mask(mask)
    }

    /// Lets the thread go on until this signal, which it has been sent, is about to be delivered; other stops may come first.
    fn resume_until(&self, signal: i32) -> Result<(), ProcError> {
        loop {
            let status = self.resume_and_wait(0)?;
            if status.stop_signal() == Some(signal) && status.event() == 0 {
                return Ok(());
            }
        }
    }

    fn send(&self, signal: i32) -> Result<(), ProcError> {
        let what = format!("send signal {signal} to process {}", self.tid);
        process::kill(self.tid.0, signal).map_err(ProcError::system(what))
    }

    /// Lets the thread go on, with this signal if it has stopped because of one, to its next stop.
    fn resume_and_wait(&self, signal: i32) -> Result<WaitStatus, ProcError> {
        sys::resume(self.tid.0, signal).map_err(ProcError::ptrace("resume", self.tid))?;
        loop {
            match self.wait()? {
                Some(status) if status.stop_signal().is_some() => return Ok(status),
                Some(_) => {
                    return Err(ProcError::Died {
                        pid: crate::ids::Pid(self.tid.0),
                        during: "its stop",
                    });
                }
                None => {}
            }
        }
    }

    /// Lets the thread go.
    ///
    /// # Errors
    /// `ESRCH` if it was killed.
    pub fn detach(self) -> Result<(), (Self, ProcError)> {
        match sys::detach(self.tid.0) {
            Ok(()) => Ok(()),
            Err(e) => {
                let tid = self.tid;
                Err((self, ProcError::ptrace("detach", tid)(e)))
            }
        }
    }
}
