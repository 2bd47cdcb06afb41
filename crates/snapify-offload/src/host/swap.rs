//! Taking an offload process off its card, and bringing it back on any (paper 1, section 5: swapping).
//!
//! While it is away, a file in memory of this process stands in for its local store: it holds the rings, so that threads
//! that wait for answers go on waiting as they did.

use super::card::Card;
use super::operations::ImageFiles;
use super::phase::{Absent, Pauser, Phase};
use super::process::{call, outputs, unexpected};
use super::{Process, Result};
use crate::control::Step;
use crate::error::{DeathCause, OffloadError};
use crate::layout::{BOUNCE, BOUNCE_BYTES, BUFFERS, STORE_BYTES};
use crate::steps::Stopwatch;
use crate::wire::{CardReply, HostRequest, StoreForm};
use snapify_fabric::{SharedFile, WindowError};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Name of a [`Step`]: the host process sees the new local store from here on.
pub(super) const STEP_TAKE_OVER: &str = "take over the local store";

/// A process that a card has rebuilt, stopped and paused.
pub(super) struct Rebuilt {
    /// Its id there.
    pub pid: i32,
    /// Its local store.
    pub store: SharedFile,
    /// What it took, as the card's daemon tells.
    pub steps: Vec<Step>,
}

impl Process {
    /// Ends a process on its card after a capture with `hold`: all of the card's memory that it had is free when this
    /// returns, and [`restore`](Self::restore) brings it back. `image` is the directory that its files lie in, if they
    /// lie in one under the names that snapshots use: without it the application cannot be saved while the process is
    /// swapped out. Waits for the end of the capture.
    ///
    /// # Errors
    /// If it was not saved, or ran since; nothing is changed then.
    pub fn release(&self, image: Option<&Path>) -> Result<()> {
        let mut phase = self.phase();
        let why = match self.expect_paused(&mut phase, Pauser::Caller, "swap out")? {
            Some(saving) if saving.hold => {
                saving.wait()?;
                None
            }
            Some(_) => Some("it has gone on since it was saved"),
            None => Some("it was not saved since it was paused"),
        };
        if let Some(why) = why {
            return Err(self.refused(self.operation("swap out"), why.into()));
        }
        self.release_saved(&mut phase, image, &mut Stopwatch::relative())
    }

    /// The same, for one who knows that the process was saved and stands still.
    pub(super) fn release_saved(
        &self,
        phase: &mut Phase,
        image: Option<&Path>,
        stopwatch: &mut Stopwatch,
    ) -> Result<()> {
        self.status()?;
        let absent = Absent {
            image: image.map(Path::to_owned),
            bytes: self.allocated()?,
        };
        // From here on the end of the card is not this process's.
        self.set_absent(true);
        if let Err(error) = self.stand_in() {
            self.set_absent(false);
            return Err(error);
        }
        stopwatch.lap("put something in the place of the local store");
        // A card that cannot be asked has died, and the process with it: as was intended.
        let destroy = HostRequest::Destroy {
            id: self.id(),
            swapped_out: true,
        };
        let card = self.current_card();
        let _ = call(&card, destroy, &[], "end an offload process");
        stopwatch.lap("release the card's memory");
        *phase = Phase::Absent(absent);
        Ok(())
    }

    /// Nobody is there any more who could bring a process back that is swapped out: whoever waits for it is told.
    pub(super) fn give_up_if_absent(&self) {
        let mut phase = self.phase();
        if matches!(*phase, Phase::Absent(_)) {
            self.die(DeathCause::Abandoned);
            *phase = Phase::Running;
            self.gate.open();
        }
    }

    /// Bytes of card memory that the local store takes.
    pub(super) fn allocated(&self) -> Result<u64> {
        self.file.allocated().map_err(|error| self.window(&error))
    }

    /// Gives up the local store: what threads look at that wait for answers is copied into memory of this process, which
    /// takes the store's place.
    fn stand_in(&self) -> Result<()> {
        let failed = |error: WindowError| self.window(&error);
        let stand_in = SharedFile::create_private(BUFFERS).map_err(failed)?;
        let window = stand_in.map(None).map_err(failed)?;
        let mut ring = Vec::new();
        for (start, bytes) in self.rings().map(|ring| ring.extent()) {
            ring.resize(bytes as usize, 0);
            self.store.read(start, &mut ring).map_err(failed)?;
            window.write(start, &ring).map_err(failed)?;
        }
        self.show(&stand_in)
    }

