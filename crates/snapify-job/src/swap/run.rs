//! What swap-out, swap-in and migration have in common: finding the process that is meant, asking the host library, and
//! telling what it took.

use super::select::select;
use super::{Cards, SwapReport, Which, folder_of};
use crate::checkpoint::{Application, Request};
use crate::error::JobError;
use crate::processes::own_process;
use crate::timing;
use snapify_offload::control::{HostProcess, HostProcessState, Step};
use snapify_report::{Actor, Moment, Operation, Recorder};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// An operation on one offload process, going on.
pub(super) struct Run<'a> {
    pub application: &'a Application<'a>,
    /// A handle of the process's host process.
    pub host: OwnedFd,
    pub request: Request<'a>,
    /// The process that is meant.
    pub process: HostProcess,
    pub recorder: Recorder,
    operation: Operation,
}

/// What only the operation itself knows of its result.
pub(super) struct Outcome {
    /// The card that the process was on.
    pub from: u32,
    /// The card that it is on now.
    pub card: Option<u32>,
    pub dir: Option<PathBuf>,
    pub store_bytes: u64,
    pub file_bytes: u64,
    pub pause_seconds: f64,
    pub capture_seconds: f64,
    pub restore_seconds: f64,
}

impl<'a> Run<'a> {
    /// Finds the one process that `which` means.
    ///
    /// # Errors
    /// If there is none in the state that the operation needs, or there are several.
    pub(super) fn begin(
        application: &'a Application<'a>,
        cards: &Cards,
        which: &Which,
        operation: Operation,
    ) -> Result<Self, JobError> {
        let recorder = Recorder::begin(operation);
        recorder.pid(application.host);
        let (wanted, verb) = match operation {
            Operation::SwapIn => (HostProcessState::SwappedOut, "swap in"),
            Operation::SwapOut => (HostProcessState::Running, "swap out"),
            _ => (HostProcessState::Running, operation.name()),
        };
        let (request, process) = select(&application.agents, cards, which, wanted, verb)?;
        let host = own_process(request.pid())?;
        recorder.since(Actor::Coordinator, "check", recorder.began());
        Ok(Self {
            application,
            host,
            request,
            process,
            recorder,
            operation,
        })
    }

    /// The process, on a card.
    pub(super) fn on(&self, card: u32) -> Actor {
        Actor::OffloadProcess {
            card,
            id: self.process.id.to_string(),
        }
    }

    /// Notes what the coordinator did from `from` until now.
    pub(super) fn since(&self, name: &str, from: Moment) {
        self.recorder.since(Actor::Coordinator, name, from);
    }

    /// Notes what the host library told of the pause of the process, which was on card `card`, that it was asked for at
    /// `asked`. Gives when that was complete.
    pub(super) fn note_pause(&self, card: u32, steps: &[Step], asked: Moment) -> Moment {
        timing::note_pause_of(&self.recorder, &self.on(card), steps, asked);
        let paused = steps
            .last()
            .map_or_else(Moment::now, |step| asked.plus(step.end));
        self.recorder
            .note(Actor::Coordinator, "pause", asked, paused, None);
        paused
    }

    /// Notes what the host library did for a request that it got at `asked`.
    pub(super) fn note_host(&self, steps: &[Step], asked: Moment) {
        for step in steps {
            let (from, to) = (asked.plus(step.begin), asked.plus(step.end));
            self.recorder.note(Actor::Host, &step.name, from, to, None);
        }
    }

    /// Notes what the daemon of a card told of the restore of the process with a local store of so many bytes.
    pub(super) fn note_restore(&self, card: u32, steps: &[Step], store_bytes: u64) {
        // The process first, of unknown size, then its store.
        let mut sizes = [None, Some(store_bytes)].into_iter();
        let size = || sizes.next().flatten();
        timing::note_steps(&self.recorder, &Actor::Card { card }, steps, size);
    }

    /// The operation is over: its report, which is kept with the application, and in `also`.
    pub(super) fn finish(self, outcome: Outcome, also: Option<&Path>) -> SwapReport {
        let timeline = self.recorder.finish();
        let places = folder_of(self.application).into_iter().chain(also);
        for place in places {
            timing::keep(&timeline, place);
        }
        SwapReport {
            operation: self.operation.name().into(),
            pid: self.request.pid(),
            process: self.process.id.to_string(),
            from: outcome.from,
            card: outcome.card,
            dir: outcome.dir,
            store_bytes: outcome.store_bytes,
            file_bytes: outcome.file_bytes,
            pause_seconds: outcome.pause_seconds,
            capture_seconds: outcome.capture_seconds,
            restore_seconds: outcome.restore_seconds,
            total_seconds: timeline.seconds(),
            timeline: Some(timeline),
        }
    }
}
