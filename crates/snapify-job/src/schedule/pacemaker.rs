//! When the next snapshot is due.

use crate::protocol::CheckpointReport;
use snapify_plan::interval::daly;
use std::time::{Duration, Instant};

/// Snapshots take at most this share of a program's time, whatever interval is asked for.
const MOST_OF_TIME: f64 = 0.1;

/// The share of the time of writing beside the program that counts as lost for it: it shares processors and memory.
const BESIDE: f64 = 0.1;

/// The wait after a first failure; it doubles from one to the next, up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// The least wait after a failure, where the interval is shorter.
const LEAST_RETRY: Duration = Duration::from_millis(100);

/// Keeps an interval, and adapts it.
#[derive(Debug)]
pub(super) struct Pacemaker {
    every: Duration,
    mtbf: Option<f64>,
    interval: Duration,
    due: Instant,
    failures: u32,
    /// Seconds that a snapshot costs the program, averaged over the last ones: full and incremental ones.
    costs: [Option<f64>; 2],
}

impl Pacemaker {
    /// The first snapshot is due in `every`.
    pub(super) fn new(every: Duration, mtbf: Option<Duration>, now: Instant) -> Self {
        Self {
            every,
            mtbf: mtbf.map(|mtbf| mtbf.as_secs_f64()),
            interval: every,
            due: now + every,
            failures: 0,
            costs: [None; 2],
        }
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// A snapshot that was begun at `began` is done. One of `full_every` is full.
    pub(super) fn succeeded(
        &mut self,
        report: &CheckpointReport,
        full_every: u32,
        began: Instant,
        now: Instant,
    ) {
        self.failures = 0;
        let with_cards = report.members.iter().any(|member| member.card.is_some());
        let stood = if with_cards {
            report.pause_seconds + report.capture_seconds
        } else {
            report.frozen_seconds
        };
        let whole = now.saturating_duration_since(began).as_secs_f64();
        let cost = stood + BESIDE * (whole - stood).max(0.0);
        let kept = &mut self.costs[usize::from(report.parent.is_some())];
        let average = kept.map_or(cost, |before| 0.5 * (before + cost));
        *kept = Some(average);
        // The mean over a chain, as soon as there has been one of each kind.
        let cost = match self.costs {
            [Some(full), Some(incremental)] => {
                let chain = f64::from(full_every.max(1));
                (full + (chain - 1.0) * incremental) / chain
            }
            _ => average,
        };
        let wanted = match self.mtbf {
            Some(mtbf) => daly(cost, mtbf) + cost,
            None => self.every.as_secs_f64(),
        };
        let interval = wanted.max(cost / MOST_OF_TIME).max(whole);
        self.interval = Duration::try_from_secs_f64(interval).unwrap_or(self.every);
        self.due = began + self.interval;
    }

    /// One has failed.
    pub(super) fn failed(&mut self, now: Instant) {
        let wait = FIRST_RETRY.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        self.due = now + wait.min(self.interval).max(LEAST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(stood: f64) -> CheckpointReport {
        serde_json::from_value(serde_json::json!({
            "pid": 1, "dir": "d", "point": 1, "stopped": false, "members": [], "file_bytes": 0,
            "pause_seconds": 0.0, "live": true, "frozen_seconds": stood, "capture_seconds": 0.0,
            "commit_seconds": 0.0, "total_seconds": 0.0,
        }))
        .unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn from_beginning_to_beginning() {
        let start = Instant::now();
        let mut pacemaker = Pacemaker::new(60 * SECOND, None, start);
        assert_eq!(pacemaker.due(), start + 60 * SECOND);
        let began = start + 61 * SECOND;
        pacemaker.succeeded(&report(0.5), 16, began, began + SECOND);
        assert_eq!(pacemaker.due(), began + 60 * SECOND);
    }

    #[test]
    fn an_interval_that_snapshots_do_not_fit_into_is_longer() {
        let start = Instant::now();
        let mut pacemaker = Pacemaker::new(SECOND, None, start);
        // It stands still for 2 s of every 20 s at most.
        pacemaker.succeeded(&report(2.0), 16, start, start + 2 * SECOND);
        assert_eq!(pacemaker.due(), start + 20 * SECOND);
        // None is begun before the last one is done.
        let mut pacemaker = Pacemaker::new(SECOND, None, start);
        pacemaker.succeeded(&report(0.0), 16, start, start + 30 * SECOND);
        assert_eq!(pacemaker.due(), start + 30 * SECOND);
    }

    #[test]
    fn with_failures_known_the_interval_is_dalys() {
        let start = Instant::now();
        let mut pacemaker = Pacemaker::new(SECOND, Some(20_000 * SECOND), start);
        pacemaker.succeeded(&report(1.0), 16, start, start + SECOND);
        let due = pacemaker.due().duration_since(start).as_secs_f64();
        // sqrt(2 * 1 * 20000) = 200.
        assert!((due - 200.0).abs() < 2.0, "{due}");
        // Costs that have changed are taken on by halves.
        pacemaker.succeeded(&report(7.0), 16, start, start + 7 * SECOND);
        let due = pacemaker.due().duration_since(start).as_secs_f64();
        assert!((due - 400.0).abs() < 4.0, "{due}");
    }

    #[test]
    fn the_cost_of_a_chain_is_that_of_its_mean_snapshot() {
        let start = Instant::now();
        let mut pacemaker = Pacemaker::new(SECOND, Some(20_000 * SECOND), start);
        pacemaker.succeeded(&report(7.0), 4, start, start + 7 * SECOND);
        let mut incremental = report(1.0);
        incremental.parent = Some(1);
        pacemaker.succeeded(&incremental, 4, start, start + SECOND);
        let due = pacemaker.due().duration_since(start).as_secs_f64();
        // (7 + 3 * 1) / 4 = 2.5 s; sqrt(2 * 2.5 * 20000) = 316.
        assert!((due - 316.0).abs() < 4.0, "{due}");
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let start = Instant::now();
        let mut pacemaker = Pacemaker::new(60 * SECOND, None, start);
        let mut waits = Vec::new();
        for _ in 0..40 {
            pacemaker.failed(start);
            waits.push(pacemaker.due().duration_since(start).as_secs());
        }
        assert_eq!(waits[..6], [5, 10, 20, 40, 60, 60]);
        assert_eq!(waits[39], 60);
        pacemaker.succeeded(&report(0.0), 16, start, start);
        pacemaker.failed(start);
        assert_eq!(pacemaker.due(), start + 5 * SECOND);
        // Never later than the next one would be.
        let mut pacemaker = Pacemaker::new(SECOND, None, start);
        pacemaker.failed(start);
        assert_eq!(pacemaker.due(), start + SECOND);
        let mut pacemaker = Pacemaker::new(Duration::from_nanos(1), None, start);
        pacemaker.failed(start);
        assert_eq!(pacemaker.due(), start + LEAST_RETRY);
    }
}
