//! Messages between supervisor, host library and card daemons.
//!
//! All travel as JSON over `snapify_fabric::Channel`s, descriptors beside them in the order that the message
//! names. `docs/protocol.md` draws who talks to whom and when.

use crate::engine::{External, PageFileSummary};
use serde::{Deserialize, Serialize};
use snapify_store::WriteOptions;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Version of all messages here; both ends of a connection must have the same.
pub const VERSION: u32 = 1;

/// Environment variable with the path of the supervisor's socket; without it a program has no cards.
pub const CONTROL_ENV: &str = "SNAPIFY_CONTROL";

/// Key of the external that is the host library's connection to the supervisor, and an offload process's
/// connection to its card daemon.
pub const EXTERNAL_CONTROL: &str = "control";

/// Key of the external that is an offload process's local store, in the offload process.
pub const EXTERNAL_STORE: &str = "store";

/// Keys of the externals that are an offload process's standard output and error.
pub const EXTERNAL_STDOUT: &str = "stdout";
/// See [`EXTERNAL_STDOUT`].
pub const EXTERNAL_STDERR: &str = "stderr";

/// Key of the external that is the host library's connection to the daemon of a card.
#[must_use]
pub fn external_card(index: u32) -> String {
    format!("card{index}")
}

/// Key of the external that is the local store of an offload process, in the host process.
#[must_use]
pub fn external_store(id: ProcessId) -> String {
    format!("store:{id}")
}

/// Names an offload process; chosen at random by the host library, so that it stays unique over restarts and
/// moves. Written as 16 hexadecimal digits, in JSON too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub u64);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ProcessId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

impl Serialize for ProcessId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProcessId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Names a connection of a host process to its cards; chosen by the supervisor, unique in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostId(pub u64);

/// A card as the host process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CardInfo {
    /// Its number, from 0.
    pub index: u32,
    /// Its memory in bytes.
    pub memory: u64,
}

// ------------------------------------------------------------------ supervisor and host library

/// From the host library to the supervisor, over the socket that [`CONTROL_ENV`] names.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum HostToSupervisor {
    /// First message of a connection.
    Hello {
        /// [`VERSION`] of the host library.
        version: u32,
        /// Its process id as it sees it itself (the supervisor goes by the socket's credentials).
        pid: i32,
    },
    /// Answer to [`SupervisorToHost::Pause`]: all channels are empty and stay so until `Resume`.
    Paused {
        /// What the engine must leave out of the host process's image: keys "control", "card<i>" and
        /// "store:<id>".
        externals: Vec<External>,
        /// The offload processes of this host process.
        processes: Vec<PausedProcess>,
    },
    /// Answer to [`SupervisorToHost::Capture`]: all daemons have begun. The rest is told over the completion
    /// channel; the host library expects nothing more and may be frozen.
    CaptureStarted,
    /// Answer to [`SupervisorToHost::Resume`].
    Resumed,
    /// Answer to [`SupervisorToHost::Processes`].
    Processes {
        /// All that were not destroyed.
        processes: Vec<HostProcess>,
    },
    /// Answer to [`SupervisorToHost::SwapOut`]: the process is paused and its daemon has begun to save it. The rest is told
    /// over the completion channel.
    Saving {
        /// What the pause took, in nanoseconds since the request.
        #[serde(default)]
        steps: Vec<Step>,
    },
    /// Answer to [`SupervisorToHost::Release`]: the card has its memory back.
    SwappedOut {
        /// Bytes of it.
        store_bytes: u64,
        /// What the host library did, in nanoseconds since the request.
        #[serde(default)]
        steps: Vec<Step>,
    },
    /// Answer to [`SupervisorToHost::SwapIn`]: the process runs.
    SwappedIn {
        /// What the host library did, in nanoseconds since the request.
        #[serde(default)]
        steps: Vec<Step>,
        /// What the card's daemon did, in moments of the machine's `CLOCK_MONOTONIC`.
        #[serde(default)]
        restored: Vec<Step>,
    },
    /// Answer to [`SupervisorToHost::Migrate`]: the process runs on the other card, and has left its own.
    Migrated {
        /// Bytes of its local store.
        store_bytes: u64,
        /// Seconds until its channels were empty.
        pause_seconds: f64,
        /// Seconds until its pages were saved, from there.
        capture_seconds: f64,
        /// Seconds until the other card had rebuilt it, from there.
        restore_seconds: f64,
        /// Seconds until it ran, from there.
        resume_seconds: f64,
        /// What the pause took, in nanoseconds since the request.
        #[serde(default)]
        pause: Vec<Step>,
        /// What the host library did afterwards, in nanoseconds since the request.
        #[serde(default)]
        steps: Vec<Step>,
        /// What the daemon of the card that it left did, in moments of the machine's `CLOCK_MONOTONIC`.
        #[serde(default)]
        saved: Vec<Step>,
        /// What the daemon of the card that it came to did, likewise.
        #[serde(default)]
        restored: Vec<Step>,
    },
    /// Answer to any request that failed. A failed `Pause` or `Capture` leaves what was paused paused:
    /// `Resume` follows.
    Failed {
        /// Why, in words.
        message: String,
    },
}

