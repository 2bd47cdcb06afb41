//! Stopping all threads of a process, and putting everything back.

use crate::capture::{CaptureContext, Objects};
use crate::error::{Obstacle, ProcError};
use crate::external::External;
use crate::ids::{Pid, RemoteAddr, Tid};
use crate::image::{IMAGE_VERSION, ProcessImage};
use crate::ipc::IpcImage;
use crate::memory::{self, Ranges};
use crate::procfs::ProcDir;
use crate::procfs::status::Status;
use crate::ptrace::{Running, Stop, Stopped};
use crate::remote::Tracee;
use crate::threads::{self, rseq};
use crate::{check, clocks, context, files, ipc, signals, timers};
use snapify_store::{PageFileSummary, Progress};
use snapify_sys::process;
use snapify_sys::ptrace::{Registers, RseqConfiguration};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::time::{Duration, Instant};

/// How long a thread may take to stop. Threads stop within a millisecond; only an uninterruptible wait in the kernel takes
/// longer.
const PATIENCE: Duration = Duration::from_secs(10);

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
pub struct Frozen {
    pid: Pid,
    proc: ProcDir,
    threads: Vec<FrozenThread>,
    group_stopped: bool,
    described: Option<Described>,
}

#[derive(Debug)]
struct Described {
    ranges: Ranges,
    objects: Objects,
}

impl Frozen {
    /// Stops all threads of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, it belongs to someone else or is traced already, a thread does not stop, or it runs 32-bit
    /// code. The process then goes on as if nothing had been tried.
    pub fn freeze(pid: Pid) -> Result<Self, ProcError> {
        let proc = ProcDir::open(pid)?;
        let status = proc.status()?;
        refuse_at_once(pid, &status)?;
        let mut frozen = Self {
            pid,
            proc,
            threads: Vec::new(),
            group_stopped: false,
            described: None,
        };
        frozen.stop_all()?;
        frozen.look()?;
        Ok(frozen)
    }

