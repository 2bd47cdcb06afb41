//! Stopping all threads of one process, and putting everything back.

use crate::error::{Obstacle, ProcError};
use crate::ids::{Pid, RemoteAddr, Tid};
use crate::memory;
use crate::procfs::ProcDir;
use crate::procfs::status::Status;
use crate::ptrace::{Running, Stop, Stopped};
use crate::remote::Tracee;
use crate::seccomp;
use crate::threads::{self, rseq, vfork};
use snapify_sys::process;
use snapify_sys::ptrace::{Registers, RseqConfiguration};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a thread may take to stop. Threads stop within a millisecond; only an uninterruptible wait in the kernel takes
/// longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a thread may stay in vfork(2): children call exec within milliseconds.
const VFORK_PATIENCE: Duration = Duration::from_millis(500);

/// A thread of a frozen process.
#[derive(Debug)]
pub(crate) struct FrozenThread {
    pub(crate) tid: Tid,
    /// Its id in the innermost namespace.
    pub(crate) inner: Tid,
    /// `None` only while a [`Tracee`] works with it.
    stopped: Option<Stopped>,
    /// Registers to go on with.
    pub(crate) registers: Registers,
    pub(crate) mask: u64,
    pub(crate) rseq: Option<RseqConfiguration>,
}

/// A process all of whose threads are stopped. Dropping it lets them go on, unharmed.
///
/// All work must be done by the thread that made it: the kernel takes ptrace requests from no other.
#[derive(Debug)]
pub(crate) struct FrozenProcess {
    /// Its id, or that of one of its threads if the first one has ended.
    pub(crate) pid: Pid,
    pub(crate) proc: ProcDir,
    pub(crate) threads: Vec<FrozenThread>,
    pub(crate) group_stopped: bool,
}

impl FrozenProcess {
    /// Stops all threads of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, it belongs to someone else or is traced already, a thread does not stop, or it runs 32-bit
    /// code. The process then goes on as if nothing had been tried.
    pub(crate) fn freeze(pid: Pid) -> Result<Self, ProcError> {
        Self::stop(pid, Self::stop_all)
    }

    /// Stops the first thread of process `pid` only, for calls whose effect the others do not notice.
    ///
    /// # Errors
    /// As [`Self::freeze`].
    pub(crate) fn freeze_leader(pid: Pid) -> Result<Self, ProcError> {
        Self::stop(pid, |frozen| {
            let leader = pid.leader();
            let running = Running::seize(leader, 0).and_then(|r| r.interrupt().map(|()| r));
            let running = running.map_err(|e| frozen.attach_error(e))?;
            match frozen.collect(vec![running]) {
                None if frozen.threads.is_empty() => Err(ProcError::Died {
                    pid,
                    during: "stopping it",
                }),
                other => other.map_or(Ok(()), Err),
            }
        })
    }

    fn stop(
        pid: Pid,
        stop: impl FnOnce(&mut Self) -> Result<(), ProcError>,
    ) -> Result<Self, ProcError> {
        let proc = ProcDir::open(pid)?;
        let status = proc.status()?;
        refuse_at_once(pid, &status)?;
        let mut frozen = Self {
            pid,
            proc,
            threads: Vec::new(),
            group_stopped: false,
        };
        stop(&mut frozen)?;
        frozen.look()?;
        Ok(frozen)
    }

    /// Stops threads until there are no new ones: a thread that has not stopped yet may create others.
    fn stop_all(&mut self) -> Result<(), ProcError> {
        let mut seen = HashSet::new();
        loop {
            let mut running = Vec::new();
            for tid in self.proc.threads()? {
                if !seen.insert(tid) {
                    continue;
                }
                match Running::seize(tid, 0).and_then(|r| r.interrupt().map(|()| r)) {
                    Ok(thread) => running.push(thread),
                    // It has ended, or is ending: EPERM is the answer for a dead thread too.
                    Err(_) if self.thread_is_gone(tid) => {}
                    Err(e) => {
                        self.collect(running);
                        return Err(self.attach_error(e));
                    }
                }
            }
            if running.is_empty() {
                break;
            }
            self.collect(running).map_or(Ok(()), Err)?;
        }
        let leader = self.pid.leader();
        self.threads
            .sort_by_key(|thread| (thread.tid != leader, thread.tid));
        match self.threads.first() {
            Some(first) if first.tid == leader => {}
            // The first thread has ended. Of that one the kernel shows neither memory nor descriptors any more, and takes no
            // requests: another stands for the process.
            Some(first) => {
                self.pid = Pid(first.tid.0);
                self.proc = ProcDir::open(self.pid)?;
            }
            None => {
                return Err(ProcError::Died {
                    pid: self.pid,
                    during: "stopping its threads",
                });
            }
        }
        Ok(())
    }

