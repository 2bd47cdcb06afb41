//! The five operations of paper 1 (table 1) on one offload process: pause, capture, wait, resume, restore; and what
//! swapping needs besides, the release of the card.
//!
//! They are for whoever wants to save, swap or move an offload process from inside the application, and the agent serves
//! the supervisor's requests with them. The usual sequences:
//!
//! - a snapshot: [`Process::pause`], [`Process::capture`], [`Saving::wait`], [`Process::resume`];
//! - swap-out: [`Process::pause`], [`Process::capture`] with `hold`, [`Saving::wait`], [`Process::release`];
//! - swap-in: [`Process::restore`], [`Process::resume`], or both at once, [`Process::swap_in`];
//! - migration: [`Process::migrate`].
//!
//! While a process is paused or swapped out, threads of this process that need it wait; all others go on. Every operation
//! may be called by any thread at any time: out of turn it is refused in words, and changes nothing.

use super::phase::{Pauser, Phase, State};
use super::process::{call, outputs, unexpected};
use super::{Process, Result, Runtime};
use crate::control::{
    CaptureDecision, CaptureEvent, PausedProcess, ProcessId, STEP_OFFLOAD_GATE, SaveForm, Step,
};
use crate::engine::PageFileSummary;
use crate::error::OffloadError;
use crate::steps::Stopwatch;
use crate::wire::{CardReply, HostRequest, command};
use snapify_fabric::{Channel, ChannelError};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The files of an offload process's image. A capture writes them from their positions on, a restore reads them from
/// there.
#[derive(Debug)]
pub struct ImageFiles {
    /// The engine's description of the process (`process.json` in a snapshot).
    pub process: File,
    /// Its pages (`pages.snap`).
    pub pages: File,
    /// Its local store (`store.snap`).
    pub store: File,
}

/// What a capture has saved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    /// Of the file of pages.
    pub pages: PageFileSummary,
    /// Of the local store's file, if there was to be one.
    pub store: Option<PageFileSummary>,
    /// What it took, in moments of the machine's `CLOCK_MONOTONIC`: the process is saved first, then the store.
    pub steps: Vec<Step>,
}

/// A capture going on.
#[derive(Debug)]
pub struct Saving {
    id: ProcessId,
    card: u32,
    /// Whether the process stands still afterwards.
    pub(super) hold: bool,
    completion: Channel,
    outcome: Mutex<Option<Result<Saved>>>,
}

impl Saving {
    pub(super) fn new(id: ProcessId, card: u32, hold: bool, completion: Channel) -> Self {
        Self {
            id,
            card,
            hold,
            completion,
            outcome: Mutex::new(None),
        }
    }

    /// Waits until all files are complete. May be called any number of times.
    ///
    /// # Errors
    /// If the process could not be saved; it is paused still, and goes on with [`Process::resume`].
    pub fn wait(&self) -> Result<Saved> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.get_or_insert_with(|| self.await_end()).clone()
    }

    fn await_end(&self) -> Result<Saved> {
        let failed = |why: String| OffloadError::Refused {
            card: self.card,
            operation: format!("save offload process {}", self.id),
            why,
        };
        loop {
            match self.completion.recv::<CaptureEvent>() {
                Ok((CaptureEvent::Progress { .. }, _)) => {}
                Ok((
                    CaptureEvent::Done {
                        pages,
                        store,
                        steps,
                        ..
                    },
                    _,
                )) => {
                    return Ok(Saved {
                        pages,
                        store,
                        steps,
                    });
                }
                Ok((CaptureEvent::Failed { message, .. }, _)) => return Err(failed(message)),
                Err(ChannelError::Closed) => {
                    return Err(failed("it or its card died meanwhile".into()));
                }
                Err(error) => return Err(failed(error.to_string())),
            }
        }
    }

    /// Waits until the card has done with a capture that is complete and was let go: before that it begins no other.
    fn await_close(&self) {
        while self.completion.recv::<CaptureEvent>().is_ok() {}
    }

    /// Lets a process go on that stands still after its capture.
    pub(super) fn let_go(&self) {
        // One that does not stand still does not listen.
        let _ = self.completion.send_now(&CaptureDecision::Resume, &[]);
    }
}

impl Process {
    /// Drains all channels to the process and keeps them empty (paper 1, section 4.1). Run functions go on; their results
    /// wait.
    ///
    /// # Errors
    /// If it is paused or swapped out already, or dies; it goes on then.
    pub fn pause(&self) -> Result<PausedProcess> {
        self.pause_by(Pauser::Caller)
    }

