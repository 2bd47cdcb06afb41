//! The pause of an application that has offload processes (paper 1, section 4.1), from the coordinator's side.

use super::await_message;
use crate::error::JobError;
use crate::link::Link;
use snapify_fabric::Channel;
use snapify_offload::control::{HostToSupervisor, PausedProcess, SupervisorToHost};
use snapify_offload::engine::External;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A paused application. Dropping it lets the application go on.
pub(super) struct Pause<'a> {
    agent: &'a Channel,
    pid: i32,
    ended: bool,
}

/// A paused application's externals and offload processes.
pub(super) struct Paused {
    pub externals: Vec<External>,
    pub processes: Vec<PausedProcess>,
}

impl<'a> Pause<'a> {
    /// Has the host library drain all channels, and waits until it has.
    pub(super) fn begin(
        agent: &'a Channel,
        link: &Link,
        host: &OwnedFd,
        pid: i32,
    ) -> Result<(Self, Paused), JobError> {
        let pause = Self {
            agent,
            pid,
            ended: false,
        };
        pause.send(&SupervisorToHost::Pause, &[])?;
        // From here on, whatever happens, dropping the value lets the application go on.
        match pause.answer(link, host)? {
            HostToSupervisor::Paused {
                externals,
                processes,
            } => Ok((
                pause,
                Paused {
                    externals,
                    processes,
                },
            )),
            other => Err(pause.unexpected(other)),
        }
    }

    /// Sends the host library a message.
    pub(super) fn send(
        &self,
        message: &SupervisorToHost,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), JobError> {
        self.agent
            .send(message, descriptors)
            .map_err(|source| self.lost(source))
    }

    /// Waits for the host library's answer.
    pub(super) fn answer(&self, link: &Link, host: &OwnedFd) -> Result<HostToSupervisor, JobError> {
        await_message(self.agent, link, host, self.pid)?;
        self.receive()
    }

    /// Receives the host library's answer, for which nobody else waits.
    pub(super) fn receive(&self) -> Result<HostToSupervisor, JobError> {
        Ok(self.agent.recv().map_err(|source| self.lost(source))?.0)
    }

    /// Turns an answer that is none into an error.
    pub(super) fn unexpected(&self, answer: HostToSupervisor) -> JobError {
        let why = match answer {
            HostToSupervisor::Failed { message } => message,
            other => format!("its host library answered {other:?}"),
        };
        JobError::Member {
            member: "the host process".into(),
            why,
        }
    }

    /// Lets the application go on.
    pub(super) fn end(mut self, link: &Link, host: &OwnedFd) -> Result<(), JobError> {
        self.ended = true;
        self.send(&SupervisorToHost::Resume, &[])?;
        loop {
            match self.answer(link, host) {
                Ok(HostToSupervisor::Resumed) => return Ok(()),
                // An answer to what came before the resume.
                Ok(_) => {}
                Err(JobError::Cancelled) => return self.await_resumed(host),
                Err(error) => return Err(error),
            }
        }
    }

    /// The application has ended: there is nothing to resume.
    pub(super) fn forget(mut self) {
        self.ended = true;
    }

    fn await_resumed(&self, host: &OwnedFd) -> Result<(), JobError> {
        use std::os::fd::AsFd;
        loop {
            let ready = crate::processes::wait_readable(&[self.agent.as_fd(), host.as_fd()], None)?;
            if ready.get(1) == Some(&true) {
                return Err(JobError::Died { pid: self.pid });
            }
            if matches!(self.receive()?, HostToSupervisor::Resumed) {
                return Ok(());
            }
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
