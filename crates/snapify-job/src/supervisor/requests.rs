//! What the command line asks of a supervisor.

use super::Supervisor;
use crate::checkpoint::{
    Application, Manner, clean_up_after_worker, start_swap_worker, start_worker,
};
use crate::protocol::{Reply, Request};
use crate::swap::{Cards, Order};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snapify_fabric::Channel;
use snapify_offload::control::SupervisorToHost;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a checkpoint waits for a host library that seems to be connecting just now.
const CONNECTING: Duration = Duration::from_millis(300);

/// How often a checkpoint is tried where host processes come and go.
const TRIES: u32 = 20;

/// Something that takes long and was asked for.
pub(super) struct QueuedRequest {
    work: Work,
    asker: Channel,
    /// Until when it waits for a host library to connect, or to go, once it has met what may be one's.
    until: Option<Instant>,
    /// How often it was tried.
    tries: u32,
    /// Whether a host library has come or gone since it was tried last.
    news: bool,
}

/// What is to be done.
enum Work {
    /// A snapshot.
    Checkpoint { dir: PathBuf, manner: Manner },
    /// A swap or a move.
    Swap(Order),
}

impl QueuedRequest {
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
                let status = self.status(self.doing());
                let sockets = self.host_sockets();
                let _ = client.send_now(&Reply::Status { status, sockets }, &[]);
            }
            Ok((
                Request::Checkpoint {
                    dir,
                    stop,
                    outside,
                    live,
                    after,
                    sequence,
                    write,
                },
                _,
            )) => {
                let manner = Manner {
                    stop,
                    live,
                    outside,
                    after,
                    sequence,
                    write,
                };
                self.queue(Work::Checkpoint { dir, manner }, client);
            }
            Ok((Request::Swap { order }, _)) => self.queue(Work::Swap(order), client),
            Err(_) => {}
        }
    }

    /// Requests for one application come one after the other.
    fn queue(&mut self, work: Work, asker: Channel) {
        self.waiting.push_back(QueuedRequest {
            work,
            asker,
            until: None,
            tries: 0,
            news: false,
        });
    }

    /// Host libraries have come or gone: what has failed because of them may succeed.
    pub(super) fn note_news(&mut self) {
        let working = self.working.iter_mut().map(|(_, request)| request);
        for request in self.waiting.front_mut().into_iter().chain(working) {
            request.news = true;
        }
    }

    /// Starts what was asked for next, if nothing is being done.
    pub(super) fn start_waiting(&mut self) {
        // A host library that has connected, or is about to, must be heard first: it belongs to the snapshot.
        let connecting = readable(&self.house.agents) || !self.strangers.is_empty();
        if self.working.is_some() || connecting {
            return;
        }
        let Some(request) = self.waiting.front_mut() else {
            return;
        };
        if !request.news && request.until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        // Where nobody has come or gone in the meantime, the same again would come to the same.
        let may_try_again = request.tries == 0 || (request.news && request.tries < TRIES);
        request.tries += 1;
        request.until = None;
        request.news = false;
        let Some(request) = self.waiting.front() else {
            return;
        };
        let folder = &self.house.folder;
        let application = Application {
            host: self.program.pid(),
            agents: self.host_agents(),
            cards: self
                .card_of
                .iter()
                .map(|card| self.cards[*card as usize].info.memory)
                .collect(),
            daemons: self
                .card_of
                .iter()
                .map(|card| self.cards[*card as usize].pid())
                .collect(),
            program: self.origin.program.clone(),
            identity: self.origin.identity.clone(),
            folder: Some(folder.path().to_owned()),
            agent_socket: self
                .origin
                .agent_socket
                .clone()
                .or_else(|| Some(folder.agent_socket())),
            may_try_again,
        };
        let asker = request
            .asker
            .as_fd()
            .try_clone_to_owned()
            .map(Channel::from_fd);
        let started = asker.map_err(|error| error.to_string()).and_then(|asker| {
            match &request.work {
                Work::Checkpoint { dir, manner } => start_worker(&application, dir, *manner, asker),
                Work::Swap(order) => {
                    start_swap_worker(&application, &self.card_numbers(), order, asker)
                }
            }
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
                for agent in self.host_agents() {
                    let _ = agent.channel.send_now(&SupervisorToHost::Resume, &[]);
                }
                let message = match &request.work {
                    Work::Checkpoint { .. } => {
                        "the process that took the checkpoint died; no snapshot was made".into()
                    }
                    Work::Swap(order) => format!(
                        "the process that did the {} died; snapify ps tells where the offload process is",
                        order.name()
                    ),
                };
                let _ = request.asker.send_now(&Reply::Failed { message }, &[]);
            }
        }
    }

    /// What is being done.
    fn doing(&self) -> &'static str {
        match self.working.as_ref().map(|(_, request)| &request.work) {
            None => "running",
            Some(Work::Checkpoint { .. }) => "checkpoint",
            Some(Work::Swap(order)) => order.name(),
        }
    }

    fn card_numbers(&self) -> Cards {
        Cards {
            card_of: self.card_of.clone(),
            count: u32::try_from(self.cards.len()).unwrap_or(u32::MAX),
            lost: self.lost_cards.clone(),
        }
    }

    /// The program has ended; the worker, if there is one, notices and cleans up.
    pub(super) fn finish_worker(&mut self) {
        if let Some((worker, _)) = &self.working {
            let _ = crate::processes::wait_readable(&[worker.as_fd()], None);
            self.end_worker();
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
