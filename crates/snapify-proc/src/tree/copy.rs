//! Copies of frozen processes, made by fork: they have the memory of the moment, and the originals need not wait until it is
//! saved.
//!
//! A copy is a child of its original that is made by a remote call, with no signal for its end, so that an ordinary wait does
//! not see it. It never executes an instruction of the program: it is traced from its beginning, and killed by the kernel if
//! this process ends. The original must wait for it, by another remote call, once it is dead.

use super::{Described, Frozen, Member, Rest, exists, find, has_ended};
use crate::capture::Objects;
use crate::error::ProcError;
use crate::freeze::FrozenProcess;
use crate::ids::{Pid, RemoteAddr};
use crate::memory::{self, Form, Held, Ranges, SavedMemory, Unflagged, room};
use crate::procfs::ProcDir;
use crate::ptrace::Running;
use crate::remote::Tracee;
use crate::tracking::{Changed, Changes};
use snapify_store::{PageFileSummary, Progress, SpaceId, WriteOptions};
use snapify_sys::clone::{COPY_FLAGS, CloneArgs};
use snapify_sys::process;
use snapify_sys::ptrace::OPTION_EXIT_KILL;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// What copies are called in process lists, and by which those are found whose maker was killed.
const NAME: &[u8] = b"snapify-copy";

/// How long a copy may take to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Beside what a program may come to need, this much memory is left to others.
const RESERVE: u64 = 64 << 20;

/// The memory of a tree of processes at the moment when they were stopped. The processes go on meanwhile.
///
/// All work must be done by the thread that made it. Dropping it leaves nothing of the copies.
pub struct Copies {
    copies: Vec<Copy>,
    held: Held,
    objects: Objects,
    unflagged: Vec<Option<Unflagged>>,
}

/// Processes that could not be copied, and why.
pub struct NotCopied {
    /// As frozen, and described, as they were.
    pub frozen: Frozen,
    /// What was refused.
    pub why: ProcError,
}

struct Copy {
    pid: Pid,
    proc: ProcDir,
    of: Pid,
    /// The id of the copy as its original knows it.
    inner: Pid,
    space: SpaceId,
    ranges: Ranges,
}

impl Frozen {
    /// Copies the memory of the processes, which must have been described, and lets them go on.
    ///
    /// # Errors
    /// If memory is short, or the kernel refuses the copies, with the processes as frozen as they were.
    ///
    /// # Panics
    /// If the processes were not described before.
    pub fn thaw_copied(mut self) -> Result<Copies, Box<NotCopied>> {
        let described = self.described.take();
        let described = described.expect("describe() comes before thaw_copied()");
        let held = match self.hold(&described) {
            Ok(held) => held,
            Err(error) => return Err(self.not_copied(described, error)),
        };
        let mut described = described;
        let mut made = Vec::new();
        for (process, memory) in self.processes.iter_mut().zip(&described.memories) {
            if memory.is_none() {
                continue;
            }
            match make(process) {
                Ok((pid, proc, inner)) => made.push((pid, proc, process.pid, inner)),
                Err(error) => {
                    self.abandon(&made);
                    return Err(self.not_copied(described, error));
                }
            }
        }
        let held = match self.hold_missing(&mut described, &made, held) {
            Ok(held) => held,
            Err(error) => {
                self.abandon(&made);
                return Err(self.not_copied(described, error));
            }
        };
        let memories = described.memories.into_iter().flatten();
        let copies = made.into_iter().zip(memories);
        let copies = Copies {
            copies: copies
                .map(|((pid, proc, of, inner), (space, ranges))| Copy {
                    pid,
                    proc,
                    of,
                    inner,
                    space,
                    ranges,
                })
                .collect(),
            held,
            objects: described.objects,
            unflagged: described.unflagged,
        };
        // Who has been killed meanwhile does not go on; what was copied of it is whole.
        if let Err(error) = self.thaw() {
            tracing::debug!("letting go: {error}");
        }
        Ok(copies)
    }

