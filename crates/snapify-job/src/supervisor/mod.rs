//! The supervisor of an application: parent of its program and of its cards, and where the command line finds it.
//!
//! One thread, one loop. What takes long (a checkpoint) is done by a worker process.

mod agents;
mod program;
mod requests;
mod status;

pub(crate) use agents::{Agent, host_id, inode};
pub(crate) use program::Program;

use crate::card::Card;
use crate::checkpoint::Worker;
use crate::error::JobError;
use crate::layout::Layout;
use crate::runtime_dir::{ApplicationDir, RuntimeDir};
use crate::schedule::{Prepared, Schedule, WatcherProcess};
use crate::shared_cards::{DEFAULT_CARD_MEMORY, SharedCards, Wanted};
use crate::signals::Signals;
use requests::QueuedRequest;
use snapify_fabric::{Channel, ChannelError, Listener};
use snapify_store::ProgramIdentity;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// What `snapify run` runs.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How many cards.
    pub cards: u32,
    /// Memory of each card in bytes; [`DEFAULT_CARD_MEMORY`], or what shared ones have, if none is given.
    pub card_memory: Option<u64>,
    /// Whether they are those that this user's programs share.
    pub share_cards: bool,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// When snapshots are taken of it, if they are.
    pub schedule: Option<Schedule>,
}

/// Runs a program with cards, and waits for its end.
///
/// # Errors
/// Where the cards or the program cannot be started; nothing is left of either then.
pub fn run(options: &RunOptions) -> Result<ExitStatus, JobError> {
    let layout = Layout::find()?;
    let signals = Signals::new()?;
    let prepared = options.schedule.as_ref().map(Prepared::new).transpose()?;
    let house = House::open()?;
    let memory = options.card_memory.unwrap_or(DEFAULT_CARD_MEMORY);
    let memories = vec![memory; options.cards as usize];
    let wanted = if options.share_cards {
        Wanted::Shared {
            otherwise: memories,
            memory: options.card_memory,
        }
    } else {
        Wanted::Own(memories)
    };
    let cards = start_cards(&layout, &signals, &wanted)?;
    let words: Vec<_> = options
        .program
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let identity = crate::identity::of_application(house.folder.path(), &words);
    let program = Program::launch(
        &options.program,
        &layout,
        &house.folder.agent_socket(),
        &signals,
    )?;
    let card_of = (0..options.cards).collect();
    let mut supervisor = Supervisor::new(
        Origin {
            program: words,
            identity,
            restarted_from: None,
            agent_socket: None,
        },
        house,
        cards,
        card_of,
        program,
        signals,
    );
    if let Some(prepared) = prepared {
        supervisor.schedule(&layout, prepared);
    }
    supervisor.supervise()
}

/// Starts the cards that are wanted, or connects with those that are there, and waits until all are up.
pub(crate) fn start_cards(
    layout: &Layout,
    signals: &Signals,
    wanted: &Wanted,
) -> Result<Vec<Card>, JobError> {
    if wanted.count() > 0 {
        layout.require_cards()?;
    }
    let up: Vec<(Card, Vec<String>)> = match wanted {
        Wanted::Own(memories) => {
            let started: Vec<Card> = (0..)
                .zip(memories)
                .map(|(index, memory)| Card::start(layout, signals, index, *memory, None))
                .collect::<Result<_, _>>()?;
            let await_ready = |mut card: Card| Ok((card.await_ready()?, card));
            let up = started.into_iter().map(await_ready);
            up.map(|up| up.map(|(warnings, card)| (card, warnings)))
                .collect::<Result<_, JobError>>()?
        }
        Wanted::Shared { otherwise, memory } => {
            let shared = SharedCards::open()?;
            (0..)
                .zip(otherwise)
                .map(|(index, otherwise)| shared.join(layout, signals, index, *memory, *otherwise))
                .collect::<Result<_, _>>()?
        }
    };
    let say = |(card, warnings): (Card, Vec<String>)| {
        for warning in warnings {
            eprintln!("snapify: warning: {}: {warning}", card.name());
        }
        card
    };
    Ok(up.into_iter().map(say).collect())
}

