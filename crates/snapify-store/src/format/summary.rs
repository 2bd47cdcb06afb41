//! The figures of a page file, and its identity.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Which page file it is: the checksum over its header and index, which in turn hold those of all it stores; or that of
/// the file whose place it has taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageFileId(#[serde(with = "crate::checksum::hex")] pub(crate) u64);

impl fmt::Display for PageFileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for PageFileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageFileId({self})")
    }
}

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
    /// Pages that hold the same as one that is stored, and refer to it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pages_shared: u64,
    /// Pages that were read and are the same as in the file that this one builds on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pages_same: u64,
    /// Blocks in the file.
    pub blocks: u64,
    /// Runs in its index.
    pub runs: u64,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Checksum over header and index.
    #[serde(with = "crate::checksum::hex")]
    pub index_checksum: u64,
    /// The page file that an incremental one builds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<PageFileId>,
    /// The page file whose place this one has taken when its chain was cleaned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_for: Option<PageFileId>,
}

impl PageFileSummary {
    /// Whether its pages take less room than they would as they are.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.file_bytes < self.pages_stored.saturating_mul(crate::PAGE_SIZE)
    }

    /// Which file it is: what those that build on it name. One that stands for another has its identity.
    #[must_use]
    pub fn id(&self) -> PageFileId {
        self.stands_for.unwrap_or(PageFileId(self.index_checksum))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
fn is_zero(value: &u64) -> bool {
    *value == 0
}
