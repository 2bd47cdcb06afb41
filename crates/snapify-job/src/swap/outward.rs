//! Swap-out (paper 1, figure 6): the process is paused, saved while it stands still, and taken off its card once its image
//! is committed.

use super::registry::{Registry, Swapped};
use super::run::{Outcome, Run};
use super::{Cards, SwapReport, Which, image};
use crate::checkpoint::{Application, Captured, await_capture};
use crate::error::JobError;
use crate::events::{Event, Phase};
use crate::link::Link;
use crate::snapshot::{PAGES_FILE, PROCESS_FILE, STORE_FILE, offload_member};
use crate::timing;
use snapify_fabric::Channel;
use snapify_offload::control::{HostToSupervisor, SupervisorToHost};
use snapify_report::{Moment, Operation};
use snapify_store::{Chain, Point, PointHeader};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

pub(super) fn swap_out(
    application: &Application<'_>,
    cards: &Cards,
    which: &Which,
    dir: &Path,
    link: &Link,
) -> Result<SwapReport, JobError> {
    let run = Run::begin(application, cards, which, Operation::SwapOut)?;
    let Run { host, process, .. } = &run;
    let from = cards.real(process.card);
    let registry = super::registry_of(application)?;
    let (image, made) = image::place(dir, process.id)?;
    let chain = Chain::open_or_create(&image, &application.identity)?;
    let staging = chain.begin()?;
    let name = offload_member(process.id);
    let member = staging.member(&name)?;
    let files: Vec<File> = [PROCESS_FILE, PAGES_FILE, STORE_FILE]
        .iter()
        .map(|file| member.create(file))
        .collect::<Result<_, _>>()?;

    link.tell(Event::Phase(Phase::Pausing));
    let (ours, theirs) = Channel::pair().map_err(|source| JobError::Connection {
        peer: "the card".into(),
        source,
    })?;
    let mut fds: Vec<BorrowedFd<'_>> = vec![theirs.as_fd()];
    fds.extend(files.iter().map(AsFd::as_fd));
    // Whatever fails from here on lets the process go on.
    let pause = run.request.pausing();
    let asked = Moment::now();
    pause.send(&SupervisorToHost::SwapOut { id: process.id }, &fds)?;
    let steps = match pause.answer(link, host)? {
        HostToSupervisor::Saving { steps } => steps,
        other => return Err(pause.unexpected(other)),
    };
    drop((theirs, files));
    let paused = run.note_pause(from, &steps, asked);
    link.tell(Event::Phase(Phase::Capturing));
    let member_name = format!("offload process {}", process.id);
    let Captured {
        pages,
        store,
        steps,
    } = await_capture(&ours, &member_name, link, host, run.request.pid())?;
    link.flush();
    run.since("capture", paused);
    timing::note_capture(&run.recorder, from, run.on(from), &steps, &pages, &store);
    let captured = Moment::now();
    link.check()?;
    link.tell(Event::Phase(Phase::Committing));
    member.record_file(PROCESS_FILE)?;
    member.record_pages(PAGES_FILE, pages)?;
    member.record_pages(STORE_FILE, store)?;
    drop(member);

    let mut swapped = Swapped {
        id: process.id,
        host: Some(run.request.pid()),
        card: from,
        store_bytes: store.pages_stored * snapify_store::PAGE_SIZE,
        dir: dir.to_owned(),
        image,
        program: application.identity.id.clone(),
        made,
    };
    registry.note(&swapped)?;
    let mut removing = Removing(&registry, Some(swapped.clone()));
    let point: Point = staging.commit(PointHeader {
        created_unix_ms: crate::measured::now_unix_ms(),
        details: serde_json::Value::Null,
    })?;
    run.since("commit", captured);
    let release = SupervisorToHost::Release {
        image: point.path.join(&name),
    };
    let releasing = Moment::now();
    pause.send(&release, &[])?;
    // Not to be called off any more.
    match pause.await_answer(host)? {
        HostToSupervisor::SwappedOut { store_bytes, steps } => {
            pause.forget();
            run.since("release", releasing);
            run.note_host(&steps, releasing);
            swapped.store_bytes = store_bytes;
        }
        other => {
            let error = pause.unexpected(other);
            // It goes on already.
            pause.forget();
            return Err(error);
        }
    }
    removing.1 = None;
    // With what is known only now; what was noted before does as well.
    let _ = registry.note(&swapped);
    let outcome = Outcome {
        from,
        card: None,
        dir: Some(dir.to_owned()),
        store_bytes: swapped.store_bytes,
        file_bytes: point.bytes,
        pause_seconds: paused.seconds_since(asked),
        capture_seconds: captured.seconds_since(paused),
        restore_seconds: 0.0,
    };
    // Beside the image, with which it goes.
    Ok(run.finish(outcome, Some(&swapped.image)))
}

/// Removes an image for which there is no use after all.
struct Removing<'a>(&'a Registry, Option<Swapped>);

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        if let Some(swapped) = &self.1 {
            self.0.remove(swapped);
        }
    }
}
