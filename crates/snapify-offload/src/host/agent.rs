//! The agent: the thread of the host library that serves the supervisor. This is the host's part of the pause protocol (paper 1, sections 4.1 to 4.3).
//!
//! Between two requests the agent sleeps in `recv` on the connection to the supervisor. A host process is frozen only
//! after the agent has answered, so that is where a restored one finds itself, with a new connection at the same
//! descriptor.

use super::phase::{Absent, Pauser, Phase};
use super::watch::watch;
use super::{Process, Result, Runtime, orders, threads};
use crate::control::{
    CaptureProcess, EXTERNAL_CONTROL, HostToSupervisor, PausedProcess, SupervisorToHost,
    external_card, external_store,
};
use crate::engine::External;
use crate::error::{DeathCause, OffloadError};
use crate::layout::BUFFERS;
use crate::steps::Stopwatch;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

/// Starts both threads.
pub fn start(runtime: &Arc<Runtime>) -> Result<()> {
    let failed = |source| OffloadError::System {
        operation: "start the threads of the offload runtime".into(),
        source: Arc::new(source),
    };
    // They do not keep the runtime alive; the program's static one lives as long as the process anyway.
    let (for_agent, for_watcher) = (Arc::downgrade(runtime), Arc::downgrade(runtime));
    let control = runtime.control.clone();
    threads::start("snapify-agent", move || {
        while let Ok((request, fds)) = control.recv() {
            let Some(runtime) = for_agent.upgrade() else {
                return;
            };
            let served = match request {
                SupervisorToHost::Pause => Paused::new(&runtime).serve(),
                other => orders::serve(&runtime, other, fds),
            };
            if served.is_err() {
                break;
            }
        }
        // What is on a card learns of its end from the card.
        if let Some(runtime) = for_agent.upgrade() {
            for process in runtime.processes() {
                process.give_up_if_absent();
            }
        }
    })
    .map_err(failed)?;
    let cards = runtime.cards.clone();
    threads::start("snapify-watch", move || watch(&cards, &for_watcher)).map_err(failed)
}

/// The connection to the supervisor is gone.
pub struct SupervisorGone;

/// A pause, from the request to the resume. Whatever ends it, everything goes on.
struct Paused<'a> {
    runtime: &'a Runtime,
    _lifecycle: MutexGuard<'a, ()>,
    /// Processes whose gates are closed, in order.
    closed: Vec<Arc<Process>>,
    /// Processes that are swapped out.
    absent: Vec<Arc<Process>>,
    /// Why the application cannot go on as it was, to be told when it is resumed.
    complaint: Option<String>,
    /// Whether this is a restored process.
    is_restored: bool,
    /// What the pause takes.
    stopwatch: Stopwatch,
}

impl<'a> Paused<'a> {
    /// Case 1: an unfinished creation, destruction or loading is completed first, and no new one begins.
    fn new(runtime: &'a Runtime) -> Self {
        let mut stopwatch = Stopwatch::relative();
        let lifecycle = runtime.lifecycle();
        stopwatch.lap("finish what is being created");
        Self {
            runtime,
            _lifecycle: lifecycle,
            closed: Vec::new(),
            absent: Vec::new(),
            complaint: None,
            is_restored: false,
            stopwatch,
        }
    }

    /// Serves the supervisor until it resumes.
    fn serve(mut self) -> Result<(), SupervisorGone> {
        let answer = self.pause().unwrap_or_else(|error| failed(&error));
        self.send(&answer)?;
        loop {
            let Ok((request, fds)) = self.runtime.control.recv::<SupervisorToHost>() else {
                self.resume();
                return Err(SupervisorGone);
            };
            match request {
                SupervisorToHost::Capture { processes } => {
                    let outcome = self.capture(&processes, fds);
                    let answer = outcome.map_or_else(
                        |error| failed(&error),
                        |()| HostToSupervisor::CaptureStarted,
                    );
                    self.send(&answer)?;
                }
                SupervisorToHost::Restored { cards, processes } => {
                    for info in cards {
                        let card = self
                            .runtime
                            .cards
                            .iter()
                            .find(|card| card.index == info.index);
                        if let Some(card) = card {
                            card.set_memory(info.memory);
                        }
                    }
                    self.restored(&processes);
                }
                SupervisorToHost::Resume => {
                    self.resume();
                    let answer = match self.complaint.take() {
                        Some(message) => HostToSupervisor::Failed { message },
                        None => HostToSupervisor::Resumed,
                    };
                    let _ = self.runtime.control.send(&answer, &[]);
                    return Ok(());
                }
                other => {
                    let message = format!("the host process is paused and cannot take {other:?}");
                    self.send(&HostToSupervisor::Failed { message })?;
                }
            }
        }
    }

    fn send(&mut self, answer: &HostToSupervisor) -> Result<(), SupervisorGone> {
        let sent = self.runtime.control.send(answer, &[]);
        sent.map_err(|_| {
            self.resume();
            SupervisorGone
        })
    }