    fn not_copied(mut self, described: Described, why: ProcError) -> Box<NotCopied> {
        self.described = Some(described);
        Box::new(NotCopied { frozen: self, why })
    }

    /// Keeps what a fork does not copy, if there is room for that and for copies of all that is written later.
    fn hold(&self, described: &Described) -> Result<Held, ProcError> {
        let memories = self.memories(described);
        let copied: u64 = memories.iter().map(|memory| memory.ranges.bytes()).sum();
        let needed = memory::held_bytes(&memories, &described.objects)?.saturating_add(copied);
        self.check_room(needed)?;
        memory::hold(&memories, &described.objects)
    }

    /// Keeps what turns out, once there are copies, to be missing in them.
    fn hold_missing(
        &self,
        described: &mut Described,
        made: &[(Pid, ProcDir, Pid, Pid)],
        held: Held,
    ) -> Result<Held, ProcError> {
        let mut missing = Vec::new();
        let memories = described.memories.iter_mut().zip(&mut described.unflagged);
        for (process, (memory, unflagged)) in self.processes.iter().zip(memories) {
            let copy = made.iter().find(|(_, _, of, _)| *of == process.pid);
            if let (Some((_, ranges)), Some(unflagged), Some((_, copy, ..))) =
                (memory, unflagged, copy)
            {
                unflagged.compare(copy, ranges)?;
                missing.push(process.pid);
            }
        }
        let mut memories = self.memories(described);
        memories.retain(|memory| missing.contains(&memory.pid));
        let wanted = memory::not_copied(&memories);
        if wanted.is_empty() {
            return Ok(held);
        }
        let copied: u64 = memories.iter().map(|memory| memory.ranges.bytes()).sum();
        let bytes: u64 = wanted.iter().map(|range| range.bytes).sum();
        self.check_room(bytes.saturating_add(copied))?;
        memory::hold_more(held, &wanted, &memories, &described.objects)
    }

    /// Whether so much more memory may be used.
    fn check_room(&self, bytes: u64) -> Result<(), ProcError> {
        let needed = bytes.saturating_add(RESERVE);
        if let Some(left) = room::available(&self.processes[0].proc)
            && left < needed
        {
            let mib = |bytes: u64| bytes >> 20;
            let why = format!(
                "that may take {} MiB of memory, and {} MiB are left",
                mib(needed),
                mib(left)
            );
            return Err(ProcError::System {
                what: format!("copy the memory of process {}", self.pid()),
                source: io::Error::other(why),
            });
        }
        Ok(())
    }

    /// Ends copies of which not all could be made.
    fn abandon(&mut self, made: &[(Pid, ProcDir, Pid, Pid)]) {
        for (pid, _, of, inner) in made {
            end(*pid);
            let Some(process) = self.processes.iter_mut().find(|p| p.pid == *of) else {
                continue;
            };
            if let Err(error) = instruction(&process.proc).and_then(|at| reap(process, at, *inner))
            {
                tracing::debug!(pid = of.0, "reaping a copy: {error}");
            }
        }
    }
}

/// Makes a copy of a process: its id as we see it, and as the process does.
fn make(process: &mut FrozenProcess) -> Result<(Pid, ProcDir, Pid), ProcError> {
    let at = instruction(&process.proc)?;
    let ours = process.proc.status()?.ns_tgid.len() < 2;
    let proc = ProcDir::open(process.pid)?;
    process.with_tracee(at, |tracee, _| {
        let scratch = tracee.scratch().addr;
        let name = scratch.offset(1024);
        let args = CloneArgs {
            flags: COPY_FLAGS,
            ..CloneArgs::default()
        };
        tracee.put(scratch, &args)?;
        tracee.write(name, &[NAME, b"\0"].concat())?;
        let inner = Pid(tracee.fork(scratch)? as i32);
        let pid = if ours { inner } else { child(&proc, inner)? };
        match settle(tracee, pid, name) {
            Ok(proc) => Ok((pid, proc, inner)),
            Err(error) => {
                end(pid);
                let _ = wait_for(tracee, inner);
                Err(error)
            }
        }
    })
}

