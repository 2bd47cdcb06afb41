//! Swap-in (paper 1, figure 7): the process is rebuilt from its image, on any card with room for it.

use super::run::{Outcome, Run};
use super::{Cards, SwapReport, Which, image};
use crate::checkpoint::Application;
use crate::error::JobError;
use crate::events::{Event, Phase};
use crate::link::Link;
use snapify_offload::control::{HostToSupervisor, SupervisorToHost};
use snapify_report::{Moment, Operation};
use std::os::fd::{AsFd, BorrowedFd};

pub(super) fn swap_in(
    application: &Application<'_>,
    cards: &Cards,
    which: &Which,
    card: u32,
    link: &Link,
) -> Result<SwapReport, JobError> {
    let run = Run::begin(application, cards, which, Operation::SwapIn)?;
    let number = cards.number(card)?;
    let registry = super::registry_of(application)?;
    let swapped = registry.get(run.process.id).ok_or_else(|| {
        JobError::Refused(format!(
            "offload process {} was swapped out by the program itself, which alone can bring it back",
            run.process.id
        ))
    })?;
    let opening = Moment::now();
    let (files, file_bytes) = image::open(&swapped)?;
    run.since("check the image", opening);
    link.tell(Event::Phase(Phase::Restoring));
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let order = SupervisorToHost::SwapIn {
        id: run.process.id,
        card: number,
    };
    let asked = Moment::now();
    run.request.send(&order, &fds)?;
    match run.request.await_answer(&run.host)? {
        HostToSupervisor::SwappedIn { steps, restored } => {
            run.note_host(&steps, asked);
            run.note_restore(card, &restored, swapped.store_bytes);
        }
        other => return Err(run.request.unexpected(other)),
    }
    run.since("restore and resume", asked);
    let restore_seconds = Moment::now().seconds_since(run.recorder.began());
    drop(files);
    let removing = Moment::now();
    registry.remove(&swapped);
    run.since("remove the image", removing);
    let outcome = Outcome {
        from: swapped.card,
        card: Some(card),
        dir: Some(swapped.dir),
        store_bytes: swapped.store_bytes,
        file_bytes,
        pause_seconds: 0.0,
        capture_seconds: 0.0,
        restore_seconds,
    };
    Ok(run.finish(outcome, None))
}
