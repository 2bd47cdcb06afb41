//! Migration: an offload process moves from one card to another (paper 1, section 5).
//!
//! Its local store is copied from card to card while it stands still on the old one, its own pages go through memory of
//! this process; nothing touches a disk. The old process is ended when the new one runs, and goes on if anything fails
//! before that.

use super::card::Card;
use super::operations::Saving;
use super::phase::{Pauser, Phase};
use super::swap::{Rebuilt, STEP_TAKE_OVER};
use super::{Process, Result};
use crate::control::{ProcessId, SaveForm, Step};
use crate::error::OffloadError;
use crate::steps::Stopwatch;
use crate::wire::StoreForm;
use rustix::fs::MemfdFlags;
use snapify_fabric::{Channel, SharedFile};
use std::fs::File;
use std::io::Seek;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a migration did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Which process.
    pub id: ProcessId,
    /// The card that it came from.
    pub from: u32,
    /// The card that it is on.
    pub to: u32,
    /// Bytes of its local store.
    pub store_bytes: u64,
    /// Until its channels were empty.
    pub pause: Duration,
    /// Until its pages were saved into memory.
    pub capture: Duration,
    /// Until the other card had rebuilt it, local store and all.
    pub restore: Duration,
    /// Until it ran.
    pub resume: Duration,
    /// What was done, step by step and by whom.
    pub steps: MigrationSteps,
}

/// What was done for a migration, for reports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MigrationSteps {
    /// Of the pause, in nanoseconds since the beginning.
    pub pause: Vec<Step>,
    /// By this process afterwards, in nanoseconds since the beginning.
    pub host: Vec<Step>,
    /// By the daemon of the card that it left, in moments of the machine's `CLOCK_MONOTONIC`.
    pub saved: Vec<Step>,
    /// By the daemon of the card that it came to, likewise.
    pub restored: Vec<Step>,
}

impl Process {
    /// Moves the process, which is running, to another card.
    ///
    /// # Errors
    /// If there is no such card, the process is on it already, the card is full or gone, or anything fails on the way: it
    /// goes on where it was then.
    pub fn migrate(&self, card: u32) -> Result<Migration> {
        let runtime = self.runtime()?;
        let target = runtime.card(card)?;
        let begin = Instant::now();
        let mut stopwatch = Stopwatch::relative();
        let lifecycle = runtime.lifecycle();
        stopwatch.lap("finish what is being created");
        let mut phase = self.phase();
        self.expect_running(&phase, "migrate")?;
        let source = self.current_card();
        if Arc::ptr_eq(&source, &target) {
            let why = "it is on that card already";
            return Err(self.refused(self.operation("migrate"), why.into()));
        }
        let needed = self.allocated()?;
        let free = target
            .free_memory()
            .map_err(|error| target.explain(error, "look at its memory"))?;
        if needed > free {
            return Err(OffloadError::Refused {
                card,
                operation: self.operation("take"),
                why: format!("it has {free} bytes of memory left, and the process needs {needed}"),
            });
        }
        stopwatch.lap("check the room on the other card");
        let stopped = self.pause_as(&mut phase, Pauser::Caller, &mut stopwatch)?;
        drop(lifecycle);
        let paused = Instant::now();
        let moved = self.move_to(&target, &mut stopwatch);
        *phase = Phase::Running;
        match moved {
            Ok(moved) => {
                self.gate.open();
                let resumed = Instant::now();
                stopwatch.lap("resume");
                // It stands still there, and has nothing left to do.
                self.discard(&source);
                stopwatch.lap("release the old card's memory");
                Ok(Migration {
                    id: self.id(),
                    from: source.index,
                    to: card,
                    store_bytes: needed,
                    pause: paused - begin,
                    capture: moved.captured - paused,
                    restore: moved.restored - moved.captured,
                    resume: resumed - moved.restored,
                    steps: MigrationSteps {
                        pause: stopped.steps,
                        host: stopwatch.take(),
                        saved: moved.saved,
                        restored: moved.rebuilt,
                    },
                })
            }
            Err(error) => {
                let resumed = self.resume_at_card();
                self.gate.open();
                // That it does not run any more would be worse news.
                Err(resumed.err().unwrap_or(error))
            }
        }
    }

    /// Moves the paused process to another card, where it runs with its gate open. If that fails, it is as it was.
    fn move_to(&self, target: &Arc<Card>, stopwatch: &mut Stopwatch) -> Result<Moved> {
        let failed = |source| OffloadError::System {
            operation: self.operation("migrate"),
            source: Arc::new(source),
        };
        let (mut process, mut pages) = (memory().map_err(failed)?, memory().map_err(failed)?);
        let (ours, theirs) = Channel::pair().map_err(|source| OffloadError::Connection {
            operation: self.operation("migrate"),
            source: Arc::new(source),
        })?;
        let fds = [theirs.as_fd(), process.as_fd(), pages.as_fd()];
        self.ask_for_capture(&fds, true, false, SaveForm::default())?;
        drop(theirs);
        // The process stands still until this value lets it go, or is dropped.
        let saving = LetGo(Saving::new(self.id(), self.card(), true, ours));
        let saved = saving.0.wait()?.steps;
        let captured = Instant::now();
        stopwatch.lap("wait for the card to save it");
        process.rewind().map_err(failed)?;
        pages.rewind().map_err(failed)?;
        let old = self.file.as_fd().try_clone_to_owned().map_err(failed)?;
        let old = SharedFile::from_fd(old)
            .map_err(|error| self.refused(self.operation("migrate"), error.to_string()))?;
        let files = [process.as_fd(), pages.as_fd(), old.as_fd()];
        let bytes = self.allocated()?;
        let order = (bytes, StoreForm::Store);
        let Rebuilt { pid, store, steps } = self.rebuild(target, &files, order, stopwatch)?;
        let restored = Instant::now();
        let started = self.show(&store).and_then(|()| {
            stopwatch.lap(STEP_TAKE_OVER);
            let started = self.start_at(target);
            if started.is_err() {
                self.show(&old)?;
            }
            started
        });
        if let Err(error) = started {
            self.discard(target);
            return Err(error);
        }
        self.settle(target, pid);
        Ok(Moved {
            captured,
            restored,
            saved,
            rebuilt: steps,
            _old: saving,
        })
    }
}

/// When the parts of a move were done.
struct Moved {
    captured: Instant,
    restored: Instant,
    saved: Vec<Step>,
    rebuilt: Vec<Step>,
    /// The old process must not run again, not for a moment: it is ended before this is dropped.
    _old: LetGo,
}

/// Lets a process that stands still go on when dropped.
struct LetGo(Saving);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// A file in memory of this process.
fn memory() -> std::io::Result<File> {
    Ok(rustix::fs::memfd_create("snapify-image", MemfdFlags::CLOEXEC)?.into())
}
