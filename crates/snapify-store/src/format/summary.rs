//! The figures of a page file.

use serde::{Deserialize, Serialize};

/// What a page file amounts to. The manifest of a point holds it, and so vouches for the whole file: its
/// checksum covers the index, and the index holds the checksum of every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageFileSummary {
    /// Pages in the ranges that were to be saved.
    pub pages_scanned: u64,
    /// Pages among them that hold only zeros, and are not stored.
    pub pages_zero: u64,
    /// Pages that are stored.
    pub pages_stored: u64,
    /// Blocks in the file.
    pub blocks: u64,
    /// Runs in its index.
    pub runs: u64,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Checksum over header and index.
    #[serde(with = "crate::checksum::hex")]
    pub index_checksum: u64,
}
