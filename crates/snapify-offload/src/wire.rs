//! Messages inside the runtime: host library and card daemon, daemon and offload process, and the commands on
//! the command ring. Nobody outside this crate sees them; they share the version of [`crate::control`].

use crate::control::{PausedProcess, ProcessId, SaveForm, Step};
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
    /// Start an offload process. Descriptors: standard output, standard error; with a program of the host's own, a file
    /// that holds the executable.
    Launch {
        /// Its name from now on.
        id: ProcessId,
        /// Environment, as far as it can be text.
        env: Vec<(String, String)>,
        /// What it executes; nothing for the runtime's own program.
        #[serde(default)]
        program: Option<ProgramSpec>,
    },
    /// Ask it to come to its end by itself. Answered at once; its end is told by `Died`.
    Shutdown {
        /// Which.
        id: ProcessId,
    },
    /// End it.
    Destroy {
        /// Which.
        id: ProcessId,
        /// Whether it is saved and may come back: then the card goes on telling of it, until it does, is destroyed, or its
        /// host process ends.
        swapped_out: bool,
    },
    /// Close the gate on its side.
    Pause {
        /// Which.
        id: ProcessId,
    },
    /// Begin to save it. Descriptors: completion channel, engine's description, pages, with `store` local store, and the
    /// parents that `form` tells of.
    Capture {
        /// Which.
        id: ProcessId,
        /// Whether it stands still afterwards until the coordinator decides.
        hold: bool,
        /// Whether the local store is saved, too. If not, whoever asks copies it while the process stands still.
        store: bool,
        /// How its memory is written.
        #[serde(default)]
        form: SaveForm,
    },
    /// Open the gate on its side. A process that was rebuilt by [`Restore`](Self::Restore) runs from here on. Descriptors: none, or
    /// its standard output and error from here on.
    Resume {
        /// Which.
        id: ProcessId,
    },
    /// Say how much memory there is.
    Room,
    /// Rebuild a process, stopped and paused. Descriptors: engine's description, pages, local store, standard output,
    /// standard error.
    Restore {
        /// Which.
        id: ProcessId,
        /// Bytes of memory that its local store needs: refused where there are not as many.
        bytes: u64,
        /// What the third descriptor is.
        store: StoreForm,
    },
}

/// As what a local store is given to a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreForm {
    /// A page file.
    Pages,
    /// The store of another card, of a process that stands still.
    Store,
}

/// A program that the host process brings along.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramSpec {
    /// What it is called in its own arguments and in process lists.
    pub name: String,
    /// Its arguments, without the name.
    pub args: Vec<String>,
}

/// From the daemon of a card to the host library.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum CardToHost {
    /// A process signals an event of its host process.
    Signal {
        /// Which process.
        id: ProcessId,
        /// The event, in the host's words.
        event: [u64; 2],
    },
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
    /// It was asked to end.
    ShuttingDown,
    /// Its gate is closed.
    Paused {
        /// As the supervisor is to be told.
        process: PausedProcess,
    },
    /// It is being saved.
    CaptureStarted,
    /// Its gate is open.
    Resumed,
    /// So much memory there is.
    Room {
        /// Bytes of the card.
        memory: u64,
        /// Bytes of it that nobody uses.
        free: u64,
    },
    /// It is complete, stopped and paused. Descriptor: its local store.
    Restored {
        /// Its id as the daemon sees it.
        pid: i32,
        /// What it took, in moments of the machine's `CLOCK_MONOTONIC`.
        #[serde(default)]
        steps: Vec<Step>,
    },
}

// ------------------------------------------------------------------ daemon and offload process

/// From the daemon to the agent of an offload process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardToSink {
    /// Publish no results any more.
    Pause,
    /// Publish again. Descriptors: none, or standard output and error from here on.
    Resume,
    /// Come to an end: there is no answer.
    Shutdown,
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
    /// An event of the host process is signalled; never between `Paused` and `Resumed`.
    Signal([u64; 2]),
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
    /// Unload an image; its number is the argument.
    pub const UNLOAD: u32 = 7;
    /// Tell which of these addresses are still referred to: a list of addresses, and the answer the same.
    pub const REFERRED: u32 = 8;
    /// Refer to the address that is the argument.
    pub const REFER: u32 = 9;
}

/// Kinds of commands on the ring of a pipeline.
pub mod pipeline {
    /// Run the function whose address is the argument; the payload is its 64-bit arguments.
    pub const RUN: u32 = 1;
    /// Call the function whose address is the argument in the way of COI; the payload is a [`super::CallHead`] and what
    /// follows it, the answer what the function has left for its caller.
    pub const CALL: u32 = 2;
    /// The same, of a call that is too long for a record: the payload is a [`super::CallPlace`], and the request lies
    /// there; the answer is left behind it.
    pub const CALL_AT: u32 = 3;
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
    /// Flags of dlopen(3).
    pub flags: i32,
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
    /// The library's number; nothing for the whole process: its program, and all libraries in the order of loading.
    pub library: Option<u32>,
    /// The names.
    pub names: Vec<String>,
}

/// Begins the request of a call: three numbers, native order. There follow `buffers` times an address and a length of
/// 8 bytes each, then `misc` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallHead {
    /// How many buffers the function gets.
    pub buffers: u32,
    /// Bytes of data that it gets with the call.
    pub misc: u16,
    /// Bytes that it leaves for its caller.
    pub answer: u16,
}

impl CallHead {
    /// Bytes of a head.
    pub const BYTES: usize = 8;
    /// Bytes of each buffer's address and length.
    pub const BUFFER: usize = 16;

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.buffers.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.misc.to_ne_bytes());
        bytes[6..].copy_from_slice(&self.answer.to_ne_bytes());
        bytes
    }

    /// As it was received; nothing if the bytes are fewer than it tells.
    pub fn parse(request: &[u8]) -> Option<Self> {
        let (head, rest) = request.split_first_chunk::<{ Self::BYTES }>()?;
        let [a, b, c, d, e, f, g, h] = *head;
        let head = Self {
            buffers: u32::from_ne_bytes([a, b, c, d]),
            misc: u16::from_ne_bytes([e, f]),
            answer: u16::from_ne_bytes([g, h]),
        };
        (rest.len() as u64 == head.rest_bytes()).then_some(head)
    }

    /// Bytes of what follows the head.
    pub fn rest_bytes(self) -> u64 {
        u64::from(self.buffers) * Self::BUFFER as u64 + u64::from(self.misc)
    }
}

/// Where in the local store a long call's request lies; the answer goes behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallPlace {
    /// Offset in the store.
    pub offset: u64,
    /// Bytes of the request.
    pub bytes: u64,
}

impl CallPlace {
    /// As it is sent.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_ne_bytes());
        bytes
    }

    /// As it was received.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (offset, bytes) = payload.split_first_chunk::<8>()?;
        Some(Self {
            offset: u64::from_ne_bytes(*offset),
            bytes: u64::from_ne_bytes(bytes.try_into().ok()?),
        })
    }
}
