//! The daemon's loop: waits for whatever happens next.

use super::{Daemon, DaemonError};
use crate::control::{HostId, ProcessId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// What a descriptor belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Supervisor,
    Host(HostId),
    HostEnd(HostId),
    Agent(ProcessId),
    ProcessEnd(ProcessId),
    CaptureEnd(ProcessId),
    FillEnd(ProcessId),
}

impl Daemon {
    /// Serves until the supervisor wants no more, then ends all processes.
    pub(super) fn react(&mut self) -> Result<(), DaemonError> {
        while !self.stopping {
            for source in self.wait()? {
                self.handle(source)?;
            }
        }
        for id in self.processes.keys().copied().collect::<Vec<_>>() {
            self.end(id);
        }
        while !self.processes.is_empty() {
            for source in self.wait()? {
                if matches!(source, Source::ProcessEnd(_) | Source::CaptureEnd(_)) {
                    self.handle(source)?;
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, source: Source) -> Result<(), DaemonError> {
        // An earlier event of the same round may have removed what this one is about: all of these look first.
        match source {
            Source::Supervisor => self.serve_supervisor()?,
            Source::Host(host) => self.serve_host(host),
            Source::HostEnd(host) => self.drop_host(host),
            Source::Agent(id) => self.hear(id),
            Source::ProcessEnd(id) => self.check_end(id),
            Source::CaptureEnd(id) => self.finish_capture(id),
            Source::FillEnd(id) => self.finish_filling(id),
        }
        Ok(())
    }

    /// Waits until something happens, and says what.
    fn wait(&self) -> Result<Vec<Source>, DaemonError> {
        let mut watched: Vec<(Source, BorrowedFd<'_>)> = Vec::new();
        if !self.stopping {
            watched.push((Source::Supervisor, self.service.as_fd()));
            for (&host, connection) in &self.hosts {
                watched.push((Source::Host(host), connection.channel.as_fd()));
                if let Some(pidfd) = &connection.pidfd {
                    watched.push((Source::HostEnd(host), pidfd.as_fd()));
                }
            }
        }
        for (&id, process) in &self.processes {
            if let Some(control) = &process.control
                && !self.stopping
            {
                watched.push((Source::Agent(id), control.as_fd()));
            }
            if process.ended.is_none() {
                watched.push((Source::ProcessEnd(id), process.child.status_fd()));
            }
            if let Some(capture) = &process.capture {
                watched.push((Source::CaptureEnd(id), capture.as_fd()));
            }
            if let Some(filling) = &process.filling {
                watched.push((Source::FillEnd(id), filling.as_fd()));
            }
        }
        let mut fds: Vec<_> = watched
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        loop {
            match poll(&mut fds, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(DaemonError::System {
                        operation: "wait for messages".into(),
                        source: errno.into(),
                    });
                }
            }
        }
        let ready = watched
            .iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|((source, _), _)| *source).collect())
    }
}
