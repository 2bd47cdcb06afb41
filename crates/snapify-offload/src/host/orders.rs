//! What the supervisor asks of the agent outside of a snapshot: swap-out, swap-in and migration of one offload process.

use super::agent::{SupervisorGone, failed};
use super::operations::ImageFiles;
use super::phase::{Pauser, Phase, State};
use super::{Process, Runtime};
use crate::control::{
    HostProcess, HostProcessState, HostToSupervisor, ProcessId, SupervisorToHost,
};
use crate::steps::Stopwatch;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Serves one request.
pub fn serve(
    runtime: &Runtime,
    request: SupervisorToHost,
    fds: Vec<OwnedFd>,
) -> Result<(), SupervisorGone> {
    let answer = match request {
        SupervisorToHost::Processes => HostToSupervisor::Processes {
            processes: runtime.processes().iter().map(describe).collect(),
        },
        SupervisorToHost::SwapOut { id } => return swap_out(runtime, id, fds),
        SupervisorToHost::SwapIn { id, card } => match (find(runtime, id), image(fds)) {
            (Some(process), Some(files)) => swap_in(&process, card, &files),
            (None, _) => unknown(id),
            (_, None) => lacking(),
        },
        SupervisorToHost::Migrate { id, card } => match find(runtime, id) {
            Some(process) => migrate(&process, card),
            None => unknown(id),
        },
        // Not paused: nothing to resume, and nothing to capture.
        SupervisorToHost::Resume => HostToSupervisor::Resumed,
        _ => HostToSupervisor::Failed {
            message: "the host process is not paused".into(),
        },
    };
    // A supervisor that is gone is noticed by the next one who listens to it.
    let _ = runtime.control.send(&answer, &[]);
    Ok(())
}

fn describe(process: &Arc<Process>) -> HostProcess {
    HostProcess {
        id: process.id(),
        card: process.card(),
        state: match process.state() {
            State::Running => HostProcessState::Running,
            State::Paused => HostProcessState::Paused,
            State::SwappedOut => HostProcessState::SwappedOut,
            State::Dead => HostProcessState::Dead,
        },
    }
}

/// Saves a process, which stands still from then on, until the supervisor has the image in its place.
fn swap_out(runtime: &Runtime, id: ProcessId, fds: Vec<OwnedFd>) -> Result<(), SupervisorGone> {
    let answer = |message: &HostToSupervisor| {
        let sent = runtime.control.send(message, &[]);
        sent.map_err(|_| SupervisorGone)
    };
    let Some(process) = find(runtime, id) else {
        return answer(&unknown(id));
    };
    let mut fds = fds.into_iter();
    let (Some(completion), Some(files)) = (fds.next(), image(fds.collect())) else {
        return answer(&lacking());
    };
    let steps = match process.pause_by(Pauser::Supervisor) {
        Ok(paused) => paused.steps,
        Err(error) => return answer(&failed(&error)),
    };
    let resume = || process.resume_by(&mut process.phase(), Pauser::Supervisor);
    let begun = process.begin_capture(completion.as_fd(), &files, true);
    drop((completion, files));
    if let Err(error) = begun {
        let _ = resume();
        return answer(&failed(&error));
    }
    let mut told = answer(&HostToSupervisor::Saving { steps });
    while told.is_ok() {
        let Ok((request, _)) = runtime.control.recv::<SupervisorToHost>() else {
            break;
        };
        match request {
            SupervisorToHost::Release { image } => {
                let mut stopwatch = Stopwatch::relative();
                let released = {
                    let mut phase = process.phase();
                    let released = process.release_saved(&mut phase, Some(&image), &mut stopwatch);
                    released.map(|()| match &*phase {
                        Phase::Absent(absent) => absent.bytes,
                        _ => 0,
                    })
                };
                return match released {
                    Ok(store_bytes) => answer(&HostToSupervisor::SwappedOut {
                        store_bytes,
                        steps: stopwatch.take(),
                    }),
                    Err(error) => {
                        let _ = resume();
                        answer(&failed(&error))
                    }
                };
            }
            SupervisorToHost::Resume => {
                // One that has died meanwhile has nobody waiting for it any more.
                let _ = resume();
                return answer(&HostToSupervisor::Resumed);
            }
            other => {
                let message = format!("a process is being swapped out, and {other:?} has to wait");
                told = answer(&HostToSupervisor::Failed { message });
            }
        }
    }
    let _ = resume();
    Err(SupervisorGone)
}

fn swap_in(process: &Process, card: u32, files: &ImageFiles) -> HostToSupervisor {
    let mut stopwatch = Stopwatch::relative();
    let restored = process.restore_timed(card, files, &mut stopwatch);
    let done = restored.and_then(|restored| process.resume().map(|()| restored));
    match done {
        Ok(restored) => {
            stopwatch.lap("resume");
            HostToSupervisor::SwappedIn {
                steps: stopwatch.take(),
                restored,
            }
        }
        Err(error) => failed(&error),
    }
}

fn migrate(process: &Process, card: u32) -> HostToSupervisor {
    match process.migrate(card) {
        Ok(done) => HostToSupervisor::Migrated {
            store_bytes: done.store_bytes,
            pause_seconds: done.pause.as_secs_f64(),
            capture_seconds: done.capture.as_secs_f64(),
            restore_seconds: done.restore.as_secs_f64(),
            resume_seconds: done.resume.as_secs_f64(),
            pause: done.steps.pause,
            steps: done.steps.host,
            saved: done.steps.saved,
            restored: done.steps.restored,
        },
        Err(error) => failed(&error),
    }
}

fn find(runtime: &Runtime, id: ProcessId) -> Option<Arc<Process>> {
    let processes = runtime.processes();
    processes.into_iter().find(|process| process.id() == id)
}

fn image(fds: Vec<OwnedFd>) -> Option<ImageFiles> {
    let [process, pages, store]: [OwnedFd; 3] = fds.try_into().ok()?;
    Some(ImageFiles {
        process: File::from(process),
        pages: File::from(pages),
        store: File::from(store),
    })
}

fn unknown(id: ProcessId) -> HostToSupervisor {
    HostToSupervisor::Failed {
        message: format!("the program has no offload process {id}"),
    }
}

fn lacking() -> HostToSupervisor {
    HostToSupervisor::Failed {
        message: "the request lacks descriptors".into(),
    }
}
