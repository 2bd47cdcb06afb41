//! How far a shared object reaches beyond what a process has mapped of it.
//!
//! Shared anonymous memory that was unmapped in part, or whose mapping was enlarged by mremap(2), is longer or shorter than its
//! mappings say; the program may map the rest again, or rely on SIGBUS behind the end. The file behind it can be opened by
//! root only. But the process itself can map any part: mremap(2) of a shared mapping from size 0 makes a second one, and
//! remap_file_pages(2) moves that to any offset.

use crate::error::ProcError;
use crate::procfs::maps::{Mapping, VmFlags};
use crate::remote::Tracee;
use snapify_store::PAGE_SIZE;

/// More than this of an object that is not mapped completely is not kept in our memory.
const MOST: u64 = 4 << 30;

/// An object that is mapped.
#[derive(Debug)]
pub(super) enum Extent {
    /// All of it is mapped; its size in bytes, which may be less than what the mappings reach.
    Mapped(u64),
    /// Its content, of which parts are not mapped.
    Held(Vec<u8>),
    /// Parts of it are not mapped, and it is too long to be held in memory.
    TooLong,
}

/// Finds the size of an object, and what of it is not mapped. `mappings` are all mappings of it.
///
/// # Errors
/// If the process is killed.
pub(super) fn find(tracee: &mut Tracee<'_>, mappings: &[&Mapping]) -> Result<Extent, ProcError> {
    let mut spans: Vec<(u64, u64)> = mappings
        .iter()
        .map(|m| (m.offset, m.offset + m.bytes()))
        .collect();
    spans.sort_unstable();
    let covered = spans.iter().fold(0, |covered, &(start, end)| match start {
        _ if start > covered => covered,
        _ => end.max(covered),
    });
    let end = spans.iter().map(|span| span.1).max().unwrap_or(0);
    // What lies under guards is not lost, but is not to be seen there.
    let guarded = |m: &&Mapping| m.flags.unwrap_or_default().has(VmFlags::GUARDED);
    let covered = match mappings.iter().any(guarded) {
        true => 0,
        false => covered,
    };
    let page = mappings[0].page_bytes.max(PAGE_SIZE);
    // A window that shows one page more than what is known, to see whether there is one.
    let mut length = end + page;
    loop {
        let window = match Window::open(tracee, mappings[0], length) {
            Ok(window) => window,
            // Sealed, or at a limit of the address space: what is mapped must do.
            Err(e) if e.errno().is_some() => return Ok(Extent::Mapped(end)),
            Err(e) => return Err(e),
        };
        let found = window.close(tracee, |tracee, window| {
            let there = |n| exists(tracee, window.start + n * page);
            if there(length / page - 1) {
                return Ok(if length < MOST {
                    None
                } else {
                    Some(Extent::TooLong)
                });
            }
            let size = page * pages(length / page, there);
            Ok(Some(match covered == end && size <= end {
                true => Extent::Mapped(size),
                false if size > MOST => Extent::TooLong,
                false => Extent::Held(super::shared::hold(tracee, window.start, size)?),
            }))
        })?;
        match found {
            Some(extent) => return Ok(extent),
            None => length = (length * 2).next_multiple_of(page),
        }
    }
}

/// Whether there is memory at `address`: behind the end of an object there is none. Memory that is not readable is looked at by the kernel,
/// too.
fn exists(tracee: &Tracee<'_>, address: u64) -> bool {
    let mut byte = [0];
    tracee
        .read(crate::ids::RemoteAddr(address), &mut byte)
        .is_ok()
}

/// How many of the pages 0..`count` exist, if all that do come before all that do not.
fn pages(count: u64, mut exists: impl FnMut(u64) -> bool) -> u64 {
    let (mut there, mut gone) = (0, count);
    while there < gone {
        let middle = there + (gone - there) / 2;
        if exists(middle) {
            there = middle + 1;
        } else {
            gone = middle;
        }
    }
    there
}

/// A further mapping of an object, from its beginning, readable as the first one was.
struct Window {
    start: u64,
    bytes: u64,
}

impl Window {
    fn open(tracee: &mut Tracee<'_>, of: &Mapping, bytes: u64) -> Result<Self, ProcError> {
        let args = [of.start.0, 0, bytes, libc::MREMAP_MAYMOVE as u64, 0, 0];
        let start = tracee.syscall("mremap", libc::SYS_mremap, args)?;
        let window = Self { start, bytes };
        let prepare = |tracee: &mut Tracee<'_>| {
            if of.offset != 0 {
                let args = [start, bytes, 0, 0, 0, 0];
                tracee.syscall("remap_file_pages", libc::SYS_remap_file_pages, args)?;
            }
            if !of.read {
                let args = [start, bytes, libc::PROT_READ as u64, 0, 0, 0];
                tracee.syscall("mprotect", libc::SYS_mprotect, args)?;
            }
            Ok(())
        };
        match prepare(tracee) {
            Ok(()) => Ok(window),
            Err(e) => window.close(tracee, |_, _| Err(e)),
        }
    }

    /// Unmaps it after `work`.
    fn close<T>(
        self,
        tracee: &mut Tracee<'_>,
        work: impl FnOnce(&mut Tracee<'_>, &Self) -> Result<T, ProcError>,
    ) -> Result<T, ProcError> {
        let result = work(tracee, &self);
        let args = [self.start, self.bytes, 0, 0, 0, 0];
        tracee.syscall("munmap", libc::SYS_munmap, args)?;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::pages;

    #[test]
    fn the_end_is_found() {
        for count in [0, 1, 2, 7, 64] {
            for size in 0..=count {
                assert_eq!(pages(count, |n| n < size), size);
            }
        }
    }
}
