//! A checkpoint in two phases: everything is paused and written into a staging directory; then the manifest makes
//! it a snapshot. Whatever fails before leaves the application running and earlier snapshots as they were.
//!
//! This is the figure 5 of paper 1 with the roles of today: the coordinator asks the host library to pause, has the
//! card daemons capture the offload processes, and captures the host process itself with the engine meanwhile.

mod hosts;
mod increment;
mod live;
mod members;
mod pause;
mod stdio;
mod worker;

pub use increment::{Increments, Sequence};
pub use live::Live;
pub(crate) use live::clean_up_after_worker;
pub(crate) use members::{Captured, await_capture};
pub(crate) use pause::Request;
pub(crate) use worker::{Ending, Worker, start_swap_worker, start_worker};

use crate::error::JobError;
use crate::events::{Event, Phase};
use crate::keeper;
use crate::link::Link;
use crate::processes::own_process;
use crate::protocol::{CheckpointReport, MemberReport};
use crate::registration::Registration;
use crate::snapshot::{
    HOST, JOB_FILE, Job, OffloadProcess, PAGES_FILE, PROCESS_FILE, offload_member,
};
use crate::timing;
use hosts::PausedHosts;
use increment::Plan;
use live::Standing;
use members::Captures;
use snapify_fabric::Channel;
use snapify_offload::control::PausedProcess;
use snapify_plan::Measurement;
use snapify_proc::{Declared, Frozen, Outside, Pid, ProcError, Tracking, TreeImage};
use snapify_report::{Actor, Moment, Operation, Recorder};
use snapify_store::{Chain, PageFileSummary, ProgramIdentity, WriteOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;
use stdio::Outputs;

/// What is to be saved.
pub(crate) struct Application<'a> {
    /// The program: its first process.
    pub host: i32,
    /// The host libraries that have connected: of the program, and of processes that it has started.
    pub agents: Vec<HostAgent<'a>>,
    /// Memory of each card.
    pub cards: Vec<u64>,
    /// The process ids of their daemons.
    pub daemons: Vec<i32>,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Whose chain it is.
    pub identity: ProgramIdentity,
    /// Its folder, where it is found.
    pub folder: Option<PathBuf>,
    /// Where its host libraries connect to, as they know it.
    pub agent_socket: Option<PathBuf>,
    /// Whether what stands in the way may be a host library that is connecting just now, or a process that has ended: then it is
    /// better to [try again](JobError::TryAgain) than to refuse.
    pub may_try_again: bool,
}

/// The connection to a host library.
#[derive(Clone, Copy)]
pub(crate) struct HostAgent<'a> {
    /// Its process.
    pub pid: i32,
    pub channel: &'a Channel,
}

impl Application<'_> {
    /// What a failure comes to: another attempt, if it may pass by itself.
    fn judge(&self, error: JobError) -> JobError {
        let passes = match &error {
            JobError::Died { pid } | JobError::NoSuchProcess { pid } => *pid != self.host,
            JobError::Process { source, .. } => matches!(source, ProcError::Unsupported { .. }),
            _ => false,
        };
        match passes && self.may_try_again {
            true => JobError::TryAgain,
            false => error,
        }
    }
}

/// How a snapshot is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether the application ends once the snapshot is committed.
    pub stop: bool,
    /// Whether it goes on before its memory is saved.
    pub live: Live,
    /// What becomes of connections to programs that are not part of it.
    pub outside: Outside,
    /// The snapshot gets a number greater than this.
    pub after: u32,
    /// How it follows others.
    pub sequence: Sequence,
    /// How the memory of the host process is written.
    pub write: WriteOptions,
}

/// Takes a snapshot of `application` into `dir`.
///
/// # Errors
/// On any failure the application goes on, and nothing is left in `dir`.
pub(crate) fn checkpoint(
    application: &Application<'_>,
    dir: &Path,
    manner: Manner,
    link: &Link,
) -> Result<CheckpointReport, JobError> {
    let mut kept = keeper::take(application.host);
    let result = take_snapshot(application, dir, manner, &mut kept.tracking, link);
    if !manner.stop || result.is_err() {
        keeper::keep(application.host, kept);
    }
    result.map_err(|error| application.judge(error))
}

