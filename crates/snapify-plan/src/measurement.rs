//! What a checkpoint leaves behind about itself, and what a plan learns from it.

use crate::chain_length::median;
use serde::{Deserialize, Serialize};

/// The figures of one checkpoint, as they stand in the details of its manifest's header under `measured`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Bytes of memory that it saved, before any compression.
    pub saved_bytes: u64,
    /// Bytes of all page files that it wrote.
    pub file_bytes: u64,
    /// Whether they were compressed.
    #[serde(default)]
    pub compressed: bool,
    /// Whether it saved only what had changed since the one before.
    #[serde(default)]
    pub incremental: bool,
    /// Seconds from the request until communication was drained.
    pub pause_seconds: f64,
    /// Seconds for which the program stood still.
    pub stop_seconds: f64,
    /// Seconds until all pages were stored, from when communication was drained.
    pub capture_seconds: f64,
}

/// What the checkpoints of a program tell about it and its machine.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Learned {
    /// Bytes that a full checkpoint saves.
    pub memory: Option<f64>,
    /// The share of them that an incremental one saves.
    pub dirty: Option<f64>,
    /// Bytes a second that were stored. Storage and the stages before it are at least as quick.
    pub rate: Option<f64>,
    /// Bytes in files for each byte of memory, where they were compressed.
    pub ratio: Option<f64>,
    /// Bytes of memory a second, where they were compressed.
    pub codec_rate: Option<f64>,
    /// Seconds that a checkpoint costs beside what depends on bytes.
    pub fixed: Option<f64>,
    /// The share of the time of saving for which the program stands still.
    pub stop_share: Option<f64>,
}

/// Below this the time of a checkpoint says more about the machine's noise than about its rates: 1 MiB.
const TELLING: u64 = 1 << 20;

/// Learns from checkpoints of one program, oldest first. Of each figure it takes the median, so that one checkpoint
/// on a busy machine does not spoil it; of the memory the last, as programs grow.
#[must_use]
pub fn learn(measurements: &[Measurement]) -> Learned {
    let full = || measurements.iter().filter(|one| !one.incremental);
    let telling = || measurements.iter().filter(|one| one.saved_bytes >= TELLING);
    let memory = full().next_back().map(|one| one.saved_bytes as f64);
    let mut shares = Vec::new();
    let mut whole = None;
    for one in measurements {
        if !one.incremental {
            whole = Some(one.saved_bytes as f64);
        } else if let Some(whole) = whole.filter(|whole| *whole > 0.0) {
            shares.push((one.saved_bytes as f64 / whole).min(1.0));
        }
    }
    Learned {
        memory,
        dirty: median(shares),
        rate: median(
            telling()
                .filter(|one| one.capture_seconds > 0.0)
                .map(|one| one.file_bytes as f64 / one.capture_seconds)
                .collect(),
        ),
        ratio: median(
            telling()
                .filter(|one| one.compressed)
                .map(|one| (one.file_bytes as f64 / one.saved_bytes as f64).min(1.0))
                .collect(),
        ),
        codec_rate: median(
            telling()
                .filter(|one| one.compressed && one.capture_seconds > 0.0)
                .map(|one| one.saved_bytes as f64 / one.capture_seconds)
                .collect(),
        ),
        fixed: median(measurements.iter().map(|one| one.pause_seconds).collect()),
        stop_share: median(
            telling()
                .filter(|one| one.capture_seconds > 0.0)
                .map(|one| (one.stop_seconds / one.capture_seconds).min(1.0))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(saved: u64, incremental: bool, seconds: f64) -> Measurement {
        Measurement {
            saved_bytes: saved,
            file_bytes: saved,
            compressed: false,
            incremental,
            pause_seconds: 0.01,
            stop_seconds: seconds / 2.0,
            capture_seconds: seconds,
        }
    }

    #[test]
    fn nothing_is_learned_from_nothing() {
        assert_eq!(learn(&[]), Learned::default());
        // Nor a rate from next to nothing, or a share without a full one.
        let little = learn(&[one(4096, true, 0.1)]);
        assert_eq!(
            (little.rate, little.dirty, little.memory),
            (None, None, None)
        );
    }

    #[test]
    fn medians_of_a_chain() {
        let mib = 1 << 20;
        let learned = learn(&[
            one(1000 * mib, false, 10.0),
            one(100 * mib, true, 1.0),
            one(900 * mib, true, 90.0),
            one(50 * mib, true, 0.5),
            one(2000 * mib, false, 20.0),
            one(100 * mib, true, 1.0),
        ]);
        assert_eq!(learned.memory, Some(2000.0 * 1048576.0));
        assert_eq!(learned.dirty, Some(0.05));
        assert_eq!(learned.rate, Some(100.0 * 1048576.0));
        assert_eq!(learned.stop_share, Some(0.5));
        assert_eq!(learned.fixed, Some(0.01));
        assert_eq!((learned.ratio, learned.codec_rate), (None, None));
    }

    #[test]
    fn compressed_ones_tell_ratio_and_rate() {
        let learned = learn(&[Measurement {
            file_bytes: 500 << 20,
            compressed: true,
            ..one(1000 << 20, false, 10.0)
        }]);
        assert_eq!(learned.ratio, Some(0.5));
        assert_eq!(learned.rate, Some(50.0 * 1048576.0));
        assert_eq!(learned.codec_rate, Some(100.0 * 1048576.0));
    }

    #[test]
    fn what_is_not_said_was_not_compressed() {
        let text = r#"{"saved_bytes":1,"file_bytes":1,"pause_seconds":0,"stop_seconds":0,"capture_seconds":0}"#;
        let one: Measurement = serde_json::from_str(text).unwrap();
        assert!(!one.compressed && !one.incremental);
    }

    #[test]
    fn nonsense_does_no_harm() {
        let learned = learn(&[one(1 << 30, false, f64::NAN), one(1 << 30, true, -1.0)]);
        assert_eq!(learned.rate, None);
    }
}
