//! What can go wrong, with the operation, on whom, and the kernel's answer.

use crate::ids::{Pid, Tid};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Something about a process that stands in the way of a snapshot or of a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// The object, as a user can find it: `descriptor 5 (socket:[1234])`, `mapping 7f00..-7f10..`.
    pub object: String,
    /// Why it stands in the way.
    pub why: String,
    /// What can be done about it; empty if nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Obstacle {
    /// An obstacle without a hint.
    pub fn new(object: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            object: object.into(),
            why: why.into(),
            hint: String::new(),
        }
    }

    /// The same obstacle with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.why)?;
        if !self.hint.is_empty() {
            write!(f, " ({})", self.hint)?;
        }
        Ok(())
    }
}

/// Failure of an operation on a process.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// A ptrace request or a wait failed.
    #[error("{op} of thread {tid}: {source}")]
    Ptrace {
        /// The request.
        op: &'static str,
        /// The thread it was made on.
        tid: Tid,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A system call made in a tracee failed.
    #[error("{name} in process {pid}: {source}")]
    RemoteSyscall {
        /// The call.
        name: &'static str,
        /// The process it was made in.
        pid: Pid,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Memory of a process could not be read or written.
    #[error("{op} memory of process {pid} at {address:#x}: {source}")]
    Memory {
        /// `read` or `write`.
        op: &'static str,
        /// The process.
        pid: Pid,
        /// First address of the access.
        address: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file of /proc could not be read or did not have the expected form.
    #[error("{}: {source}", path.display())]
    Proc {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The process uses what cannot be saved or restored. It was left as it was.
    #[error("process {pid} cannot be saved or restored:{}", list(obstacles))]
    Unsupported {
        /// The process (as in the image, when restoring).
        pid: Pid,
        /// All that stands in the way.
        obstacles: Vec<Obstacle>,
    },
    /// The process ended while it was worked on.
    #[error("process {pid} ended during {during}")]
    Died {
        /// The process.
        pid: Pid,
        /// What was going on.
        during: &'static str,
    },
    /// A thread did not come to a stop in time.
    #[error("thread {tid} did not stop within {seconds} s; it is in state {state} in the kernel")]
    NotStopping {
        /// The thread.
        tid: Tid,
        /// How long was waited.
        seconds: u64,
        /// State letter of /proc/PID/stat.
        state: char,
    },
    /// A file could not be opened, read, written or created.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried, as in `open`.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A system call made by this process failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The image says something that cannot be.
    #[error("bad process image: {0}")]
    BadImage(String),
    /// Pages could not be written or read.
    #[error(transparent)]
    Store(snapify_store::StoreError),
    /// Restoring or launching failed within the new namespaces; the text is the error there.
    #[error("{0}")]
    Init(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl From<snapify_store::StoreError> for ProcError {
    fn from(error: snapify_store::StoreError) -> Self {
        match error {
            snapify_store::StoreError::Cancelled { .. } => Self::Cancelled,
            other => Self::Store(other),
        }
    }
}

impl ProcError {
    /// The kernel's error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Ptrace { source, .. }
            | Self::RemoteSyscall { source, .. }
            | Self::Memory { source, .. }
            | Self::Proc { source, .. }
            | Self::File { source, .. }
            | Self::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// A closure that wraps the error of a system call of this process, for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }

    /// A closure that wraps the error of a ptrace request, for `map_err`.
    pub(crate) fn ptrace(op: &'static str, tid: Tid) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Ptrace { op, tid, source }
    }

    /// A closure that wraps an error about a file of /proc, for `map_err`.
    pub(crate) fn proc(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Proc { path, source }
    }

    /// A closure that wraps an error about a file, for `map_err`.
    pub(crate) fn file<E: Into<io::Error>>(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::File {
            path,
            what,
            source: source.into(),
        }
    }
}

fn list(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(|o| format!("\n  {o}")).collect()
}
