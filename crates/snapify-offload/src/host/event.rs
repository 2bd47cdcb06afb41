//! Completion of asynchronous run functions.

use super::pipelines::Lease;
use super::{Process, Result};
use snapify_fabric::ring::Ticket;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Completion of a run function that was started asynchronously. Dropping it does not cancel the function.
pub struct Event {
    process: Arc<Process>,
    pipeline: usize,
    ticket: Ticket,
    outcome: Mutex<Outcome>,
}

enum Outcome {
    /// Nobody has asked since it completed. Holds the pipeline, if it has one of its own.
    Open(Option<Lease>),
    Known(Result<()>),
}

impl Event {
    pub(super) fn new(
        process: Arc<Process>,
        pipeline: usize,
        ticket: Ticket,
        lease: Option<Lease>,
    ) -> Self {
        Self {
            process,
            pipeline,
            ticket,
            outcome: Mutex::new(Outcome::Open(lease)),
        }
    }

    /// Waits until the function has returned.
    ///
    /// # Errors
    /// `ProcessDied` if the process died before.
    pub fn wait(&self) -> Result<()> {
        // Several threads may wait; without holding the lock, so that they do not wait for each other's turn.
        let ring = self.process.ring(self.pipeline);
        let waited = ring
            .wait(self.ticket)
            .map_err(|error| self.process.ring_error(error));
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if let Outcome::Open(lease) = &mut *outcome {
            if let Some(lease) = lease {
                lease.is_idle();
            }
            let result = waited.and_then(|()| self.process.take(ring, self.ticket).map(|_| ()));
            *outcome = Outcome::Known(result);
        }
        match &*outcome {
            Outcome::Known(result) => result.clone(),
            Outcome::Open(_) => unreachable!("the outcome was just set"),
        }
    }

    /// Whether the function has returned (or the process died).
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.process.status().is_err() || self.process.ring(self.pipeline).is_done(self.ticket)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let outcome = self
            .outcome
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if matches!(outcome, Outcome::Open(_)) {
            self.process.ring(self.pipeline).abandon(self.ticket);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("pipeline", &self.pipeline)
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}
