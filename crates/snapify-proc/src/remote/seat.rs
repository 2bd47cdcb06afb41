//! One thread of a tracee, and what is put back in it.

use super::home;
use super::pin::Pin;
use crate::error::ProcError;
use crate::ids::RemoteAddr;
use crate::ptrace::Stopped;
use snapify_sys::process;
use snapify_sys::ptrace::Registers;
use snapify_sys::vm;

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
    /// Where its way home lies, which calls are made from.
    pub(super) home: Option<RemoteAddr>,
}

impl Seat {
    /// Masks the signals in `mask` and pins the thread to our CPU.
    pub(super) fn prepare(
        &mut self,
        cpu: Option<&Pin>,
        origin: Origin,
        mask: u64,
    ) -> Result<(), ProcError> {
        let tid = self.thread.tid();
        if origin == Origin::Frozen {
            self.mask = Some(self.thread.signal_mask()?);
        }
        self.prepared = true;
        let affinity = match cpu {
            None => None,
            Some(_) => {
                Some(process::affinity(tid.0).map_err(ProcError::ptrace("read affinity", tid))?)
            }
        };
        // Before anything is changed.
        self.show_home(affinity.as_deref())?;
        self.thread.set_signal_mask(mask)?;
        if let (Some(cpu), Some(before)) = (cpu, affinity) {
            // Refused where a cpuset leaves out our CPU: calls are slower then, no more.
            // A thread that is being built gets the affinity of its image in the end.
            if process::set_affinity(tid.0, &cpu.mask).is_ok() && origin == Origin::Frozen {
                self.affinity = Some(before);
            }
        }
        Ok(())
    }

    /// Writes the way home of a frozen thread, and has it go there from now on unless a call is being made in it.
    fn show_home(&mut self, affinity: Option<&[u64]>) -> Result<(), ProcError> {
        let (Some(slot), Some(mask)) = (self.home, self.mask) else {
            return Ok(());
        };
        let tid = self.thread.tid();
        let code = home::slot(&self.base, mask, affinity);
        if let Err(error) = vm::write_all(tid.0, slot.0, &code) {
            tracing::debug!("thread {tid} has no way home: {error}");
            self.home = None;
            return Ok(());
        }
        self.thread.set_registers(&Registers {
            rip: home::entry(slot).0,
            orig_rax: u64::MAX,
            ..self.base
        })
    }

    /// As the first call does, for a thread in which one was made before there was a way home.
    pub(super) fn show_home_again(&mut self) -> Result<(), ProcError> {
        let affinity = self.affinity.clone();
        match self.prepared {
            true => self.show_home(affinity.as_deref()),
            false => Ok(()),
        }
    }

    pub(super) fn put_back(&mut self, origin: Origin) -> Result<(), ProcError> {
        self.prepared = false;
        if let Some(mask) = self.affinity.take() {
            let _ = process::set_affinity(self.thread.tid().0, &mask);
        }
        if origin == Origin::Frozen {
            // Still with signals masked: a stop is to come next, and nothing else.
            self.thread.come_to_rest()?;
            self.thread.set_registers(&self.base)?;
            if let Some(mask) = self.mask.take() {
                self.thread.set_signal_mask(mask)?;
            }
        }
        Ok(())
    }
}
