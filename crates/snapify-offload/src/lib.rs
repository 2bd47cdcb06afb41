//! The offload runtime, in the roles of COI: host library, card daemon, offload process; and the pause protocol
//! between them (paper 1, section 4).
//!
//! - [`host`] is linked into the host process: offload processes, buffers, transfers, run functions.
//! - [`daemon`] runs a card: it launches and watches offload processes, and serves pause, capture, resume
//!   and restore.
//! - The offload process itself is the program `snapify-offload-process` of this crate.
//! - [`control`] has the messages between these and the supervisor, [`engine`] what the daemon needs of a
//!   checkpoint engine.
//!
//! `docs/protocol.md` describes the whole.
#![deny(unsafe_code)]

pub mod control;
pub mod daemon;
pub mod elf;
pub mod engine;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
#[allow(unsafe_code)]
pub mod host;
mod layout;
pub mod sink;
mod steps;
mod wire;

#[allow(unsafe_code)]
pub mod sandbox;

pub use control::ProcessId;
pub use error::{DeathCause, OffloadError};