fn take_snapshot(
    application: &Application<'_>,
    dir: &Path,
    manner: Manner,
    tracking: &mut Tracking,
    link: &Link,
) -> Result<CheckpointReport, JobError> {
    let stop = manner.stop;
    let begin = Instant::now();
    let recorder = Recorder::begin(Operation::Checkpoint);
    recorder.pid(application.host);
    own_process(application.host)?;
    live::clean_up_after_worker(application.host);
    let process = |source| match source {
        ProcError::Cancelled => JobError::Cancelled,
        ProcError::Died { pid, .. } => JobError::Died { pid: pid.0 },
        ProcError::Store(source) => JobError::Store(source),
        source => JobError::Process {
            member: "the process".into(),
            source,
        },
    };
    let mut untracked = None;
    let mut freeze = |declared: &[Declared]| {
        let at = Moment::now();
        let mut frozen = Frozen::freeze(Pid(application.host)).map_err(process)?;
        recorder.since(Actor::Host, "freeze", at);
        hosts::are_all_here(application, &frozen)?;
        frozen.set_outside(manner.outside);
        frozen.set_tracking(std::mem::take(tracking));
        let outline = recorder.time(Actor::Host, "describe", || frozen.outline(declared));
        if outline.is_ok() {
            let track = || frozen.track(!stop);
            let failures = recorder.time(Actor::Host, "track", track);
            untracked = failures.into_iter().next();
        }
        *tracking = frozen.take_tracking();
        let outline = outline.map_err(process)?;
        let live = manner.is_live(application, outline.image().private_bytes());
        let pids: Vec<i32> = frozen.processes().map(|pid| pid.0).collect();
        let mut standing = live::stand_or_go_on(frozen, live, link);
        let rest = standing.read_rest();
        let until = Moment::now();
        if matches!(standing, Standing::Copied(_)) {
            recorder.note(Actor::Host, "stands still", at, until, None);
        }
        let described = (outline, rest, pids);
        Ok::<_, JobError>((standing, described, at, until.seconds_since(at)))
    };
    // What nobody but the engine has to do with is refused, if at all, before a directory is made for it. Looking at running
    // processes beforehand tells less: they come and go.
    let mut early = None;
    if application.agents.is_empty() {
        early = Some((freeze(&[])?, Outputs::default()));
    }
    let chain = Chain::open_or_create(dir, &application.identity)?;
    let mut staging = increment::begin(&chain, manner.sequence, link)?;
    staging.number_after(manner.after);

    link.tell(Event::Phase(Phase::Pausing));
    let mut paused = match &application.agents[..] {
        [] => PausedHosts::default(),
        agents => PausedHosts::begin(agents, link, &recorder)?,
    };
    let has_cards = !paused.is_empty();
    let pause_seconds = begin.elapsed().as_secs_f64();

    link.tell(Event::Phase(Phase::Capturing));
    let captured = Instant::now();
    let capturing = Moment::now();
    let processes: Vec<(usize, PausedProcess)> = paused
        .processes()
        .map(|(host, process)| (host, process.clone()))
        .collect();
    let form = (manner.sequence, manner.write);
    let mut captures = Captures::begin(&paused, &staging, stop, form)?;

    let ((mut standing, (outline, rest, pids), frozen_at, mut frozen_seconds), outputs) =
        match early.take() {
            Some(early) => early,
            None => {
                let outputs = Outputs::find(application.host, &paused);
                let mut declared = paused.declared(&application.daemons);
                outputs.declare(&mut declared);
                (freeze(&declared)?, outputs)
            }
        };
    let member = staging.member(HOST)?;
    let untracked = untracked.as_deref();
    let description = outline.image();
    let plan = Plan::make(
        manner.sequence,
        &member,
        tracking,
        untracked,
        description,
        link,
    )?;
    link.tell(Event::Total(plan.bytes(&standing, description)));
    let saving = Moment::now();
    let pages = standing
        .save_pages(plan.form(), &manner.write, member.create(PAGES_FILE)?, link)
        .map_err(process)?;
    let bytes = Some(pages.pages_stored * snapify_store::PAGE_SIZE);
    recorder.note(Actor::Host, "save pages", saving, Moment::now(), bytes);
    member.record_pages(PAGES_FILE, pages)?;
    let complete = || rest.complete(outline);
    let image = recorder.time(Actor::Host, "complete the description", complete);
    let image = image.map_err(process)?;

    // What goes on may do so as soon as its own pages are safe; what is to end must not run again, or it would do
    // twice what it does between here and its end.
    let live = matches!(standing, Standing::Copied(_));
    if !stop {
        frozen_seconds = match standing.take() {
            Standing::Copied(copies) => frozen_seconds + live::finish(copies, link),
            Standing::Frozen(frozen) => {
                frozen.thaw().map_err(process)?;
                recorder.since(Actor::Host, "stands still", frozen_at);
                Moment::now().seconds_since(frozen_at)
            }
            Standing::Gone => frozen_seconds,
        };
    }
    member.write_json(PROCESS_FILE, &image)?;
    captures.finish(&paused, link, &recorder)?;
    recorder.since(Actor::Coordinator, "capture", capturing);
    let capture_seconds = captured.elapsed().as_secs_f64();
    link.flush();

    member.write_json(
        JOB_FILE,
        &Job {
            identity: application.identity.clone(),
            program: application.program.clone(),
            cards: application.cards.clone(),
            connected: has_cards,
            hosts: hosts_of(&paused, &pids, &image)?,
            agent_socket: application.agent_socket.clone(),
            processes: processes
                .iter()
                .map(|(host, process)| OffloadProcess {
                    id: process.id,
                    host: *host,
                    card: process.card,
                    store_bytes: process.store_bytes,
                    in_flight: process.in_flight.clone(),
                })
                .collect(),
            stdio: outputs.outputs.clone(),
            registration: None,
            registrations: registrations(&pids, &image),
        },
    )?;
    drop(member);

    // The application need not wait for the disk.
    if !stop && has_cards {
        link.tell(Event::Phase(Phase::Resuming));
        recorder.time(Actor::Coordinator, "resume", || paused.end(link))?;
    }
    link.check()?;
    link.tell(Event::Phase(Phase::Committing));
    let committing = Instant::now();
    let bound = Moment::now();
    let mut summaries = vec![&pages];
    for (_, process) in &processes {
        if let Some((pages, store)) = captures.summary(process.id) {
            summaries.extend([pages, store]);
        }
    }
    let builds = summaries.iter().any(|pages| pages.parent.is_some());
    let parent = staging.parent().filter(|_| builds);
    let point = staging.commit(crate::measured::header(&Measurement {
        saved_bytes: summaries
            .iter()
            .map(|pages| pages.pages_stored * snapify_store::PAGE_SIZE)
            .sum(),
        file_bytes: summaries.iter().map(|pages| pages.file_bytes).sum(),
        compressed: summaries.iter().any(|pages| pages.is_compressed()),
        incremental: summaries.iter().any(|pages| pages.parent.is_some()),
        pause_seconds,
        // Offload processes stand still until the last of them is saved.
        stop_seconds: if stop || has_cards {
            capture_seconds
        } else {
            frozen_seconds
        },
        capture_seconds,
    }))?;
    increment::saved(tracking, &plan, &pages);
    let files = Some(point.bytes);
    recorder.note(Actor::Coordinator, "commit", bound, Moment::now(), files);
    recorder.point(point.number);
    let commit_seconds = committing.elapsed().as_secs_f64();
    if let Standing::Frozen(frozen) = standing.take() {
        captures.terminate();
        frozen.kill().map_err(process)?;
        recorder.since(Actor::Host, "stands still", frozen_at);
        frozen_seconds = Moment::now().seconds_since(frozen_at);
        paused.forget();
    }

    let mut members = vec![report(HOST.into(), None, &pages, None, Vec::new())];
    for (_, process) in &processes {
        if let Some((pages, store)) = captures.summary(process.id) {
            let name = offload_member(process.id);
            members.push(report(
                name,
                Some(process.card),
                pages,
                Some(store),
                process.in_flight.clone(),
            ));
        }
    }
    timing::keep(&recorder.finish(), dir);
    Ok(CheckpointReport {
        pid: application.host,
        dir: dir.to_path_buf(),
        point: point.number,
        parent,
        stopped: stop,
        members,
        file_bytes: point.bytes,
        pause_seconds,
        live,
        frozen_seconds,
        capture_seconds,
        commit_seconds,
        total_seconds: begin.elapsed().as_secs_f64(),
    })
}