/// The child of a process that has this id in its own PID namespace.
fn child(proc: &ProcDir, inner: Pid) -> Result<Pid, ProcError> {
    let is_it = |pid: &Pid| {
        let status = ProcDir::open(*pid).and_then(|proc| proc.status());
        status.is_ok_and(|status| status.inner_tgid() == inner)
    };
    let found = proc.children()?.into_iter().find(is_it);
    found.ok_or_else(|| ProcError::System {
        what: format!("find the copy of process {}", proc.pid()),
        source: io::Error::from(io::ErrorKind::NotFound),
    })
}

/// Takes from a copy all but its memory: what its original closes, and the end of it, must have their effects.
fn settle(tracee: &Tracee<'_>, pid: Pid, name: RemoteAddr) -> Result<ProcDir, ProcError> {
    let stopped = match Running::attached(pid.leader()).wait_stopped(PATIENCE) {
        Ok(Some((stopped, _))) => stopped,
        Ok(None) => {
            return Err(ProcError::Died {
                pid,
                during: "its making as a copy",
            });
        }
        Err((_, error)) => return Err(error),
    };
    stopped.set_options(OPTION_EXIT_KILL)?;
    let proc = ProcDir::open(pid)?;
    let base = tracee.base(tracee.leader())?;
    let mut copy = Tracee::of_built(stopped, base, tracee.instruction(), tracee.shared_pin());
    // With a table of its own that leaves them out nothing is closed, which would have effects of its own.
    let none = [
        0,
        u64::from(u32::MAX),
        u64::from(libc::CLOSE_RANGE_UNSHARE),
        0,
        0,
        0,
    ];
    copy.syscall("close_range", libc::SYS_close_range, none)?;
    let call = [libc::PR_SET_NAME as u64, name.0, 0, 0, 0, 0];
    copy.syscall("prctl(PR_SET_NAME)", libc::SYS_prctl, call)?;
    // Should memory become short after all, it is the copy that is killed.
    let score = format!("/proc/{pid}/oom_score_adj");
    if let Err(error) = std::fs::write(&score, "1000") {
        tracing::debug!("{score}: {error}");
    }
    Ok(proc)
}

impl Copies {
    /// Writes the pages of the processes to `out`, as they were; `name` is for error messages.
    ///
    /// # Errors
    /// [`ProcError::Store`] if writing fails or `progress` cancels; [`ProcError::System`] if a copy was killed.
    pub fn save_pages(
        &self,
        out: File,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<PageFileSummary, ProcError> {
        self.save_as(Form::Full, &WriteOptions::default(), (out, name), progress)
    }

    /// As [`Self::save_pages`], in this form and manner.
    ///
    /// # Errors
    /// As [`Self::save_pages`].
    pub fn save_as(
        &self,
        form: Form<'_>,
        options: &WriteOptions,
        (out, name): (File, &str),
        progress: &dyn Progress,
    ) -> Result<PageFileSummary, ProcError> {
        let (memories, objects) = (self.memories(), &self.objects);
        let result = memory::save(
            &memories,
            objects,
            &self.held,
            (form, options),
            (out, name),
            progress,
        );
        result.map_err(|error| {
            let killed = self.copies.iter().find(|copy| has_ended(copy.pid));
            match (error, killed) {
                (error @ ProcError::Cancelled, _) | (error, None) => error,
                (_, Some(copy)) => ProcError::System {
                    what: format!("read from the copy of process {}", copy.of),
                    source: io::Error::other("it was killed, as when memory is short"),
                },
            }
        })
    }

    /// Begins to read what the [outline](Frozen::outline) of the processes lacks.
    pub fn read_rest(&mut self) -> Rest {
        let copies: HashMap<Pid, Pid> = self.copies.iter().map(|c| (c.of, c.pid)).collect();
        let shown_by = move |pid| copies.get(&pid).copied().unwrap_or(pid);
        Rest::read(std::mem::take(&mut self.unflagged), shown_by)
    }

    /// Which of the pages have changed.
    #[must_use]
    pub fn changes(&self, changed: &Changed) -> Changes {
        memory::changes(&self.memories(), changed)
    }

    fn memories(&self) -> Vec<SavedMemory<'_>> {
        let copies = self.copies.iter();
        let memory = copies.map(|copy| SavedMemory {
            pid: copy.pid,
            proc: &copy.proc,
            space: copy.space,
            ranges: &copy.ranges,
            forked: true,
        });
        memory.collect()
    }

