//! The two threads of the host library: the agent, which serves the supervisor, and the watcher, which listens
//! to the cards. This is the host's part of the pause protocol (paper 1, sections 4.1 to 4.3).
//!
//! Between two requests the agent sleeps in `recv` on the connection to the supervisor. A host process is frozen only
//! after the agent has answered, so that is where a restored one finds itself, with a new connection at the same
//! descriptor.

use super::card::{Card, Notice};
use super::process::{call, unexpected};
use super::{Process, Result, Runtime, threads};
use crate::control::{
    CaptureProcess, EXTERNAL_CONTROL, HostToSupervisor, PausedProcess, STEP_OFFLOAD_GATE,
    SupervisorToHost, external_card, external_store,
};
use crate::engine::External;
use crate::error::{DeathCause, OffloadError};
use crate::steps::Stopwatch;
use crate::wire::{CardReply, HostRequest, command};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard, Weak};

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
        while let Ok((request, _)) = control.recv() {
            let Some(runtime) = for_agent.upgrade() else {
                return;
            };
            if !matches!(request, SupervisorToHost::Pause) {
                // Not paused: nothing to capture or to resume.
                let _ = control.send(&stray(&request), &[]);
                continue;
            }
            if Paused::new(&runtime).serve().is_err() {
                return;
            }
        }
    })
    .map_err(failed)?;
    let cards = runtime.cards.clone();
    threads::start("snapify-watch", move || watch(&cards, &for_watcher)).map_err(failed)
}

/// Answer to a request outside a pause.
fn stray(request: &SupervisorToHost) -> HostToSupervisor {
    match request {
        SupervisorToHost::Resume => HostToSupervisor::Resumed,
        _ => HostToSupervisor::Failed {
            message: "the host process is not paused".into(),
        },
    }
}

/// The connection to the supervisor is gone.
struct SupervisorGone;

