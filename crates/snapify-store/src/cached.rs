//! Whether a part of a file is in the page cache: cachestat(2), Linux 6.5 and later.
//!
//! Reading past the page cache is the fast way from a disk, and a slow way to get what memory already holds.
#![allow(unsafe_code)]

use crate::types::PAGE_SIZE;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct cachestat_range` of linux/mman.h.
#[repr(C)]
struct Range {
    offset: u64,
    bytes: u64,
}

/// `struct cachestat` of linux/mman.h; all fields count pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// cachestat(2) has the same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// Whether every page of `bytes` bytes at `offset` is in the page cache. `false` where the kernel does not
/// say: before 6.5, or for a file that the caller neither owns nor may write.
pub(crate) fn is_cached(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> bool {
    let range = Range { offset, bytes };
    let mut stat = Stat::default();
    // SAFETY: the kernel reads one `Range` and writes one `Stat`, both of the layout it documents, both
    // alive and not otherwise borrowed until the call returns.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0u32,
        )
    };
    status == 0 && stat.cached >= bytes.div_ceil(PAGE_SIZE)
}