    /// Says in words why a process may not be attached to.
    fn attach_error(&self, error: ProcError) -> ProcError {
        if error.errno() != Some(libc::EPERM) {
            return error;
        }
        let why = "the kernel does not allow to trace it: it belongs to another user, has privileges that you lack, or has \
                   forbidden it (PR_SET_DUMPABLE)";
        let obstacle = Obstacle::new(format!("process {}", self.pid), why);
        let obstacle = match yama_hint(Path::new("/proc/sys/kernel/yama/ptrace_scope")) {
            Some(hint) => obstacle.with_hint(hint),
            None => obstacle,
        };
        ProcError::Unsupported {
            pid: self.pid,
            obstacles: vec![obstacle],
        }
    }

    /// Waits for the stops; all of them, even after an error, so that each can be undone.
    fn collect(&mut self, running: Vec<Running>) -> Option<ProcError> {
        let mut error = None;
        for thread in running {
            let tid = thread.tid();
            let limit = if error.is_some() {
                Duration::from_millis(100)
            } else {
                PATIENCE
            };
            match wait_for(thread, limit) {
                Ok(Some((stopped, stop))) => {
                    self.group_stopped |= stop == Stop::Group;
                    self.threads.push(FrozenThread {
                        tid,
                        inner: tid,
                        stopped: Some(stopped),
                        registers: Registers::default(),
                        mask: 0,
                        rseq: None,
                    });
                }
                Ok(None) => {}
                // A thread that does not stop cannot be detached from either. It is released when this process ends,
                // and its pending stop then comes to nothing.
                Err((_, e)) => error = error.or(Some(e)),
            }
        }
        error
    }

    fn thread_is_gone(&self, tid: Tid) -> bool {
        self.proc
            .thread_status(tid)
            .map_or(true, |status| status.is_dead())
    }

    /// Reads what any later step needs, before the first remote call.
    fn look(&mut self) -> Result<(), ProcError> {
        let mut bad = Vec::new();
        for thread in &mut self.threads {
            let stopped = thread.stopped.as_ref().expect("no tracee is at work");
            let registers = match stopped.registers() {
                Ok(registers) => registers,
                Err(ProcError::Ptrace { source, .. })
                    if source.kind() == std::io::ErrorKind::Unsupported =>
                {
                    bad.push(Obstacle::new(
                        format!("thread {}", thread.tid),
                        "it runs 32-bit code",
                    ));
                    continue;
                }
                Err(e) => return Err(e),
            };
            bad.extend(threads::capture::obstacle(stopped));
            thread.rseq = stopped.rseq()?;
            let registers = match &thread.rseq {
                Some(rseq) => rseq::aborted(self.pid, rseq, registers),
                None => registers,
            };
            thread.registers = threads::capture::undisturbed(self.pid, registers);
            thread.mask = stopped.signal_mask()?;
            let status = self.proc.thread_status(thread.tid)?;
            thread.inner = status.inner_tid();
            // The kernel would kill it for the first remote call that its filter does not know.
            if let Some(why) = seccomp::obstacle(&status) {
                bad.push(Obstacle::new(format!("thread {}", thread.tid), why));
            }
        }
        if bad.is_empty() {
            Ok(())
        } else {
            Err(ProcError::Unsupported {
                pid: self.pid,
                obstacles: bad,
            })
        }
    }