    /// Ends the copies, for which each original is stopped once more. Returns how long they were in all.
    ///
    /// # Errors
    /// If an original cannot be stopped. A dead child that it does not see remains then.
    pub fn finish(mut self) -> Result<Duration, ProcError> {
        self.end()
    }

    fn end(&mut self) -> Result<Duration, ProcError> {
        let copies = std::mem::take(&mut self.copies);
        for copy in &copies {
            end(copy.pid);
        }
        let mut stopped = Duration::ZERO;
        let mut result = Ok(());
        for copy in &copies {
            match reap_in(copy.of, copy.inner) {
                Ok(time) => stopped += time,
                // Its children are others' by now.
                Err(_) if has_ended(copy.of) => {}
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| stopped)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::debug!("ending copies: {error}");
        }
    }
}

/// Has process `root` and its descendants wait for dead copies whose maker was killed before it could see to that.
///
/// # Errors
/// If one cannot be stopped.
pub fn reap_copies(root: Pid) -> Result<(), ProcError> {
    for member in find(root)? {
        let Member::Ended(pid) = member else {
            continue;
        };
        let Ok(proc) = ProcDir::open(pid) else {
            continue;
        };
        let (Ok(stat), Ok(status)) = (proc.stat(), proc.status()) else {
            continue;
        };
        if stat.comm == NAME && stat.exit_signal == 0 && exists(pid) {
            reap_in(status.parent, status.inner_tgid())?;
        }
    }
    Ok(())
}

/// Kills a copy, and takes note of its end.
fn end(pid: Pid) {
    if process::kill(pid.0, libc::SIGKILL).is_ok() {
        while process::wait_alone(pid.0).is_ok_and(|status| status.stop_signal().is_some()) {}
    }
}

/// Stops a process for as long as it takes to wait for its dead child `inner`. Returns how long that was.
fn reap_in(pid: Pid, inner: Pid) -> Result<Duration, ProcError> {
    let begin = Instant::now();
    let mut process = FrozenProcess::freeze_leader(pid)?;
    // Now that it stands still: a program that becomes another one (exec) has its code elsewhere.
    let at = instruction(&process.proc)?;
    reap(&mut process, at, inner)?;
    process.let_go()?;
    Ok(begin.elapsed())
}

fn reap(process: &mut FrozenProcess, at: RemoteAddr, inner: Pid) -> Result<(), ProcError> {
    process.with_bare_tracee(at, |tracee| wait_for(tracee, inner))
}

fn wait_for(tracee: &mut Tracee<'_>, inner: Pid) -> Result<(), ProcError> {
    let options = (libc::__WALL | libc::WNOHANG) as u64;
    match tracee.syscall(
        "wait4",
        libc::SYS_wait4,
        [inner.0 as u64, 0, options, 0, 0, 0],
    ) {
        // A program that waits for children of all kinds has been faster.
        Err(error) if error.errno() == Some(libc::ECHILD) => Ok(()),
        other => other.map(drop),
    }
}

fn instruction(proc: &ProcDir) -> Result<RemoteAddr, ProcError> {
    memory::syscall_instruction(proc.pid(), &proc.maps()?)
}
