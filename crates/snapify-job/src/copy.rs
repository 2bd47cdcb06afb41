//! What `snapify copy` does: bringing the newest snapshot to another directory, at a rate that leaves others some, and
//! telling how far it is.

use crate::error::JobError;
use crate::processes::wait_readable;
use crate::signals::{Arrived, Signals};
use serde::{Deserialize, Serialize};
use snapify_store::{Progress, StoreError, clean, clean_plan, copy_size, newest, retain};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What `snapify copy` does.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The snapshot directory to copy from.
    pub from: PathBuf,
    /// The one to copy to.
    pub to: PathBuf,
    /// At most so many bytes a second.
    pub rate: Option<u64>,
    /// So many snapshots stay in `to`; older ones are removed.
    pub keep: Option<u32>,
    /// The process that wants the copy: without it there is none, and with it there need be nothing to copy.
    pub parent: Option<i32>,
}

/// What a copy tells while it goes on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum CopyEvent {
    /// The directory to copy to can be read.
    Found {
        /// Number of the newest snapshot there.
        newest: Option<u32>,
    },
    /// It goes on.
    Copying {
        /// Bytes that have been copied.
        bytes: u64,
        /// Bytes that were to be copied.
        total: u64,
    },
    /// The newest snapshot is there.
    Copied {
        /// Numbers of the snapshots that were copied, in this order; none if it was there already.
        points: Vec<u32>,
        /// Bytes of these.
        bytes: u64,
        /// Of these, bytes that were there from a copy that had been interrupted.
        resumed: u64,
        /// Numbers of older snapshots that were removed there.
        removed: Vec<u32>,
        /// Seconds that it took.
        seconds: f64,
    },
    /// It could not be done.
    Failed {
        /// Why.
        message: String,
    },
}

/// Progress is told no oftener than this, and while there is any waiting no seldomer than twice this.
const INTERVAL: Duration = Duration::from_millis(500);

/// A copy that is behind may be quicker than its rate until it has caught up so much, and no more: what storage that stalled has
/// missed does not come all at once.
const CREDIT: Duration = Duration::from_millis(100);

/// Copies the newest snapshot.
///
/// # Errors
/// As [`snapify_store::copy`]; [`JobError::Cancelled`] after a signal. What has been copied is gone on with by the
/// next call.
pub fn copy(options: &CopyOptions, tell: &(dyn Fn(&CopyEvent) + Sync)) -> Result<(), JobError> {
    if let Some(parent) = options.parent {
        crate::processes::end_with(parent, rustix::process::Signal::KILL)?;
    }
    let begin = Instant::now();
    let pace = Pace {
        signals: Mutex::new(Signals::new()?),
        state: Mutex::new(State {
            bytes: 0,
            told: begin,
            due: begin,
            called_off: false,
        }),
        rate: options.rate,
        total: 0,
        tell,
    };
    tell(&CopyEvent::Found {
        newest: newest(&options.to)?,
    });
    if options.parent.is_some() && newest(&options.from)?.is_none() {
        return Ok(());
    }
    let pace = Pace {
        total: copy_size(&options.from, &options.to)?,
        ..pace
    };
    let report = match snapify_store::copy(&options.from, &options.to, &pace) {
        Err(StoreError::Cancelled { .. }) => return Err(JobError::Cancelled),
        other => other?,
    };
    let mut removed = Vec::new();
    if let Some(keep) = options.keep {
        match retain(&options.to, keep) {
            Ok(done) => removed = done.removed,
            // Whoever is writing there removes them, or the next copy does.
            Err(StoreError::Busy { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if clean_plan(&options.to, keep)
            .is_ok_and(|plan| !plan.rewritten.is_empty() && plan.is_due())
        {
            match clean(&options.to, keep, &pace) {
                Ok(done) => removed.extend(done.removed),
                // The copy is there all the same, and the next one brings another chance.
                Err(error) => tracing::warn!(%error, "old snapshots stay"),
            }
        }
    }
    tell(&CopyEvent::Copied {
        points: report.copied,
        bytes: report.bytes,
        resumed: report.resumed,
        removed,
        seconds: begin.elapsed().as_secs_f64(),
    });
    Ok(())
}

/// Holds a copy back, tells about it and calls it off.
struct Pace<'a> {
    signals: Mutex<Signals>,
    state: Mutex<State>,
    rate: Option<u64>,
    total: u64,
    tell: &'a (dyn Fn(&CopyEvent) + Sync),
}

struct State {
    bytes: u64,
    told: Instant,
    /// When the next piece may be copied.
    due: Instant,
    called_off: bool,
}

impl Pace<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for signals, and notes those that call the copy off.
    fn listen(&self, state: &mut State, time: Duration) {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(ready) = wait_readable(&[signals.as_fd()], Some(time))
            && ready.first() == Some(&true)
        {
            state.called_off |= signals.take().iter().any(Arrived::calls_off);
        }
    }

    fn tell_sometimes(&self, state: &mut State) {
        if state.told.elapsed() >= INTERVAL {
            state.told = Instant::now();
            (self.tell)(&CopyEvent::Copying {
                bytes: state.bytes,
                total: self.total,
            });
        }
    }
}

impl Progress for Pace<'_> {
    fn advance(&self, bytes: u64) {
        let state = &mut *self.state();
        state.bytes += bytes;
        if let Some(rate) = self.rate {
            let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            let now = Instant::now();
            state.due = state.due.max(now.checked_sub(CREDIT).unwrap_or(now)) + takes;
            while !state.called_off {
                let left = state.due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.listen(state, left.min(INTERVAL));
                self.tell_sometimes(state);
            }
        }
        self.tell_sometimes(state);
    }

    fn cancelled(&self) -> bool {
        let state = &mut *self.state();
        if !state.called_off {
            self.listen(state, Duration::ZERO);
        }
        state.called_off
    }
}
