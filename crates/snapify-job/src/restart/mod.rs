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
use crate::processes::own_process;
use crate::schedule::{Prepared, Schedule};
use crate::signals::Signals;
use crate::snapshot::{HOST, PAGES_FILE, host_key};
use crate::supervisor::{Agent, House, Origin, Program, Supervisor, host_id, inode, start_cards};
use crate::timing;
pub use files::Files;
use plan::Plan;
use snapify_fabric::Channel;
use snapify_offload::control::{
    CardInfo, CardToSupervisor, EXTERNAL_CONTROL, PausedProcess, ProcessId, SupervisorToCard,
    SupervisorToHost, external_card, external_store,
};
use snapify_proc::{Orphans, Pid, RestorePlan, Restored};
use snapify_report::{Actor, Moment, Operation, Recorder};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;

/// Number of the first restored host process among those that connect to this supervisor.
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
    let mut house = House::open()?;
    plan.stand_in_for_old_socket(&mut house)?;
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
    let (mut program, agents) =
        recorder.time(Actor::Coordinator, "restore host process", || {
            restore_host(&plan, &cards, &restored, outputs)
        })?;
    recorder.pid(program.pid().0);
    for (pid, registration) in plan.registrations() {
        crate::registration::put_back(registration, pid);
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
    for (number, agent) in agents.iter().enumerate() {
        release(&agent.channel, number, &plan, &cards, &restored)?;
    }
    recorder.since(Actor::Coordinator, "release", releasing);
    timing::keep(&recorder.finish(), &plan.dir);
    let origin = Origin {
        program: plan.job.program.clone(),
        identity: plan.job.identity.clone(),
        restarted_from: Some(plan.dir.clone()),
        agent_socket: plan.job.agent_socket.clone(),
    };
    let mut supervisor = Supervisor::new(
        origin,
        house,
        cards,
        plan.card_of.clone(),
        Program::Restored(program),
        signals,
    );
    let next = FIRST_HOST + agents.len() as u64;
    supervisor.adopt_agents(agents, next);
    if let Some(prepared) = prepared {
        supervisor.schedule(&layout, prepared);
    }
    Ok(supervisor)
}

/// A restored offload process, and its local store for the host process to map.
struct RestoredProcess {
    /// The number of its host process.
    host: usize,
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
        restored.host = wanted.host;
        Ok(restored)
    });
    in_order.collect()
}

fn await_restored(card: &Card) -> Result<RestoredProcess, JobError> {
    match card.receive()? {
        (CardToSupervisor::Restored { process }, mut fds) if fds.len() == 1 => {
            let store = fds.swap_remove(0);
            Ok(RestoredProcess {
                host: 0,
                process,
                store,
            })
        }
        (CardToSupervisor::Failed { message }, _) => Err(card.failed(message)),
        (other, _) => Err(card.failed(format!("it answered {other:?}"))),
    }
}

/// New connections of a host process.
struct Connections {
    /// Our end of that with us.
    agent: Channel,
    /// The daemons' ends of those with the cards, by the numbers that the program knows.
    daemons: Vec<Channel>,
    /// Inode numbers of the host process's ends of these.
    sockets: Vec<u64>,
}

impl Connections {
    /// Makes them for the host process with this number: its ends are externals of the program.
    fn make(
        number: usize,
        plan: &Plan,
        restored: &[RestoredProcess],
        externals: &mut Vec<(String, OwnedFd)>,
    ) -> Result<Self, JobError> {
        let pair = || {
            Channel::pair().map_err(|source| JobError::Connection {
                peer: "the host process".into(),
                source,
            })
        };
        let (agent, theirs) = pair()?;
        externals.push((host_key(number, EXTERNAL_CONTROL), theirs.into()));
        let mut daemons = Vec::new();
        let mut sockets = Vec::new();
        for card in (0..).take(plan.card_of.len()) {
            let (ours, theirs) = pair()?;
            sockets.extend(inode(&theirs));
            externals.push((host_key(number, &external_card(card)), theirs.into()));
            daemons.push(ours);
        }
        for restored in restored.iter().filter(|one| one.host == number) {
            let store = restored
                .store
                .try_clone()
                .map_err(|source| JobError::System {
                    operation: "duplicate a descriptor".into(),
                    source,
                })?;
            let key = external_store(restored.process.id);
            externals.push((host_key(number, &key), store));
        }
        Ok(Self {
            agent,
            daemons,
            sockets,
        })
    }

    /// Has the cards take over their ends, for the restored host process `pid`.
    fn hand_over(
        self,
        number: usize,
        pid: i32,
        plan: &Plan,
        cards: &[Card],
        restored: &[RestoredProcess],
    ) -> Result<Agent, JobError> {
        let handle = own_process(pid)?;
        let host = FIRST_HOST + number as u64;
        for (card, end) in (0..).zip(&self.daemons) {
            let daemon = &cards[plan.card_of[card as usize] as usize];
            let id = host_id(host, card);
            daemon.request(
                &SupervisorToCard::Host { host: id },
                &[end.as_fd(), handle.as_fd()],
            )?;
            let ids: Vec<_> = restored
                .iter()
                .filter(|one| one.host == number && one.process.card == card)
                .map(|one| one.process.id)
                .collect();
            daemon.request(&SupervisorToCard::Adopt { host: id, ids }, &[])?;
        }
        Ok(Agent {
            pid,
            channel: self.agent,
            handle,
            number: host,
            card_sockets: self.sockets,
            is_gone: false,
        })
    }
}

/// Rebuilds the program, its host processes connected with their supervisor and the cards in the old places.
fn restore_host(
    plan: &Plan,
    cards: &[Card],
    restored: &[RestoredProcess],
    outputs: outputs::Outputs,
) -> Result<(Restored, Vec<Agent>), JobError> {
    let mut externals = outputs.into_externals();
    let connections: Vec<Connections> = (0..plan.hosts.len())
        .map(|number| Connections::make(number, plan, restored, &mut externals))
        .collect::<Result<_, _>>()?;
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
    let outer = program.outer_ids().map_err(host_failed)?;
    let mut agents = Vec::with_capacity(connections.len());
    for ((number, host), connections) in plan.hosts.iter().enumerate().zip(connections) {
        let gone = JobError::NoSuchProcess { pid: *host };
        let pid = outer.get(&Pid(*host)).ok_or(gone)?;
        agents.push(connections.hand_over(number, pid.0, plan, cards, restored)?);
    }
    Ok((program, agents))
}

/// Tells the host library that it is in a new place, and lets it go on.
fn release(
    agent: &Channel,
    number: usize,
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
    let own = restored.iter().filter(|restored| restored.host == number);
    let processes = own.map(|restored| restored.process.clone()).collect();
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
