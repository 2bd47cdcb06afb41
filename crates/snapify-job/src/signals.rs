//! Signals as events.
//!
//! Signals that reach a supervisor are meant for its program.
//! What the terminal sends goes to the whole foreground process group, so that a launched program gets it
//! anyway; a restarted one is in a session of its own and does not. All others are passed on to both.

use crate::error::JobError;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that end a program, or that it may handle, and that someone may send to the supervisor.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// Signals as a descriptor; the mask is put back when dropped.
pub(crate) struct Signals {
    fd: SignalFd,
    before: SigSet,
    called_off: bool,
}

/// A signal that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrived {
    /// Its number.
    pub number: i32,
    /// Whether the kernel sent it (the terminal did), and not a process.
    pub from_kernel: bool,
}

impl Arrived {
    /// Whether the signal asks a command to stop what it does.
    pub(crate) fn calls_off(&self) -> bool {
        [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGQUIT,
        ]
        .iter()
        .any(|signal| *signal as i32 == self.number)
    }
}

impl Signals {
    /// Blocks the signals and opens the descriptor.
    ///
    /// # Errors
    /// Where the descriptor cannot be made.
    pub fn new() -> Result<Self, JobError> {
        let mut set = SigSet::empty();
        for signal in PASSED_ON {
            set.add(signal);
        }
        let mut before = SigSet::empty();
        let failed = |source: nix::Error| JobError::System {
            operation: "open a descriptor for signals".into(),
            source: source.into(),
        };
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before)).map_err(failed)?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(failed)?;
        Ok(Self {
            fd,
            before,
            called_off: false,
        })
    }

    /// Makes `command` start its program with the signal mask as it was before: a program inherits the mask, and one with
    /// all of these signals blocked could not even be interrupted.
    #[allow(unsafe_code)]
    pub(crate) fn spare(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: between fork and exec only sigprocmask(2) is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                Ok(pthread_sigmask(
                    SigmaskHow::SIG_SETMASK,
                    Some(&before),
                    None,
                )?)
            });
        }
    }

    /// The signals that have arrived.
    pub fn take(&mut self) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        while let Ok(Some(info)) = self.fd.read_signal() {
            arrived.push(Arrived {
                number: info.ssi_signo.cast_signed(),
                // SI_KERNEL, which is what the terminal driver's signals carry.
                from_kernel: info.ssi_code == 0x80,
            });
        }
        self.called_off |= arrived.iter().any(Arrived::calls_off);
        arrived
    }

    /// Whether a signal has ever arrived that asks a command to stop what it does.
    pub(crate) fn was_called_off(&self) -> bool {
        self.called_off
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}