    /// Drains all channels and keeps them empty.
    fn pause(&mut self) -> Result<HostToSupervisor> {
        let mut externals = vec![external(
            EXTERNAL_CONTROL.into(),
            self.runtime.control.as_raw_fd(),
            Vec::new(),
        )];
        for card in &self.runtime.cards {
            externals.push(external(external_card(card.index), card.fd(), Vec::new()));
        }
        let mut paused = Vec::new();
        for process in self.runtime.processes() {
            // Nobody else changes it before the end of this pause: that takes the lock of the lifecycle, or a process that
            // is paused by a caller.
            let mut phase = process.phase();
            if process.status().is_err() {
                self.leave_out(&process, &mut phase)?;
                continue;
            }
            let bytes = if let Phase::Absent(absent) = &*phase {
                paused.push(swapped_out(&process, absent)?);
                self.absent.push(process.clone());
                // There is no more of a stand-in for the local store.
                BUFFERS
            } else {
                process.expect_running(&phase, "pause")?;
                let told = process.pause_as(&mut phase, Pauser::Supervisor, &mut self.stopwatch);
                match told {
                    Ok(told) => paused.push(told),
                    // As if it had ended before.
                    Err(_) if process.is_ending() => {
                        self.leave_out(&process, &mut phase)?;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                self.closed.push(process.clone());
                process.store.bytes()
            };
            let store = (process.store.address(), bytes);
            externals.push(external(
                external_store(process.id()),
                process.store_fd(),
                vec![store],
            ));
        }
        Ok(HostToSupervisor::Paused {
            externals,
            processes: paused,
        })
    }

    /// Makes a process that is gone no part of the pause but for its gate.
    fn leave_out(&mut self, process: &Arc<Process>, phase: &mut Phase) -> Result<()> {
        *phase = Phase::Paused {
            by: Pauser::Supervisor,
            saving: None,
        };
        process.gate.close();
        self.closed.push(process.clone());
        process.sever()
    }

    /// Has the daemons save processes.
    fn capture(&self, processes: &[CaptureProcess], fds: Vec<OwnedFd>) -> Result<()> {
        let operation = "save an offload process";
        let mut fds = fds.into_iter();
        let completion = fds.next();
        for order in processes {
            let process = self.closed.iter().find(|process| process.id() == order.id);
            let parents = order
                .form
                .parent_pages
                .saturating_add(order.form.parent_store);
            let wanted = parents.saturating_add(3);
            let files: Vec<_> = fds.by_ref().take(wanted).collect();
            let (Some(process), Some(completion), true) =
                (process, &completion, files.len() == wanted)
            else {
                return Err(OffloadError::Connection {
                    operation: operation.into(),
                    source: Arc::new(snapify_fabric::ChannelError::Malformed(
                        "a capture names no paused process, or lacks descriptors".into(),
                    )),
                });
            };
            let mut passed = vec![completion.as_fd()];
            passed.extend(files.iter().map(AsFd::as_fd));
            process.ask_for_capture(&passed, order.hold, true, order.form)?;
        }
        Ok(())
    }

    /// This is a restored host process: takes up with the restored offload processes.
    fn restored(&mut self, processes: &[PausedProcess]) {
        self.is_restored = true;
        // What was swapped out is on a card again, paused like the others.
        for process in self.absent.drain(..) {
            if let Err(error) = process.comes_back() {
                self.complaint = Some(error.to_string());
            }
            self.closed.push(process);
        }
        for process in &self.closed {
            if process.status().is_err() {
                continue;
            }
            let Some(told) = processes.iter().find(|told| told.id == process.id()) else {
                process.die(DeathCause::CardLost);
                continue;
            };
            process.set_pid(told.pid);
            if let Err(why) = process.set_aside(&process.file) {
                let card = process.card();
                self.complaint = Some(format!(
                    "card {card} cannot hold the buffers that it had: {why}"
                ));
            }
        }
    }

    /// Lets everything go on.
    fn resume(&mut self) {
        for process in &self.closed {
            if process.status().is_err() {
                continue;
            }
            let outcome = match self.is_restored {
                true => process.resume_restored(),
                false => process.resume_at_card(),
            };
            if let Err(error) = outcome
                && process.status().is_ok()
            {
                self.complaint.get_or_insert_with(|| error.to_string());
            }
        }
        for process in self.closed.drain(..) {
            *process.phase() = Phase::Running;
            process.gate.open();
        }
    }
}

/// A process that is swapped out, as a snapshot has it.
fn swapped_out(process: &Process, absent: &Absent) -> Result<PausedProcess> {
    if absent.image.is_none() {
        let why = "it is swapped out, and only the program knows where its image is";
        return Err(process.refused(process.operation("save"), why.into()));
    }
    Ok(PausedProcess {
        id: process.id(),
        card: process.card(),
        pid: 0,
        store_bytes: absent.bytes,
        in_flight: process.running(),
        steps: Vec::new(),
        swapped_out: absent.image.clone(),
    })
}

pub fn failed(error: &OffloadError) -> HostToSupervisor {
    HostToSupervisor::Failed {
        message: error.to_string(),
    }
}

fn external(key: String, fd: i32, mappings: Vec<(u64, u64)>) -> External {
    External {
        key,
        fds: vec![fd],
        mappings,
    }
}
