//! Migration: the process goes from card to card, without a stop on disk.

use super::select::select;
use super::{Cards, SwapReport, Which};
use crate::checkpoint::{Application, Request};
use crate::error::JobError;
use crate::events::{Event, Phase};
use crate::link::Link;
use crate::processes::own_process;
use snapify_offload::control::{HostProcessState, HostToSupervisor, SupervisorToHost};
use std::time::Instant;

pub(super) fn migrate(
    application: &Application<'_>,
    cards: &Cards,
    which: &Which,
    card: u32,
    link: &Link,
) -> Result<SwapReport, JobError> {
    let begin = Instant::now();
    let host = own_process(application.host)?;
    let request = Request::new(application)?;
    let process = select(&request, cards, which, HostProcessState::Running, "migrate")?;
    let number = cards.number(card)?;
    let from = cards.real(process.card);
    if from == card {
        return Err(JobError::Refused(format!(
            "offload process {} is on card {card} already",
            process.id
        )));
    }
    link.tell(Event::Phase(Phase::Moving));
    let order = SupervisorToHost::Migrate {
        id: process.id,
        card: number,
    };
    request.send(&order, &[])?;
    match request.await_answer(&host)? {
        HostToSupervisor::Migrated {
            store_bytes,
            pause_seconds,
            capture_seconds,
            restore_seconds,
            ..
        } => Ok(SwapReport {
            operation: "migrate".into(),
            pid: application.host,
            process: process.id.to_string(),
            from,
            card: Some(card),
            dir: None,
            store_bytes,
            file_bytes: 0,
            pause_seconds,
            capture_seconds,
            restore_seconds,
            total_seconds: begin.elapsed().as_secs_f64(),
        }),
        other => Err(request.unexpected(other)),
    }
}
