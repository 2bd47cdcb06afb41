//! Which pages of a private mapping hold something, and which of those may have been written since it was armed.

use super::capture::Ranges;
use super::image::{MappingKind, MemoryImage};
use crate::error::ProcError;
use crate::parts;
use crate::procfs::ProcDir;
use crate::procfs::maps::Mapping;
use crate::tracking::Spans;
use snapify_store::PageRange;
use snapify_sys::pagemap::{Categories, Filter, Region, scan};
use std::fs::File;
use std::io;

/// Regions that one PAGEMAP_SCAN returns at most.
const REGIONS: usize = 4096;

/// Mappings from this size on are looked at by several threads.
const LARGE: u64 = 256 << 20;

/// Looks at the pages of a process.
pub(super) struct Looker {
    pub(super) pagemap: File,
    /// Whether this kernel knows guard regions.
    pub(super) guards_known: bool,
    regions: Vec<Region>,
}

/// What private mappings are looked at for.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Whether pages that were not written are those of a file.
    pub(super) of_file: bool,
    /// Whether it has been tracked since it was armed: what does not count as written then was not.
    pub(super) trusted: bool,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Pages that hold something; of a file's, those that are not the file's.
    pub(super) present: Spans,
    /// Those of them that may have been written.
    pub(super) written: Spans,
    /// Guard regions (`MADV_GUARD_INSTALL`, with which newer C libraries guard thread stacks).
    pub(super) guards: Spans,
    /// Whether pages that nobody has tracked count as not written.
    pub(super) stale: bool,
}

impl Found {
    /// Adds what was found at addresses behind all of these.
    fn append(&mut self, next: &Self) {
        let push = |spans: &mut Spans, more: &Spans| {
            more.iter().for_each(|(start, end)| spans.push(start, end));
        };
        push(&mut self.present, &next.present);
        push(&mut self.written, &next.written);
        push(&mut self.guards, &next.guards);
        self.stale |= next.stale;
    }
}

impl Looker {
    pub(super) fn new(pagemap: File) -> Self {
        Self {
            pagemap,
            guards_known: true,
            regions: vec![Region::default(); REGIONS],
        }
    }

    /// Looks at a mapping.
    ///
    /// # Errors
    /// As PAGEMAP_SCAN.
    pub(super) fn look(&mut self, mapping: &Mapping, kind: Kind) -> io::Result<Found> {
        let (start, end) = (mapping.start.0, mapping.end.0);
        self.look_at(start, end, mapping.huge_page().is_none(), kind)
    }

