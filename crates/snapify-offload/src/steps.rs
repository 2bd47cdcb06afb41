//! What an operation took, step by step.

use crate::control::Step;
use rustix::time::{ClockId, clock_gettime};

/// Times steps that follow each other.
#[derive(Debug)]
pub struct Stopwatch {
    /// What the clock showed at the moment that counts as 0.
    zero: u64,
    /// When the step that goes on began.
    last: u64,
    steps: Vec<Step>,
}

impl Stopwatch {
    /// The first step begins now, and moments are those of `CLOCK_MONOTONIC`.
    pub fn absolute() -> Self {
        Self {
            zero: 0,
            last: now(),
            steps: Vec::new(),
        }
    }

    /// The first step begins now, and now is 0.
    pub fn relative() -> Self {
        let now = now();
        Self {
            zero: now,
            last: now,
            steps: Vec::new(),
        }
    }

    /// The step that goes on was `name`, and ends; the next one begins.
    pub fn lap(&mut self, name: &str) {
        let now = now();
        self.steps.push(Step {
            name: name.to_owned(),
            begin: self.last.saturating_sub(self.zero),
            end: now.saturating_sub(self.zero),
        });
        self.last = now;
    }

    /// Takes the steps so far.
    pub fn take(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }
}

/// What `CLOCK_MONOTONIC` shows, in nanoseconds.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
