//! Requests to the host library of an application, and its pause (paper 1, section 4.1), from the coordinator's side.

use super::{HostAgent, await_message};
use crate::error::JobError;
use crate::link::Link;
use snapify_fabric::Channel;
use snapify_offload::control::{HostToSupervisor, PausedProcess, SupervisorToHost};
use snapify_offload::engine::External;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The connection to a host library, for one who makes requests and waits for the answers.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    agent: &'a Channel,
    pid: i32,
}

impl<'a> Request<'a> {
    /// To a host library.
    pub(crate) fn new(agent: HostAgent<'a>) -> Self {
        Self {
            agent: agent.channel,
            pid: agent.pid,
        }
    }

    /// The host process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// For a request that pauses something.
    pub(crate) fn pausing(self) -> Pause<'a> {
        Pause {
            request: self,
            ended: false,
        }
    }

    /// Sends the host library a message.
    pub(crate) fn send(
        &self,
        message: &SupervisorToHost,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), JobError> {
        self.agent
            .send(message, descriptors)
            .map_err(|source| self.lost(source))
    }

    /// Waits for the host library's answer, as long as whoever asked is there.
    pub(crate) fn answer(&self, link: &Link, host: &OwnedFd) -> Result<HostToSupervisor, JobError> {
        loop {
            let message = self.message(link, host)?;
            if !is_late(&message) {
                return Ok(message);
            }
        }
    }

    /// Waits for the host library's answer, whoever is there.
    pub(crate) fn await_answer(&self, host: &OwnedFd) -> Result<HostToSupervisor, JobError> {
        loop {
            let message = self.await_message(host)?;
            if !is_late(&message) {
                return Ok(message);
            }
        }
    }

    fn message(&self, link: &Link, host: &OwnedFd) -> Result<HostToSupervisor, JobError> {
        await_message(self.agent, link, host, self.pid)?;
        self.next()
    }

    fn await_message(&self, host: &OwnedFd) -> Result<HostToSupervisor, JobError> {
        let ready = crate::processes::wait_readable(&[self.agent.as_fd(), host.as_fd()], None)?;
        if ready.get(1) == Some(&true) {
            return Err(JobError::Died { pid: self.pid });
        }
        self.next()
    }

    /// Receives the host library's answer, for which nobody else waits.
    pub(crate) fn receive(&self) -> Result<HostToSupervisor, JobError> {
        loop {
            let message = self.next()?;
            if !is_late(&message) {
                return Ok(message);
            }
        }
    }

    fn next(&self) -> Result<HostToSupervisor, JobError> {
        Ok(self.agent.recv().map_err(|source| self.lost(source))?.0)
    }

    /// Turns an answer that is none into an error.
    pub(crate) fn unexpected(&self, answer: HostToSupervisor) -> JobError {
        let why = match answer {
            HostToSupervisor::Failed { message } => message,
            other => format!("its host library answered {other:?}"),
        };
        JobError::Member {
            member: "the host process".into(),
            why,
        }
    }

    fn lost(&self, source: snapify_fabric::ChannelError) -> JobError {
        if matches!(source, snapify_fabric::ChannelError::Closed) {
            JobError::Died { pid: self.pid }
        } else {
            JobError::Connection {
                peer: "the host process".into(),
                source,
            }
        }
    }
}

/// Whether a message answers an earlier request. A restart has the application go on without waiting until it has: a
/// request that comes right then finds the answer to that before its own.
fn is_late(message: &HostToSupervisor) -> bool {
    matches!(message, HostToSupervisor::Resumed)
}

/// A paused host process, or offload process of one. Dropping it lets it go on.
pub(crate) struct Pause<'a> {
    request: Request<'a>,
    ended: bool,
}

/// A paused host process's externals and offload processes.
pub(super) struct Paused {
    pub externals: Vec<External>,
    pub processes: Vec<PausedProcess>,
}

impl<'a> Pause<'a> {
    /// Has the host library drain all channels. Whatever happens from here on, dropping the value lets the application go
    /// on.
    pub(super) fn ask(agent: HostAgent<'a>) -> Result<Self, JobError> {
        let pause = Request::new(agent).pausing();
        pause.send(&SupervisorToHost::Pause, &[])?;
        Ok(pause)
    }

    /// Waits until the channels are drained.
    pub(super) fn paused(&self, link: &Link, host: &OwnedFd) -> Result<Paused, JobError> {
        match self.answer(link, host)? {
            HostToSupervisor::Paused {
                externals,
                processes,
            } => Ok(Paused {
                externals,
                processes,
            }),
            other => Err(self.unexpected(other)),
        }
    }

    /// Lets the application go on.
    pub(super) fn end(mut self, link: &Link, host: &OwnedFd) -> Result<(), JobError> {
        self.ended = true;
        self.send(&SupervisorToHost::Resume, &[])?;
        loop {
            match self.message(link, host) {
                Ok(HostToSupervisor::Resumed) => return Ok(()),
                // An answer to what came before the resume.
                Ok(_) => {}
                Err(JobError::Cancelled) => return self.await_resumed(host),
                Err(error) => return Err(error),
            }
        }
    }

    /// There is nothing to resume any more.
    pub(crate) fn forget(mut self) {
        self.ended = true;
    }

    fn await_resumed(&self, host: &OwnedFd) -> Result<(), JobError> {
        while !matches!(self.await_message(host)?, HostToSupervisor::Resumed) {}
        Ok(())
    }
}

impl<'a> Deref for Pause<'a> {
    type Target = Request<'a>;

    fn deref(&self) -> &Request<'a> {
        &self.request
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if !self.ended && self.send(&SupervisorToHost::Resume, &[]).is_ok() {
            // The next request must not find the answers to these.
            if let Ok(host) = crate::processes::own_process(self.pid) {
                let _ = self.await_resumed(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_earlier_requests_are_passed_over() {
        let (ours, theirs) = Channel::pair().unwrap();
        let pid = std::process::id().cast_signed();
        let request = Request { agent: &ours, pid };
        let host = crate::processes::own_process(pid).unwrap();
        let message = || "an answer".to_owned();
        for _ in 0..2 {
            theirs.send(&HostToSupervisor::Resumed, &[]).unwrap();
            let answer = HostToSupervisor::Failed { message: message() };
            theirs.send(&answer, &[]).unwrap();
        }
        for answer in [request.receive(), request.await_answer(&host)] {
            let Ok(HostToSupervisor::Failed { message: got }) = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(got, message());
        }
    }
}
