//! Building a process from its image, and launching new ones, in fresh namespaces.
//!
//! ```text
//!  caller ── fork into new user + PID + mount namespaces ──> init (pid 1): tracer, reaper
//!    │                                                         └─ clone3(set_tid) ──> the process, with its own id
//!    └────── socket: progress, ready, start, exit status ──────┘
//! ```
//!
//! The init dies with the thread that made it, and all in its namespaces with the init.

mod blank;
mod build;
pub mod context;
mod inherited;
mod init;
mod launch;
mod namespace;
mod process;
mod protocol;

pub use context::RestoreContext;
pub use launch::LaunchSpec;
pub use process::Restored;

use crate::error::{Obstacle, ProcError};
use crate::ids::Pid;
use crate::image::ProcessImage;
use crate::{context as process_context, files, memory, threads};
use snapify_store::{PageFile, Progress};
use std::os::fd::OwnedFd;

/// What is needed to restore a process.
pub struct RestorePlan<'a> {
    /// The process.
    pub image: ProcessImage,
    /// The contents of its pages.
    pub pages: PageFile,
    /// An open descriptor for each of the image's externals, by key.
    pub externals: Vec<(String, OwnedFd)>,
    /// Where descriptors lead that led outside through standard input, output and error; the caller's own if `None`.
    pub stdio: Option<[OwnedFd; 3]>,
    /// Is told of restored bytes, and can cancel.
    pub progress: &'a dyn Progress,
    /// What its init is called in process lists.
    pub init_name: String,
}

/// What is in the way of restoring the image on this system, found without creating any process.
#[must_use]
pub fn preflight(image: &ProcessImage) -> Vec<Obstacle> {
    let mut obstacles = memory::preflight(&image.memory, &image.objects);
    obstacles.extend(threads::restore::preflight(&image.threads));
    obstacles.extend(files::preflight(&image.files));
    obstacles.extend(process_context::preflight(&image.context));
    obstacles
}

/// Restores a process in fresh namespaces. Returns when it is complete and stopped; [`Restored::start`] lets it go.
///
/// The caller should have one thread only, and that thread must outlive the process.
///
/// # Errors
/// [`ProcError::BadImage`] and [`ProcError::Unsupported`] before any process is created; any other from within the
/// namespaces, of which then nothing is left.
pub fn restore(plan: RestorePlan<'_>) -> Result<Restored, ProcError> {
    plan.image.validate()?;
    let pid = Pid(plan.image.pid);
    let mut obstacles = preflight(&plan.image);
    for external in &plan.image.externals {
        if !plan.externals.iter().any(|(key, _)| *key == external.key) {
            obstacles.push(Obstacle::new(
                format!("external {:?}", external.key),
                "nothing was supplied for it",
            ));
        }
    }
    if !obstacles.is_empty() {
        return Err(ProcError::Unsupported { pid, obstacles });
    }
    let progress = plan.progress;
    let name = plan.init_name.clone();
    let ipc = plan.image.ipc.namespace;
    let init = namespace::spawn(&name, ipc, move |inside| {
        init::restore_process(inside, plan)
    })?;
    Restored::when_ready(init, pid, progress)
}

/// Launches a new program in fresh namespaces. Returns when its process exists; [`Restored::start`] makes it execute the program.
///
/// The caller should have one thread only, and that thread must outlive the process.
///
/// # Errors
/// If the namespaces or the process cannot be made.
pub fn launch(spec: LaunchSpec) -> Result<Restored, ProcError> {
    let name = spec.init_name.clone();
    let init = namespace::spawn(&name, false, move |inside| {
        init::launch_program(inside, &spec)
    })?;
    Restored::when_ready(init, Pid(0), &())
}
