//! What a checkpoint or a restart tells while it goes on, for a person or a script to follow.

use serde::{Deserialize, Serialize};

/// A step of a checkpoint or restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Communication between host process and offload processes is being drained.
    Pausing,
    /// Pages are being read and stored.
    Capturing,
    /// The snapshot is being made permanent.
    Committing,
    /// The original goes on.
    Resuming,
    /// Cards are being started.
    StartingCards,
    /// Processes are being rebuilt from the snapshot.
    Restoring,
    /// A process moves from card to card.
    Moving,
}

/// Something to tell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A phase begins.
    Phase(Phase),
    /// So many bytes of memory, of all members together, are to be looked at in this phase.
    Total(u64),
    /// So many more bytes are done.
    Advance(u64),
    /// Something that the user should know, though it goes on.
    Warning(String),
}

/// Follows a checkpoint or restart.
pub trait Observer {
    /// Takes an event.
    fn event(&mut self, event: Event);
}

/// Tells nobody.
impl Observer for () {
    fn event(&mut self, _: Event) {}
}
