//! The host library: what a host process uses to work with cards.
//!
//! Two threads of its own work beside those of the program: the *agent* sleeps on the connection to the
//! supervisor and serves pause and resume, the *watcher* sleeps on the connections to the cards. All others who wait
//! for an offload process wait on memory that it shares with them.

mod agent;
mod card;
mod event;
mod library;
mod local_store;
mod pipelines;
mod process;
mod ranges;
mod threads;
mod transfer;

pub use event::Event;
pub use library::Library;
pub use pipelines::Pipeline;
pub use process::Process;

use crate::control::{CONTROL_ENV, HostToSupervisor, ProcessId, SupervisorToHost, VERSION};
use crate::error::OffloadError;
use card::Card;
use snapify_fabric::{Channel, ChannelError};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Result<T, E = OffloadError> = std::result::Result<T, E>;

/// The connection of this process to its cards.
#[derive(Debug)]
pub struct Runtime {
    control: Arc<Channel>,
    cards: Vec<Arc<Card>>,
    /// Held while an offload process is made, destroyed or extended: a pause waits for it (paper 1, section 4.1,
    /// case 1).
    lifecycle: Mutex<()>,
    /// Those that were not destroyed; dead ones, too.
    processes: Mutex<Vec<Arc<Process>>>,
}

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
        });
        agent::start(&runtime)?;
        Ok(runtime)
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
        let found = self.cards.iter().find(|found| found.index == card);
        let found = found.ok_or(OffloadError::NoSuchCard {
            card,
            cards: self.cards(),
        })?;
        let _lifecycle = self.lifecycle();
        let process = Process::create(self, found)?;
        self.list().push(process.clone());
        Ok(process)
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

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Process>>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
