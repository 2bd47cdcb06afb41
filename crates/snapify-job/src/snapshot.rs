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

/// Key of an external of the host process with this number. That of the first is as its library names it; others may name theirs
/// the same.
pub(crate) fn host_key(number: usize, key: &str) -> String {
    match number {
        0 => key.to_owned(),
        _ => format!("{number}:{key}"),
    }
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
    /// Whether a host process had its connections to the cards.
    pub connected: bool,
    /// The host processes, by the ids that they have for themselves. None are listed where there was only one, the first process, as
    /// it always was once.
    #[serde(default)]
    pub hosts: Vec<i32>,
    /// Where host libraries of the program look for their supervisor.
    pub agent_socket: Option<PathBuf>,
    /// The offload processes.
    pub processes: Vec<OffloadProcess>,
    /// Standard output and error of the job, where the host process shares them with its offload processes.
    pub stdio: Vec<SharedOutput>,
    /// The registration of the first process's OpenMP runtime, where there is no list of all.
    #[serde(default)]
    pub registration: Option<crate::registration::Registration>,
    /// The registrations of all processes' OpenMP runtimes, with the ids that the processes have for themselves.
    #[serde(default)]
    pub registrations: Vec<(i32, crate::registration::Registration)>,
}

impl Job {
    /// The host processes by their numbers, in a tree with this first process.
    ///
    /// # Errors
    /// In words, if the job contradicts itself.
    pub(crate) fn hosts(&self, tree: &snapify_proc::TreeImage) -> Result<Vec<i32>, String> {
        let hosts = match (self.connected, &self.hosts[..]) {
            (false, _) => Vec::new(),
            (true, []) => vec![tree.root().pid()],
            (true, hosts) => hosts.to_vec(),
        };
        for (number, host) in hosts.iter().enumerate() {
            if tree.process(*host).is_none() {
                return Err(format!("it lacks host process {host}"));
            }
            if hosts[..number].contains(host) {
                return Err(format!("host process {host} is there twice"));
            }
        }
        match self.processes.iter().find(|one| one.host >= hosts.len()) {
            Some(lost) => Err(format!("offload process {} is of no host process", lost.id)),
            None => Ok(hosts),
        }
    }
}

/// An offload process of the job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OffloadProcess {
    /// Its lasting name.
    pub id: ProcessId,
    /// The number of its host process.
    #[serde(default)]
    pub host: usize,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_between_host_processes() {
        assert_eq!(host_key(0, "card1"), "card1");
        assert_eq!(host_key(2, "card1"), "2:card1");
    }
}
