//! A process with all its descendants, stopped and described as one consistent state: everything is stopped before
//! anything is read.

mod copy;
mod describe;
mod find;
mod outline;
mod shares;

pub use copy::{Copies, NotCopied, reap_copies};
pub(crate) use find::{Member, find};
pub use outline::{Outline, Rest};

use crate::capture::Objects;
use crate::error::{Obstacle, ProcError};
use crate::external::{Declared, External, Outside};
use crate::freeze::FrozenProcess;
use crate::ids::{Pid, Tid};
use crate::image::TreeImage;
use crate::memory::Form;
use crate::memory::{self, Held, Ranges, SavedMemory, Unflagged};
use crate::tracking::{self, Changed, Changes, Tracking};
use snapify_store::{PageFileSummary, Progress, SpaceId, WriteOptions};
use snapify_sys::process;
use std::collections::HashSet;
use std::fs::File;
use std::time::{Duration, Instant};

/// How long a tree may go on making new processes while it is being stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process and all its descendants, all of whose threads are stopped. Dropping it lets them go on, unharmed.
///
/// All work must be done by the thread that made it: the kernel takes ptrace requests from no other.
#[derive(Debug)]
pub struct Frozen {
    /// Parents before their children.
    processes: Vec<FrozenProcess>,
    /// Processes that have ended, and that their parents have not waited for.
    ended: Vec<Pid>,
    outside: Outside,
    tracking: Tracking,
    described: Option<Described>,
}

/// When the flags of mappings are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flags {
    /// Before anything else.
    First,
    /// When the rest is known, if nothing of that depends on them.
    Last,
}

#[derive(Debug)]
struct Described {
    /// Of each process: its page space and what of its memory is saved; none if the memory is another's.
    memories: Vec<Option<(SpaceId, Ranges)>>,
    objects: Objects,
    /// Of each process, if its memory was described without flags.
    unflagged: Vec<Option<Unflagged>>,
}

impl Frozen {
    /// Stops all threads of process `pid` and of all its descendants.
    ///
    /// # Errors
    /// If there is no such process, one belongs to someone else or is traced already, a thread does not stop, or one runs 32-bit
    /// code; or if new processes are made faster than they can be stopped. All then go on as if nothing had been tried.
    pub fn freeze(pid: Pid) -> Result<Self, ProcError> {
        let mut frozen = Self {
            processes: vec![FrozenProcess::freeze(pid)?],
            ended: Vec::new(),
            outside: Outside::default(),
            tracking: Tracking::default(),
            described: None,
        };
        frozen.stop_descendants(pid)?;
        Ok(frozen)
    }

    /// Stops processes until there are no new ones: one that has not been stopped yet may fork, and one that ends may leave
    /// its children to another.
    fn stop_descendants(&mut self, root: Pid) -> Result<(), ProcError> {
        let begin = Instant::now();
        let mut known = HashSet::from([root]);
        loop {
            let mut news = false;
            for member in find(root)? {
                if known.contains(&member.pid()) {
                    continue;
                }
                news = true;
                match member {
                    Member::Ended(pid) => {
                        known.insert(pid);
                        self.ended.push(pid);
                    }
                    Member::Living(pid) => match FrozenProcess::freeze(pid) {
                        Ok(process) => {
                            known.insert(pid);
                            self.processes.push(process);
                        }
                        // It has ended meanwhile: the next look tells whether it is still to be waited for.
                        Err(_) if has_ended(pid) => {}
                        Err(e) => return Err(e),
                    },
                }
            }
            if !news {
                break;
            }
            if begin.elapsed() > PATIENCE {
                let why = format!(
                    "it and its descendants go on making processes; after {} s they are not all stopped",
                    PATIENCE.as_secs()
                );
                return Err(ProcError::Unsupported {
                    pid: root,
                    obstacles: vec![Obstacle::new(format!("process {root}"), why)],
                });
            }
        }
        // Those that have ended since they were found, because they were killed, or reaped before all was stopped.
        self.ended.retain(|&pid| has_ended(pid) && exists(pid));
        Ok(())
    }

