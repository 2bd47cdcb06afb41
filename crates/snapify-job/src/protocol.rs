//! Messages between the command line and the supervisor of an application, and between a worker and both.

use crate::checkpoint::{Live, Sequence};
use crate::events::Event;
use crate::swap::{Order, SwapReport};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the command line asks of a supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Say what runs. Answer: `Status`.
    Status,
    /// Take a snapshot. Answers: `Event`s, then `Done` or `Failed`. Closing the connection cancels.
    Checkpoint {
        /// Absolute path of the snapshot directory.
        dir: PathBuf,
        /// Whether the application ends once the snapshot is committed.
        stop: bool,
        /// What becomes of connections to programs that are not part of it.
        #[serde(default)]
        outside: snapify_proc::Outside,
        /// Whether it goes on before its memory is saved.
        #[serde(default)]
        live: Live,
        /// The snapshot gets a number greater than this.
        #[serde(default)]
        after: u32,
        /// How the snapshot follows others.
        #[serde(default)]
        sequence: Sequence,
        /// How the memory of the host process is written.
        #[serde(default)]
        write: snapify_store::WriteOptions,
    },
    /// Swap an offload process, or move it. Answers: `Event`s, then `Swapped` or `Failed`. Closing the connection cancels
    /// a swap-out.
    Swap {
        /// What is to be done.
        order: Order,
    },
}

/// What the command line is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// Answer to `Status`.
    Status {
        /// What runs.
        status: ApplicationStatus,
        /// Inode numbers of the sockets of its host libraries, which stand in nobody's way.
        #[serde(default)]
        sockets: Vec<u64>,
    },
    /// A checkpoint goes on.
    Event {
        /// What happened.
        event: Event,
    },
    /// The snapshot is committed.
    Done {
        /// What was done.
        report: CheckpointReport,
    },
    /// The offload process is where it was wanted.
    Swapped {
        /// What was done.
        report: SwapReport,
    },
    /// Nothing was done; the application goes on.
    Failed {
        /// Why, in words.
        message: String,
    },
}

/// A running application.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// The program: its first process, as its supervisor sees its id.
    pub pid: i32,
    /// The processes that are connected with the cards: the first one, or others that it has started.
    #[serde(default)]
    pub hosts: Vec<i32>,
    /// The supervisor: `snapify run` or `snapify restart`.
    pub supervisor: i32,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// `running`; or what is being done: `checkpoint`, `swap-out`, `swap-in`, `migrate`.
    pub state: String,
    /// Whether the program was restarted from a snapshot, and from which directory.
    pub restarted_from: Option<PathBuf>,
    /// The cards.
    pub cards: Vec<CardStatus>,
    /// The offload processes.
    pub processes: Vec<OffloadProcessStatus>,
}

/// A card of a running application.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CardStatus {
    /// Its number.
    pub index: u32,
    /// The card daemon.
    pub pid: i32,
    /// Its memory in bytes.
    pub memory: u64,
    /// Bytes of it that buffers take.
    pub used: u64,
    /// Bytes of it that nobody uses.
    pub free: u64,
    /// Whether other applications may use it, too; `used` then counts their buffers as well.
    #[serde(default)]
    pub shared: bool,
    /// `up`, or `dead` if its daemon is gone.
    pub state: String,
}

/// An offload process of a running application.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OffloadProcessStatus {
    /// Its lasting name.
    pub id: String,
    /// On which card.
    pub card: u32,
    /// Its process id, as the supervisor sees it; 0 if that cannot be told.
    pub pid: i32,
    /// Bytes of its local store.
    pub store_bytes: u64,
    /// What it is doing: `starting`, `running`, `paused`, `capturing`, `restored`, `ending`; or `swapped-out`, and then it
    /// is on no card, though `card` names the last one.
    pub state: String,
    /// The directory that it was swapped out to; none if the program itself has done that.
    #[serde(default)]
    pub swapped_to: Option<PathBuf>,
    /// The process that it works for.
    #[serde(default)]
    pub host: Option<i32>,
}

/// What a checkpoint did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// The host process.
    pub pid: i32,
    /// The snapshot directory.
    pub dir: PathBuf,
    /// The number of the snapshot in it.
    pub point: u32,
    /// The number of the snapshot that it builds on, if it holds only what has changed since.
    pub parent: Option<u32>,
    /// Whether the application was ended.
    pub stopped: bool,
    /// What each member took.
    pub members: Vec<MemberReport>,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Seconds from the request until communication was drained.
    pub pause_seconds: f64,
    /// Whether its memory was saved from a copy while it went on.
    pub live: bool,
    /// Seconds for which the host process stood still.
    pub frozen_seconds: f64,
    /// Seconds until all pages were stored.
    pub capture_seconds: f64,
    /// Seconds for the commit: everything on stable storage.
    pub commit_seconds: f64,
    /// Seconds in all.
    pub total_seconds: f64,
}

/// One member of a snapshot.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its name in the snapshot: `host`, `offload-<id>`.
    pub name: String,
    /// The card it was on, if it is an offload process.
    pub card: Option<u32>,
    /// Bytes of memory that were stored.
    pub stored_bytes: u64,
    /// Of these, bytes of the local store.
    pub store_bytes: u64,
    /// Run functions that were executing at that moment.
    pub in_flight: Vec<String>,
}