/// An offload process as its host library knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostProcess {
    /// Which.
    pub id: ProcessId,
    /// The card that it is on, or was on last.
    pub card: u32,
    /// What it is doing.
    pub state: HostProcessState,
}

/// What an offload process is doing, as its host library knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostProcessState {
    /// It serves its host process.
    Running,
    /// The program itself has paused it.
    Paused,
    /// It is on no card.
    SwappedOut,
    /// It is gone for good.
    Dead,
}

/// An offload process in [`HostToSupervisor::Paused`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PausedProcess {
    /// Which.
    pub id: ProcessId,
    /// On which card.
    pub card: u32,
    /// Its process id as its card's daemon sees it.
    pub pid: i32,
    /// Bytes of its local store that are in use.
    pub store_bytes: u64,
    /// Names of the run functions that were executing when the pause was complete (in the host library's answer to
    /// `Pause`; empty elsewhere).
    #[serde(default)]
    pub in_flight: Vec<String>,
    /// What its pause, or its restore, took: for reports, without meaning for anybody else. In the host library's answer to `Pause`
    /// the moments are counted from the request on, for a restored process has a clock of its own; in a daemon's
    /// `Restored` they are of the machine's `CLOCK_MONOTONIC`.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// The directory with its image, if it is swapped out: then it is on no card, and there is nothing to capture.
    #[serde(default)]
    pub swapped_out: Option<PathBuf>,
}

/// A step of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// What was done.
    pub name: String,
    /// When it began, in nanoseconds.
    pub begin: u64,
    /// When it ended, in nanoseconds.
    pub end: u64,
}

/// Name of the [`Step`] of a pause that is not the host process's: the offload process closes its gate.
pub const STEP_OFFLOAD_GATE: &str = "hold results back";

/// From the supervisor to the host library.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum SupervisorToHost {
    /// Answer to `Hello`. Descriptors: one connection to each card's daemon, in the order of `cards` (the
    /// other ends went to the daemons by [`SupervisorToCard::Host`]).
    Welcome {
        /// [`VERSION`] of the supervisor.
        version: u32,
        /// The cards.
        cards: Vec<CardInfo>,
    },
    /// Answer to `Hello` when there are no cards to be had.
    Refused {
        /// Why, in words.
        message: String,
    },
    /// Drain all channels and keep them empty.
    Pause,
    /// Save the offload processes. Only between `Pause` and `Resume`. Descriptors: the completion channel
    /// (on which daemons send [`CaptureEvent`]s), then for each process in order: the files for the engine's
    /// description, the pages, the local store, and the parents that its [`SaveForm`] tells of.
    Capture {
        /// All or some of the processes of `Paused`.
        processes: Vec<CaptureProcess>,
    },
    /// Go on. At any time after `Pause`.
    Resume,
    /// Say which offload processes there are. Only outside a pause.
    Processes,
    /// Pause one process and begin to save it; it stands still from then on. Only outside a pause. Descriptors: the
    /// completion channel, the files for the engine's description, the pages, the local store. Answer: `Saving`; then
    /// comes `Release`, or `Resume` to give it up.
    SwapOut {
        /// Which.
        id: ProcessId,
    },
    /// The process is saved: take it off its card. Answer: `SwappedOut`; after `Failed` it goes on.
    Release {
        /// The directory that holds its image.
        image: PathBuf,
    },
    /// Rebuild a process that is swapped out. Only outside a pause. Descriptors: the engine's description, the pages, the
    /// local store. Answer: `SwappedIn`; after `Failed` it is swapped out still.
    SwapIn {
        /// Which.
        id: ProcessId,
        /// On which card.
        card: u32,
    },
    /// Move a process to another card. Only outside a pause. Answer: `Migrated`; after `Failed` it runs where it was.
    Migrate {
        /// Which.
        id: ProcessId,
        /// To which card.
        card: u32,
    },
    /// First message to a restored host process, before `Resume`: the externals are new ones in the old
    /// places, and the daemons have adopted the restored offload processes. No answer.
    Restored {
        /// The cards now.
        cards: Vec<CardInfo>,
        /// The offload processes as their daemons know them now.
        processes: Vec<PausedProcess>,
    },
}

/// One process of [`SupervisorToHost::Capture`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CaptureProcess {
    /// Which.
    pub id: ProcessId,
    /// Whether it stands still after it is saved (the worker has sent [`CaptureEvent::Done`]) until the coordinator's
    /// [`CaptureDecision`] comes over the completion channel; the closing of that channel means `Resume`. Otherwise it
    /// goes on as soon as it is saved. A process that is to end must not run between its capture and its end, and must
    /// not end before the snapshot is committed: hence the coordinator decides.
    pub hold: bool,
    /// How its memory is written.
    #[serde(default)]
    pub form: SaveForm,
}

