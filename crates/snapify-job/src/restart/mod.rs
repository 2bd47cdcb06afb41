//! Restart: cards are started, all members are rebuilt from the snapshot, complete but stopped, and then let go
//! together (paper 1, section 4.3, for all members at once).

mod detach;
mod files;
mod levels;
mod outputs;
mod plan;

use crate::card::Card;
use crate::error::JobError;
use crate::events::{Event, Observer, Phase};
use crate::layout::Layout;
use crate::schedule::{Prepared, Schedule};
use crate::signals::Signals;
use crate::snapshot::{HOST, PAGES_FILE};
use crate::supervisor::{House, Origin, Program, Supervisor, host_id, start_cards};
use crate::timing;
pub use files::Files;
use plan::Plan;
use snapify_fabric::Channel;
use snapify_offload::control::{
    CardInfo, CardToSupervisor, EXTERNAL_CONTROL, PausedProcess, ProcessId, SupervisorToCard,
    SupervisorToHost, external_card, external_store,
};
use snapify_proc::{Orphans, RestorePlan, Restored};
use snapify_report::{Actor, Moment, Operation, Recorder};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;

/// Number of the restored host process among those that connect to this supervisor.
const FIRST_HOST: u64 = 1;

/// What `snapify restart` does.
#[derive(Clone, Debug, Default)]
pub struct RestartOptions {
    /// The snapshot directory.
    pub dir: PathBuf,
    /// A directory with copies of its snapshots: the newest of both that can be used is restarted.
    pub shared: Option<PathBuf>,
    /// Which snapshot of it; the newest if none is given.
    pub at: Option<u32>,
    /// Whether to return once the program runs.
    pub detach: bool,
    /// Where to write the id of the restarted program.
    pub pid_file: Option<PathBuf>,
    /// Which card's processes go to which other card.
    pub cards: Vec<(u32, u32)>,
    /// Memory of each card; as it was if none is given.
    pub card_memory: Option<u64>,
    /// How many cards to start; as many as there were if none is given.
    pub card_count: Option<u32>,
    /// Whether they are those that this user's programs share.
    pub share_cards: bool,
    /// Where files lie that were below another directory.
    pub roots: Vec<(PathBuf, PathBuf)>,
    /// What becomes of what files have got since the snapshot was taken.
    pub files: Files,
    /// When snapshots are taken of the restarted program, if they are.
    pub schedule: Option<Schedule>,
}

/// Restarts an application and waits for its end; or, detached, until it runs, and then gives no status.
///
/// # Errors
/// Where the snapshot is damaged, or the application cannot be rebuilt here. Nothing of it has run then, and nothing
/// is left of it.
pub fn restart(
    options: &RestartOptions,
    observer: &mut dyn Observer,
) -> Result<Option<ExitStatus>, JobError> {
    if !options.detach {
        return rebuild_newest(options, observer)?.supervise().map(Some);
    }
    detach::in_background(|report| {
        let supervisor = rebuild_newest(options, &mut ())?;
        report();
        supervisor.supervise()
    })?;
    Ok(None)
}

/// Rebuilds the newest snapshot that can be used, of two directories if there are two.
fn rebuild_newest(
    options: &RestartOptions,
    observer: &mut dyn Observer,
) -> Result<Supervisor, JobError> {
    let mut candidates = levels::candidates(options)?.into_iter().peekable();
    while let Some(candidate) = candidates.next() {
        match rebuild(&candidate, observer) {
            Err(error) if candidates.peek().is_some() && levels::is_damaged(&candidate) => {
                eprintln!("snapify: warning: {error}; trying the next best");
            }
            done => return done,
        }
    }
    // There is at least one.
    Err(JobError::Refused("there is no snapshot".into()))
}

