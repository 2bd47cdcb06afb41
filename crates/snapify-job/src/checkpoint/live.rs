//! Live checkpoints: the application goes on while its memory is saved from a copy.

use super::{Application, Manner};
use crate::events::Event;
use crate::link::Link;
use crate::snapshot::PAGES_FILE;
use serde::{Deserialize, Serialize};
use snapify_proc::{Changed, Copies, Form, Frozen, Pid, ProcError, Rest};
use snapify_store::{PageFileSummary, WriteOptions};
use std::fs::File;
use std::os::fd::AsRawFd;

/// From so many bytes of private memory on, a copy is worth its own cost. To save this much takes some 25 ms, to copy it less than
/// one, but each page that is written while it is saved costs the application a microsecond or two.
const WORTHWHILE: u64 = 64 << 20;

/// Whether an application goes on before its memory is saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Live {
    /// It stands still until its memory is saved.
    Never,
    /// It goes on if its memory is large.
    #[default]
    Auto,
    /// It goes on, unless memory is short.
    Always,
}

impl Manner {
    /// Whether an application with so much private memory is to go on before that is saved.
    pub(super) fn is_live(self, application: &Application<'_>, private_bytes: u64) -> bool {
        // With offload processes it is paused until they are saved as well.
        let possible = !self.stop && application.agents.is_empty();
        possible
            && match self.live {
                Live::Never => false,
                Live::Auto => private_bytes >= WORTHWHILE,
                Live::Always => true,
            }
    }
}

/// A described application.
pub(super) enum Standing {
    /// It stands still.
    Frozen(Frozen),
    /// It goes on, and this is what it was.
    Copied(Copies),
    /// It goes on.
    Gone,
}

/// Lets an application go on if it can be copied. Where it cannot, the user is told.
pub(super) fn stand_or_go_on(frozen: Frozen, live: bool, link: &Link) -> Standing {
    if !live {
        return Standing::Frozen(frozen);
    }
    match frozen.thaw_copied() {
        Ok(copies) => Standing::Copied(copies),
        Err(refused) => {
            let why = refused.why;
            let warning = format!("the program stands still until its memory is saved: {why}");
            link.tell(Event::Warning(warning));
            Standing::Frozen(refused.frozen)
        }
    }
}

impl Standing {
    /// Begins to read what the description of the application lacks.
    pub(super) fn read_rest(&mut self) -> Rest {
        match self {
            Self::Frozen(frozen) => frozen.read_rest(),
            Self::Copied(copies) => copies.read_rest(),
            Self::Gone => Rest::default(),
        }
    }

    /// Writes the pages.
    pub(super) fn save_pages(
        &self,
        form: Form<'_>,
        options: &WriteOptions,
        out: File,
        link: &Link,
    ) -> Result<PageFileSummary, ProcError> {
        // Messages name the file with its path: what is full, or broken, is the place where it lies.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", out.as_raw_fd()));
        let path = path.unwrap_or_else(|_| PAGES_FILE.into());
        let path = path.to_string_lossy();
        let out = (out, &*path);
        match self {
            Self::Frozen(frozen) => frozen.save_as(form, options, out, link),
            Self::Copied(copies) => copies.save_as(form, options, out, link),
            Self::Gone => Err(ProcError::Cancelled),
        }
    }

    /// Bytes of private memory that have changed.
    pub(super) fn changed_bytes(&self, changed: &Changed) -> u64 {
        match self {
            Self::Frozen(frozen) => frozen.changes(changed).bytes(),
            Self::Copied(copies) => copies.changes(changed).bytes(),
            Self::Gone => 0,
        }
    }

    /// What stands, which then is another's to end.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Gone)
    }
}

/// Ends the copies; returns for how many seconds the application stood still for that.
pub(super) fn finish(copies: Copies, link: &Link) -> f64 {
    match copies.finish() {
        Ok(stopped) => stopped.as_secs_f64(),
        Err(why) => {
            let warning = format!("a dead child of the program remains: {why}");
            link.tell(Event::Warning(warning));
            0.0
        }
    }
}

/// Removes what a worker that was killed has left of its copies: they are dead, but their originals must wait for them.
pub(crate) fn clean_up_after_worker(pid: i32) {
    if let Err(error) = snapify_proc::reap_copies(Pid(pid)) {
        tracing::debug!("reaping copies of process {pid}: {error}");
    }
}
