//! Whether an offload process runs, is paused, or is not on a card at all.

use super::card::Card;
use super::operations::Saving;
use std::path::PathBuf;
use std::sync::Arc;

/// What an offload process is doing, as its host process decides it. Its gate is open while it is running, and at no
/// other time.
#[derive(Debug, Default)]
pub enum Phase {
    /// It serves its host process.
    #[default]
    Running,
    /// Its channels are empty and stay so.
    Paused {
        /// Who will resume it.
        by: Pauser,
        /// The capture that was begun last.
        saving: Option<Arc<Saving>>,
    },
    /// It is rebuilt on a card, and does not run yet.
    Restored {
        /// The card.
        card: Arc<Card>,
        /// Its id as that card's daemon sees it.
        pid: i32,
        /// What it was before, and is again if it cannot run.
        before: Absent,
    },
    /// It is on no card: swapped out.
    Absent(Absent),
}

/// Who has paused a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pauser {
    /// The supervisor, for a snapshot of the whole application.
    Supervisor,
    /// Whoever called [`Process::pause`](super::Process::pause).
    Caller,
}

/// A process that is on no card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Absent {
    /// The directory that holds its image, if that is known.
    pub image: Option<PathBuf>,
    /// Bytes of card memory that its local store needs.
    pub bytes: u64,
}

/// What an offload process is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It serves this process.
    Running,
    /// It is paused, being saved or being moved.
    Paused,
    /// It is on no card. Threads that need it wait.
    SwappedOut,
    /// It is gone for good.
    Dead,
}