    /// The process that was asked for, as this process sees it.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.processes[0].pid
    }

    /// All processes of the tree as this process sees them, the one that was asked for first.
    pub fn processes(&self) -> impl Iterator<Item = Pid> {
        self.processes.iter().map(|process| process.pid)
    }

    /// All threads as this process sees them.
    pub fn threads(&self) -> impl Iterator<Item = Tid> {
        self.processes
            .iter()
            .flat_map(|process| process.threads.iter().map(|thread| thread.tid))
    }

    /// Describes the processes. Objects in `externals`, which are those of the first process, are recorded, not saved.
    ///
    /// # Errors
    /// [`ProcError::Unsupported`] with everything that stands in the way; [`ProcError::Died`] if one is killed
    /// meanwhile. Otherwise all stay frozen.
    pub fn describe(&mut self, externals: &[External]) -> Result<TreeImage, ProcError> {
        let first = Declared {
            pid: self.pid(),
            externals: externals.to_vec(),
            partners: Vec::new(),
        };
        self.describe_with(Flags::First, &[first])
    }

    /// As [`Self::describe`], where several processes may have agents, and without what takes as long as half a copy of the memory. It
    /// may be had [later](Outline).
    ///
    /// # Errors
    /// As [`Self::describe`]; also if a process with an agent is not among these.
    pub fn outline(&mut self, declared: &[Declared]) -> Result<Outline, ProcError> {
        let image = self.describe_with(Flags::Last, declared)?;
        Ok(Outline::new(image))
    }

    fn describe_with(
        &mut self,
        flags: Flags,
        declared: &[Declared],
    ) -> Result<TreeImage, ProcError> {
        let is_here = |one: &&Declared| self.processes().any(|pid| pid == one.pid);
        if let Some(missing) = declared.iter().find(|one| !is_here(one)) {
            return Err(ProcError::Died {
                pid: missing.pid,
                during: "its description",
            });
        }
        match describe::describe(self, flags, declared) {
            Ok((image, described)) => {
                self.tracking.set_objects(described.objects.keyed());
                self.described = Some(described);
                Ok(image)
            }
            Err(error) => Err(self.death(error, "its description")),
        }
    }

    /// How long each of `count` remote system calls (getppid) takes in the first process: the unit of cost of saving and
    /// restoring.
    ///
    /// # Errors
    /// As [`Self::describe`].
    pub fn time_remote_calls(&mut self, count: usize) -> Result<Vec<Duration>, ProcError> {
        self.processes[0].time_remote_calls(count)
    }

    /// Decides what [`Self::describe`] makes of connections to those who are not saved; without this they are refused.
    pub fn set_outside(&mut self, outside: Outside) {
        self.outside = outside;
    }

    /// What is known from earlier checkpoints; [`Self::describe`] needs it. It is lost with this, unless it is
    /// [taken back](Self::take_tracking).
    pub fn set_tracking(&mut self, tracking: Tracking) {
        self.tracking = tracking;
    }

    /// Which of the pages have changed. The processes must have been described.
    #[must_use]
    pub fn changes(&self, changed: &Changed) -> Changes {
        match &self.described {
            Some(described) => memory::changes(&self.memories(described), changed),
            None => Changes::default(),
        }
    }

    /// Takes note of which pages have been written, and has the kernel note it from now on if the processes are to go on. They
    /// must have been described. Returns what cannot be tracked, in words: it will count as changed.
    pub fn track(&mut self, go_on: bool) -> Vec<String> {
        let mut failures = Vec::new();
        let Some(described) = &mut self.described else {
            return failures;
        };
        let memories = described.memories.iter().zip(&mut described.unflagged);
        for (process, (memory, unflagged)) in self.processes.iter_mut().zip(memories) {
            let Some((space, ranges)) = memory else {
                continue;
            };
            self.tracking.remember(*space, &ranges.written());
            if !go_on {
                continue;
            }
            let before = self.tracking.take_uffd(process.pid);
            match tracking::arm(process, ranges, before) {
                Ok(armed) => {
                    let untracked = armed.untracked;
                    if untracked > 0 {
                        let pid = process.pid;
                        tracing::debug!(pid = pid.0, untracked, "bytes of mappings");
                    }
                    if let Some(unflagged) = unflagged
                        && armed.is_alone(&ranges.watch, unflagged.spans())
                    {
                        unflagged.set_unwatched();
                    }
                    self.tracking.set_uffd(process.pid, Some(armed.uffd));
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
        failures
    }

    /// Begins to read what the [outline](Self::outline) of the processes lacks. They must stand still until it is complete.
    pub fn read_rest(&mut self) -> Rest {
        let described = self.described.as_mut();
        let unflagged = described.map(|described| std::mem::take(&mut described.unflagged));
        Rest::read(unflagged.unwrap_or_default(), |pid| pid)
    }

    /// What is known for later checkpoints.
    pub fn take_tracking(&mut self) -> Tracking {
        std::mem::take(&mut self.tracking)
    }

    /// Writes the pages of the processes, as described, to `out`; `name` is for error messages. All of them: what has
    /// changed is written by [`Self::save_as`].
    ///
    /// # Errors
    /// [`ProcError::Store`] if writing fails or `progress` cancels.
    ///
    /// # Panics
    /// If the processes were not described before.
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
    ///
    /// # Panics
    /// As [`Self::save_pages`].
    pub fn save_as(
        &self,
        form: Form<'_>,
        options: &WriteOptions,
        (out, name): (File, &str),
        progress: &dyn Progress,
    ) -> Result<PageFileSummary, ProcError> {
        let described = self
            .described
            .as_ref()
            .expect("describe() comes before save_pages()");
        let memories = self.memories(described);
        let (objects, nothing) = (&described.objects, Held::default());
        let result = memory::save(
            &memories,
            objects,
            &nothing,
            (form, options),
            (out, name),
            progress,
        );
        result.map_err(|error| self.death(error, "the saving of its pages"))
    }

    fn memories<'a>(&'a self, described: &'a Described) -> Vec<SavedMemory<'a>> {
        let processes = self.processes.iter().zip(&described.memories);
        processes
            .filter_map(|(process, memory)| {
                let (space, ranges) = memory.as_ref()?;
                Some(SavedMemory {
                    pid: process.pid,
                    proc: &process.proc,
                    space: *space,
                    ranges,
                    forked: self.processes.len() > 1,
                })
            })
            .collect()
    }

    /// A process that is killed makes any call on it fail, in many ways: they all mean this.
    fn death(&self, error: ProcError, during: &'static str) -> ProcError {
        if matches!(error, ProcError::Cancelled) {
            return error;
        }
        match self.processes.iter().find(|p| has_ended(p.pid)) {
            Some(process) => ProcError::Died {
                pid: process.pid,
                during,
            },
            None => error,
        }
    }

    /// Lets the processes go on, as dropping does, but tells of errors.
    ///
    /// # Errors
    /// If a thread could not be let go because it was killed meanwhile.
    pub fn thaw(mut self) -> Result<(), ProcError> {
        // All of them, whatever happens to one.
        let results: Vec<_> = self
            .processes
            .iter_mut()
            .map(FrozenProcess::let_go)
            .collect();
        results.into_iter().collect()
    }

    /// Kills the processes and waits until all their threads are gone from the kernel's tables (the first process itself stays
    /// a zombie until its parent takes note).
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub fn kill(mut self) -> Result<(), ProcError> {
        // All are killed before any can notice the end of another.
        for process in &self.processes {
            process::kill(process.pid.0, libc::SIGKILL)
                .map_err(ProcError::system(format!("kill process {}", process.pid)))?;
        }
        // Children first: they then are their parents' zombies for a moment only.
        self.processes
            .iter_mut()
            .rev()
            .for_each(FrozenProcess::await_end);
        Ok(())
    }
}

/// Whether the process is a zombie or gone, or on its way there: one with much memory takes its time.
fn has_ended(pid: Pid) -> bool {
    let look = || {
        let proc = crate::procfs::ProcDir::open(pid)?;
        Ok::<_, ProcError>(proc.stat()?.exiting || proc.status()?.is_dead())
    };
    look().unwrap_or(true)
}

fn exists(pid: Pid) -> bool {
    crate::procfs::ProcDir::open(pid).is_ok()
}
