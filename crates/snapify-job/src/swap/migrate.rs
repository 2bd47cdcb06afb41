//! Migration: the process goes from card to card, without a stop on disk.

use super::run::{Outcome, Run};
use super::{Cards, SwapReport, Which};
use crate::checkpoint::Application;
use crate::error::JobError;
use crate::events::{Event, Phase};
use crate::link::Link;
use crate::timing;
use snapify_offload::control::{HostToSupervisor, SupervisorToHost};
use snapify_report::{Actor, Moment, Operation};

pub(super) fn migrate(
    application: &Application<'_>,
    cards: &Cards,
    which: &Which,
    card: u32,
    link: &Link,
) -> Result<SwapReport, JobError> {
    let run = Run::begin(application, cards, which, Operation::Migrate)?;
    let number = cards.number(card)?;
    let from = cards.real(run.process.card);
    if from == card {
        return Err(JobError::Refused(format!(
            "offload process {} is on card {card} already",
            run.process.id
        )));
    }
    link.tell(Event::Phase(Phase::Moving));
    let order = SupervisorToHost::Migrate {
        id: run.process.id,
        card: number,
    };
    let asked = Moment::now();
    run.request.send(&order, &[])?;
    match run.request.await_answer(&run.host)? {
        HostToSupervisor::Migrated {
            store_bytes,
            pause_seconds,
            capture_seconds,
            restore_seconds,
            resume_seconds,
            pause,
            steps,
            saved,
            restored,
        } => {
            run.note_pause(from, &pause, asked);
            run.note_host(&steps, asked);
            timing::note_steps(&run.recorder, &Actor::Card { card: from }, &saved, || None);
            run.note_restore(card, &restored, store_bytes);
            // The host library conducts it, and tells how long each part took.
            let nanos = |seconds: f64| (seconds * 1e9) as u64;
            let paused = asked.plus(nanos(pause_seconds));
            let captured = paused.plus(nanos(capture_seconds));
            let rebuilt = captured.plus(nanos(restore_seconds));
            let resumed = rebuilt.plus(nanos(resume_seconds));
            for (name, from, to) in [
                ("capture", paused, captured),
                ("restore", captured, rebuilt),
                ("resume", rebuilt, resumed),
            ] {
                run.recorder.note(Actor::Coordinator, name, from, to, None);
            }
            run.since("release", resumed);
            if let Some(first) = saved.first() {
                let still = Moment::from_nanos(first.begin);
                let actor = run.on(from);
                run.recorder
                    .note(actor, "stands still", still, resumed, None);
            }
            let outcome = Outcome {
                from,
                card: Some(card),
                dir: None,
                store_bytes,
                file_bytes: 0,
                pause_seconds,
                capture_seconds,
                restore_seconds,
            };
            Ok(run.finish(outcome, None))
        }
        other => Err(run.request.unexpected(other)),
    }
}
