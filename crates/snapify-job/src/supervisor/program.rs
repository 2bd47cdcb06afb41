//! The program of an application: launched, or restored from a snapshot.

use crate::error::JobError;
use crate::layout::Layout;
use crate::signals::{Arrived, Signals};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use snapify_offload::control::CONTROL_ENV;
use snapify_proc::Restored;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

/// The host process of an application.
pub(crate) enum Program {
    /// Started by `snapify run`: a child of the supervisor, in its process group.
    Launched {
        /// The child.
        child: Child,
        /// Readable when it has ended.
        handle: OwnedFd,
    },
    /// Rebuilt from a snapshot, in a session of its own.
    Restored(Restored),
}

impl Program {
    /// Starts a program whose host library will find its supervisor at `agent_socket`.
    pub(super) fn launch(
        words: &[OsString],
        layout: &Layout,
        agent_socket: &Path,
        signals: &Signals,
    ) -> Result<Self, JobError> {
        let (program, args) = words
            .split_first()
            .ok_or_else(|| JobError::Refused("no program is given".into()))?;
        let failed = |source| JobError::Start {
            program: program.to_string_lossy().into_owned(),
            source,
        };
        // First, so that libomptarget takes our plugin and not the stock one of the same name.
        let mut libraries = OsString::from(&layout.plugins);
        if let Some(others) =
            std::env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty())
        {
            libraries.push(":");
            libraries.push(others);
        }
        let mut command = Command::new(program);
        signals.spare(&mut command);
        let mut child = command
            .args(args)
            .env(CONTROL_ENV, agent_socket)
            .env("LD_LIBRARY_PATH", libraries)
            .spawn()
            .map_err(failed)?;
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Self::Launched { child, handle }),
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(errno.into()))
            }
        }
    }

    /// Its id as we see it.
    pub(crate) fn pid(&self) -> i32 {
        match self {
            Self::Launched { child, .. } => child.id().cast_signed(),
            Self::Restored(restored) => restored.pid().0,
        }
    }

    /// How it ended, or nothing while it runs.
    pub(super) fn try_wait(&mut self) -> Result<Option<ExitStatus>, JobError> {
        match self {
            Self::Launched { child, .. } => child.try_wait().map_err(|source| JobError::System {
                operation: "wait for the program".into(),
                source,
            }),
            Self::Restored(restored) => restored.try_wait().map_err(|source| JobError::Process {
                member: "the restarted program".into(),
                source,
            }),
        }
    }

    /// Passes a signal on that was sent to the supervisor.
    pub(super) fn pass_on(&self, arrived: Arrived) {
        // What the terminal sends goes to its whole foreground process group: a launched program has it already.
        let handle = match self {
            Self::Launched { .. } if arrived.from_kernel => return,
            Self::Launched { handle, .. } => handle.as_fd(),
            Self::Restored(restored) => restored.pidfd(),
        };
        if let Some(signal) = Signal::from_named_raw(arrived.number) {
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

/// Readable when it has ended.
impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Launched { handle, .. } => handle.as_fd(),
            Self::Restored(restored) => restored.status_fd(),
        }
    }
}