/// A pause, from the request to the resume. Whatever ends it, everything goes on.
struct Paused<'a> {
    runtime: &'a Runtime,
    _lifecycle: MutexGuard<'a, ()>,
    /// Processes whose gates are closed, in order.
    closed: Vec<Arc<Process>>,
    /// Why the application cannot go on as it was, to be told when it is resumed.
    complaint: Option<String>,
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
            complaint: None,
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
            // Cases 2 to 4: from here on nobody sends a request, copies a piece or changes the store.
            process.gate.close();
            self.stopwatch.lap("close the gate");
            self.closed.push(process.clone());
            if process.status().is_err() {
                process.sever()?;
                continue;
            }
            let store = (process.store.address(), process.store.bytes());
            externals.push(external(
                external_store(process.id()),
                process.store_fd(),
                vec![store],
            ));
            match pause_process(&process, &mut self.stopwatch) {
                Ok(told) => paused.push(told),
                // As if it had ended before.
                Err(_) if process.is_ending() => {
                    process.sever()?;
                    externals.pop();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(HostToSupervisor::Paused {
            externals,
            processes: paused,
        })
    }

    /// Has the daemons save processes.
    fn capture(&self, processes: &[CaptureProcess], fds: Vec<OwnedFd>) -> Result<()> {
        let operation = "save an offload process";
        let mut fds = fds.into_iter();
        let completion = fds.next();
        for order in processes {
            let process = self.closed.iter().find(|process| process.id() == order.id);
            let files: Vec<_> = fds.by_ref().take(3).collect();
            let (Some(process), Some(completion), 3) = (process, &completion, files.len()) else {
                return Err(OffloadError::Connection {
                    operation: operation.into(),
                    source: Arc::new(snapify_fabric::ChannelError::Malformed(
                        "a capture names no paused process, or lacks descriptors".into(),
                    )),
                });
            };
            let body = HostRequest::Capture {
                id: order.id,
                hold: order.hold,
            };
            let mut passed = vec![completion.as_fd()];
            passed.extend(files.iter().map(AsFd::as_fd));
            match call(&process.card, body, &passed, operation)? {
                (CardReply::CaptureStarted, _) => {}
                (other, _) => return Err(unexpected(&process.card, operation, &other)),
            }
        }
        Ok(())
    }

    /// This is a restored host process: takes up with the restored offload processes.
    fn restored(&mut self, processes: &[PausedProcess]) {
        for process in &self.closed {
            if process.status().is_err() {
                continue;
            }
            let Some(told) = processes.iter().find(|told| told.id == process.id()) else {
                process.die(DeathCause::CardLost);
                continue;
            };
            process.set_pid(told.pid);
            if let Err(error) = process.buffers().restore(&process.file) {
                let card = process.card();
                self.complaint = Some(format!(
                    "card {card} has not enough memory for the buffers that it had: {error:?}"
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
            let body = HostRequest::Resume { id: process.id() };
            let outcome = call(&process.card, body, &[], "resume an offload process");
            if let Err(error) = outcome
                && process.status().is_ok()
            {
                self.complaint.get_or_insert_with(|| error.to_string());
            }
        }
        for process in self.closed.drain(..) {
            process.gate.open();
        }
    }
}

/// Empties the channels of one process whose gate is closed.
fn pause_process(process: &Process, stopwatch: &mut Stopwatch) -> Result<PausedProcess> {
    // Case 3: nobody can send a command any more; when the marker is answered all before it have been.
    let marker = process
        .commands
        .submit(command::MARKER, 0, &[], 0, "the shutdown marker");
    let marker = marker.map_err(|error| process.ring_error(error))?;
    if let Some(marker) = marker {
        process.take(&process.commands, marker)?;
    } else {
        // Full: then others are being answered, and one that is answered after the last of them comes last.
        while !process.commands.is_idle() {
            process
                .commands
                .wait_for_room()
                .map_err(|error| process.ring_error(error))?;
        }
    }
    stopwatch.lap("drain commands");
    // What no buffer uses need not be saved.
    if let Err(error) = process.buffers().trim(&process.file) {
        return Err(process.refused("give back free memory".into(), format!("{error:?}")));
    }
    stopwatch.lap("give back free memory");
    let operation = "pause an offload process";
    let body = HostRequest::Pause { id: process.id() };
    let answer = call(&process.card, body, &[], operation)?;
    stopwatch.lap(STEP_OFFLOAD_GATE);
    match answer {
        (CardReply::Paused { process: paused }, _) => Ok(PausedProcess {
            card: process.card(),
            in_flight: process.running(),
            steps: stopwatch.take(),
            ..paused
        }),
        (other, _) => Err(unexpected(&process.card, operation, &other)),
    }
}

fn failed(error: &OffloadError) -> HostToSupervisor {
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

/// The watcher: takes what the cards say, until all are gone.
fn watch(cards: &[Arc<Card>], runtime: &Weak<Runtime>) {
    loop {
        let living: Vec<_> = cards.iter().filter(|card| !card.is_lost()).collect();
        if living.is_empty() {
            return;
        }
        let mut fds: Vec<_> = living
            .iter()
            .map(|card| PollFd::new(&***card, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory for the moment.
            Err(_) => std::thread::yield_now(),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (card, _) in living.iter().zip(ready).filter(|(_, ready)| *ready) {
            let notice = card.receive();
            let Some(runtime) = runtime.upgrade() else {
                return;
            };
            note(&runtime, card, &notice);
        }
    }
}

/// Acts on what a card said.
fn note(runtime: &Runtime, card: &Arc<Card>, notice: &Notice) {
    match *notice {
        Notice::Nothing => {}
        Notice::Died(id, signal, status) => {
            runtime.note_death(id, signal, status);
        }
        Notice::Signal(id, event) => {
            if let Some(handler) = runtime.signals.get() {
                handler(id, event);
            }
        }
        Notice::Lost => {
            for process in runtime
                .processes()
                .iter()
                .filter(|process| Arc::ptr_eq(&process.card, card))
            {
                process.die(DeathCause::CardLost);
            }
        }
    }
}
