//! `PAGEMAP_SCAN` (Linux 6.7): which pages of a process exist, and of what kind they are; and write-protecting those
//! that were written, where a userfaultfd tracks that ([`crate::uffd`]).

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::ffi::c_void;
use std::io;
use std::ops::{BitAnd, BitOr};
use std::os::fd::AsFd;

/// A set of page categories (`PAGE_IS_*` of `linux/fs.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Categories(pub u64);

impl Categories {
    /// No category.
    pub const NONE: Self = Self(0);
    /// Write-protect tracking is possible.
    pub const WP_ALLOWED: Self = Self(1);
    /// Written since it was last write-protected.
    pub const WRITTEN: Self = Self(1 << 1);
    /// Belongs to a file or to shared memory (not anonymous).
    pub const FILE: Self = Self(1 << 2);
    /// Present in memory.
    pub const PRESENT: Self = Self(1 << 3);
    /// Swapped out.
    pub const SWAPPED: Self = Self(1 << 4);
    /// The shared zero page.
    pub const ZERO_PAGE: Self = Self(1 << 5);
    /// Part of a huge page mapped as such.
    pub const HUGE: Self = Self(1 << 6);
    /// Soft-dirty.
    pub const SOFT_DIRTY: Self = Self(1 << 7);
    /// Guard region set up with `MADV_GUARD_INSTALL` (Linux 6.15).
    pub const GUARD: Self = Self(1 << 8);

    /// Whether all of `other` is in this set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self & other == other
    }
}

impl BitOr for Categories {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Categories {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Consecutive pages of one kind (`struct page_region`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// The returned categories that all its pages are in.
    pub categories: Categories,
}

/// Which pages to report: a page is reported if it has, after the `inverted` categories were
/// negated, all of `all` and (if not empty) one of `any`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Categories that count as present when absent.
    pub inverted: Categories,
    /// Required categories.
    pub all: Categories,
    /// One of these is required, unless empty.
    pub any: Categories,
    /// Categories reported in [`Region::categories`]; pages that differ in them are separate regions.
    pub report: Categories,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScanArgs {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

struct Scan<'a> {
    args: ScanArgs,
    _regions: &'a mut [Region],
}

// SAFETY: the opcode is PAGEMAP_SCAN's; its argument is a `struct pm_scan_arg` whose `vec` and
// `vec_len` describe `_regions`, borrowed for as long as the request exists; `walk_end` is written.
unsafe impl Ioctl for Scan<'_> {
    type Output = (usize, u64);
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<ScanArgs>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.args).cast()
    }

    unsafe fn output_from_ptr(
        out: IoctlOutput,
        ptr: *mut c_void,
    ) -> rustix::io::Result<Self::Output> {
        // SAFETY: `ptr` is what `as_ptr` returned.
        let args = unsafe { &*ptr.cast::<ScanArgs>() };
        Ok((out as usize, args.walk_end))
    }
}

/// Calls `each` with every region of pages in `start..end` that passes `filter`, in order of address.
///
/// `pagemap` is an open `/proc/PID/pagemap`. `buffer` must not be empty; its length only
/// decides how many system calls are made.
///
/// # Errors
/// `ENOTTY` before Linux 6.7; `EINVAL` for a category that this kernel does not know.
pub fn scan(
    pagemap: impl AsFd,
    start: u64,
    end: u64,
    filter: Filter,
    buffer: &mut [Region],
    each: impl FnMut(Region),
) -> io::Result<()> {
    walk(pagemap, start, end, 0, filter, buffer, each)
}

/// Write-protects every page in `start..end` that passes `filter`, so that it counts as not written from now on. All
/// mappings there must be tracked.
///
/// `buffer` must not be empty: without one the kernel protects pages whatever the filter says, and makes page tables for
/// those that do not exist.
///
/// # Errors
/// As [`scan`]; `EPERM` if a mapping is not tracked. Some pages may be protected then.
pub fn protect(
    pagemap: impl AsFd,
    start: u64,
    end: u64,
    filter: Filter,
    buffer: &mut [Region],
) -> io::Result<()> {
    let flags = WP_MATCHING | CHECK_WP_ASYNC;
    walk(pagemap, start, end, flags, filter, buffer, |_| {})
}

/// Write-protects every page in `start..end`, as [`protect`] does, and whatever it is. Where there is none, the kernel leaves a mark
/// that looks like a page which is swapped out, in page tables that it makes for that: callers give places of pages only. It is the
/// least work for the kernel.
///
/// # Errors
/// As [`protect`].
pub fn protect_every(pagemap: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let args = ScanArgs {
            size: size_of::<ScanArgs>() as u64,
            flags: WP_MATCHING | CHECK_WP_ASYNC,
            start: at,
            end,
            ..ScanArgs::default()
        };
        let request = Scan {
            args,
            _regions: &mut [],
        };
        // SAFETY: see the implementation of `Ioctl`; there is no vector.
        let (_, walk_end) = unsafe { rustix::ioctl::ioctl(pagemap.as_fd(), request)? };
        if walk_end <= at {
            return Err(io::Error::other("PAGEMAP_SCAN made no progress"));
        }
        at = walk_end;
    }
    Ok(())
}