    /// Looks at a mapping from `start` to `end`, which may be looked at in parts if `divisible`.
    ///
    /// # Errors
    /// As PAGEMAP_SCAN.
    pub(super) fn look_at(
        &mut self,
        start: u64,
        end: u64,
        divisible: bool,
        kind: Kind,
    ) -> io::Result<Found> {
        let found = if end - start >= LARGE && divisible {
            let jobs: Vec<_> = parts::cut(start, end).collect();
            let look = |&(start, end): &(u64, u64)| {
                let mut regions = vec![Region::default(); REGIONS];
                self.range(start, end, kind, &mut regions)
            };
            parts::each(&jobs, end - start, look).map(|found| {
                let mut all = Found::default();
                found.iter().for_each(|next| all.append(next));
                all
            })
        } else {
            let mut regions = std::mem::take(&mut self.regions);
            let found = self.range(start, end, kind, &mut regions);
            self.regions = regions;
            found
        };
        match found {
            // Before Linux 6.15.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.guards_known => {
                self.guards_known = false;
                self.look_at(start, end, divisible, kind)
            }
            found => found,
        }
    }

    /// The guard regions of a mapping whose pages are not the process's.
    ///
    /// # Errors
    /// As PAGEMAP_SCAN.
    pub(super) fn guards(&mut self, mapping: &Mapping) -> io::Result<Spans> {
        let mut guards = Spans::default();
        if !self.guards_known {
            return Ok(guards);
        }
        let filter = Filter {
            all: Categories::GUARD,
            ..Filter::default()
        };
        let (start, end) = (mapping.start.0, mapping.end.0);
        let each = |region: Region| guards.push(region.start, region.end);
        match scan(&self.pagemap, start, end, filter, &mut self.regions, each) {
            Err(e) if e.raw_os_error() != Some(libc::EINVAL) => Err(e),
            _ => Ok(guards),
        }
    }

    fn range(&self, start: u64, end: u64, kind: Kind, regions: &mut [Region]) -> io::Result<Found> {
        match kind.of_file {
            true => self.of_file(start, end, kind.trusted, regions),
            false => self.anonymous(start, end, kind.trusted, regions),
        }
    }

    fn guard(&self) -> Categories {
        match self.guards_known {
            true => Categories::GUARD,
            false => Categories::NONE,
        }
    }

    /// Most pages of a mapping of a file are the file's: the kernel tells the others.
    fn of_file(
        &self,
        start: u64,
        end: u64,
        trusted: bool,
        regions: &mut [Region],
    ) -> io::Result<Found> {
        let guard = self.guard();
        // A page of zeros hides what is in the file, be it the kernel's own (of merged pages).
        let filter = Filter {
            inverted: Categories::FILE,
            all: Categories::FILE,
            any: Categories::PRESENT | Categories::SWAPPED | guard,
            report: Categories::PRESENT | Categories::WRITTEN | guard,
        };
        let mut found = Found::default();
        scan(&self.pagemap, start, end, filter, regions, |region| {
            let has = |kind| kind != Categories::NONE && region.categories.contains(kind);
            if has(guard) {
                found.guards.push(region.start, region.end);
                return;
            }
            found.present.push(region.start, region.end);
            // Where a page that the process had of its own was given back, a private mapping of a file keeps the mark
            // of it, which looks like a page that is swapped out and was not written.
            if !trusted || has(Categories::WRITTEN) || !has(Categories::PRESENT) {
                found.written.push(region.start, region.end);
            }
            found.stale |= !trusted && !has(Categories::WRITTEN);
        })?;
        Ok(found)
    }

    /// Most pages of other mappings are there; of those that were tracked, most were not written. To tell a page costs the kernel
    /// several times what it costs to pass it over, so it is asked for the others: what it does not tell is as most are.
    fn anonymous(
        &self,
        start: u64,
        end: u64,
        trusted: bool,
        regions: &mut [Region],
    ) -> io::Result<Found> {
        let guard = self.guard();
        let unlike = match trusted {
            true => Categories::NONE,
            false => Categories::WRITTEN,
        };
        let kinds = Categories::PRESENT | Categories::WRITTEN | Categories::ZERO_PAGE;
        let filter = Filter {
            inverted: Categories::PRESENT | unlike,
            all: Categories::NONE,
            any: kinds,
            report: kinds | Categories::SWAPPED | guard,
        };
        let mut found = Found::default();
        let mut at = start;
        let untold = |found: &mut Found, start, end| {
            found.present.push(start, end);
            if !trusted {
                found.written.push(start, end);
            }
        };
        scan(&self.pagemap, start, end, filter, regions, |region| {
            untold(&mut found, at, region.start);
            at = region.end;
            let has = |kind| kind != Categories::NONE && region.categories.contains(kind);
            if has(guard) {
                found.guards.push(region.start, region.end);
                return;
            }
            // The kernel's own page of zeros needs no saving.
            if has(Categories::ZERO_PAGE) || !has(Categories::PRESENT) && !has(Categories::SWAPPED)
            {
                return;
            }
            found.present.push(region.start, region.end);
            if !trusted || has(Categories::WRITTEN) {
                found.written.push(region.start, region.end);
            }
            found.stale |= !trusted && !has(Categories::WRITTEN);
        })?;
        untold(&mut found, at, end);
        Ok(found)
    }
}

