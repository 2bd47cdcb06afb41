//! What the card daemon asks of a checkpoint engine.
//!
//! The offload runtime knows how to quiesce and describe an offload process, not how to save one. Whoever
//! assembles the program gives the daemon an [`Engine`].

use crate::control::SaveForm;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;

pub use snapify_store::{PageFileSummary, Progress};

/// Why an engine failed, in words that name the operation and the process.
pub type EngineError = Box<dyn Error + Send + Sync>;

/// An object of a process that its agent declared its own: the engine records where it is, not what it holds.
///
/// On restore the caller supplies one open descriptor per key; it is put at the same descriptor numbers and
/// mapped at the same places before any thread runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct External {
    /// Its name, unique in the process.
    pub key: String,
    /// Descriptor numbers in the process.
    pub fds: Vec<i32>,
    /// Start address and bytes of each place where it is mapped, or may be: parts that turn out not to be
    /// mapped are no error.
    pub mappings: Vec<(u64, u64)>,
}

/// A program to start as an offload process, in PID (and, where needed, user) namespaces of its own.
#[derive(Debug)]
pub struct LaunchSpec {
    /// The program file; may be one of `/proc/self/fd` for a number in `fds`.
    pub program: PathBuf,
    /// Arguments, the program's name first.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Descriptors that it gets and at which numbers (0, 1 and 2 are always among them). No others stay open.
    pub fds: Vec<(OwnedFd, i32)>,
    /// Soft and hard limit of its private writable memory in bytes (`RLIMIT_DATA`).
    pub data_limit: Option<(u64, u64)>,
}

/// Where the image of a process goes.
#[derive(Debug)]
pub struct CaptureFiles {
    /// The engine's own description of the process (JSON).
    pub meta: File,
    /// Its pages (a page file of `snapify-store`).
    pub pages: File,
    /// The page files that `pages` is to build on, from the newest to a full one; none if it is to hold everything.
    pub parent: Vec<File>,
}

/// What becomes of a process that was saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterCapture {
    /// It goes on.
    Resume,
    /// It is killed without having run again.
    Terminate,
}

/// A request to save a process.
pub struct CaptureOrder<'a> {
    /// The process, as the daemon sees its id.
    pub pid: i32,
    /// What belongs to its agent.
    pub externals: &'a [External],
    /// Where its image goes.
    pub files: CaptureFiles,
    /// How the pages are written.
    pub form: SaveForm,
    /// Called once while the process is stopped, with what was saved of its pages: saves what lies outside the image
    /// (the local store), waits for a decision if there is one to wait for, and says whether the process goes on. If it
    /// fails the process goes on.
    pub during: &'a mut dyn FnMut(&PageFileSummary) -> Result<AfterCapture, EngineError>,
    /// Is told of bytes of memory dealt with; can cancel.
    pub progress: &'a dyn Progress,
}

/// Where the image of a process comes from.
pub struct RestoreOrder<'a> {
    /// What [`CaptureFiles::meta`] received.
    pub meta: File,
    /// What [`CaptureFiles::pages`] received, and what that builds on, down to a full file.
    pub pages: Vec<File>,
    /// One open descriptor for each external of the image.
    pub externals: Vec<(String, OwnedFd)>,
    /// Name of the process that becomes init of the new PID namespace.
    pub init_name: String,
    /// Is told of bytes of memory put in place; can cancel.
    pub progress: &'a dyn Progress,
}

/// Starts, saves and rebuilds processes.
///
/// The daemon calls it from its only thread, or from a forked copy of itself (captures).
pub trait Engine {
    /// Starts a program. It need not run before [`Child::start`].
    ///
    /// # Errors
    /// If the program cannot be started; nothing is left of it then.
    fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn Child>, EngineError>;

    /// Saves a process that the daemon (or the process that the daemon was forked from) launched or restored.
    ///
    /// # Errors
    /// If it cannot be saved, by name; the process goes on unharmed then.
    fn capture(&self, order: CaptureOrder<'_>) -> Result<PageFileSummary, EngineError>;

    /// Builds a process from an image, with the same process and thread ids in namespaces of its own. It is
    /// complete but does not run before [`Child::start`].
    ///
    /// # Errors
    /// If the image is damaged or cannot be rebuilt here; nothing is left of the process then.
    fn restore(&self, order: RestoreOrder<'_>) -> Result<Box<dyn Child>, EngineError>;
}

/// A launched or restored process. Dropping one that was never started ends it, and waits until nothing of it is left.
pub trait Child {
    /// Its id as the daemon sees it.
    fn pid(&self) -> i32;

    /// Becomes readable when the process has ended.
    fn status_fd(&self) -> BorrowedFd<'_>;

    /// Lets it run. Does nothing if it runs already.
    ///
    /// # Errors
    /// If it died meanwhile.
    fn start(&mut self) -> Result<(), EngineError>;

    /// How it ended, or nothing while it runs. Reaps it.
    ///
    /// # Errors
    /// If its end cannot be learned.
    fn try_wait(&mut self) -> Result<Option<ExitStatus>, EngineError>;

    /// Kills it (`SIGKILL`) and what it started. Does not wait; `status_fd` tells when it is gone.
    fn kill(&mut self);
}
