//! The host library: what a host process uses to work with cards.
//!
//! Two threads of its own work beside those of the program: the *agent* sleeps on the connection to the
//! supervisor and serves pause and resume, the *watcher* sleeps on the connections to the cards. All others who wait
//! for an offload process wait on memory that it shares with them.

mod agent;
mod calls;
mod card;
mod ending;
mod event;
mod library;
mod local_store;
mod migrate;
mod operations;
mod orders;
mod phase;
mod pipelines;
mod process;
mod program;
mod ranges;
mod swap;
mod threads;
mod transfer;
mod watch;

pub use calls::Call;
pub use event::Event;
pub use library::Library;
pub use migrate::{Migration, MigrationSteps};
pub use operations::{ImageFiles, Saved, Saving};
pub use phase::State;
pub use pipelines::Pipeline;
pub use process::Process;
pub use program::Program;
pub use ranges::RangeSet;
pub use threads::start as start_thread;

use crate::control::{CONTROL_ENV, HostToSupervisor, ProcessId, SupervisorToHost, VERSION};
use crate::error::{DeathCause, OffloadError};
use card::Card;
use snapify_fabric::{Channel, ChannelError};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

type Result<T, E = OffloadError> = std::result::Result<T, E>;

/// The connection of this process to its cards.
pub struct Runtime {
    control: Arc<Channel>,
    cards: Vec<Arc<Card>>,
    /// Held while an offload process is made, destroyed or extended: a pause waits for it (paper 1, section 4.1,
    /// case 1).
    lifecycle: Mutex<()>,
    /// Those that were not destroyed; dead ones, too.
    processes: Mutex<Vec<Arc<Process>>>,
    /// Ends of processes that are not on the list: not yet.
    early_deaths: Mutex<HashMap<ProcessId, DeathCause>>,
    /// Is told of the events that offload processes signal.
    signals: OnceLock<SignalHandler>,
}

/// What is called when an offload process signals an event: with the process and the event.
type SignalHandler = Box<dyn Fn(ProcessId, [u64; 2]) + Send + Sync>;

impl Runtime {
    /// Connects to the supervisor named by `SNAPIFY_CONTROL`; nothing if it is not set (the program was not
    /// started by `snapify run`).
    ///
    /// # Errors
    /// If the supervisor is gone or refuses.
    pub fn connect_from_env() -> Result<Option<Arc<Runtime>>> {
        match std::env::var_os(CONTROL_ENV) {
            None => Ok(None),
            Some(path) => Self::connect(Path::new(&path)).map(Some),
        }
    }

    /// Connects to the supervisor that listens at `path`.
    ///
    /// # Errors
    /// If it is gone or refuses.
    pub fn connect(path: &Path) -> Result<Arc<Runtime>> {
        let operation = || format!("connect to the cards at {}", path.display());
        let connection = |source| OffloadError::Connection {
            operation: operation(),
            source: Arc::new(source),
        };
        let control = Channel::connect(path).map_err(connection)?;
        let hello = HostToSupervisor::Hello {
            version: VERSION,
            pid: std::process::id().cast_signed(),
        };
        control.send(&hello, &[]).map_err(connection)?;
        let (answer, fds) = control.recv::<SupervisorToHost>().map_err(connection)?;
        let refused = |why: String| {
            connection(ChannelError::Malformed(format!(
                "the supervisor answered: {why}"
            )))
        };
        let infos = match answer {
            SupervisorToHost::Welcome { version, cards } if version == VERSION => cards,
            SupervisorToHost::Welcome { version, .. } => {
                return Err(refused(format!(
                    "version {version}, where this is {VERSION}"
                )));
            }
            SupervisorToHost::Refused { message } => return Err(refused(message)),
            other => return Err(refused(format!("{other:?}"))),
        };
        if infos.len() != fds.len() {
            return Err(refused("cards without connections".into()));
        }
        let cards = infos.into_iter().zip(fds);
        let runtime = Arc::new(Self {
            control: Arc::new(control),
            cards: cards
                .map(|(info, fd)| Arc::new(Card::new(info, fd)))
                .collect(),
            lifecycle: Mutex::new(()),
            processes: Mutex::default(),
            early_deaths: Mutex::default(),
            signals: OnceLock::new(),
        });
        agent::start(&runtime)?;
        Ok(runtime)
    }

    /// Has `handler` called when an offload process signals an event. It is called by the thread that listens to the
    /// cards, and must not wait for anything. The first handler counts.
    pub fn on_signal(&self, handler: impl Fn(ProcessId, [u64; 2]) + Send + Sync + 'static) {
        let _ = self.signals.set(Box::new(handler));
    }

    /// Memory of a card in bytes, if there is such a card.
    #[must_use]
    pub fn card_memory(&self, card: u32) -> Option<u64> {
        let found = self.cards.iter().find(|found| found.index == card);
        found.map(|found| found.memory())
    }

    /// How many cards there are.
    #[must_use]
    pub fn cards(&self) -> u32 {
        self.cards.len() as u32
    }

    /// Starts an offload process on a card.
    ///
    /// # Errors
    /// If there is no such card, or the process cannot be started.
    pub fn create_process(self: &Arc<Self>, card: u32) -> Result<Arc<Process>> {
        self.create(card, None)
    }

    fn create(self: &Arc<Self>, card: u32, program: Option<&Program<'_>>) -> Result<Arc<Process>> {
        let found = self.card(card)?;
        let _lifecycle = self.lifecycle();
        let process = Process::create(self, &found, program)?;
        let mut list = self.list();
        list.push(process.clone());
        // It may have ended before it was on the list.
        if let Some(cause) = self.early_deaths().remove(&process.id()) {
            process.die(cause);
        } else if found.is_lost() {
            process.die(DeathCause::CardLost);
        }
        drop(list);
        Ok(process)
    }

    /// A card by its number.
    fn card(&self, card: u32) -> Result<Arc<Card>> {
        let found = self.cards.iter().find(|found| found.index == card);
        found.cloned().ok_or(OffloadError::NoSuchCard {
            card,
            cards: self.cards(),
        })
    }

    /// Offload processes of this process, dead ones too, in the order of their ids.
    #[must_use]
    pub fn all_processes(&self) -> Vec<Arc<Process>> {
        self.processes()
    }

    /// Enters the critical region of everything that makes, destroys or extends processes.
    fn lifecycle(&self) -> MutexGuard<'_, ()> {
        self.lifecycle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes there are, in the order of their ids: the order in which gates are closed.
    fn processes(&self) -> Vec<Arc<Process>> {
        let mut processes = self.list().clone();
        processes.sort_by_key(|process| process.id());
        processes
    }

    /// Takes a process off the list; says whether it was on it.
    fn forget(&self, id: ProcessId) -> bool {
        let mut list = self.list();
        let before = list.len();
        list.retain(|process| process.id() != id);
        list.len() < before
    }

    /// Notes the end of a process, whether it is on the list already or not.
    fn note_death(&self, id: ProcessId, signal: Option<i32>, status: Option<i32>) {
        let list = self.list();
        let found = list.iter().find(|process| process.id() == id);
        let cause = DeathCause::Ended {
            signal,
            status,
            functions: found.map(|process| process.running()).unwrap_or_default(),
        };
        match found {
            Some(process) => process.die(cause),
            None => {
                self.early_deaths().insert(id, cause);
            }
        }
    }

    /// Locked only while the list is.
    fn early_deaths(&self) -> MutexGuard<'_, HashMap<ProcessId, DeathCause>> {
        self.early_deaths
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Process>>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("cards", &self.cards)
            .field("processes", &self.processes)
            .finish_non_exhaustive()
    }
}
