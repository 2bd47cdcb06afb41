//! Checkpoints are taken by a process of their own.
//!
//! Between two remote system calls a tracee is not what it was: whoever traces it must not be killed by accident. A
//! worker is in a session of its own, deaf to the signals of a terminal, and undoes what it did when whoever asked for
//! it goes away.

use super::{Application, Manner, checkpoint};
use crate::error::JobError;
use crate::link::Link;
use crate::protocol::Reply;
use crate::swap::{Cards, Order};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork, setsid};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use snapify_fabric::Channel;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A running worker.
pub(crate) struct Worker {
    pid: Pid,
    handle: OwnedFd,
}

/// Forks a worker that takes a snapshot of `application` and tells `asker` about it.
pub(crate) fn start_worker(
    application: &Application<'_>,
    dir: &Path,
    manner: Manner,
    asker: Channel,
) -> Result<Worker, JobError> {
    fork_worker(|| {
        raise_descriptor_limit();
        let link = Link::new(asker);
        let reply = match checkpoint(application, dir, manner, &link) {
            Ok(report) => Reply::Done { report },
            Err(JobError::TryAgain) => return Ending::TryAgain,
            Err(error) => Reply::Failed {
                message: error.to_string(),
            },
        };
        link.reply(&reply);
        Ending::Done
    })
}

/// Forks a worker that swaps or moves an offload process of `application` and tells `asker` about it.
pub(crate) fn start_swap_worker(
    application: &Application<'_>,
    cards: &Cards,
    order: &Order,
    asker: Channel,
) -> Result<Worker, JobError> {
    fork_worker(|| {
        let link = Link::new(asker);
        let reply = match crate::swap::carry_out(application, cards, order, &link) {
            Ok(report) => Reply::Swapped { report },
            Err(error) => Reply::Failed {
                message: error.to_string(),
            },
        };
        link.reply(&reply);
        Ending::Done
    })
}

/// A worker has several descriptors open for each process of a tree.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// How a worker ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It has told its asker how it went.
    Done,
    /// It has told nothing: a host library was connecting, or a host process ending.
    TryAgain,
    /// It was killed, or failed as it never should.
    Died,
}

/// Exit status of a worker that wants to be started again.
const TRY_AGAIN: i32 = 75;

#[allow(unsafe_code)]
fn fork_worker(work: impl FnOnce() -> Ending) -> Result<Worker, JobError> {
    let failed = |operation: &str, source: std::io::Error| JobError::System {
        operation: operation.into(),
        source,
    };
    // SAFETY: supervisors and the command line have one thread, so that the child may do whatever the parent may.
    let forked = unsafe { fork() }.map_err(|errno| failed("fork a worker", errno.into()))?;
    let child = match forked {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let _ = setsid();
            for deaf_to in [
                Signal::SIGINT,
                Signal::SIGTERM,
                Signal::SIGHUP,
                Signal::SIGQUIT,
                Signal::SIGPIPE,
            ] {
                // SAFETY: ignoring a signal installs no handler.
                let _ = unsafe { signal(deaf_to, SigHandler::SigIgn) };
            }
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // Not `exit`: what the parent has open, listens at and would clean up is not this process's to clean up.
            let status = match done {
                Ok(Ending::Done) => 0,
                Ok(Ending::TryAgain) => TRY_AGAIN,
                Ok(Ending::Died) | Err(_) => 1,
            };
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(status) }
        }
    };
    let pid = Pid::from_raw(child.as_raw())
        .ok_or_else(|| failed("fork a worker", std::io::ErrorKind::Other.into()))?;
    let handle = pidfd_open(pid, PidfdFlags::empty())
        .map_err(|errno| failed("watch a worker", errno.into()))?;
    Ok(Worker { pid, handle })
}

impl Worker {
    /// Reaps the worker, once it has ended.
    pub(crate) fn reap(self) -> Ending {
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => {
                    return match status.exit_status() {
                        Some(0) => Ending::Done,
                        Some(TRY_AGAIN) => Ending::TryAgain,
                        _ => Ending::Died,
                    };
                }
                Err(rustix::io::Errno::INTR) => {}
                _ => return Ending::Died,
            }
        }
    }
}

/// Readable when the worker has ended.
impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}
