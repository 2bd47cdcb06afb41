//! What pages are, where they come from and where they go.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Bytes in a page: the unit of everything in a page file.
pub const PAGE_SIZE: u64 = 4096;

/// [`PAGE_SIZE`] as the type that slices are measured in.
pub(crate) const PAGE: usize = 4096;

/// Which address space or memory object pages belong to. The numbers are the caller's.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SpaceId(pub u32);

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A range of pages in one space. Start and length are multiples of [`PAGE_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PageRange {
    /// The space the range lies in.
    pub space: SpaceId,
    /// First byte, as an address or an offset in that space.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Where pages are read from while a page file is written. Called from several threads at once.
pub trait PageSource: Sync {
    /// Fills `buf` with the bytes at `start` of `space`. `start` and the length are page aligned, and the
    /// whole of it lies in one of the ranges being written.
    ///
    /// # Errors
    /// Any error ends the writing, and is reported with the place that could not be read.
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// Where pages go while a page file is read. Called from several threads at once, for disjoint places.
pub trait PageSink: Sync {
    /// Puts `data` at `start` of `space`. Page aligned; its checksum has been verified.
    ///
    /// # Errors
    /// Any error stops the reading, and is reported with the place that could not be written.
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> io::Result<()>;
}

/// Watches over a long operation, and can end it. `()` watches nothing and cancels nothing.
pub trait Progress: Sync {
    /// `bytes` more have been dealt with. Called from several threads. Writing counts the bytes of the
    /// ranges, reading counts the bytes stored.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether to stop with [`StoreError::Cancelled`](crate::StoreError::Cancelled). Asked about once a
    /// block.
    fn cancelled(&self) -> bool {
        false
    }
}

impl Progress for () {}