/// The pages of a process that has just been built from `image`, and its mappings in which writes can be told from now on.
///
/// # Errors
/// If its pages cannot be looked at.
pub(crate) fn of_built(proc: &ProcDir, image: &MemoryImage) -> Result<Ranges, ProcError> {
    let mut looker = Looker::new(proc.open_file("pagemap")?);
    let mut ranges = Ranges::default();
    for mapping in &image.mappings {
        let flags = &mapping.flags;
        if !mapping.kind.is_private() || flags.huge_page.is_some() || flags.droppable {
            continue;
        }
        let kind = Kind {
            of_file: mapping.kind != MappingKind::Private,
            trusted: false,
        };
        let (start, end) = (mapping.start.0, mapping.end.0);
        let found = looker.look_at(start, end, true, kind);
        let path = || format!("/proc/{}/pagemap", proc.pid());
        let found = found.map_err(|e| ProcError::proc(path())(e))?;
        let range = |(start, end)| PageRange {
            space: image.space,
            start,
            bytes: end - start,
        };
        ranges.ranges.extend(found.present.iter().map(range));
        ranges.watch.push(start, end, kind.of_file);
    }
    ranges.watch.set_guards_known(looker.guards_known);
    Ok(ranges)
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use snapify_sys::pagemap::protect_every;
    use snapify_sys::uffd;
    use std::os::fd::{FromRawFd, OwnedFd};

    const PAGE: u64 = 4096;

    /// What the kernel says of each page for itself, put together the plain way.
    fn plainly(looker: &Looker, start: u64, end: u64, trusted: bool) -> Found {
        let kinds = Categories::PRESENT | Categories::SWAPPED | Categories::WRITTEN;
        let filter = Filter {
            report: kinds | Categories::ZERO_PAGE | looker.guard(),
            ..Filter::default()
        };
        let mut found = Found::default();
        let mut regions = vec![Region::default(); 1];
        for at in (start..end).step_by(PAGE as usize) {
            let mut kinds = Categories::NONE;
            let each = |region: Region| kinds = region.categories;
            let pagemap = &looker.pagemap;
            scan(pagemap, at, at + PAGE, filter, &mut regions, each).unwrap();
            let has = |kind| kinds.contains(kind);
            if has(Categories::GUARD) {
                found.guards.push(at, at + PAGE);
            } else if (has(Categories::PRESENT) || has(Categories::SWAPPED))
                && !has(Categories::ZERO_PAGE)
            {
                found.present.push(at, at + PAGE);
                if !trusted || has(Categories::WRITTEN) {
                    found.written.push(at, at + PAGE);
                }
                found.stale |= !trusted && !has(Categories::WRITTEN);
            }
        }
        found
    }

    fn userfaultfd() -> OwnedFd {
        let flags = uffd::USER_MODE_ONLY | (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just made it, for us alone.
        unsafe { OwnedFd::from_raw_fd(fd as i32) }
    }

    #[test]
    fn what_is_not_told_is_as_it_would_be_told() {
        const BYTES: u64 = 32 << 20;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let null = std::ptr::null_mut();
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe { libc::mmap(null, BYTES as usize, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let (start, end) = (base as u64, base as u64 + BYTES);
        let advise = |at: u64, bytes: u64, advice| {
            assert!(at >= start && at + bytes <= end);
            // SAFETY: within the mapping, which nothing refers to.
            unsafe { libc::madvise(at as *mut _, bytes as usize, advice) }
        };
        // SAFETY: within the mapping.
        let write = |at: u64| unsafe { (at as *mut u8).write_volatile(1) };
        // Small pages in one half, which has a stretch without page tables; huge ones in the other, if there are any.
        let half = start + BYTES / 2;
        assert_eq!(advise(start, BYTES / 2, libc::MADV_NOHUGEPAGE), 0);
        advise(half, BYTES / 2, libc::MADV_HUGEPAGE);
        for at in (start..start + (6 << 20)).step_by(PAGE as usize) {
            match at / PAGE % 7 {
                0 => {}
                // SAFETY: within the mapping. Reading maps the kernel's page of zeros.
                1 => drop(unsafe { (at as *const u8).read_volatile() }),
                _ => write(at),
            }
        }
        (half..end - (3 << 20)).step_by(4096).for_each(write);
        // Before Linux 6.15 there is no such thing (MADV_GUARD_INSTALL).
        advise(start + (5 << 20), 3 * PAGE, 102);
        let file = File::open("/proc/self/pagemap").unwrap();
        let mut looker = Looker::new(file);
        let uffd = userfaultfd();
        uffd::begin_tracking(&uffd).unwrap();
        let mut rounds = 0;
        let mut check = |looker: &mut Looker| {
            rounds += 1;
            for trusted in [false, true] {
                for regions in [1, 2, 1000] {
                    let kind = Kind {
                        of_file: false,
                        trusted,
                    };
                    let regions = &mut vec![Region::default(); regions];
                    let look = |looker: &Looker, regions: &mut [Region]| {
                        looker.range(start, end, kind, regions)
                    };
                    let found = look(looker, regions).or_else(|_| {
                        looker.guards_known = false;
                        look(looker, regions)
                    });
                    let found = found.unwrap();
                    assert!(found == plainly(looker, start, end, trusted), "{rounds}");
                    assert_eq!(found.stale, !trusted && rounds > 2);
                    if rounds == 3 && trusted {
                        assert_eq!(found.written, Spans::default());
                    }
                }
            }
        };
        check(&mut looker);
        uffd::register(&uffd, start, end).unwrap();
        check(&mut looker);
        let kind = Kind {
            of_file: false,
            trusted: true,
        };
        let mut regions = [Region::default(); 100];
        let found = looker.range(start, end, kind, &mut regions).unwrap();
        for (from, to) in found.present.iter() {
            protect_every(&looker.pagemap, from, to).unwrap();
        }
        check(&mut looker);
        // Written, given back, given back and written, for the first time.
        for at in [1, 2, 8, 9, 10, 800, 1500, 2000, 4096, 4097, 5000, 8000] {
            write(start + at * PAGE);
        }
        for at in [2, 3, 9, 801, 802, 4098] {
            assert_eq!(advise(start + at * PAGE, PAGE, libc::MADV_DONTNEED), 0);
        }
        write(start + 801 * PAGE);
        assert_eq!(advise(start + (2 << 20), 2 << 20, libc::MADV_DONTNEED), 0);
        check(&mut looker);
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(base, BYTES as usize) };
    }
}
