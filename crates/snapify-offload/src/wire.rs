//! Messages inside the runtime: host library and card daemon, daemon and offload process, and the commands on
//! the command ring. Nobody outside this crate sees them; they share the version of [`crate::control`].

use crate::control::{PausedProcess, ProcessId};
use crate::engine::External;
use serde::{Deserialize, Serialize};

// ------------------------------------------------------------------ host library and card daemon

/// From the host library to the daemon of a card.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostToCard {
    /// Comes back in the answer.
    pub request: u64,
    /// What is wanted.
    pub body: HostRequest,
}

/// What a host process wants of a card.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum HostRequest {
    /// Start an offload process. Descriptors: standard output, standard error.
    Launch {
        /// Its name from now on.
        id: ProcessId,
        /// Environment, as far as it can be text.
        env: Vec<(String, String)>,
    },
    /// End it.
    Destroy {
        /// Which.
        id: ProcessId,
    },
    /// Close the gate on its side.
    Pause {
        /// Which.
        id: ProcessId,
    },
    /// Begin to save it. Descriptors: completion channel, engine's description, pages, local store.
    Capture {
        /// Which.
        id: ProcessId,
        /// Whether it stands still afterwards until the coordinator decides.
        hold: bool,
    },
    /// Open the gate on its side.
    Resume {
        /// Which.
        id: ProcessId,
    },
}

/// From the daemon of a card to the host library.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum CardToHost {
    /// An answer.
    Reply {
        /// Of the request.
        request: u64,
        /// What came of it, or why not.
        result: Result<CardReply, String>,
    },
    /// A process ended that nobody had asked to end.
    Died {
        /// Which.
        id: ProcessId,
        /// Signal that killed it.
        signal: Option<i32>,
        /// Exit status, if none did.
        status: Option<i32>,
    },
}

/// What came of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum CardReply {
    /// It runs. Descriptor: its local store.
    Launched {
        /// Its id as the daemon sees it.
        pid: i32,
    },
    /// It is gone.
    Destroyed,
    /// Its gate is closed.
    Paused {
        /// As the supervisor is to be told.
        process: PausedProcess,
    },
    /// It is being saved.
    CaptureStarted,
    /// Its gate is open.
    Resumed,
}

// ------------------------------------------------------------------ daemon and offload process

/// From the daemon to the agent of an offload process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardToSink {
    /// Publish no results any more.
    Pause,
    /// Publish again.
    Resume,
}

/// From the agent of an offload process to its daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinkToCard {
    /// It serves its rings.
    Ready {
        /// `control::VERSION` of the program.
        version: u32,
    },
    /// It could not begin.
    Failed(String),
    /// No result is published any more.
    Paused {
        /// What an engine must leave out of its image.
        externals: Vec<External>,
    },
    /// Results are published again.
    Resumed,
}

// ------------------------------------------------------------------ rings

/// Kinds of commands on the command ring. Requests and answers are JSON but for [`command::COPY`] and
/// [`command::MARKER`].
pub mod command {
    /// No more commands follow until the host resumes (paper 1, section 4.1, case 3: the shutdown marker).
    /// Answered when everything before it has been.
    pub const MARKER: u32 = 1;
    /// Load a device image: [`super::LoadRequest`], [`super::LoadReply`].
    pub const LOAD: u32 = 2;
    /// Move writable segments of an image into the local store: a list of [`super::Segment`]s.
    pub const MAP: u32 = 3;
    /// Look up symbols: [`super::SymbolsRequest`], a list of addresses (or null).
    pub const SYMBOLS: u32 = 4;
    /// Serve another pipeline; its number is the argument.
    pub const PIPELINE: u32 = 5;
    /// Copy between the bounce area and other memory: three numbers of 8 bytes, native order: address, bytes,
    /// 1 if from the bounce area to the address.
    pub const COPY: u32 = 6;
}

/// Kinds of commands on the ring of a pipeline.
pub mod pipeline {
    /// Run the function whose address is the argument; the payload is its 64-bit arguments.
    pub const RUN: u32 = 1;
}

/// Verdict: done.
pub const STATUS_DONE: u32 = 0;
/// Verdict: refused; the answer says why, in words.
pub const STATUS_REFUSED: u32 = 1;

/// A device image lies in the local store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadRequest {
    /// Offset in the store.
    pub offset: u64,
    /// Bytes of the image.
    pub bytes: u64,
    /// Name for messages.
    pub name: String,
}

/// A device image is loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReply {
    /// Its number in this process.
    pub library: u32,
    /// Its writable segments, page aligned: the host gives each a place in the store.
    pub segments: Vec<(u64, u64)>,
}

/// A writable segment of an image and its place in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Segment {
    /// Where it lies in the offload process.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its place in the store.
    pub offset: u64,
}

/// Names to look up in a library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SymbolsRequest {
    /// The library's number.
    pub library: u32,
    /// The names.
    pub names: Vec<String>,
}