    /// The process as this process sees it.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Its threads as this process sees them, the leader first.
    pub fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.iter().map(|thread| thread.tid)
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
            Some(first) if first.tid == leader => Ok(()),
            Some(_) => {
                Err(self
                    .refused("its first thread has ended while others run, which is not supported"))
            }
            None => Err(ProcError::Died {
                pid: self.pid,
                during: "stopping its threads",
            }),
        }
    }

    /// Says in words why a process may not be attached to.
    fn attach_error(&self, error: ProcError) -> ProcError {
        if error.errno() != Some(libc::EPERM) {
            return error;
        }
        let yama =
            std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        let why = "the kernel does not allow to trace it: it belongs to another user, has privileges that you lack, or has \
                   forbidden it (PR_SET_DUMPABLE)";
        let obstacle = Obstacle::new(format!("process {}", self.pid), why);
        let obstacle = match yama.trim() {
            "1" => obstacle.with_hint(
                "kernel.yama.ptrace_scope is 1: only the parent of a program may trace it",
            ),
            "2" | "3" => {
                obstacle.with_hint("kernel.yama.ptrace_scope forbids tracing on this system")
            }
            _ => obstacle,
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
            match thread.wait_stopped(limit) {
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
            // What a step does to it could not be undone, see Stopped::step.
            const TRAP: u64 = 1 << (libc::SIGTRAP - 1);
            if (status.ignored | status.pending | status.shared_pending) & TRAP != 0 {
                bad.push(Obstacle::new(
                    format!("thread {}", thread.tid),
                    "it ignores SIGTRAP, or blocks one that is pending",
                ));
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

    fn refused(&self, why: &str) -> ProcError {
        refused(self.pid, why)
    }

    /// Describes the process. Objects in `externals` are recorded, not saved.
    ///
    /// # Errors
    /// [`ProcError::Unsupported`] with everything that stands in the way; [`ProcError::Died`] if it is killed
    /// meanwhile. Otherwise it stays frozen.
    pub fn describe(&mut self, externals: &[External]) -> Result<ProcessImage, ProcError> {
        let result = self.describe_living(externals);
        self.tell_death(result, "its description")
    }

    /// A process that is killed makes any call on it fail, in many ways: they all mean this.
    fn tell_death<T>(
        &self,
        result: Result<T, ProcError>,
        during: &'static str,
    ) -> Result<T, ProcError> {
        result.map_err(|error| {
            let dead = self.proc.status().map_or(true, |status| status.is_dead());
            if dead && !matches!(error, ProcError::Cancelled) {
                ProcError::Died {
                    pid: self.pid,
                    during,
                }
            } else {
                error
            }
        })
    }

    fn describe_living(&mut self, externals: &[External]) -> Result<ProcessImage, ProcError> {
        let proc = ProcDir::open(self.pid)?;
        let maps = proc.smaps()?;
        let status = proc.status()?;
        let threads: Vec<(Tid, Tid)> = self.threads.iter().map(|t| (t.tid, t.inner)).collect();
        let ctx = CaptureContext {
            pid: self.pid,
            proc: &proc,
            status: &status,
            maps: &maps,
            threads: &threads,
            externals,
            objects: RefCell::default(),
            obstacles: RefCell::default(),
        };
        ctx.obstacles.borrow_mut().extend(check::frozen(&ctx)?);
        let instruction = memory::syscall_instruction(self.pid, &maps)?;
        let (image, ranges) = self.with_tracee(instruction, |tracee, frozen| {
            let mut images = Vec::with_capacity(frozen.len());
            for thread in frozen {
                images.push(threads::capture::capture(tracee, ctx.proc, thread)?);
            }
            images[0].extended_permission = threads::capture::extended_permission(tracee)?;
            let signals = signals::capture(tracee, &ctx)?;
            let timers = timers::capture(tracee, &ctx)?;
            let mut context = context::capture(tracee, &ctx)?;
            // Before the memory: a removed file that is open and mapped is read through its descriptor.
            let files = files::capture(tracee, &ctx)?;
            let mut attached = ipc::Attached::default();
            attached.add(tracee, &ctx)?;
            let members = vec![status.inner_tgid().0];
            let ipc = ipc::capture(tracee, &ctx, members, attached)?;
            let (memory, ranges) = memory::capture(tracee, &ctx)?;
            context.clocks = Some(clocks::capture(tracee)?);
            let image = ProcessImage {
                version: IMAGE_VERSION,
                pid: status.inner_tgid().0,
                stopped: false,
                threads: images,
                memory,
                objects: Vec::new(),
                ipc: IpcImage {
                    namespace: ipc.namespace || !files.queues.is_empty(),
                    ..ipc
                },
                files,
                signals,
                timers,
                context,
                externals: externals.to_vec(),
            };
            Ok((image, ranges))
        })?;
        let obstacles = ctx.obstacles.into_inner();
        if !obstacles.is_empty() {
            return Err(ProcError::Unsupported {
                pid: self.pid,
                obstacles,
            });
        }
        let objects = ctx.objects.into_inner();
        let image = ProcessImage {
            objects: objects.images.clone(),
            stopped: self.group_stopped,
            ..image
        };
        self.described = Some(Described { ranges, objects });
        Ok(image)
    }

    /// How long each of `count` remote system calls (getppid) takes in this process: the unit of cost of saving and restoring.
    ///
    /// # Errors
    /// As [`Self::describe`].
    pub fn time_remote_calls(&mut self, count: usize) -> Result<Vec<Duration>, ProcError> {
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
    fn with_tracee<T>(
        &mut self,
        instruction: RemoteAddr,
        work: impl FnOnce(&mut Tracee<'_>, &[FrozenThread]) -> Result<T, ProcError>,
    ) -> Result<T, ProcError> {
        let lent = self
            .threads
            .iter_mut()
            .map(|thread| {
                let stopped = thread
                    .stopped
                    .take()
                    .unwrap_or_else(|| Stopped::known(thread.tid));
                (stopped, thread.registers)
            })
            .collect();
        let (back, result) = match Tracee::of_frozen(self.pid, lent, instruction) {
            Ok(mut tracee) => {
                let result = work(&mut tracee, &self.threads);
                tracing::debug!(pid = self.pid.0, calls = tracee.calls(), "described");
                (tracee.release(), result)
            }
            Err((threads, e)) => (threads, Err(e)),
        };
        let place: HashMap<Tid, usize> = self
            .threads
            .iter()
            .enumerate()
            .map(|(n, t)| (t.tid, n))
            .collect();
        for stopped in back {
            if let Some(&n) = place.get(&stopped.tid()) {
                self.threads[n].stopped = Some(stopped);
            }
        }
        result
    }

    /// Writes the pages of the process, as described in `image`, to `out`; `name` is for error messages.
    ///
    /// # Errors
    /// [`ProcError::Store`] if writing fails or `progress` cancels.
    ///
    /// # Panics
    /// If the process was not described before.
    pub fn save_pages(
        &self,
        _image: &ProcessImage,
        out: File,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<PageFileSummary, ProcError> {
        let described = self
            .described
            .as_ref()
            .expect("describe() comes before save_pages()");
        let Described { ranges, objects } = described;
        let result = memory::save(self.pid, &self.proc, ranges, objects, out, name, progress);
        self.tell_death(result, "the saving of its pages")
    }

    /// Lets the process go on, as dropping does, but tells of errors.
    ///
    /// # Errors
    /// If a thread could not be let go because it was killed meanwhile.
    pub fn thaw(mut self) -> Result<(), ProcError> {
        self.let_go()
    }

    /// Kills the process and waits until all its threads are gone from the kernel's tables (the process itself stays a
    /// zombie until its parent takes note).
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub fn kill(mut self) -> Result<(), ProcError> {
        process::kill(self.pid.0, libc::SIGKILL)
            .map_err(ProcError::system(format!("kill process {}", self.pid)))?;
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
        Ok(())
    }

    fn let_go(&mut self) -> Result<(), ProcError> {
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

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(e) = self.let_go() {
            tracing::debug!(pid = self.pid.0, "letting go: {e}");
        }
    }
}

fn refused(pid: Pid, why: &str) -> ProcError {
    ProcError::Unsupported {
        pid,
        obstacles: vec![Obstacle::new(format!("process {pid}"), why)],
    }
}

/// What makes even stopping it impossible or unwise.
fn refuse_at_once(pid: Pid, status: &Status) -> Result<(), ProcError> {
    if pid.0 == std::process::id() as i32 {
        return Err(refused(pid, "it is this program itself"));
    }
    if status.tgid != pid {
        return Err(refused(
            pid,
            &format!("it is a thread of process {}, not a process", status.tgid),
        ));
    }
    if status.kernel_thread {
        return Err(refused(pid, "it is a thread of the kernel"));
    }
    if status.is_dead() {
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
