//! The daemon's loop: waits for whatever happens next.

use super::supervisors::{HostKey, ProcessKey, SupervisorId};
use super::{Daemon, DaemonError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// What a descriptor belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Listener,
    Supervisor(SupervisorId),
    Host(HostKey),
    HostEnd(HostKey),
    Agent(ProcessKey),
    ProcessEnd(ProcessKey),
    CaptureEnd(ProcessKey),
    FillEnd(ProcessKey),
}

impl Daemon {
    /// Serves until the last supervisor has gone, and all processes with it.
    pub(super) fn react(&mut self) -> Result<(), DaemonError> {
        while !self.supervisors.is_empty() {
            for source in self.wait()? {
                self.handle(source);
            }
            self.part();
        }
        Ok(())
    }

    fn handle(&mut self, source: Source) {
        // An earlier event of the same round may have removed what this one is about: all of these look first.
        match source {
            Source::Listener => self.accept(),
            Source::Supervisor(supervisor) => self.serve_supervisor(supervisor),
            Source::Host(host) => self.serve_host(host),
            Source::HostEnd(host) => self.drop_host(host),
            Source::Agent(id) => self.hear(id),
            Source::ProcessEnd(id) => self.check_end(id),
            Source::CaptureEnd(id) => self.finish_capture(id),
            Source::FillEnd(id) => self.finish_filling(id),
        }
    }

    /// Waits until something happens, and says what.
    fn wait(&self) -> Result<Vec<Source>, DaemonError> {
        let mut watched: Vec<(Source, BorrowedFd<'_>)> = Vec::new();
        if let Some(listener) = &self.listener {
            watched.push((Source::Listener, listener.as_fd()));
        }
        for (&id, supervisor) in &self.supervisors {
            if !supervisor.leaving {
                watched.push((Source::Supervisor(id), supervisor.channel.as_fd()));
            }
        }
        for (&host, connection) in &self.hosts {
            watched.push((Source::Host(host), connection.channel.as_fd()));
            if let Some(pidfd) = &connection.pidfd {
                watched.push((Source::HostEnd(host), pidfd.as_fd()));
            }
        }
        for (&id, process) in &self.processes {
            if let Some(control) = &process.control {
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
