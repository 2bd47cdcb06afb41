//! What a process does on signals (sigaction(2)), and signals that are pending for it as a whole.
//! Masks, alternate stacks and signals pending for single threads belong to the threads.

use crate::capture::CaptureContext;
use crate::error::ProcError;
use crate::image::ProcessImage;
use crate::image::siginfo::SiginfoImage;
use crate::ptrace::{FAULTS, signal_number};
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use crate::threads::image::ThreadImage;
use serde::{Deserialize, Serialize};

/// Highest signal number (`_NSIG`).
pub const SIGNALS: i32 = 64;

/// Bytes of the kernel's `sigset_t`.
const SIGSET_BYTES: u64 = 8;

/// Signal state that all threads of a process share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalImage {
    /// Dispositions that are not all zero (default action, no flags, empty mask), ascending by
    /// signal.
    pub actions: Vec<Action>,
    /// Signals pending for the process, in the order of their queue.
    pub pending: Vec<SiginfoImage>,
}

/// Disposition of one signal: the kernel's `struct sigaction`, which is not that of the C library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Signal number, 1 to 64.
    pub signal: i32,
    /// Address of the handler; 0 is the default action, 1 ignores.
    pub handler: u64,
    /// `SA_*`
    pub flags: u64,
    /// Address of the code that returns from the handler.
    pub restorer: u64,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

/// SIGKILL and SIGSTOP cannot be caught, ignored or blocked.
fn is_changeable(signal: i32) -> bool {
    signal != libc::SIGKILL && signal != libc::SIGSTOP
}

/// Saves dispositions and process-wide pending signals of a frozen process.
///
/// # Errors
/// Those of the remote calls.
pub fn capture(
    tracee: &mut Tracee<'_>,
    _ctx: &CaptureContext<'_>,
) -> Result<SignalImage, ProcError> {
    let out = tracee.scratch().addr;
    let mut actions = Vec::new();
    // Threads of one process always share them (CLONE_THREAD demands CLONE_SIGHAND).
    let thread = tracee.any_thread();
    for signal in (1..=SIGNALS).filter(|&signal| is_changeable(signal)) {
        let args = [signal as u64, 0, out.0, SIGSET_BYTES, 0, 0];
        tracee.syscall_in(thread, "rt_sigaction", libc::SYS_rt_sigaction, args)?;
        let [handler, flags, restorer, mask] = tracee.get::<[u64; 4]>(out)?;
        let action = Action {
            signal,
            handler,
            flags,
            restorer,
            mask,
        };
        if action
            != (Action {
                signal,
                ..Action::default()
            })
        {
            actions.push(action);
        }
    }
    let pending = tracee.thread(tracee.leader())?.pending_signals(true)?;
    Ok(SignalImage {
        actions,
        pending: pending.iter().map(SiginfoImage::new).collect(),
    })
}

/// Sets all dispositions of a process under construction, whatever they were, and queues the
/// process-wide pending signals: in this order, as the kernel drops those that become ignored. All its threads must exist, with all signals masked.
///
/// # Errors
/// Those of the remote calls; [`ProcError::BadImage`] for a signal that cannot be.
pub fn restore(
    tracee: &mut Tracee<'_>,
    image: &SignalImage,
    _ctx: &mut RestoreContext<'_>,
) -> Result<(), ProcError> {
    let at = tracee.scratch().addr;
    for (signal, action) in (0..).zip(&dispositions(image)?) {
        if is_signal(signal) && is_changeable(signal) {
            tracee.put(
                at,
                &[action.handler, action.flags, action.restorer, action.mask],
            )?;
            tracee.syscall(
                "rt_sigaction",
                libc::SYS_rt_sigaction,
                [signal as u64, at.0, 0, SIGSET_BYTES, 0, 0],
            )?;
        }
    }
    // The process sends them to itself, which is the one case in which the kernel takes any si_code
    // (rt_sigqueueinfo(2)).
    for pending in &image.pending {
        let info = pending.raw().ok_or_else(|| {
            ProcError::BadImage(format!(
                "pending signal {} has a siginfo that cannot be",
                pending.signal
            ))
        })?;
        let signal = signal_number(&info);
        // A pending SIGSTOP is saved as the stop that it will be, and who is being killed is not
        // saved.
        if is_changeable(signal) {
            tracee.put(at, &info)?;
            let args = [tracee.pid().0 as u64, signal as u64, at.0, 0, 0, 0];
            tracee.syscall("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, args)?;
        }
    }
    Ok(())
}

/// Whether a process could not be given its signals by single steps, which need SIGTRAP for themselves.
#[must_use]
pub(crate) fn hinder_steps(process: &ProcessImage) -> bool {
    let trap = 1 << (libc::SIGTRAP - 1);
    let handled = |action: &Action| action.signal == libc::SIGTRAP;
    let hinders = |thread: &ThreadImage| {
        let faults = |signal: &SiginfoImage| {
            let raw = signal.raw();
            raw.is_some_and(|raw| FAULTS.contains(&signal_number(&raw)))
        };
        thread.signal_mask & trap != 0 || thread.pending.iter().any(faults)
    };
    process.signals.actions.iter().any(handled) || process.threads.iter().any(hinders)
}

fn is_signal(signal: i32) -> bool {
    (1..=SIGNALS).contains(&signal)
}

/// The disposition of every signal, at the index of its number.
fn dispositions(image: &SignalImage) -> Result<[Action; SIGNALS as usize + 1], ProcError> {
    let mut actions = [Action::default(); SIGNALS as usize + 1];
    for action in &image.actions {
        match usize::try_from(action.signal)
            .ok()
            .and_then(|signal| actions.get_mut(signal))
        {
            Some(slot) if is_signal(action.signal) && is_changeable(action.signal) => {
                *slot = *action
            }
            _ => {
                return Err(ProcError::BadImage(format!(
                    "signal {} has a disposition",
                    action.signal
                )));
            }
        }
    }
    Ok(actions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_that_can_be_caught_have_dispositions() {
        let image = |signal| SignalImage {
            actions: vec![Action {
                signal,
                handler: 1,
                ..Action::default()
            }],
            pending: Vec::new(),
        };
        assert_eq!(dispositions(&image(64)).unwrap()[64].handler, 1);
        for signal in [0, -1, 65, i32::MAX, libc::SIGKILL, libc::SIGSTOP] {
            assert!(dispositions(&image(signal)).is_err(), "{signal}");
        }
    }
}