/// Whether all mappings in `start..end` are tracked by the kernel alone (`UFFD_FEATURE_WP_ASYNC`), by whomever.
///
/// # Errors
/// As [`scan`].
pub fn is_tracked(pagemap: impl AsFd, start: u64, end: u64) -> io::Result<bool> {
    // Of pages of no kind at all there are none.
    let filter = Filter {
        all: Categories::PRESENT | Categories::SWAPPED,
        ..Filter::default()
    };
    let mut buffer = [Region::default(); 1];
    match walk(
        pagemap,
        start,
        end,
        CHECK_WP_ASYNC,
        filter,
        &mut buffer,
        |_| {},
    ) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Ok(false),
        Err(e) => Err(e),
    }
}

/// `PM_SCAN_WP_MATCHING`
const WP_MATCHING: u64 = 1;
/// `PM_SCAN_CHECK_WPASYNC`
const CHECK_WP_ASYNC: u64 = 2;

fn walk(
    pagemap: impl AsFd,
    start: u64,
    end: u64,
    flags: u64,
    filter: Filter,
    buffer: &mut [Region],
    mut each: impl FnMut(Region),
) -> io::Result<()> {
    if buffer.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut at = start;
    while at < end {
        let args = ScanArgs {
            size: size_of::<ScanArgs>() as u64,
            flags,
            start: at,
            end,
            walk_end: 0,
            vec: buffer.as_mut_ptr() as u64,
            vec_len: buffer.len() as u64,
            max_pages: 0,
            category_inverted: filter.inverted.0,
            category_mask: filter.all.0,
            category_anyof_mask: filter.any.0,
            return_mask: filter.report.0,
        };
        let request = Scan {
            args,
            _regions: buffer,
        };
        // SAFETY: see the implementation of `Ioctl`.
        let (count, walk_end) = unsafe { rustix::ioctl::ioctl(pagemap.as_fd(), request)? };
        let found = &buffer[..count.min(buffer.len())];
        found.iter().copied().for_each(&mut each);
        // The kernel walks on after every 512 regions, and may then tell where an earlier part of its walk ended.
        let walk_end = walk_end.max(found.last().map_or(0, |last| last.end));
        if walk_end <= at {
            // Cannot happen with a non-empty buffer; without this check it would be an endless loop.
            return Err(io::Error::other("PAGEMAP_SCAN made no progress"));
        }
        at = walk_end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn finds_exactly_the_written_pages() {
        const PAGES: usize = 64;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGES * 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: keeps each of the pages its own, and writes within the mapping.
        unsafe { libc::madvise(base, PAGES * 4096, libc::MADV_NOHUGEPAGE) };
        let written = [0_usize, 1, 5, 30, 31, 32, 63];
        for page in written {
            // SAFETY: within the mapping.
            unsafe { base.cast::<u8>().add(page * 4096).write_volatile(1) };
        }
        // SAFETY: reading maps the shared zero page, which is not to be reported.
        let _ = unsafe { base.cast::<u8>().add(10 * 4096).read_volatile() };
        let file = File::open("/proc/self/pagemap").unwrap();
        let filter = Filter {
            inverted: Categories::ZERO_PAGE,
            all: Categories::ZERO_PAGE,
            any: Categories::PRESENT | Categories::SWAPPED,
            report: Categories::NONE,
        };
        // A buffer of one region makes every region a call of its own.
        for buffer in [1, 2, 100] {
            let mut found = Vec::new();
            let start = base as u64;
            scan(
                &file,
                start,
                start + PAGES as u64 * 4096,
                filter,
                &mut vec![Region::default(); buffer],
                |r| {
                    found.extend(
                        (r.start..r.end)
                            .step_by(4096)
                            .map(|a| ((a - start) / 4096) as usize),
                    );
                },
            )
            .unwrap();
            assert_eq!(found, written);
        }
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(base, PAGES * 4096) };
    }

    #[test]
    fn every_page_is_told_once_however_many_regions_there_are() {
        const PAGES: usize = 4096;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * 4096, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: keeps each of the pages its own.
        unsafe { libc::madvise(base, PAGES * 4096, libc::MADV_NOHUGEPAGE) };
        for page in (0..PAGES).step_by(2) {
            // SAFETY: within the mapping.
            unsafe { base.cast::<u8>().add(page * 4096).write_volatile(1) };
        }
        let file = File::open("/proc/self/pagemap").unwrap();
        let filter = Filter {
            any: Categories::PRESENT | Categories::SWAPPED,
            ..Filter::default()
        };
        let (start, end) = (base as u64, base as u64 + PAGES as u64 * 4096);
        for buffer in [511, 512, 513, 1024, PAGES] {
            let mut starts = Vec::new();
            let buffer = &mut vec![Region::default(); buffer];
            scan(&file, start, end, filter, buffer, |r| starts.push(r.start)).unwrap();
            let wanted: Vec<u64> = (start..end).step_by(8192).collect();
            assert_eq!(starts, wanted, "{} at a time", buffer.len());
        }
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(base, PAGES * 4096) };
    }
}
