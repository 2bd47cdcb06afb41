//! Getting one block of a page file into memory, and verifying it.

use super::read_at;
use crate::StoreError;
use crate::cached::is_cached;
use crate::checksum::xxh3_64;
use crate::format::index::Block;
use crate::storage::reopen_direct;
use crate::types::PAGE_SIZE;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

/// Reads of a block that are in flight at a time on a disk, beyond those that the processors work on.
const DISK_READS: usize = 6;

/// More threads than this gain nothing where nothing is waited for but memory.
const MEMORY_WORKERS: usize = 8;

/// The file, in the two ways it can be read.
pub(super) struct BlockReader {
    file: File,
    /// Past the page cache, where the file system lets us.
    direct: Option<File>,
    path: PathBuf,
}

impl BlockReader {
    pub(super) fn new(file: File, path: PathBuf) -> Self {
        let direct = reopen_direct(&file);
        Self { file, direct, path }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many workers keep both the processors and the file's storage busy.
    pub(super) fn workers(&self) -> usize {
        let processors = available_parallelism().map_or(1, usize::from);
        if self.direct.is_some() {
            processors.min(16) + DISK_READS
        } else {
            processors.clamp(2, MEMORY_WORKERS)
        }
    }

    /// Reads block `number` into `buf`, which is aligned and has room for it with its padding, and verifies
    /// it.
    pub(super) fn read<'b>(
        &self,
        number: usize,
        block: &Block,
        buf: &'b mut [u8],
    ) -> Result<&'b [u8], StoreError> {
        let stored = block.stored_bytes as usize;
        let padded = stored.next_multiple_of(PAGE_SIZE as usize);
        let buf = &mut buf[..padded];
        let past_cache = self.direct.as_ref().filter(|_| {
            // What is in memory already, say from having just been written, is faster had from there.
            !is_cached(self.file.as_fd(), block.offset, padded as u64)
        });
        let done = past_cache.is_some_and(|direct| {
            // Whatever is wrong, reading the ordinary way succeeds, or has the better error.
            direct.read_exact_at(buf, block.offset).is_ok()
        });
        if !done {
            read_at(&self.file, buf, block.offset, &self.path)?;
        }
        let damaged = |what: String| Err(StoreError::damaged(&self.path, block.offset, what));
        if xxh3_64(&buf[..stored]) != block.checksum {
            return damaged(format!(
                "the checksum of block {number} ({stored} bytes) does not match"
            ));
        }
        if buf[stored..].iter().any(|&b| b != 0) {
            return damaged(format!("the padding of block {number} is in use"));
        }
        Ok(&buf[..stored])
    }
}