/// Where others find the application.
pub(crate) struct House {
    control: Listener,
    agents: Listener,
    /// Removed with all that is in it; hence last.
    pub folder: ApplicationDir,
}

impl House {
    /// Makes the folder of a new application and its sockets.
    pub(crate) fn open() -> Result<Self, JobError> {
        let folder = RuntimeDir::open()?.new_application()?;
        let failed = |source| JobError::Connection {
            peer: "the command line".into(),
            source,
        };
        Ok(Self {
            control: Listener::bind(&folder.control_socket()).map_err(failed)?,
            agents: Listener::bind(&folder.agent_socket()).map_err(failed)?,
            folder,
        })
    }
}

/// Where an application comes from.
pub(crate) struct Origin {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Whose chain of snapshots it continues.
    pub identity: ProgramIdentity,
    /// The snapshot that it was restarted from.
    pub restarted_from: Option<PathBuf>,
    /// Where its processes look for their supervisor, if not at this one's own place: where that was when they were started.
    pub agent_socket: Option<PathBuf>,
}

/// A running application, seen from its supervisor.
pub(crate) struct Supervisor {
    origin: Origin,
    program: Program,
    signals: Signals,
    /// The cards, by their own numbers.
    cards: Vec<Card>,
    /// Which of them serves each card number that the program knows.
    card_of: Vec<u32>,
    lost_cards: Vec<u32>,
    agents: Vec<Agent>,
    next_host: u64,
    /// Connections of which nothing has been heard yet.
    strangers: Vec<Channel>,
    clients: Vec<Channel>,
    waiting: VecDeque<QueuedRequest>,
    working: Option<(Worker, QueuedRequest)>,
    /// What takes snapshots by the clock.
    watcher: Option<WatcherProcess>,
    house: House,
}

/// What an event is about. Lists are changed only after all events of a round are known.
#[derive(Clone, Copy, Debug)]
enum Source {
    Signals,
    Program,
    Control,
    Agents,
    Stranger(usize),
    Client(usize),
    Agent(usize),
    AgentsEnd(usize),
    Card(usize),
    Worker,
    Watcher,
}

impl Supervisor {
    /// Puts the parts together.
    pub(crate) fn new(
        origin: Origin,
        house: House,
        cards: Vec<Card>,
        card_of: Vec<u32>,
        program: Program,
        signals: Signals,
    ) -> Self {
        Self {
            origin,
            program,
            signals,
            cards,
            card_of,
            lost_cards: Vec::new(),
            agents: Vec::new(),
            next_host: 1,
            strangers: Vec::new(),
            clients: Vec::new(),
            waiting: VecDeque::new(),
            working: None,
            watcher: None,
            house,
        }
    }

    /// Has snapshots taken of the program, which goes on without them where that cannot be done.
    pub(crate) fn schedule(&mut self, layout: &Layout, prepared: Prepared) {
        match WatcherProcess::start(layout, &self.signals, self.program.pid(), prepared) {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => eprintln!("snapify: warning: no snapshots are taken: {error}"),
        }
    }

    /// Serves until the program has ended, and cleans up.
    pub(crate) fn supervise(mut self) -> Result<ExitStatus, JobError> {
        loop {
            self.start_waiting();
            let sources = self.sources();
            let ready = {
                let fds: Vec<BorrowedFd<'_>> =
                    sources.iter().map(|source| self.fd(*source)).collect();
                crate::processes::wait_readable(&fds, self.patience())?
            };
            // From the back, so that removing an element leaves the indices of those before it right.
            let ready: Vec<Source> = sources
                .into_iter()
                .zip(ready)
                .filter(|(_, ready)| *ready)
                .map(|(source, _)| source)
                .collect();
            for source in ready.into_iter().rev() {
                self.handle(source);
            }
            self.forget_gone();
            if let Some(status) = self.program.try_wait()? {
                self.finish_worker();
                self.finish_watcher(status);
                return Ok(status);
            }
        }
    }

