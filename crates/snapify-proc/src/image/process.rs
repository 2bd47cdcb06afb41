//! The image of one process of a tree.

use crate::context::ContextImage;
use crate::error::ProcError;
use crate::external::External;
use crate::files::Descriptor;
use crate::image::Kin;
use crate::memory::MemoryImage;
use crate::signals::SignalImage;
use crate::stops::News;
use crate::threads::ThreadImage;
use crate::timers::TimersImage;
use serde::{Deserialize, Serialize};

/// The signals that stop a process.
const STOPS: [i32; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Everything about one process but its open files and the contents of its pages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessImage {
    /// The process id that it sees itself, and its place in the tree.
    #[serde(flatten)]
    pub kin: Kin,
    /// Whether it was stopped by job control (SIGSTOP and the like); it is then stopped after the restart too.
    pub stopped: bool,
    /// What job control has done to it, and its parent, which is one of the tree, has not asked for yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub news: Option<News>,
    /// What it shares with another process of the tree.
    #[serde(default, skip_serializing_if = "Shares::is_nothing")]
    pub shares: Shares,
    /// Its threads, the leader first.
    pub threads: Vec<ThreadImage>,
    /// Its address space.
    pub memory: MemoryImage,
    /// Its descriptors, ascending.
    pub descriptors: Vec<Descriptor>,
    /// Dispositions, and signals pending for the whole process.
    pub signals: SignalImage,
    /// Its timers.
    pub timers: TimersImage,
    /// Working directory, limits and more.
    pub context: ContextImage,
    /// Objects that the process's agent declared its own; the restorer supplies them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub externals: Vec<External>,
}

/// What a process shares with another one, named by its id: clone(2) without being a thread. The part in the process's own
/// image is then empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// The address space (`CLONE_VM`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<i32>,
    /// The table of descriptors (`CLONE_FILES`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<i32>,
    /// Working directory, root and umask (`CLONE_FS`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<i32>,
    /// Signal dispositions (`CLONE_SIGHAND`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handlers: Option<i32>,
}

impl Shares {
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The processes that something is shared with.
    pub fn with(&self) -> impl Iterator<Item = i32> {
        [self.memory, self.files, self.directory, self.handlers]
            .into_iter()
            .flatten()
    }
}

impl ProcessImage {
    /// The process id that it sees itself.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.kin.pid
    }

    /// Whether it is stopped, or continued, while it is being built, so that its parent is not told: it has a parent in the tree.
    pub(crate) fn stops_silently(&self) -> bool {
        (self.stopped || self.news == Some(News::Continued)) && self.kin.parent != 0
    }

    /// Checks the process by itself; what it shares with others is the tree's to check.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] with the first contradiction.
    pub(super) fn validate(&self) -> Result<(), ProcError> {
        let bad = |text: String| Err(ProcError::BadImage(text));
        let Some(leader) = self.threads.first() else {
            return bad(format!("process {} has no threads", self.kin.pid));
        };
        if leader.tid != self.kin.pid {
            return bad(format!(
                "the first thread of process {} is thread {}",
                self.kin.pid, leader.tid
            ));
        }
        if let Some(News::StoppedBy(signal)) = self.news
            && !(self.stopped && STOPS.contains(&signal))
        {
            return bad(format!(
                "process {} was stopped by signal {signal}",
                self.kin.pid
            ));
        }
        match self.shares.memory {
            Some(_) => Ok(()),
            None => self.memory.validate(),
        }
    }
}
