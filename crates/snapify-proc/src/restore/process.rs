//! A process under an init of ours, as its creator holds it.

use super::namespace::Init;
use super::protocol::{FromInit, ToInit, receive, send};
use super::terminal::Terminal;
use super::track::{self, Tracked};
use crate::error::ProcError;
use crate::ids::Pid;
use crate::tracking::Tracking;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use snapify_store::Progress;
use snapify_sys::process as sys;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A restored or launched process, the first of its tree. Dropping it before [`Self::wait`] has returned kills the process and all others in its namespaces.
#[derive(Debug)]
pub struct Restored {
    init: Init,
    pid: Pid,
    pidfd: OwnedFd,
    warnings: Vec<String>,
    ended: Option<ExitStatus>,
    /// The terminal that it is lent.
    terminal: Option<Terminal>,
    /// What tracks the memory of the processes.
    tracked: Vec<Tracked>,
}

impl Restored {
    /// Waits until the init says that the process is complete.
    pub(super) fn when_ready(
        init: Init,
        inner: Pid,
        terminal: Option<Terminal>,
        progress: &dyn Progress,
    ) -> Result<Self, ProcError> {
        let mut tracked = Vec::new();
        let result = loop {
            if progress.cancelled() {
                break Err(ProcError::Cancelled);
            }
            if !readable_within(&init.socket, 100) {
                continue;
            }
            match receive(&init.socket) {
                Ok(Some((FromInit::Progress(bytes), _))) => progress.advance(bytes),
                Ok(Some((FromInit::Tracked { pid, space }, Some(uffd)))) => {
                    tracked.push(Tracked { pid, space, uffd });
                }
                Ok(Some((FromInit::Ready { warnings }, Some(pidfd)))) => {
                    break Ok((warnings, pidfd));
                }
                other => break Err(unexpected(other, inner, "its restore")),
            }
        };
        let result = result.and_then(|(warnings, pidfd)| Ok((warnings, number(&pidfd)?, pidfd)));
        match result {
            Ok((warnings, pid, pidfd)) => Ok(Self {
                init,
                pid,
                pidfd,
                warnings,
                ended: None,
                terminal,
                tracked,
            }),
            Err(e) => {
                end(&init);
                Err(e)
            }
        }
    }

    /// The process as the caller sees it.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The processes of the tree as the caller sees them, by the ids that they have for themselves.
    ///
    /// # Errors
    /// If the tree cannot be looked at, as when it has ended.
    pub fn outer_ids(&self) -> Result<HashMap<Pid, Pid>, ProcError> {
        track::outer_ids(self.pid)
    }

    /// The process.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Readable when, after [`Self::start`], the process has ended and [`Self::try_wait`] tells how.
    #[must_use]
    pub fn status_fd(&self) -> BorrowedFd<'_> {
        self.init.socket.as_fd()
    }

    /// What is not quite as it was, in words.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What is known of the processes, which have just become what `point` holds: what they write is followed since, for as long as
    /// the result is kept. It is given once, and nothing is in it that was not asked for ([`RestorePlan::track`]).
    ///
    /// # Errors
    /// If a process ends meanwhile.
    ///
    /// [`RestorePlan::track`]: super::RestorePlan::track
    pub fn take_tracking(&mut self, point: String) -> Result<Tracking, ProcError> {
        let tracked = std::mem::take(&mut self.tracked);
        Tracking::begun(point, track::seen_from_here(self.pid, tracked)?)
    }

    /// Lets the process go.
    ///
    /// # Errors
    /// If it was killed meanwhile, or its program cannot be executed.
    pub fn start(&mut self) -> Result<(), ProcError> {
        let foreground = self.terminal.as_mut().is_some_and(Terminal::lend);
        send(&self.init.socket, &ToInit::Start { foreground }, None)
            .map_err(ProcError::system("start the process"))?;
        match receive(&self.init.socket) {
            Ok(Some((FromInit::Started, _))) => Ok(()),
            other => Err(unexpected(other, self.pid, "its start")),
        }
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    /// If the init does not answer as it should.
    pub fn wait(mut self) -> Result<ExitStatus, ProcError> {
        loop {
            if let Some(status) = self.ended {
                return Ok(status);
            }
            self.take_news()?;
        }
    }

    /// How the process has ended, if it has.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcError> {
        if self.ended.is_none() && readable_within(&self.init.socket, 0) {
            self.take_news()?;
        }
        Ok(self.ended)
    }

    /// Kills the process (SIGKILL). Its end is then reported as any other.
    pub fn kill(&self) {
        // ESRCH: it has ended already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Takes note of what the init says next.
    fn take_news(&mut self) -> Result<(), ProcError> {
        let status = match receive(&self.init.socket) {
            Ok(Some((FromInit::Stopped, _))) => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.follow_stop(self.pid);
                }
                return Ok(());
            }
            Ok(Some((FromInit::Ended { status, survive }, _))) => {
                if !survive {
                    end(&self.init);
                }
                ExitStatus::from_raw(status)
            }
            // The init was killed, and the process with it.
            Ok(None) => end(&self.init).unwrap_or_else(|| ExitStatus::from_raw(libc::SIGKILL)),
            other => return Err(unexpected(other, self.pid, "its run")),
        };
        self.ended = Some(status);
        self.terminal = None;
        Ok(())
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        if self.ended.is_none() {
            end(&self.init);
        }
    }
}

/// Ends an init, and with it all in its namespaces, and reaps it. The kernel lets it be reaped only when all the others are gone.
fn end(init: &Init) -> Option<ExitStatus> {
    let _ = pidfd_send_signal(&init.pidfd, Signal::KILL);
    match sys::wait(init.pid, true) {
        Ok(Some((_, status))) => Some(ExitStatus::from_raw(status.0)),
        // Reaped by a caller that waits for any child.
        _ => None,
    }
}

fn unexpected(
    message: io::Result<Option<(FromInit, Option<OwnedFd>)>>,
    pid: Pid,
    during: &'static str,
) -> ProcError {
    match message {
        Ok(Some((FromInit::Failed { message, obstacles }, _))) if obstacles.is_empty() => {
            ProcError::Init(message)
        }
        Ok(Some((FromInit::Failed { obstacles, .. }, _))) => {
            ProcError::Unsupported { pid, obstacles }
        }
        Ok(Some((other, _))) => ProcError::Init(format!("the init said {other:?} during {during}")),
        Ok(None) => ProcError::Died { pid, during },
        Err(source) => ProcError::System {
            what: format!("hear from the init during {during}"),
            source,
        },
    }
}

fn readable_within(socket: &OwnedFd, milliseconds: i64) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: milliseconds * 1_000_000,
    };
    matches!(poll(&mut fds, Some(&limit)), Ok(n) if n > 0)
}

/// The id of a process as this process sees it: the kernel shows it beside the pidfd.
fn number(pidfd: &OwnedFd) -> Result<Pid, ProcError> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = fs::read_to_string(&path).map_err(ProcError::proc(&path))?;
    text.lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
        .filter(|&pid| pid > 0)
        .map(Pid)
        .ok_or_else(|| {
            ProcError::proc(path)(io::Error::other("it does not tell the id of the process"))
        })
}
