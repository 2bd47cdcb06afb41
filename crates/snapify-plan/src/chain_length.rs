//! How many snapshots a chain should have, from what those before have cost: paper 5's optimal `m`, with a bound.

use crate::Measurement;
use crate::hybrid::{failure_probability, optimal_incrementals};

/// No chain is longer: a restart has all files of it open.
pub const LONGEST_CHAIN: u32 = 64;

/// A program that has less to save (16 MiB) costs so little that what was measured says more about the machine's noise.
const TELLING: u64 = 16 << 20;

/// The incremental snapshots of a chain take at most so many times the room of the full one. They are read for a restart, too,
/// which the formula takes for next to nothing where failures are rare.
const MOST_ROOM: f64 = 2.0;

/// The share of the time of saving beside the program that counts as lost for it: it shares processors and memory.
const BESIDE: f64 = 0.1;

/// How often a snapshot should be full: every so many, 1 to [`LONGEST_CHAIN`]. `measured` are snapshots of one program, oldest
/// first, that are taken every `interval` seconds; failures come every `mtbf` seconds. `None` if they do not tell, because
/// there was none of either kind yet, or the program is small.
///
/// `m` is Naksinehaboon's and Wang's ([`optimal_incrementals`]), where `O_f` and `O_i` are medians, and the additional cost of
/// recovery is that of reading an incremental snapshot as fast as the full one was stored.
#[must_use]
pub fn full_every(measured: &[Measurement], interval: f64, mtbf: f64) -> Option<u32> {
    let of = |incremental: bool| {
        let those = measured
            .iter()
            .filter(move |one| one.incremental == incremental);
        let costs: Vec<f64> = those.clone().map(cost).collect();
        let sizes: Vec<f64> = those.map(|one| one.file_bytes as f64).collect();
        Some((median(costs)?, median(sizes)?))
    };
    let (full, whole) = of(false)?;
    let (incremental, part) = of(true)?;
    let last_full = measured.iter().rev().find(|one| !one.incremental)?;
    if last_full.saved_bytes < TELLING || last_full.capture_seconds <= 0.0 {
        return None;
    }
    let rate = last_full.file_bytes as f64 / last_full.capture_seconds;
    let failure = failure_probability(interval + incremental, mtbf);
    let room = (MOST_ROOM * whole / part.max(1.0)).min(f64::from(LONGEST_CHAIN - 1));
    let most = room.max(1.0) as u32;
    Some(1 + optimal_incrementals(full, incremental, failure, part / rate, most))
}

/// Seconds that a snapshot cost the program.
fn cost(one: &Measurement) -> f64 {
    let stood = one.pause_seconds + one.stop_seconds;
    stood + BESIDE * (one.capture_seconds - one.stop_seconds).max(0.0)
}

/// The middle one, of those that are numbers; the lower of two.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite() && *value >= 0.0);
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEARS: f64 = 5.0 * 365.0 * 86400.0;

    /// Of a gibibyte, stored at one a second while the program stands still.
    fn one(share: f64, incremental: bool) -> Measurement {
        let bytes = (share * (1u64 << 30) as f64) as u64;
        Measurement {
            saved_bytes: bytes,
            file_bytes: bytes,
            compressed: false,
            incremental,
            pause_seconds: 0.0,
            stop_seconds: share,
            capture_seconds: share,
        }
    }

    #[test]
    fn nothing_is_said_without_both_kinds() {
        assert_eq!(full_every(&[], 60.0, YEARS), None);
        assert_eq!(full_every(&[one(1.0, false)], 60.0, YEARS), None);
        assert_eq!(full_every(&[one(0.1, true)], 60.0, YEARS), None);
        // Nor of a small program.
        let small = [one(0.001, false), one(0.0001, true)];
        assert_eq!(full_every(&small, 60.0, YEARS), None);
        let instant = [
            Measurement {
                capture_seconds: 0.0,
                ..one(1.0, false)
            },
            one(0.1, true),
        ];
        assert_eq!(full_every(&instant, 60.0, YEARS), None);
    }

    #[test]
    fn the_less_changes_the_longer_the_chain() {
        let every = |share| full_every(&[one(1.0, false), one(share, true)], 60.0, YEARS);
        // Where failures are rare the room that they take is what counts.
        assert_eq!(every(0.001), Some(LONGEST_CHAIN));
        assert_eq!(every(0.1), Some(21));
        assert_eq!(every(0.5), Some(5));
        // One that costs as much as a full one saves nothing.
        assert_eq!(every(1.0), Some(1));
        assert_eq!(every(1.2), Some(1));
    }

    #[test]
    fn where_failures_are_frequent_it_is_the_formula_that_counts() {
        let chain = [one(1.0, false), one(0.1, true)];
        // P = 1 - exp(-60.1 / 120) = 0.394; (1 - 0.1) / (0.394 * 0.1) - 1 = 21.8.
        assert_eq!(full_every(&chain, 60.0, 120.0), Some(21));
        // P = 1 - exp(-600.1 / 120) = 0.993; 0.9 / 0.0993 - 1 = 8.06.
        assert_eq!(full_every(&chain, 600.0, 120.0), Some(10));
        let half = [one(1.0, false), one(0.5, true)];
        // 0.5 / 0.4966 - 1 = 0.007.
        assert_eq!(full_every(&half, 600.0, 120.0), Some(2));
    }

    #[test]
    fn one_slow_snapshot_does_not_spoil_it() {
        let mut chain = vec![
            one(1.0, false),
            one(0.1, true),
            one(0.1, true),
            one(0.1, true),
        ];
        chain[2].stop_seconds = 50.0;
        assert_eq!(full_every(&chain, 60.0, YEARS), Some(21));
    }

    #[test]
    fn extremes_stay_in_bounds() {
        for share in [0.0, 1e-9, 1.0, 1e3] {
            for interval in [0.0, 1e-9, 1e12] {
                for mtbf in [1e-9, 1.0, 1e18] {
                    let every = full_every(&[one(1.0, false), one(share, true)], interval, mtbf);
                    assert!(every.is_none_or(|every| (1..=LONGEST_CHAIN).contains(&every)));
                }
            }
        }
    }
}
