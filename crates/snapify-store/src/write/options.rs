//! How a page file is written, beyond what it holds.

use crate::Compression;
use serde::{Deserialize, Serialize};

/// How a page file is written. The default is what suits fast storage: nothing is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WriteOptions {
    /// What is done to blocks before they are stored.
    pub compression: Compression,
    /// Threads that compress, and at most as many that read memory; `None` for one per processor.
    pub workers: Option<usize>,
    /// Blocks (of 1 MiB) that may wait between reading and compressing, and between compressing and storing; `None`
    /// for two per worker.
    pub queue: Option<usize>,
    /// Bytes of compressed blocks that are written at a time; `None` for 2 MiB. Less than a block is taken for one.
    pub write_bytes: Option<usize>,
    /// Whether pages with the same content are stored only once; `None` for whenever blocks are compressed. It takes
    /// some 40 bytes of memory a page, for up to a million different pages.
    pub share: Option<bool>,
}

impl WriteOptions {
    /// Whether blocks take the way through the stages. Else each worker writes what it has read.
    pub(super) fn staged(&self) -> bool {
        self.compression != Compression::None || self.shares()
    }

    pub(super) fn shares(&self) -> bool {
        self.share.unwrap_or(self.compression != Compression::None)
    }

    pub(super) fn workers(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.unwrap_or_else(processors).clamp(1, 256)
    }

    pub(super) fn queue(&self) -> usize {
        self.queue.unwrap_or(2 * self.workers()).clamp(1, 1024)
    }

    pub(super) fn write_bytes(&self) -> usize {
        self.write_bytes.unwrap_or(2 << 20).min(1 << 30)
    }
}