    /// Waits for the end of what takes snapshots, if anything does.
    fn finish_watcher(self, status: ExitStatus) {
        let Self {
            watcher,
            mut signals,
            house,
            strangers,
            clients,
            waiting,
            ..
        } = self;
        // Nobody is answered any more, and nobody may wait for that.
        drop((house, strangers, clients, waiting));
        if let Some(watcher) = watcher {
            watcher.finish(status, &mut signals);
        }
    }

    fn sources(&self) -> Vec<Source> {
        let mut sources = vec![
            Source::Signals,
            Source::Program,
            Source::Control,
            Source::Agents,
        ];
        sources.extend((0..self.strangers.len()).map(Source::Stranger));
        sources.extend((0..self.clients.len()).map(Source::Client));
        // A worker talks to the agents itself.
        if self.working.is_none() {
            sources.extend((0..self.agents.len()).map(Source::Agent));
        }
        sources.extend((0..self.agents.len()).map(Source::AgentsEnd));
        let cards = 0..self.cards.len();
        sources.extend(cards.filter(|card| !self.is_lost(*card)).map(Source::Card));
        sources.extend(self.working.as_ref().map(|_| Source::Worker));
        sources.extend(self.watcher.as_ref().map(|_| Source::Watcher));
        sources
    }

    fn fd(&self, source: Source) -> BorrowedFd<'_> {
        match source {
            Source::Signals => self.signals.as_fd(),
            Source::Program => self.program.as_fd(),
            Source::Control => self.house.control.as_fd(),
            Source::Agents => self.house.agents.as_fd(),
            Source::Stranger(index) => self.strangers[index].as_fd(),
            Source::Client(index) => self.clients[index].as_fd(),
            Source::Agent(index) => self.agents[index].channel.as_fd(),
            Source::AgentsEnd(index) => self.agents[index].handle.as_fd(),
            Source::Card(index) => self.cards[index].as_fd(),
            Source::Worker => match &self.working {
                Some((worker, _)) => worker.as_fd(),
                None => self.signals.as_fd(),
            },
            Source::Watcher => match &self.watcher {
                Some(watcher) => watcher.as_fd(),
                None => self.signals.as_fd(),
            },
        }
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Signals => {
                for arrived in self.signals.take() {
                    self.program.pass_on(arrived);
                }
            }
            // Looked at after every round.
            Source::Program => {}
            Source::Control => self.clients.extend(self.house.control.accept().ok()),
            Source::Agents => self.strangers.extend(self.house.agents.accept().ok()),
            Source::Stranger(index) => {
                let stranger = self.strangers.swap_remove(index);
                self.greet(stranger);
            }
            Source::Client(index) => {
                let client = self.clients.swap_remove(index);
                self.serve(client);
            }
            Source::Agent(index) => self.hear(index),
            Source::AgentsEnd(index) => self.agents[index].is_gone = true,
            Source::Card(index) => self.hear_card(index),
            Source::Worker => self.end_worker(),
            Source::Watcher => {
                if let Some(watcher) = self.watcher.take() {
                    watcher.reap();
                }
            }
        }
    }

    fn is_lost(&self, card: usize) -> bool {
        self.lost_cards.iter().any(|lost| *lost as usize == card)
    }

    /// A card says something unasked only by closing the connection: it has died. The host library of the program
    /// notices by itself and tells the program as an OpenMP runtime would.
    fn hear_card(&mut self, index: usize) {
        let card = &mut self.cards[index];
        if let Err(ChannelError::Closed) = card.receive_now() {
            eprintln!("snapify: card {} has died", card.info.index);
            card.bury();
            self.lost_cards.push(card.info.index);
        }
    }

    /// How long to wait for events: a checkpoint that waits for the host library's connection does so briefly.
    fn patience(&self) -> Option<Duration> {
        self.waiting.front().and_then(QueuedRequest::patience)
    }
}
