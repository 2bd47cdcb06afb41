//! What fuzz targets give to the parsers of this crate.

use crate::protocol::{Reply, Request};
use crate::snapshot::Job;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes as every message of the control channel, and as `job.json`.
pub fn message(bytes: &[u8]) {
    read::<Request>(bytes);
    read::<Reply>(bytes);
    read::<Job>(bytes);
}

/// What can be read can be written and read again.
fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(bytes) {
        let text = serde_json::to_vec(&value).expect("it can be written");
        assert!(serde_json::from_slice::<T>(&text).is_ok(), "and read again");
    }
}
