//! The card daemon: launches, watches, saves and restores the offload processes of one card.
//!
//! One thread, one poll loop; nothing in it waits for a peer's good will. Saving a process takes long and is
//! the work of a forked copy. The daemon lives on whatever happens to applications.

mod capture;
mod fill;
mod fork;
mod hosts;
mod process;
mod reactor;
mod restore;
mod service;
mod sparse;
mod supervisors;

use crate::control::CardToSupervisor;
use crate::engine::Engine;
use crate::layout::{BUFFERS, STORE_BYTES};
use crate::sandbox::{SandboxConfig, SandboxError, Side, enter};
use hosts::HostConnection;
use process::OffloadProcess;
use snapify_fabric::{Channel, Listener};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use supervisors::{HostKey, ProcessKey, SupervisorConnection, SupervisorId};

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
    /// Where other supervisors connect that share the card; nothing for a card that belongs to one.
    pub listener: Option<Listener>,
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
    /// The sandbox could not be made.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The card is larger than any can be, or smaller than a local store's rings.
    #[error("a card cannot have {memory} bytes of memory: at least {least}, at most {most}")]
    Memory {
        /// What was asked for.
        memory: u64,
        /// Bytes that the least card has.
        least: u64,
        /// Bytes that the largest card has.
        most: u64,
    },
    /// The daemon in the sandbox ended otherwise than by its supervisor's wish.
    #[error("its daemon ended: {0}")]
    Ended(std::process::ExitStatus),
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

/// Memory of the least card.
const LEAST_MEMORY: u64 = 16 << 20;

/// Runs a card: enters a fresh sandbox (namespaces, scratch space) and serves until the supervisor closes
/// the connection or asks for the end; if the card is shared, until the last one has. The calling process must be
/// single-threaded; it waits outside while the daemon is process 1 inside. Unless the card is shared, both die with the
/// supervisor.
///
/// # Errors
/// If the sandbox cannot be made (the supervisor is told, too), or the service socket fails.
pub fn run(config: CardConfig, engine: Box<dyn Engine>) -> Result<(), DaemonError> {
    let outer = std::process::id().cast_signed();
    let entered = check_memory(config.memory).and_then(|()| {
        let keep = [config.offload_process.parent(), config.libraries.as_deref()];
        let sandbox = SandboxConfig {
            name: format!("card{}", config.index),
            // A shared one ends when the last of its supervisors has gone, whoever was the first.
            ends_with_parent: config.listener.is_none(),
            memory: config.memory,
            scratch: config.scratch.clone(),
            keep: keep
                .into_iter()
                .flatten()
                .map(std::path::Path::to_owned)
                .collect(),
        };
        Ok(enter(&sandbox)?)
    });
    match entered {
        Ok(Side::Inside(warnings)) => {
            let status = match serve_as(outer, config, engine, warnings) {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("snapify: card daemon: {error}");
                    1
                }
            };
            // Process 1 of the sandbox: nothing outlives it.
            std::process::exit(status)
        }
        Ok(Side::Outside(status)) if status.success() => Ok(()),
        Ok(Side::Outside(status)) => Err(DaemonError::Ended(status)),
        Err(error) => {
            let message = error.to_string();
            let _ = Channel::from_fd(config.service)
                .send_now(&CardToSupervisor::Failed { message }, &[]);
            Err(error)
        }
    }
}

fn check_memory(memory: u64) -> Result<(), DaemonError> {
    let most = STORE_BYTES - BUFFERS;
    if (LEAST_MEMORY..=most).contains(&memory) {
        return Ok(());
    }
    Err(DaemonError::Memory {
        memory,
        least: LEAST_MEMORY,
        most,
    })
}

/// Serves in this process as it is, without a sandbox. `warnings` are passed on to the supervisor.
///
/// # Errors
/// If the service socket fails.
pub fn serve(
    config: CardConfig,
    engine: Box<dyn Engine>,
    warnings: Vec<String>,
) -> Result<(), DaemonError> {
    serve_as(std::process::id().cast_signed(), config, engine, warnings)
}

/// The same, for a daemon that others know by process id `outer_pid`.
fn serve_as(
    outer_pid: i32,
    config: CardConfig,
    engine: Box<dyn Engine>,
    warnings: Vec<String>,
) -> Result<(), DaemonError> {
    check_memory(config.memory)?;
    let mut daemon = Daemon {
        index: config.index,
        memory: config.memory,
        offload_process: config.offload_process,
        libraries: config.libraries,
        scratch: config.scratch,
        outer_pid,
        warnings,
        listener: config.listener,
        supervisors: BTreeMap::new(),
        next_supervisor: 0,
        engine,
        hosts: BTreeMap::new(),
        processes: BTreeMap::new(),
        absent: BTreeMap::new(),
    };
    daemon.welcome(Channel::from_fd(config.service))?;
    daemon.react()
}

/// All state of a card.
struct Daemon {
    index: u32,
    memory: u64,
    offload_process: PathBuf,
    libraries: Option<PathBuf>,
    scratch: PathBuf,
    /// Its process id outside of the sandbox.
    outer_pid: i32,
    /// What the sandbox had to do without.
    warnings: Vec<String>,
    listener: Option<Listener>,
    supervisors: BTreeMap<SupervisorId, SupervisorConnection>,
    next_supervisor: u64,
    engine: Box<dyn Engine>,
    hosts: BTreeMap<HostKey, HostConnection>,
    processes: BTreeMap<ProcessKey, OffloadProcess>,
    /// Those that were taken off this card and may come back: whose they are, and the bytes of their local stores.
    absent: BTreeMap<ProcessKey, (HostKey, u64)>,
}

impl Daemon {
    /// Bytes of the card's memory that nobody uses. Where the scratch space is not the card's own (outside of a sandbox)
    /// it may have more room than the card.
    fn free_memory(&self) -> u64 {
        let used: u64 = self
            .processes
            .values()
            .map(OffloadProcess::store_bytes)
            .sum();
        let left = self.memory.saturating_sub(used);
        rustix::fs::statvfs(&self.scratch)
            .map_or(left, |fs| left.min(fs.f_bavail.saturating_mul(fs.f_frsize)))
    }
}

/// A copy of a descriptor, or why not, in words.
fn duplicate(fd: &impl AsFd) -> Result<OwnedFd, String> {
    fd.as_fd()
        .try_clone_to_owned()
        .map_err(|error| format!("cannot duplicate a descriptor: {error}"))
}
