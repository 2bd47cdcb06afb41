//! Ending an offload process in its own time, and waiting for its end.

use super::process::{call, unexpected};
use super::{Process, Result};
use crate::error::DeathCause;
use crate::wire::{CardReply, HostRequest};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wakes those who wait for the end of a process.
#[derive(Debug, Default)]
pub struct Ending {
    lock: Mutex<()>,
    told: Condvar,
    /// The process was asked to end.
    asked: AtomicBool,
}

impl Ending {
    /// The cause of the end is known.
    pub fn tell(&self) {
        // Whoever is about to wait has looked for the cause under this lock.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.told.notify_all();
    }
}

impl Process {
    /// Asks the process to come to its end by itself: a program of the host's own returns from
    /// [`wait_for_shutdown`](crate::sink::Attached::wait_for_shutdown). The runtime's own program has nothing to end for.
    ///
    /// # Errors
    /// `ProcessDied` if it has ended already.
    pub fn shut_down(&self) -> Result<()> {
        let runtime = self.runtime.upgrade();
        let _lifecycle = runtime.as_ref().map(|runtime| self.lifecycle(runtime));
        self.status()?;
        self.ending.asked.store(true, Ordering::Relaxed);
        let operation = "ask an offload process to end";
        let card = self.current_card();
        let asked = call(
            &card,
            HostRequest::Shutdown { id: self.id() },
            &[],
            operation,
        );
        match asked {
            Ok((CardReply::ShuttingDown, _)) => Ok(()),
            Ok((other, _)) => Err(unexpected(&card, operation, &other)),
            // It may have ended meanwhile.
            Err(error) => Err(self.status().err().unwrap_or(error)),
        }
    }

    /// Whether the process, which cannot be paused, is on its way to the end that it was asked for. Waits for it then, but not
    /// for long.
    pub(super) fn is_ending(&self) -> bool {
        const SOON: Duration = Duration::from_secs(5);
        self.ending.asked.load(Ordering::Relaxed) && self.wait_for_end(Some(SOON)).is_some()
    }

    /// Waits for the end of the process, at most so long, and tells its cause; nothing if it lives on.
    pub fn wait_for_end(&self, most: Option<Duration>) -> Option<DeathCause> {
        let deadline = most.and_then(|most| Instant::now().checked_add(most));
        let mut guard = (self.ending.lock)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(cause) = self.death.get() {
                return Some(cause.clone());
            }
            guard = match deadline {
                None => (self.ending.told)
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    let waited = self.ending.told.wait_timeout(guard, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
