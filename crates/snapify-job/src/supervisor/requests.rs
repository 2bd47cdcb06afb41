//! What the command line asks of a supervisor.

use super::Supervisor;
use crate::checkpoint::{Application, Manner, clean_up_after_worker, start_worker};
use crate::protocol::{ApplicationStatus, CardStatus, OffloadProcessStatus, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snapify_fabric::Channel;
use snapify_offload::control::{CardToSupervisor, SupervisorToCard, SupervisorToHost};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a checkpoint waits for a host library that seems to be connecting just now.
const CONNECTING: Duration = Duration::from_millis(300);

/// A checkpoint that was asked for.
pub(super) struct CheckpointRequest {
    dir: PathBuf,
    manner: Manner,
    asker: Channel,
    /// Until when it waits for the host library to connect, once it has met a socket that may be its.
    until: Option<Instant>,
}

impl CheckpointRequest {
    /// How long events may keep it waiting.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.until
            .map(|until| until.saturating_duration_since(Instant::now()))
    }
}

impl Supervisor {
    /// Hears a client and does what it asks.
    pub(super) fn serve(&mut self, client: Channel) {
        match client.recv::<Request>() {
            Ok((Request::Status, _)) => {
                let status = self.status();
                let _ = client.send_now(&Reply::Status { status }, &[]);
            }
            Ok((
                Request::Checkpoint {
                    dir,
                    stop,
                    outside,
                    live,
                    after,
                },
                _,
            )) => {
                self.waiting.push_back(CheckpointRequest {
                    dir,
                    manner: Manner {
                        stop,
                        live,
                        outside,
                        after,
                    },
                    asker: client,
                    until: None,
                });
            }
            Err(_) => {}
        }
    }

    /// Starts the next checkpoint, if one is waiting and none is being taken.
    pub(super) fn start_waiting(&mut self) {
        // A host library that has connected, or is about to, must be heard first: it belongs to the snapshot.
        let connecting = readable(&self.house.agents) || !self.strangers.is_empty();
        if self.working.is_some() || connecting {
            return;
        }
        let agent = self.agent().map(|agent| &agent.channel);
        let Some(request) = self.waiting.front() else {
            return;
        };
        if agent.is_none() && request.until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        let application = Application {
            host: self.program.pid(),
            agent,
            cards: self
                .card_of
                .iter()
                .map(|card| self.cards[*card as usize].info.memory)
                .collect(),
            program: self.origin.program.clone(),
            identity: self.origin.identity.clone(),
            agent_socket: Some(self.house.folder.agent_socket()),
            may_be_connecting: agent.is_none() && request.until.is_none(),
        };
        let asker = request
            .asker
            .as_fd()
            .try_clone_to_owned()
            .map(Channel::from_fd);
        let started = asker.map_err(|error| error.to_string()).and_then(|asker| {
            start_worker(&application, &request.dir, request.manner, asker)
                .map_err(|error| error.to_string())
        });
        let Some(request) = self.waiting.pop_front() else {
            return;
        };
        match started {
            Ok(worker) => self.working = Some((worker, request)),
            Err(message) => {
                let _ = request.asker.send_now(&Reply::Failed { message }, &[]);
            }
        }
    }

    /// The worker has ended.
    pub(super) fn end_worker(&mut self) {
        let Some((worker, mut request)) = self.working.take() else {
            return;
        };
        match worker.reap() {
            crate::checkpoint::Ending::Done => {}
            crate::checkpoint::Ending::TryAgain => {
                request.until = Some(Instant::now() + CONNECTING);
                self.waiting.push_front(request);
            }
            crate::checkpoint::Ending::Died => {
                clean_up_after_worker(self.program.pid());
                // It may have died between pause and resume.
                if let Some(agent) = self.agent() {
                    let _ = agent.channel.send_now(&SupervisorToHost::Resume, &[]);
                }
                let message =
                    "the process that took the checkpoint died; no snapshot was made".into();
                let _ = request.asker.send_now(&Reply::Failed { message }, &[]);
            }
        }
    }

    /// A checkpoint that waited long enough is taken without the host library.
    pub(super) fn grow_impatient(&mut self) {
        let now = Instant::now();
        if let Some(request) = self.waiting.front_mut()
            && request.until.is_some_and(|until| until <= now)
        {
            // Not none: it has had its second chance.
            request.until = Some(now);
        }
    }

    /// The program has ended; the worker, if there is one, notices and cleans up.
    pub(super) fn finish_worker(&mut self) {
        if let Some((worker, _)) = &self.working {
            let _ = crate::processes::wait_readable(&[worker.as_fd()], None);
            self.end_worker();
        }
    }

    fn status(&self) -> ApplicationStatus {
        let mut cards = Vec::new();
        let mut processes = Vec::new();
        for (index, card) in self.cards.iter().enumerate() {
            let mut used = 0;
            if !self.is_lost(index)
                && let Ok((CardToSupervisor::Status { processes: found }, _)) =
                    card.request(&SupervisorToCard::Status, &[])
            {
                for process in found {
                    used += process.store_bytes;
                    let state = serde_json::to_value(process.state).ok();
                    processes.push(OffloadProcessStatus {
                        id: process.id.to_string(),
                        card: card.info.index,
                        pid: crate::processes::descendant(card.pid(), process.pid).unwrap_or(0),
                        store_bytes: process.store_bytes,
                        state: state
                            .and_then(|state| Some(state.as_str()?.to_owned()))
                            .unwrap_or_default(),
                    });
                }
            }
            cards.push(CardStatus {
                index: card.info.index,
                pid: card.pid(),
                memory: card.info.memory,
                used,
            });
        }
        ApplicationStatus {
            pid: self.program.pid(),
            supervisor: std::process::id().cast_signed(),
            program: self.origin.program.clone(),
            state: if self.working.is_some() {
                "checkpoint"
            } else {
                "running"
            }
            .into(),
            restarted_from: self.origin.restarted_from.clone(),
            cards,
            processes,
        }
    }
}

fn readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .is_ok_and(|ready| ready > 0)
}