/// The host processes, as a snapshot lists them; `pids` are ours of the processes of `image`, in the same order.
fn hosts_of(
    paused: &PausedHosts<'_>,
    pids: &[i32],
    image: &TreeImage,
) -> Result<Vec<i32>, JobError> {
    let listed = paused.all().iter().map(|host| {
        let mut known = pids.iter().zip(&image.processes);
        let found = known.find(|(pid, _)| **pid == host.pid);
        let (_, inner) = found.ok_or(JobError::Died { pid: host.pid })?;
        Ok(inner.pid())
    });
    listed.collect()
}

/// The registrations of OpenMP runtimes in the processes of `image`, whose ids as we see them are `pids`.
fn registrations(pids: &[i32], image: &TreeImage) -> Vec<(i32, Registration)> {
    let processes = pids.iter().zip(&image.processes);
    let found = processes.filter_map(|(pid, process)| {
        let inner = process.pid();
        Some((inner, crate::registration::save(*pid, inner)?))
    });
    found.collect()
}

fn report(
    name: String,
    card: Option<u32>,
    pages: &PageFileSummary,
    store: Option<&PageFileSummary>,
    in_flight: Vec<String>,
) -> MemberReport {
    let bytes = |summary: &PageFileSummary| summary.pages_stored * snapify_store::PAGE_SIZE;
    let store_bytes = store.map_or(0, bytes);
    MemberReport {
        name,
        card,
        stored_bytes: bytes(pages) + store_bytes,
        store_bytes,
        in_flight,
    }
}

/// Waits until `channel` has a message, but no longer than whoever asked is there and the host process lives.
fn await_message(channel: &Channel, link: &Link, host: &OwnedFd, pid: i32) -> Result<(), JobError> {
    let fds = [channel.as_fd(), link.channel().as_fd(), host.as_fd()];
    let ready = crate::processes::wait_readable(&fds, None)?;
    match ready[..] {
        [_, _, true] => Err(JobError::Died { pid }),
        [true, ..] => Ok(()),
        _ => Err(JobError::Cancelled),
    }
}
