//! One thread of a tracee, and what is put back in it.

use super::MASK;
use super::pin::Pin;
use crate::error::ProcError;
use crate::ptrace::Stopped;
use snapify_sys::process;
use snapify_sys::ptrace::Registers;

/// What is put back when a tracee is no longer worked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A running program: registers, masks, affinities and memory must be as they were.
    Frozen,
    /// A process that is being built: its registers are set at the end anyway.
    Built,
}

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) thread: Stopped,
    /// Registers that a remote call starts from, and that are put back.
    pub(super) base: Registers,
    /// Signal mask to put back.
    pub(super) mask: Option<u64>,
    /// Affinity to put back, if it was changed.
    pub(super) affinity: Option<Vec<u64>>,
    pub(super) prepared: bool,
}

impl Seat {
    /// Masks all signals and pins the thread to our CPU.
    pub(super) fn prepare(&mut self, cpu: Option<&Pin>, origin: Origin) -> Result<(), ProcError> {
        let tid = self.thread.tid();
        if origin == Origin::Frozen {
            self.mask = Some(self.thread.signal_mask()?);
        }
        self.prepared = true;
        self.thread.set_signal_mask(MASK)?;
        if let Some(cpu) = cpu {
            let before =
                process::affinity(tid.0).map_err(ProcError::ptrace("read affinity", tid))?;
            // Refused where a cpuset leaves out our CPU: calls are slower then, no more.
            // A thread that is being built gets the affinity of its image in the end.
            if process::set_affinity(tid.0, &cpu.mask).is_ok() && origin == Origin::Frozen {
                self.affinity = Some(before);
            }
        }
        Ok(())
    }

    pub(super) fn put_back(&mut self, origin: Origin) -> Result<(), ProcError> {
        self.prepared = false;
        if let Some(mask) = self.affinity.take() {
            let _ = process::set_affinity(self.thread.tid().0, &mask);
        }
        if origin == Origin::Frozen {
            self.thread.set_registers(&self.base)?;
            // Still with signals masked: a stop is to come next, and nothing else.
            self.thread.come_to_rest()?;
            if let Some(mask) = self.mask.take() {
                self.thread.set_signal_mask(mask)?;
            }
        }
        Ok(())
    }
}
