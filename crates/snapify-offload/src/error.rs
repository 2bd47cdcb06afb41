//! What can go wrong on the host side of the offload runtime.

use crate::control::ProcessId;
use snapify_fabric::ChannelError;
use std::fmt;
use std::sync::Arc;

/// An operation of the offload runtime failed.
#[derive(thiserror::Error, Debug, Clone)]
pub enum OffloadError {
    /// The offload process, or its card, is gone: this and all later operations on it fail.
    #[error("card {card}: the offload process {id} is gone: {cause}")]
    ProcessDied {
        /// The card it ran on.
        card: u32,
        /// Which.
        id: ProcessId,
        /// How it ended.
        cause: DeathCause,
    },
    /// The card has not so much memory left.
    #[error("card {card} has no {bytes} bytes of memory left (it has {memory} in all)")]
    OutOfMemory {
        /// The card.
        card: u32,
        /// What was asked for.
        bytes: u64,
        /// Memory of the card.
        memory: u64,
    },
    /// There is no such card.
    #[error("there is no card {card}: this program has {cards}")]
    NoSuchCard {
        /// What was asked for.
        card: u32,
        /// How many there are.
        cards: u32,
    },
    /// An address is not the start of a buffer, or a range leaves its memory.
    #[error("card {card}: cannot {operation} {bytes} bytes at {address:#x}: {why}")]
    BadAddress {
        /// The card.
        card: u32,
        /// What was tried.
        operation: &'static str,
        /// Device address.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// Why not.
        why: String,
    },
    /// The offload process could not do what it was asked; it lives on.
    #[error("card {card}: cannot {operation}: {why}")]
    Refused {
        /// The card.
        card: u32,
        /// What was tried, on what.
        operation: String,
        /// Why not, in the words of the card.
        why: String,
    },
    /// The connection to the supervisor or to a card failed.
    #[error("cannot {operation}: {source}")]
    Connection {
        /// What was tried.
        operation: String,
        /// Why it failed.
        source: Arc<ChannelError>,
    },
    /// A system call of the host library failed.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried.
        operation: String,
        /// Why it failed.
        source: Arc<std::io::Error>,
    },
}

/// How an offload process ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeathCause {
    /// The daemon saw it end.
    Ended {
        /// Signal that killed it.
        signal: Option<i32>,
        /// Its exit status, if no signal killed it.
        status: Option<i32>,
        /// Names of the run functions that were executing.
        functions: Vec<String>,
    },
    /// The daemon of its card is gone, and so is everything on the card.
    CardLost,
    /// It was swapped out, and its supervisor is gone.
    Abandoned,
    /// The host ended it.
    Destroyed,
    /// What it wrote into its command rings makes no sense.
    Damaged(String),
}

impl fmt::Display for DeathCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended {
                signal,
                status,
                functions,
            } => {
                match (signal, status) {
                    (Some(signal), _) => write!(
                        f,
                        "it was killed by signal {signal}{}",
                        signal_name(*signal)
                    )?,
                    (None, Some(status)) => write!(f, "it exited with status {status}")?,
                    (None, None) => f.write_str("it ended")?,
                }
                if !functions.is_empty() {
                    write!(f, " while running {}", functions.join(", "))?;
                }
                Ok(())
            }
            Self::CardLost => f.write_str("the card's daemon is gone"),
            Self::Abandoned => f.write_str("it was swapped out, and snapify run has ended"),
            Self::Destroyed => f.write_str("it was destroyed"),
            Self::Damaged(what) => write!(f, "its command rings are damaged: {what}"),
        }
    }
}

/// " (SIGSEGV)" and the like, for the signals that end programs.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGTERM => " (SIGTERM)",
        libc::SIGTRAP => " (SIGTRAP)",
        libc::SIGSYS => " (SIGSYS)",
        _ => "",
    }
}
