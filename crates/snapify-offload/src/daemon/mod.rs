//! The card daemon.

use crate::engine::Engine;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A card and its daemon.
#[derive(Debug)]
pub struct CardConfig {
    /// The card's number.
    pub index: u32,
    /// Its memory in bytes: the size of its RAM-backed scratch space, where local stores lie, and the limit of
    /// each offload process's private memory.
    pub memory: u64,
    /// The connection to the supervisor ([`SupervisorToCard`](crate::control::SupervisorToCard)).
    pub service: OwnedFd,
    /// The program `snapify-offload-process`.
    pub offload_process: PathBuf,
    /// Directory with the libraries that device images link against inside an offload process; comes first in
    /// its `LD_LIBRARY_PATH`.
    pub libraries: Option<PathBuf>,
    /// Where the RAM-backed scratch space is mounted in the sandbox: `/tmp`.
    pub scratch: PathBuf,
}

/// The daemon failed as a whole.
#[derive(thiserror::Error, Debug)]
pub enum DaemonError {
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried.
        operation: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The connection to the supervisor failed.
    #[error("the connection to the supervisor failed: {0}")]
    Service(#[from] snapify_fabric::ChannelError),
}

/// Runs a card: enters a fresh sandbox (namespaces, scratch space) and serves until the supervisor closes
/// the connection or asks for the end. The calling process must be single-threaded; it waits outside while
/// the daemon is process 1 inside, and both die with the supervisor.
///
/// # Errors
/// If the sandbox cannot be made, or the service socket fails.
pub fn run(config: CardConfig, engine: Box<dyn Engine>) -> Result<(), DaemonError> {
    let _ = (config, engine);
    todo!()
}