    pub(super) fn pause_by(&self, by: Pauser) -> Result<PausedProcess> {
        let runtime = self.runtime()?;
        let mut stopwatch = Stopwatch::relative();
        // Case 1: what is being made or loaded is completed first. Afterwards only what concerns this process has to
        // wait, which it does at the gate.
        let _lifecycle = runtime.lifecycle();
        stopwatch.lap("finish what is being created");
        let mut phase = self.phase();
        self.expect_running(&phase, "pause")?;
        self.pause_as(&mut phase, by, &mut stopwatch)
    }

    /// The same, for one who has the lifecycle's lock. A process that cannot be paused goes on.
    pub(super) fn pause_as(
        &self,
        phase: &mut Phase,
        by: Pauser,
        stopwatch: &mut Stopwatch,
    ) -> Result<PausedProcess> {
        // Cases 2 to 4: from here on nobody sends a request, copies a piece or changes the store.
        self.gate.close();
        stopwatch.lap("close the gate");
        let paused = self.drain(stopwatch);
        if paused.is_ok() {
            *phase = Phase::Paused { by, saving: None };
        } else {
            // Its agent may have closed its gate before it failed. If this fails, too, everybody will learn of it.
            let _ = self.resume_at_card();
            self.gate.open();
        }
        paused
    }

    /// Empties the channels of this process, whose gate is closed.
    fn drain(&self, stopwatch: &mut Stopwatch) -> Result<PausedProcess> {
        self.status()?;
        // Case 3: nobody can send a command any more; when the marker is answered all before it have been.
        let marker = self
            .commands
            .submit(command::MARKER, 0, &[], 0, "the shutdown marker");
        let marker = marker.map_err(|error| self.ring_error(error))?;
        if let Some(marker) = marker {
            self.take(&self.commands, marker)?;
        } else {
            // Full: then others are being answered, and one that is answered after the last of them comes last.
            while !self.commands.is_idle() {
                self.commands
                    .wait_for_room()
                    .map_err(|error| self.ring_error(error))?;
            }
        }
        stopwatch.lap("drain commands");
        // What no buffer uses need not be saved.
        if let Err(error) = self.buffers().trim(&self.file) {
            return Err(self.refused("give back free memory".into(), format!("{error:?}")));
        }
        stopwatch.lap("give back free memory");
        let operation = "pause an offload process";
        let card = self.current_card();
        let answer = call(&card, HostRequest::Pause { id: self.id() }, &[], operation)?;
        stopwatch.lap(STEP_OFFLOAD_GATE);
        match answer {
            (CardReply::Paused { process: paused }, _) => Ok(PausedProcess {
                card: card.index,
                in_flight: self.running(),
                steps: stopwatch.take(),
                ..paused
            }),
            (other, _) => Err(unexpected(&card, operation, &other)),
        }
    }

    /// Begins to save the process; does not wait. It must have been paused by [`pause`](Self::pause). With `hold` it
    /// stands still from its capture on, until it is resumed or released; otherwise its run functions go on.
    ///
    /// # Errors
    /// If it is not paused, a capture of it is going on already, or its card refuses.
    pub fn capture(&self, files: &ImageFiles, hold: bool) -> Result<Arc<Saving>> {
        let mut phase = self.phase();
        let saving = self.expect_paused(&mut phase, Pauser::Caller, "save")?;
        if let Some(earlier) = saving {
            // Two savers of one process would be in each other's way.
            let _ = earlier.wait();
            earlier.let_go();
            earlier.await_close();
        }
        let operation = || format!("save offload process {}", self.id());
        let connection = |source| OffloadError::Connection {
            operation: operation(),
            source: Arc::new(source),
        };
        let (ours, theirs) = Channel::pair().map_err(connection)?;
        self.begin_capture(theirs.as_fd(), files, hold)?;
        let begun = Arc::new(Saving::new(self.id(), self.card(), hold, ours));
        *saving = Some(begun.clone());
        Ok(begun)
    }

    /// Has the card save this process, which is paused, and tell `completion` of it.
    pub(super) fn begin_capture(
        &self,
        completion: BorrowedFd<'_>,
        files: &ImageFiles,
        hold: bool,
    ) -> Result<()> {
        let ImageFiles {
            process,
            pages,
            store,
        } = files;
        let fds = [completion, process.as_fd(), pages.as_fd(), store.as_fd()];
        self.ask_for_capture(&fds, hold, true, SaveForm::default())
    }