/// How the memory of an offload process is written: the page files of its private memory and of its local store. Files of an earlier
/// snapshot come along where the new ones are to hold only what differs from those; that is told by hashes of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SaveForm {
    /// Codec, threads and buffers.
    pub write: WriteOptions,
    /// The seed of the hashes in files that hold everything; without one they have none, and none can build on them.
    pub hash_seed: Option<u64>,
    /// How many descriptors there are of the pages that were saved before, from the newest file to a full one.
    pub parent_pages: usize,
    /// The same, of the local store. They come behind those of the pages.
    pub parent_store: usize,
}

/// From the coordinator to a daemon's capture worker, over the completion channel of a capture with
/// [`hold`](CaptureProcess::hold), after [`CaptureEvent::Done`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "kebab-case")]
pub enum CaptureDecision {
    /// The process goes on.
    Resume,
    /// The process ends: it is killed without having run again.
    Terminate,
}

/// From a daemon's capture worker, over the completion channel of a capture.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
// Each is sent and forgotten: its size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum CaptureEvent {
    /// So many more bytes of memory are dealt with.
    Progress {
        /// Of which process.
        id: ProcessId,
        /// Bytes since the last such event.
        bytes: u64,
    },
    /// The process is saved: all three files are complete (not yet synced by the coordinator's commit).
    Done {
        /// Which process.
        id: ProcessId,
        /// Of the pages file.
        pages: PageFileSummary,
        /// What it took, in moments of the machine's `CLOCK_MONOTONIC`: the process is saved first, then the store. For
        /// reports.
        #[serde(default)]
        steps: Vec<Step>,
        /// Of the local store's page file, if that was saved, too.
        #[serde(default)]
        store: Option<PageFileSummary>,
    },
    /// The process could not be saved; it goes on unharmed.
    Failed {
        /// Which process.
        id: ProcessId,
        /// Why, in words.
        message: String,
    },
}

// ------------------------------------------------------------------ supervisor and card daemon

/// From a supervisor to a card daemon, over its service socket. Every request has one answer, in the order of the requests,
/// except that those to several `Restore` come in the order in which they are done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum SupervisorToCard {
    /// A host process connects. Descriptors: this daemon's end of the connection, and optionally a pidfd of the
    /// host process (a forked copy of it may hold its end open longer than it lives). Answer: `Accepted`.
    Host {
        /// Names the connection.
        host: HostId,
    },
    /// Rebuild an offload process, stopped. Descriptors: the engine's description, the page files of its memory, those
    /// of its local store (each from the newest to a full one), standard output, standard error. Answer: `Restored`.
    Restore {
        /// Which.
        id: ProcessId,
        /// Bytes that were set aside in its local store.
        bytes: u64,
        /// How many descriptors there are of its memory; those of the store are all the others.
        pages: usize,
    },
    /// Bind restored processes to the connection of their restored host process, and watch both. Answer:
    /// `Accepted`.
    Adopt {
        /// The connection, from an earlier `Host`.
        host: HostId,
        /// The processes.
        ids: Vec<ProcessId>,
    },
    /// Let a restored process run. Answer: `Accepted`.
    Start {
        /// Which.
        id: ProcessId,
    },
    /// End a restored process, because its restart failed elsewhere. Answer: `Accepted`.
    Discard {
        /// Which.
        id: ProcessId,
    },
    /// Say what runs. Answer: `Status`.
    Status,
    /// End all processes of this supervisor; the daemon ends with its last supervisor. Answer: `Accepted`; the connection
    /// closes when nothing of them is left.
    Shutdown,
}

/// From a card daemon to the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum CardToSupervisor {
    /// First message: the card is up.
    Ready {
        /// [`VERSION`] of the daemon.
        version: u32,
        /// The card.
        card: CardInfo,
        /// The daemon's process id, outside of its sandbox.
        pid: i32,
        /// What the sandbox had to do without, in words.
        warnings: Vec<String>,
    },
    /// The request is done.
    Accepted,
    /// The process is complete and stopped. Descriptor: its local store, for the external "store:<id>" of the
    /// host process.
    Restored {
        /// As the host library is to be told in `SupervisorToHost::Restored`.
        process: PausedProcess,
    },
    /// Answer to `Status`.
    Status {
        /// All offload processes of this card, those of other supervisors that share it, too.
        processes: Vec<ProcessStatus>,
        /// Bytes of its memory that nobody uses.
        free: u64,
    },
    /// The request failed; the daemon and all other processes go on.
    Failed {
        /// Why, in words.
        message: String,
    },
}

/// An offload process as its daemon sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Which.
    pub id: ProcessId,
    /// Its process id as the daemon sees it.
    pub pid: i32,
    /// Connection of its host process, once it has one.
    pub host: Option<HostId>,
    /// Whether it belongs to the supervisor that has asked.
    pub yours: bool,
    /// Bytes allocated in its local store.
    pub store_bytes: u64,
    /// What it is doing.
    pub state: ProcessState,
}

/// State of an offload process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// Launched; has not reported ready yet.
    Starting,
    /// Serving its host process.
    Running,
    /// Paused.
    Paused,
    /// Being saved.
    Capturing,
    /// Restored, not started yet.
    Restored,
    /// Not on the card, which was its last one; it may come back, to any.
    SwappedOut,
    /// Being ended.
    Ending,
}
