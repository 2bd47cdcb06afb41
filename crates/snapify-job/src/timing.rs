//! What is noted of operations, for `snapify report`.

use snapify_offload::control::{PausedProcess, STEP_OFFLOAD_GATE, Step};
use snapify_report::{Actor, Moment, Recorder, Timeline};
use snapify_store::{PAGE_SIZE, PageFileSummary};
use std::path::Path;

/// The actor that an offload process is.
pub(crate) fn offload_process(process: &PausedProcess) -> Actor {
    Actor::OffloadProcess {
        card: process.card,
        id: process.id.to_string(),
    }
}

/// Notes what the host library told of a pause that it was asked for at `asked`.
pub(crate) fn note_pause(recorder: &Recorder, processes: &[PausedProcess], asked: Moment) {
    for process in processes {
        note_pause_of(recorder, &offload_process(process), &process.steps, asked);
    }
}

/// The same, of one offload process.
pub(crate) fn note_pause_of(recorder: &Recorder, process: &Actor, steps: &[Step], asked: Moment) {
    for step in steps {
        let actor = if step.name == STEP_OFFLOAD_GATE {
            process.clone()
        } else {
            Actor::Host
        };
        let (from, to) = (asked.plus(step.begin), asked.plus(step.end));
        recorder.note(actor, &step.name, from, to, None);
    }
}

/// Notes what the saver of card `card` told of a capture: the process first, then its store.
pub(crate) fn note_capture(
    recorder: &Recorder,
    card: u32,
    process: Actor,
    steps: &[Step],
    pages: &PageFileSummary,
    store: &PageFileSummary,
) {
    let saved = |summary: &PageFileSummary| Some(summary.pages_stored * PAGE_SIZE);
    let mut sizes = [saved(pages), saved(store)].into_iter();
    let daemon = Actor::Card { card };
    note_steps(recorder, &daemon, steps, || sizes.next().flatten());
    if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        let (from, to) = (
            Moment::from_nanos(first.begin),
            Moment::from_nanos(last.end),
        );
        recorder.note(process, "stands still", from, to, None);
    }
}

/// Notes what a card's daemon told of a restore on card `card`.
pub(crate) fn note_restore(recorder: &Recorder, card: u32, process: &PausedProcess) {
    note_steps(recorder, &Actor::Card { card }, &process.steps, || None);
}

/// Notes what a card's daemon told; `bytes` gives the size that each step dealt with.
pub(crate) fn note_steps(
    recorder: &Recorder,
    actor: &Actor,
    steps: &[Step],
    mut bytes: impl FnMut() -> Option<u64>,
) {
    for step in steps {
        let (from, to) = (Moment::from_nanos(step.begin), Moment::from_nanos(step.end));
        recorder.note(actor.clone(), &step.name, from, to, bytes());
    }
}

/// Keeps what was noted beside the snapshots. The operation has succeeded: that its report cannot be written (the directory may
/// be somebody else's, or on a medium that cannot be written to) does not make it fail.
pub(crate) fn keep(timeline: &Timeline, dir: &Path) {
    if let Err(error) = snapify_report::keep(dir, timeline) {
        tracing::info!(%error, "the report of an operation is not kept");
    }
}
