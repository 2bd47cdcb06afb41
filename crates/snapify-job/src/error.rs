//! What can go wrong with a job, and on which member.

use std::path::PathBuf;

/// An operation on an application failed; unless the text says otherwise, the application goes on and
/// earlier snapshots are as they were.
#[derive(thiserror::Error, Debug)]
pub enum JobError {
    /// A file or directory of ours.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A system call that has no path.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried.
        operation: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The installation lacks a file.
    #[error("this installation of snapify is incomplete: {} is missing; build it by `make`, or name the directory in SNAPIFY_LIBDIR", path.display())]
    Incomplete {
        /// What is missing.
        path: PathBuf,
    },
    /// The runtime directory is open to others.
    #[error("{} must be a directory of yours that nobody else can write to; remove it, or name another one in SNAPIFY_RUNTIME_DIR", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
    },
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoSuchProcess {
        /// The id as given.
        pid: i32,
    },
    /// The process belongs to someone else.
    #[error("process {pid} belongs to user {owner}, not to you")]
    NotYours {
        /// The id as given.
        pid: i32,
        /// Its owner.
        owner: u32,
    },
    /// The engine refused or failed on a process.
    #[error("{member}: {source}")]
    Process {
        /// Which member of the job.
        member: String,
        /// Why.
        source: snapify_proc::ProcError,
    },
    /// The snapshot could not be written or read.
    #[error(transparent)]
    Store(#[from] snapify_store::StoreError),
    /// The offload runtime refused or failed.
    #[error("{member}: {why}")]
    Member {
        /// Which member of the job.
        member: String,
        /// Why.
        why: String,
    },
    /// Messages between the parts of a job failed.
    #[error("the connection to {peer} failed: {source}")]
    Connection {
        /// Who is at the other end.
        peer: String,
        /// Why.
        source: snapify_fabric::ChannelError,
    },
    /// The user or the caller broke it off.
    #[error("interrupted; the application goes on")]
    Cancelled,
    /// A host library seems to be connecting just now, or its process to be ending; never shown to a user.
    #[error("a host library is connecting; try again")]
    TryAgain,
    /// The application ended meanwhile.
    #[error("process {pid} ended meanwhile; nothing was saved")]
    Died {
        /// The host process.
        pid: i32,
    },
    /// The program could not be started.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// The restart asks for what is not there.
    #[error("{0}")]
    Refused(String),
}
