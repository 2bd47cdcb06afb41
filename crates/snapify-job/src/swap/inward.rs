//! Swap-in (paper 1, figure 7): the process is rebuilt from its image, on any card with room for it.

use super::select::select;
use super::{Cards, SwapReport, Which, image};
use crate::checkpoint::{Application, Request};
use crate::error::JobError;
use crate::events::{Event, Phase};
use crate::link::Link;
use crate::processes::own_process;
use snapify_offload::control::{HostProcessState, HostToSupervisor, SupervisorToHost};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

pub(super) fn swap_in(
    application: &Application<'_>,
    cards: &Cards,
    which: &Which,
    card: u32,
    link: &Link,
) -> Result<SwapReport, JobError> {
    let begin = Instant::now();
    let host = own_process(application.host)?;
    let request = Request::new(application)?;
    let process = select(
        &request,
        cards,
        which,
        HostProcessState::SwappedOut,
        "swap in",
    )?;
    let number = cards.number(card)?;
    let registry = super::registry_of(application)?;
    let swapped = registry.get(process.id).ok_or_else(|| {
        JobError::Refused(format!(
            "offload process {} was swapped out by the program itself, which alone can bring it back",
            process.id
        ))
    })?;
    let (files, file_bytes) = image::open(&swapped)?;
    link.tell(Event::Phase(Phase::Restoring));
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let order = SupervisorToHost::SwapIn {
        id: process.id,
        card: number,
    };
    request.send(&order, &fds)?;
    match request.await_answer(&host)? {
        HostToSupervisor::SwappedIn => {}
        other => return Err(request.unexpected(other)),
    }
    let total_seconds = begin.elapsed().as_secs_f64();
    drop(files);
    registry.remove(&swapped);
    Ok(SwapReport {
        operation: "swap-in".into(),
        pid: application.host,
        process: process.id.to_string(),
        from: swapped.card,
        card: Some(card),
        dir: Some(swapped.dir),
        store_bytes: swapped.store_bytes,
        file_bytes,
        pause_seconds: 0.0,
        capture_seconds: 0.0,
        restore_seconds: total_seconds,
        total_seconds,
    })
}