fn rebuild(options: &RestartOptions, observer: &mut dyn Observer) -> Result<Supervisor, JobError> {
    let recorder = Recorder::begin(Operation::Restart);
    let plan = recorder.time(Actor::Coordinator, "check", || Plan::make(options))?;
    recorder.point(plan.snapshot.number());
    let layout = Layout::find()?;
    let signals = Signals::new()?;
    let prepared = options.schedule.as_ref().map(Prepared::new).transpose()?;
    let house = House::open()?;
    plan.stand_in_for_old_socket(&house)?;
    observer.event(Event::Phase(Phase::StartingCards));
    let cards = recorder.time(Actor::Coordinator, "start cards", || {
        start_cards(&layout, &signals, &plan.wanted)
    })?;
    observer.event(Event::Phase(Phase::Restoring));
    let outputs = outputs::open(&plan.job.stdio)?;
    let restored = recorder.time(Actor::Coordinator, "restore offload processes", || {
        restore_offload_processes(&plan, &cards, &outputs)
    })?;
    for restored in &restored {
        let card = plan.card_of[restored.process.card as usize];
        timing::note_restore(&recorder, card, &restored.process);
    }
    let (mut program, agent) = recorder.time(Actor::Coordinator, "restore host process", || {
        restore_host(&plan, &cards, &restored, outputs)
    })?;
    recorder.pid(program.pid().0);
    if let Some(registration) = &plan.job.registration {
        crate::registration::put_back(registration, plan.image.root().pid());
    }
    if let Some(path) = &options.pid_file {
        write_pid_file(path, program.pid().0)?;
    }
    if options.files == Files::Truncate {
        files::truncate(&plan.image, &plan.job.stdio)?;
    }
    let releasing = Moment::now();
    for_each_process(&plan, &cards, &restored, |card, process| {
        card.request(&SupervisorToCard::Start { id: process.id }, &[])
            .map(drop)
    })?;
    program.start().map_err(host_failed)?;
    if let Some(agent) = &agent {
        release(agent, &plan, &cards, &restored)?;
    }
    recorder.since(Actor::Coordinator, "release", releasing);
    timing::keep(&recorder.finish(), &plan.dir);
    let origin = Origin {
        program: plan.job.program.clone(),
        identity: plan.job.identity.clone(),
        restarted_from: Some(plan.dir.clone()),
    };
    let mut supervisor = Supervisor::new(
        origin,
        house,
        cards,
        plan.card_of.clone(),
        Program::Restored(program),
        signals,
    );
    if let Some(agent) = agent {
        supervisor.adopt_agent(agent, FIRST_HOST + 1);
    }
    if let Some(prepared) = prepared {
        supervisor.schedule(&layout, prepared);
    }
    Ok(supervisor)
}

/// A restored offload process, and its local store for the host process to map.
struct RestoredProcess {
    process: PausedProcess,
    store: OwnedFd,
}

fn restore_offload_processes(
    plan: &Plan,
    cards: &[Card],
    outputs: &outputs::Outputs,
) -> Result<Vec<RestoredProcess>, JobError> {
    // All cards work at once: first all requests, then all answers.
    for process in &plan.job.processes {
        let card = &cards[plan.card_of[process.card as usize] as usize];
        let files = plan.files_of(process.id)?;
        let mut fds = vec![files.description.as_fd()];
        fds.extend(files.pages.iter().chain(&files.store).map(AsFd::as_fd));
        fds.extend([outputs.stdout(), outputs.stderr()]);
        let order = SupervisorToCard::Restore {
            id: process.id,
            bytes: process.store_bytes,
            pages: files.pages.len(),
        };
        card.send(&order, &fds)?;
    }
    // A card answers first for what is done first.
    let mut answers: BTreeMap<ProcessId, RestoredProcess> = BTreeMap::new();
    for wanted in &plan.job.processes {
        let card = &cards[plan.card_of[wanted.card as usize] as usize];
        let restored = await_restored(card)?;
        answers.insert(restored.process.id, restored);
    }
    let in_order = plan.job.processes.iter().map(|wanted| {
        let mut restored = answers.remove(&wanted.id).ok_or_else(|| {
            let card = &cards[plan.card_of[wanted.card as usize] as usize];
            card.failed(format!("it has not restored offload process {}", wanted.id))
        })?;
        // The program goes on calling the card by the number that it knows.
        restored.process.card = wanted.card;
        Ok(restored)
    });
    in_order.collect()
}

fn await_restored(card: &Card) -> Result<RestoredProcess, JobError> {
    match card.receive()? {
        (CardToSupervisor::Restored { process }, mut fds) if fds.len() == 1 => {
            let store = fds.swap_remove(0);
            Ok(RestoredProcess { process, store })
        }
        (CardToSupervisor::Failed { message }, _) => Err(card.failed(message)),
        (other, _) => Err(card.failed(format!("it answered {other:?}"))),
    }
}

