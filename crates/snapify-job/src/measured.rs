//! What checkpoints leave behind about their cost, for plans and schedules.

use crate::error::JobError;
use crate::snapshot::{HOST, PAGES_FILE};
use snapify_plan::{Codec, Measurement};
use snapify_store::{PointHeader, Snapshot, Trial, inspect};
use std::path::Path;

/// The member of a header's details that holds the figures.
const MEASURED: &str = "measured";

/// A header for a snapshot taken now, which cost this.
pub(crate) fn header(measured: &Measurement) -> PointHeader {
    PointHeader {
        created_unix_ms: now_unix_ms(),
        details: serde_json::json!({ MEASURED: measured }),
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// The figures of the snapshots in `dir`, oldest first. Those of older versions have none and are passed over.
///
/// # Errors
/// As [`snapify_store::inspect`].
pub fn measurements(dir: &Path) -> Result<Vec<Measurement>, JobError> {
    let points = inspect(dir)?.points.into_iter();
    Ok(points
        .filter_map(|point| measurement(&point.header?))
        .collect())
}

/// Codecs that are tried for plans, with different balances of speed and size.
const TRIED: [&str; 4] = ["lz4", "zstd:1", "zstd:3", "deflate:1"];

/// Bytes that they are tried on.
const SAMPLE: u64 = 16 << 20;

/// Less than this says little about a program.
const LEAST_SAMPLE: usize = 1 << 20;

/// What leaves more than this of the memory is no use.
const MOST_RATIO: f64 = 0.97;

/// What codecs make of the memory in the newest snapshot in `dir`, and how fast this machine does it with all its processors: tried on
/// a sample of it. None if it is too small to tell, or none makes it smaller.
///
/// # Errors
/// As [`Snapshot::open`] and [`snapify_store::PageFile::fill`].
pub fn codecs(dir: &Path) -> Result<Vec<Codec>, JobError> {
    let snapshot = Snapshot::open(dir, None)?;
    let sample = snapshot.member(HOST)?.pages(PAGES_FILE)?.sample(SAMPLE)?;
    if sample.len() < LEAST_SAMPLE {
        return Ok(Vec::new());
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let trials = TRIED.iter().filter_map(|name| {
        let trial = Trial::of(name.parse().ok()?, &sample)?;
        (trial.ratio <= MOST_RATIO).then(|| Codec {
            name: (*name).to_owned(),
            ratio: trial.ratio,
            rate: trial.rate * processors,
            expand_rate: trial.expand_rate * processors,
        })
    });
    Ok(trials.collect())
}

/// How long a node works without failing, if nobody says: five years. As for plans.
const MTBF: f64 = 5.0 * 365.0 * 86400.0;

/// The time from one snapshot to the next, where there were not two: an hour, in seconds.
const INTERVAL: f64 = 3600.0;

/// How often a snapshot of the chain in `dir` should be full, by what those that are there have cost; failures come every
/// `mtbf` seconds. `None` if there is nothing to learn from.
#[must_use]
pub fn full_every(dir: &Path, mtbf: Option<f64>) -> Option<u32> {
    // Whatever is wrong with the chain shows when it is written to.
    let points = inspect(dir).ok()?.points;
    let headers: Vec<&PointHeader> = points.iter().filter_map(|p| p.header.as_ref()).collect();
    let measured: Vec<Measurement> = headers.iter().copied().filter_map(measurement).collect();
    let interval = match headers[..] {
        [first, .., last] => {
            let time = last.created_unix_ms.saturating_sub(first.created_unix_ms);
            time as f64 / 1e3 / (headers.len() - 1) as f64
        }
        _ => INTERVAL,
    };
    snapify_plan::full_every(&measured, interval, mtbf.unwrap_or(MTBF))
}

fn measurement(header: &PointHeader) -> Option<Measurement> {
    serde_json::from_value(header.details.get(MEASURED)?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_back_from_a_header() {
        let measured = Measurement {
            saved_bytes: 5 << 30,
            file_bytes: 4 << 30,
            compressed: true,
            incremental: true,
            pause_seconds: 0.1,
            stop_seconds: 0.2,
            capture_seconds: 1.5,
        };
        let mut header = header(&measured);
        assert_eq!(measurement(&header), Some(measured));
        header.details = serde_json::Value::Null;
        assert_eq!(measurement(&header), None);
        header.details = serde_json::json!({ MEASURED: { "saved_bytes": -1 } });
        assert_eq!(measurement(&header), None);
    }
}