    pub(super) fn ask_for_capture(
        &self,
        fds: &[BorrowedFd<'_>],
        hold: bool,
        store: bool,
        form: SaveForm,
    ) -> Result<()> {
        let operation = "save an offload process";
        let card = self.current_card();
        let request = HostRequest::Capture {
            id: self.id(),
            hold,
            store,
            form,
        };
        match call(&card, request, fds, operation)? {
            (CardReply::CaptureStarted, _) => Ok(()),
            (other, _) => Err(unexpected(&card, operation, &other)),
        }
    }

    /// Lets a process go on that was paused by [`pause`](Self::pause) or rebuilt by [`restore`](Self::restore). Waits for
    /// the end of a capture that is going on.
    ///
    /// # Errors
    /// If it is neither, or its card is gone. One that was rebuilt and cannot run is swapped out again.
    pub fn resume(&self) -> Result<()> {
        let mut phase = self.phase();
        if matches!(*phase, Phase::Restored { .. }) {
            return self.start_restored(&mut phase);
        }
        self.resume_by(&mut phase, Pauser::Caller)
    }

    pub(super) fn resume_by(&self, phase: &mut Phase, by: Pauser) -> Result<()> {
        if let (Err(died), Phase::Paused { .. }) = (self.status(), &*phase) {
            // Nobody is to wait for it.
            *phase = Phase::Running;
            self.gate.open();
            return Err(died);
        }
        if let Some(saving) = self.expect_paused(phase, by, "resume")?.take() {
            // Whoever takes the capture's result learns of its failure.
            let _ = saving.wait();
            saving.let_go();
        }
        let resumed = self.resume_at_card();
        *phase = Phase::Running;
        self.gate.open();
        resumed
    }

    /// Opens the gate of the other side.
    pub(super) fn resume_at_card(&self) -> Result<()> {
        self.resume_with(&[])
    }

    /// The same, of a process that was restored together with this one: the outputs that it was given for the time being are
    /// replaced by those that this process has.
    pub(super) fn resume_restored(&self) -> Result<()> {
        match std::fs::File::options().write(true).open("/dev/null") {
            Ok(null) => self.resume_with(&outputs(&null)),
            Err(_) => self.resume_with(&[]),
        }
    }

    fn resume_with(&self, outputs: &[BorrowedFd<'_>]) -> Result<()> {
        self.status()?;
        let operation = "resume an offload process";
        let card = self.current_card();
        let request = HostRequest::Resume { id: self.id() };
        match call(&card, request, outputs, operation) {
            Ok((CardReply::Resumed, _)) => Ok(()),
            Ok((other, _)) => Err(unexpected(&card, operation, &other)),
            // It has died, which says more.
            Err(error) => Err(self.status().err().unwrap_or(error)),
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> State {
        if self.status().is_err() {
            return State::Dead;
        }
        match self.phase.try_lock().as_deref() {
            Ok(Phase::Running) => State::Running,
            Ok(Phase::Absent(_)) => State::SwappedOut,
            // In the middle of an operation.
            _ => State::Paused,
        }
    }

    /// The directory with the image of a process that is swapped out, if it is and that is known.
    #[must_use]
    pub fn image(&self) -> Option<std::path::PathBuf> {
        match self.phase.try_lock().as_deref() {
            Ok(Phase::Absent(absent)) => absent.image.clone(),
            _ => None,
        }
    }

    pub(super) fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runtime(&self) -> Result<Arc<Runtime>> {
        self.runtime.upgrade().ok_or_else(|| {
            self.refused(
                "use an offload process".into(),
                "its runtime has ended".into(),
            )
        })
    }

    /// Enters the critical region of the lifecycle for something that changes this process; waits while it is paused or
    /// swapped out, which may be long, outside.
    pub(super) fn lifecycle<'a>(&self, runtime: &'a Runtime) -> MutexGuard<'a, ()> {
        loop {
            let lifecycle = runtime.lifecycle();
            // Who closes the gate does it inside.
            if !self.gate.is_closed() {
                return lifecycle;
            }
            drop(lifecycle);
            self.gate.wait_open();
        }
    }

    pub(super) fn expect_running(&self, phase: &Phase, verb: &str) -> Result<()> {
        self.status()?;
        let why = match phase {
            Phase::Running => return Ok(()),
            Phase::Paused { .. } => "it is paused already",
            Phase::Restored { .. } => "it was restored and does not run yet",
            Phase::Absent(_) => "it is swapped out",
        };
        Err(self.refused(self.operation(verb), why.into()))
    }

    /// The capture of a process that was paused by [`pause`](Self::pause), if there was one.
    pub(super) fn expect_paused<'a>(
        &self,
        phase: &'a mut Phase,
        pauser: Pauser,
        verb: &str,
    ) -> Result<&'a mut Option<Arc<Saving>>> {
        self.status()?;
        let why = match phase {
            Phase::Paused { by, saving } if *by == pauser => return Ok(saving),
            Phase::Paused { .. } => "somebody else has paused it",
            Phase::Running => "it is not paused",
            Phase::Restored { .. } => "it was restored and does not run yet",
            Phase::Absent(_) => "it is swapped out",
        };
        Err(self.refused(self.operation(verb), why.into()))
    }

    pub(super) fn operation(&self, verb: &str) -> String {
        format!("{verb} offload process {}", self.id())
    }
}
