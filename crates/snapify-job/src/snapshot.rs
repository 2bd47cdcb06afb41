//! What a job writes into a snapshot beside its members: `job.json` in the member `host`.

use serde::{Deserialize, Serialize};
use snapify_offload::control::ProcessId;
use snapify_store::ProgramIdentity;
use std::path::PathBuf;

/// Member and files of the host process.
pub(crate) const HOST: &str = "host";
/// The engine's description of a process.
pub(crate) const PROCESS_FILE: &str = "process.json";
/// The pages of a process.
pub(crate) const PAGES_FILE: &str = "pages.snap";
/// The local store of an offload process.
pub(crate) const STORE_FILE: &str = "store.snap";
/// The job as a whole.
pub(crate) const JOB_FILE: &str = "job.json";

/// Member name of an offload process.
pub(crate) fn offload_member(id: ProcessId) -> String {
    format!("offload-{id}")
}

/// The job as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Identity of the chain, which the restarted program continues.
    pub identity: ProgramIdentity,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Memory of each card, in bytes, by number.
    pub cards: Vec<u64>,
    /// Whether the host process had its connections to the cards.
    pub connected: bool,
    /// Where the host library of the program looks for its supervisor, if it has not connected yet.
    pub agent_socket: Option<PathBuf>,
    /// The offload processes.
    pub processes: Vec<OffloadProcess>,
    /// Standard output and error of the job, where the host process shares them with its offload processes.
    pub stdio: Vec<SharedOutput>,
    /// The registration of the host process's OpenMP runtime.
    #[serde(default)]
    pub registration: Option<crate::registration::Registration>,
}

/// An offload process of the job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OffloadProcess {
    /// Its lasting name.
    pub id: ProcessId,
    /// The card it was on.
    pub card: u32,
    /// Bytes of its local store.
    pub store_bytes: u64,
    /// Run functions that were executing.
    pub in_flight: Vec<String>,
}

/// An output that host process and offload processes share with their supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SharedOutput {
    /// Key of the external: `stdout` or `stderr`.
    pub key: String,
    /// Where it led, if to a regular file: the restart opens that again. Otherwise it leads to the restart's own.
    pub file: Option<OutputFile>,
}

/// An output that was a regular file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OutputFile {
    /// Its path.
    pub path: PathBuf,
    /// Offset in bytes.
    pub position: u64,
    /// Flags of the open description, as the kernel shows them.
    pub flags: u32,
    /// Its length in bytes.
    #[serde(default)]
    pub bytes: Option<u64>,
}