/// Rebuilds the host process, connected with its supervisor and its cards in the old places.
fn restore_host(
    plan: &Plan,
    cards: &[Card],
    restored: &[RestoredProcess],
    outputs: outputs::Outputs,
) -> Result<(Restored, Option<Channel>), JobError> {
    let lost = |source| JobError::Connection {
        peer: "the host process".into(),
        source,
    };
    let mut externals = outputs.into_externals();
    let mut agent = None;
    let mut daemon_ends = Vec::new();
    if plan.job.connected {
        let (ours, theirs) = Channel::pair().map_err(lost)?;
        externals.push((EXTERNAL_CONTROL.into(), theirs.into()));
        agent = Some(ours);
        for number in (0..).take(plan.card_of.len()) {
            let (daemons, hosts) = Channel::pair().map_err(lost)?;
            externals.push((external_card(number), hosts.into()));
            daemon_ends.push(daemons);
        }
        for restored in restored {
            let store = restored
                .store
                .try_clone()
                .map_err(|source| JobError::System {
                    operation: "duplicate a descriptor".into(),
                    source,
                })?;
            externals.push((external_store(restored.process.id), store));
        }
    }
    let pages = plan.snapshot.member(HOST)?.pages(PAGES_FILE)?;
    let point = pages.summary().id().to_string();
    let mut program = snapify_proc::restore(RestorePlan {
        image: plan.image.clone(),
        pages,
        externals,
        stdio: None,
        progress: &(),
        init_name: "snapify-init".into(),
        orphans: Orphans::Survive,
        track: true,
    })
    .map_err(host_failed)?;
    match program.take_tracking(point) {
        Ok(tracking) => crate::keeper::keep_first(program.pid().0, tracking),
        // The next snapshot is a full one.
        Err(error) => tracing::debug!("what the program writes is not followed: {error}"),
    }
    for warning in program.warnings() {
        eprintln!("snapify: warning: {warning}");
    }
    for (number, end) in (0..).zip(daemon_ends) {
        let card = &cards[plan.card_of[number as usize] as usize];
        let id = host_id(FIRST_HOST, number);
        card.request(
            &SupervisorToCard::Host { host: id },
            &[end.as_fd(), program.pidfd()],
        )?;
        let ids: Vec<_> = restored
            .iter()
            .filter(|restored| restored.process.card == number)
            .map(|restored| restored.process.id)
            .collect();
        card.request(&SupervisorToCard::Adopt { host: id, ids }, &[])?;
    }
    Ok((program, agent))
}

/// Tells the host library that it is in a new place, and lets it go on.
fn release(
    agent: &Channel,
    plan: &Plan,
    cards: &[Card],
    restored: &[RestoredProcess],
) -> Result<(), JobError> {
    let lost = |source| JobError::Connection {
        peer: "the host process".into(),
        source,
    };
    let infos = (0..)
        .zip(&plan.card_of)
        .map(|(index, card)| CardInfo {
            index,
            memory: cards[*card as usize].info.memory,
        })
        .collect();
    let processes = restored
        .iter()
        .map(|restored| restored.process.clone())
        .collect();
    agent
        .send(
            &SupervisorToHost::Restored {
                cards: infos,
                processes,
            },
            &[],
        )
        .map_err(lost)?;
    agent.send(&SupervisorToHost::Resume, &[]).map_err(lost)
}

fn for_each_process(
    plan: &Plan,
    cards: &[Card],
    restored: &[RestoredProcess],
    act: impl Fn(&Card, &PausedProcess) -> Result<(), JobError>,
) -> Result<(), JobError> {
    restored.iter().try_for_each(|restored| {
        let card = plan.card_of[restored.process.card as usize];
        act(&cards[card as usize], &restored.process)
    })
}

fn host_failed(source: snapify_proc::ProcError) -> JobError {
    JobError::Process {
        member: "the host process".into(),
        source,
    }
}

/// Writes the file so that whoever waits for it never sees half of it.
fn write_pid_file(path: &std::path::Path, pid: i32) -> Result<(), JobError> {
    let failed = |source| JobError::File {
        operation: "write",
        path: path.to_path_buf(),
        source,
    };
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(std::path::Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .map_err(failed)?;
    use std::io::Write;
    writeln!(file, "{pid}").map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}