    /// How long each of `count` remote system calls (getppid) takes in this process: the unit of cost of saving and restoring.
    ///
    /// # Errors
    /// As [`Self::describe`].
    pub(crate) fn time_remote_calls(&mut self, count: usize) -> Result<Vec<Duration>, ProcError> {
        let instruction = memory::syscall_instruction(self.pid, &self.proc.maps()?)?;
        self.with_tracee(instruction, |tracee, _| {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let begin = Instant::now();
                tracee.syscall("getppid", libc::SYS_getppid, [0; 6])?;
                times.push(begin.elapsed());
            }
            Ok(times)
        })
    }

    /// Lends the threads to a [`Tracee`] and takes them back whatever happens.
    pub(crate) fn with_tracee<T>(
        &mut self,
        instruction: RemoteAddr,
        work: impl FnOnce(&mut Tracee<'_>, &[FrozenThread]) -> Result<T, ProcError>,
    ) -> Result<T, ProcError> {
        let lent = self.lend();
        let (back, result) = match Tracee::of_frozen(self.pid, lent, instruction) {
            Ok(mut tracee) => {
                let result = work(&mut tracee, &self.threads);
                tracing::debug!(pid = self.pid.0, calls = tracee.calls(), "described");
                (tracee.release(), result)
            }
            Err((threads, e)) => (threads, Err(e)),
        };
        self.take_back(back);
        result
    }

    /// As [`Self::with_tracee`], without scratch memory.
    pub(crate) fn with_bare_tracee<T>(
        &mut self,
        instruction: RemoteAddr,
        work: impl FnOnce(&mut Tracee<'_>) -> Result<T, ProcError>,
    ) -> Result<T, ProcError> {
        let mut tracee = Tracee::without_scratch(self.pid, self.lend(), instruction);
        let result = work(&mut tracee);
        self.take_back(tracee.release());
        result
    }

    /// Has thread number `index` go on with these registers.
    ///
    /// # Errors
    /// `ESRCH` if it was killed.
    pub(crate) fn set_registers(
        &mut self,
        index: usize,
        registers: Registers,
    ) -> Result<(), ProcError> {
        let thread = &mut self.threads[index];
        if let Some(stopped) = &thread.stopped {
            stopped.set_registers(&registers)?;
        }
        thread.registers = registers;
        Ok(())
    }

    /// Has thread number `index` go on with these signals blocked.
    ///
    /// # Errors
    /// `ESRCH` if it was killed.
    pub(crate) fn set_mask(&mut self, index: usize, mask: u64) -> Result<(), ProcError> {
        let thread = &mut self.threads[index];
        if let Some(stopped) = &thread.stopped {
            stopped.set_signal_mask(mask)?;
        }
        thread.mask = mask;
        Ok(())
    }

    fn lend(&mut self) -> Vec<(Stopped, Registers)> {
        let lend = |thread: &mut FrozenThread| {
            let stopped = thread.stopped.take();
            let stopped = stopped.unwrap_or_else(|| Stopped::known(thread.tid));
            (stopped, thread.registers)
        };
        self.threads.iter_mut().map(lend).collect()
    }

    fn take_back(&mut self, threads: Vec<Stopped>) {
        let place: HashMap<Tid, usize> = self.threads.iter().map(|t| t.tid).zip(0..).collect();
        for stopped in threads {
            if let Some(&n) = place.get(&stopped.tid()) {
                self.threads[n].stopped = Some(stopped);
            }
        }
    }

    /// Waits until all threads of the process, which has been killed, are gone from the kernel's tables (the process itself
    /// stays a zombie until its parent takes note).
    pub(crate) fn await_end(&mut self) {
        // As their tracer we are told of the end of each thread; the leader's comes last.
        let leader = self.pid.leader();
        let others = self
            .threads
            .drain(..)
            .map(|thread| thread.tid)
            .filter(|&tid| tid != leader);
        for tid in others.chain([leader]).collect::<Vec<_>>() {
            while let Ok(Some((_, status))) = process::wait(tid.0, true) {
                if status.stop_signal().is_none() {
                    break;
                }
            }
        }
    }

    /// Lets the threads go on.
    ///
    /// # Errors
    /// If one could not be let go because it was killed meanwhile.
    pub(crate) fn let_go(&mut self) -> Result<(), ProcError> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let stopped = thread.stopped.unwrap_or_else(|| Stopped::known(thread.tid));
            if let Err((_, e)) = stopped.detach() {
                result = Err(e);
            }
        }
        result
    }
}

