//! Building processes from their image, and launching new ones, in fresh namespaces.
//!
//! ```text
//!  caller ── fork into new user + PID + mount namespaces ──> init (pid 1): tracer, reaper
//!    │                                                         └─ clone3(set_tid) ──> the processes, with their own ids
//!    └────── socket: progress, ready, start, exit status ──────┘
//! ```
//!
//! The init dies with the thread that made it, and all in its namespaces with the init, as long as the first process runs.

mod blank;
mod build;
pub mod context;
mod heirs;
mod inherited;
mod init;
mod launch;
mod lineage;
mod namespace;
mod process;
mod protocol;
mod skeleton;
mod terminal;
mod track;

pub use context::RestoreContext;
pub use launch::LaunchSpec;
pub use process::Restored;

use crate::error::{Obstacle, ProcError};
use crate::ids::Pid;
use crate::image::TreeImage;
use crate::{context as process_context, files, memory, threads};
use snapify_store::{PageFile, Progress};
use std::os::fd::OwnedFd;

/// What becomes of a restored tree's other processes when its first one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphans {
    /// They go on, as they would have without a snapshot.
    Survive,
    /// They are killed.
    End,
}

/// What is needed to restore a tree of processes.
pub struct RestorePlan<'a> {
    /// The processes.
    pub image: TreeImage,
    /// The contents of its pages.
    pub pages: PageFile,
    /// An open descriptor for each of the image's externals, by key.
    pub externals: Vec<(String, OwnedFd)>,
    /// Where descriptors lead that led outside through standard input, output and error; the caller's own if `None`.
    pub stdio: Option<[OwnedFd; 3]>,
    /// Is told of restored bytes, and can cancel.
    pub progress: &'a dyn Progress,
    /// What their init is called in process lists.
    pub init_name: String,
    /// What becomes of the others when the first process has ended.
    pub orphans: Orphans,
    /// Whether what the processes write is followed from their beginning, see [`Restored::take_tracking`].
    pub track: bool,
}

pub(crate) use skeleton::preflight as foresee;

/// What is in the way of restoring the image on this system, found without creating any process.
#[must_use]
pub fn preflight(image: &TreeImage) -> Vec<Obstacle> {
    let mut obstacles: Vec<Obstacle> = skeleton::preflight(image).into_iter().collect();
    let restorable = memory::named::restorable(image);
    for process in &image.processes {
        if process.shares.memory.is_none() {
            obstacles.extend(memory::preflight(
                &process.memory,
                &image.objects,
                &restorable,
            ));
        }
        obstacles.extend(threads::restore::preflight(&process.threads));
        obstacles.extend(process_context::preflight(&process.context, &restorable));
    }
    obstacles.extend(files::preflight(&image.files, &restorable));
    // Processes of one program need the same.
    let mut told = std::collections::HashSet::new();
    obstacles.retain(|obstacle| told.insert(obstacle.to_string()));
    obstacles
}

/// Restores a tree of processes in fresh namespaces. Returns when it is complete and stopped; [`Restored::start`] lets it go.
///
/// The caller should have one thread only, and that thread must outlive the process.
///
/// # Errors
/// [`ProcError::BadImage`] and [`ProcError::Unsupported`] before any process is created; any other from within the
/// namespaces, of which then nothing is left.
pub fn restore(mut plan: RestorePlan<'_>) -> Result<Restored, ProcError> {
    plan.image.validate()?;
    let pid = Pid(plan.image.root().pid());
    let mut obstacles = preflight(&plan.image);
    for external in plan.image.processes.iter().flat_map(|p| &p.externals) {
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
    // Here and not in the namespaces, from where other processes are not seen.
    memory::named::spare_used(&mut plan.image);
    let progress = plan.progress;
    let name = plan.init_name.clone();
    let ipc = plan.image.ipc.namespace;
    let terminal = terminal::Terminal::open(plan.image.files.outer_terminal.as_ref());
    let owner = plan.image.root().context.inner_owner;
    let init = namespace::spawn(&name, ipc, owner, move |inside| {
        init::restore_processes(inside, plan)
    })?;
    Restored::when_ready(init, pid, terminal, progress)
}

/// Launches a new program in fresh namespaces. Returns when its process exists; [`Restored::start`] makes it execute the program.
///
/// The caller should have one thread only, and that thread must outlive the process.
///
/// # Errors
/// If the namespaces or the process cannot be made.
pub fn launch(spec: LaunchSpec) -> Result<Restored, ProcError> {
    let name = spec.init_name.clone();
    let init = namespace::spawn(&name, false, None, move |inside| {
        init::launch_program(inside, &spec)
    })?;
    Restored::when_ready(init, Pid(0), None, &())
}