    /// Has this process look at another file in the local store's place. What its threads wait for must stand in it, too.
    pub(super) fn show(&self, file: &SharedFile) -> Result<()> {
        let failed = |error: WindowError| self.window(&error);
        let old = self
            .file
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| self.window(&error))?;
        let old = SharedFile::from_fd(old).map_err(failed)?;
        let window = old.map(None).map_err(failed)?;
        let words: Vec<u64> = self.rings().map(|ring| ring.sleeping_place()).collect();
        let shown = self
            .store
            .show(file, &window, &words)
            .and_then(|()| self.file.lead_to(file.as_fd()));
        shown.map_err(|error| {
            let error = self.window(&error);
            if let Err(worse) = self.store.show(&old, &window, &words) {
                // Neither the one nor the other is there.
                self.die(DeathCause::Damaged(worse.to_string()));
            }
            error
        })
    }

    /// Rebuilds a process that is swapped out, on any card with room for it. It is paused, and goes on with
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// If it is not swapped out, there is no such card, the card is full or gone, or the image is damaged. It stays
    /// swapped out then.
    pub fn restore(&self, card: u32, files: &ImageFiles) -> Result<()> {
        self.restore_timed(card, files, &mut Stopwatch::relative())
            .map(drop)
    }

    /// The same; gives what the card's daemon tells that it took.
    pub(super) fn restore_timed(
        &self,
        card: u32,
        files: &ImageFiles,
        stopwatch: &mut Stopwatch,
    ) -> Result<Vec<Step>> {
        let runtime = self.runtime()?;
        let mut phase = self.phase();
        let Phase::Absent(absent) = &*phase else {
            let why = "it is not swapped out";
            return Err(self.refused(self.operation("restore"), why.into()));
        };
        let target = runtime.card(card)?;
        let ImageFiles {
            process,
            pages,
            store,
        } = files;
        let fds = [process.as_fd(), pages.as_fd(), store.as_fd()];
        let order = (absent.bytes, StoreForm::Pages);
        let Rebuilt { pid, store, steps } = self.rebuild(&target, &fds, order, stopwatch)?;
        if let Err(error) = self.show(&store) {
            self.discard(&target);
            return Err(error);
        }
        stopwatch.lap(STEP_TAKE_OVER);
        let before = absent.clone();
        *phase = Phase::Restored {
            card: target,
            pid,
            before,
        };
        Ok(steps)
    }

    /// [`restore`](Self::restore) and [`resume`](Self::resume).
    ///
    /// # Errors
    /// As they; the process is swapped out then.
    pub fn swap_in(&self, card: u32, files: &ImageFiles) -> Result<()> {
        self.restore(card, files)?;
        self.resume()
    }

    /// Has a card rebuild this process from its files and a local store of the given size and form, and sets memory aside
    /// for all of its buffers.
    pub(super) fn rebuild(
        &self,
        target: &Card,
        files: &[BorrowedFd<'_>; 3],
        (bytes, store): (u64, StoreForm),
        stopwatch: &mut Stopwatch,
    ) -> Result<Rebuilt> {
        let operation = self.operation("restore");
        let id = self.id();
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|source| OffloadError::System {
            operation: "open /dev/null".into(),
            source: Arc::new(source),
        })?;
        target.forget_death(id);
        let [process, pages, saved] = *files;
        let [stdout, stderr] = outputs(&null);
        let fds = [process, pages, saved, stdout, stderr];
        let body = HostRequest::Restore { id, bytes, store };
        let (pid, steps, store) = match call(target, body, &fds, &operation)? {
            (CardReply::Restored { pid, steps }, mut fds) if fds.len() == 1 => {
                (pid, steps, fds.swap_remove(0))
            }
            (other, _) => return Err(unexpected(target, &operation, &other)),
        };
        stopwatch.lap("wait for the card to restore it");
        let store = self.take_up(store);
        stopwatch.lap("set memory aside");
        if store.is_err() {
            self.discard(target);
        }
        store
            .map(|store| Rebuilt { pid, store, steps })
            .map_err(|why| OffloadError::Refused {
                card: target.index,
                operation,
                why,
            })
    }

    /// Takes a rebuilt process's local store, with memory set aside for all that may be touched: what was never written
    /// came as holes.
    fn take_up(&self, store: OwnedFd) -> Result<SharedFile, String> {
        let store = SharedFile::from_fd(store).map_err(|error| error.to_string())?;
        if store.bytes() != STORE_BYTES {
            return Err(format!("its local store has {} bytes", store.bytes()));
        }
        self.set_aside(&store)?;
        Ok(store)
    }

    /// Sets memory aside in a restored store for everything that may be touched.
    pub(super) fn set_aside(&self, store: &SharedFile) -> Result<(), String> {
        let full =
            |error: &dyn std::fmt::Debug| format!("it has not enough memory left: {error:?}");
        let rings = self.rings().map(|ring| ring.extent());
        for (start, bytes) in rings.chain([(BOUNCE, BOUNCE_BYTES)]) {
            store.reserve(start, bytes).map_err(|error| full(&error))?;
        }
        self.buffers().restore(store).map_err(|error| full(&error))
    }

    /// Ends what a card has rebuilt.
    pub(super) fn discard(&self, card: &Card) {
        // A card that cannot be asked has died.
        let destroy = HostRequest::Destroy {
            id: self.id(),
            swapped_out: false,
        };
        let _ = call(card, destroy, &[], "end an offload process");
    }

    /// Lets a rebuilt process run.
    pub(super) fn start_restored(&self, phase: &mut Phase) -> Result<()> {
        let Phase::Restored { card, pid, before } = &*phase else {
            return Ok(());
        };
        match self.start_at(card) {
            Ok(()) => {
                let (last, now) = (self.current_card(), card.clone());
                self.settle(card, *pid);
                *phase = Phase::Running;
                self.gate.open();
                if !Arc::ptr_eq(&last, &now) {
                    // It has a note of the process.
                    self.discard(&last);
                }
                Ok(())
            }
            Err(error) => {
                self.discard(card);
                let before = before.clone();
                self.stand_in()?;
                *phase = Phase::Absent(before);
                Err(error)
            }
        }
    }

    /// This process was restored from a snapshot that was taken while the offload process was swapped out, and the offload
    /// process with it: it is on its card, paused, and its store is the file, though in part only it is mapped.
    pub(super) fn comes_back(&self) -> Result<()> {
        let file = self.file.as_fd().try_clone_to_owned();
        let file = file.map_err(|error| self.window(&error))?;
        let file = SharedFile::from_fd(file).map_err(|error| self.window(&error))?;
        self.show(&file)?;
        self.set_absent(false);
        *self.phase() = Phase::Paused {
            by: Pauser::Supervisor,
            saving: None,
        };
        Ok(())
    }

    /// Lets the process that `card` has rebuilt run, and opens its gate.
    pub(super) fn start_at(&self, card: &Card) -> Result<()> {
        let operation = self.operation("start");
        match call(card, HostRequest::Resume { id: self.id() }, &[], &operation)? {
            (CardReply::Resumed, _) => Ok(()),
            (other, _) => Err(unexpected(card, &operation, &other)),
        }
    }

    /// The process runs on `card` now.
    pub(super) fn settle(&self, card: &Arc<Card>, pid: i32) {
        self.set_pid(pid);
        self.set_place(card.clone());
        self.set_absent(false);
        // What the card said before this process listened to it.
        if card.is_lost() {
            self.die(DeathCause::CardLost);
        } else if let Some((signal, status)) = card.has_died(self.id()) {
            self.die(DeathCause::Ended {
                signal,
                status,
                functions: self.running(),
            });
        }
    }

    fn window(&self, error: &dyn std::fmt::Display) -> OffloadError {
        self.refused(
            self.operation("change the local store of"),
            error.to_string(),
        )
    }
}