impl Drop for FrozenProcess {
    fn drop(&mut self) {
        if let Err(e) = self.let_go() {
            tracing::debug!(pid = self.pid.0, "letting go: {e}");
        }
    }
}

/// Waits for the stop of a thread. One that is in vfork(2) is brought out of it, if it does not come out by itself soon.
fn wait_for(
    thread: Running,
    limit: Duration,
) -> Result<Option<(Stopped, Stop)>, (Running, ProcError)> {
    let thread = match thread.wait_stopped(limit.min(VFORK_PATIENCE)) {
        Err((thread, ProcError::NotStopping { .. })) if limit > VFORK_PATIENCE => thread,
        other => return other,
    };
    let slot = vfork::end_wait(thread.tid()).unwrap_or_else(|error| {
        tracing::debug!("thread {} stays in vfork: {error}", thread.tid());
        None
    });
    let stopped = thread.wait_stopped(limit)?;
    if let (Some((stopped, _)), Some(slot)) = (&stopped, slot) {
        let waits = vfork::wait_on(stopped, slot);
        waits.map_err(|error| (Running::attached(stopped.tid()), error))?;
    }
    Ok(stopped)
}

/// What Yama's setting, which is in the file at `path`, means for whoever may not trace, and the way out.
fn yama_hint(path: &Path) -> Option<&'static str> {
    match std::fs::read_to_string(path).ok()?.trim() {
        "1" => Some(
            "kernel.yama.ptrace_scope is 1: only a parent may trace a program; start it with `snapify run`, save it as root, or \
             have an administrator set it to 0 (sysctl)",
        ),
        "2" => Some(
            "kernel.yama.ptrace_scope is 2: only root may trace; save it as root, or have an administrator set it to 0 (sysctl)",
        ),
        "3" => Some(
            "kernel.yama.ptrace_scope is 3: nobody may trace anything on this system until it is booted with another setting",
        ),
        _ => None,
    }
}

fn refused(pid: Pid, why: &str) -> ProcError {
    ProcError::Unsupported {
        pid,
        obstacles: vec![Obstacle::new(format!("process {pid}"), why)],
    }
}

/// Whether the first thread of a process has ended while others go on.
pub(crate) fn leader_has_ended(pid: Pid) -> bool {
    let status = ProcDir::open(pid).and_then(|proc| proc.status());
    status.is_ok_and(|status| status.is_dead() && status.threads > 1)
}

/// What makes even stopping it impossible or unwise.
fn refuse_at_once(pid: Pid, status: &Status) -> Result<(), ProcError> {
    if pid.0 == std::process::id() as i32 {
        return Err(refused(pid, "it is this program itself"));
    }
    if status.tgid != pid && !leader_has_ended(status.tgid) {
        return Err(refused(
            pid,
            &format!("it is a thread of process {}, not a process", status.tgid),
        ));
    }
    if status.kernel_thread {
        return Err(refused(pid, "it is a thread of the kernel"));
    }
    if status.is_dead() && status.threads <= 1 {
        return Err(refused(pid, "it has ended"));
    }
    if status.tracer != 0 {
        return Err(refused(
            pid,
            &format!("it is being traced by process {}", status.tracer),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_yama_has_its_hint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ptrace_scope");
        assert_eq!(yama_hint(&path), None);
        std::fs::write(&path, "0\n").unwrap();
        assert_eq!(yama_hint(&path), None);
        for scope in ["1", "2", "3"] {
            std::fs::write(&path, format!("{scope}\n")).unwrap();
            let hint = yama_hint(&path).unwrap();
            assert!(hint.contains(&format!("ptrace_scope is {scope}")), "{hint}");
        }
    }
}
