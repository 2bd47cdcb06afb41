//! What checkpoints leave behind about their cost, for plans and schedules.

use crate::error::JobError;
use snapify_plan::Measurement;
use snapify_store::{PointHeader, inspect};
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
