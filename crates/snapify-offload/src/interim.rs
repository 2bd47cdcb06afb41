//! Stands in for `snapify_store::{PageFileSummary, Progress}` until they are there.
#![allow(missing_docs)]
pub type PageFileSummary = serde_json::Value;
pub trait Progress: Sync {
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }
    fn cancelled(&self) -> bool {
        false
    }
}
