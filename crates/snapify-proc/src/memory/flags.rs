//! Flags of mappings, which the kernel tells in `/proc/PID/smaps` only, together with how many pages of which kind a mapping has: for
//! that it walks all page tables, some 10 ms for each GiB, which is half as much as a fork. So a process is described without them, and
//! they are added last: while its pages are being saved already, or from a copy of it while it goes on itself. Where something
//! else depends on them, they are read first.

use super::capture::{Ranges, is_copied, watched};
use super::classify::{flag_obstacle, place};
use super::image::{MappingFlags, MappingImage, MappingKind, MemoryImage};
use super::vdso;
use crate::error::{Obstacle, ProcError};
use crate::external::External;
use crate::ids::Pid;
use crate::procfs::ProcDir;
use crate::procfs::maps::{Mapping, VmFlags};
use crate::procfs::status::Status;
use snapify_store::PAGE_SIZE;
use snapify_sys::pagemap::{Categories, Filter, Region, scan};
use std::io;

/// Whether a process cannot be described without the flags of its mappings:
/// - a copy does not show what is locked in memory;
/// - huge TLB pages are read, tracked and copied in other ways than others;
/// - to find all of a file without a name, it is mapped once more, which is done to plain ones only.
pub(crate) fn are_needed_first(maps: &[Mapping], status: &Status, externals: &[External]) -> bool {
    let is_nameless = |mapping: &Mapping| {
        (mapping.marked_deleted() || mapping.name.starts_with(b"[anon_shmem:"))
            && !is_external(mapping, externals)
    };
    status.locked_kib != 0 || status.huge_tlb_kib != 0 || maps.iter().any(is_nameless)
}

/// The memory of one process, which was described without the flags of its mappings.
#[derive(Clone, Debug)]
pub(crate) struct Unflagged {
    pid: Pid,
    maps: Vec<Mapping>,
    externals: Vec<External>,
    /// Whether nobody but us is told of what is done to the memory: a copy does not show it.
    unwatched: bool,
    /// The mappings with their flags, if they had to be read while the process stood still.
    found: Option<Flagged>,
}

impl Unflagged {
    /// Of process `pid`, as we see it.
    pub(crate) fn new(pid: Pid, maps: &[Mapping], externals: &[External]) -> Self {
        Self {
            pid,
            maps: maps.to_vec(),
            externals: externals.to_vec(),
            unwatched: false,
            found: None,
        }
    }

    /// The process, as we see it.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Start and end of the mappings that are the program's own.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        let own = self.maps.iter().filter(|mapping| self.is_own(mapping));
        own.map(|mapping| (mapping.start.0, mapping.end.0))
    }

    /// Nobody but us is told of what is done to the memory.
    pub(crate) fn set_unwatched(&mut self) {
        self.unwatched = true;
    }

    fn is_own(&self, mapping: &Mapping) -> bool {
        mapping.name != b"[vsyscall]"
            && !vdso::is_part(&mapping.name)
            && !is_external(mapping, &self.externals)
    }

    /// Compares the process, which stands still, with its copy. Adds to `ranges` which mappings the copy does not have as they are, and
    /// reads the flags of all of them if the copy does not show those of each.
    ///
    /// # Errors
    /// If one of the two is killed.
    pub(crate) fn compare(&mut self, copy: &ProcDir, ranges: &mut Ranges) -> Result<(), ProcError> {
        let copied = copy.maps()?;
        // Such as are left out of copies (MADV_DONTFORK) are missing.
        let all = |maps: &[Mapping]| self.maps.iter().all(|m| around(m, maps).is_some());
        if !self.unwatched || !all(&copied) {
            let found = self.show(&ProcDir::open(self.pid)?)?;
            let own = |m: &&Mapping| self.is_own(m) && !m.shared;
            for mapping in found.maps.iter().filter(own).filter(|m| !is_copied(m)) {
                ranges.add_not_copied(mapping.start.0, mapping.end.0);
            }
            self.found = Some(found);
            return Ok(());
        }
        let pagemap = copy.open_file("pagemap")?;
        // What is wiped in copies (MADV_WIPEONFORK, MAP_DROPPABLE) is anonymous.
        let anonymous = |m: &&Mapping| !m.shared && !m.is_file() && self.is_own(m);
        for mapping in self.maps.iter().filter(anonymous) {
            let (start, end) = (mapping.start.0, mapping.end.0);
            let Some(page) = ranges.first_within(start, end) else {
                continue;
            };
            let wiped = is_absent(&pagemap, page);
            if wiped.map_err(ProcError::proc(format!("/proc/{}/pagemap", copy.pid())))? {
                ranges.add_not_copied(start, end);
            }
        }
        Ok(())
    }

    /// The mappings with their flags, as `of` shows them: the process itself, or its copy.
    ///
    /// # Errors
    /// If that one is killed.
    pub(crate) fn read(&self, of: Pid) -> Result<Flagged, ProcError> {
        match &self.found {
            Some(found) => Ok(found.clone()),
            None => self.show(&ProcDir::open(of)?),
        }
    }

    fn show(&self, proc: &ProcDir) -> Result<Flagged, ProcError> {
        let found = proc.smaps()?;
        let pagemap = proc.open_file("pagemap")?;
        let mut maps = Vec::with_capacity(self.maps.len());
        let mut obstacles = Vec::new();
        for mapping in &self.maps {
            let around = around(mapping, &found).ok_or_else(|| self.changed())?;
            let flagged = with_flags(mapping, around);
            if self.is_own(mapping) {
                let why = flag_obstacle(&flagged);
                obstacles.extend(why.map(|why| Obstacle::new(place(&flagged), why)));
                let watched = watched(&pagemap, &flagged);
                let path = || format!("/proc/{}/pagemap", proc.pid());
                obstacles.extend(watched.map_err(|e| ProcError::proc(path())(e))?);
            }
            maps.push(flagged);
        }
        Ok(Flagged { maps, obstacles })
    }

    fn changed(&self) -> ProcError {
        ProcError::System {
            what: format!("read the flags of the memory of process {}", self.pid),
            source: io::Error::other("its mappings have changed"),
        }
    }
}

/// What was left out of the description of the memory of one process.
#[derive(Clone, Debug)]
pub(crate) struct Flagged {
    maps: Vec<Mapping>,
    obstacles: Vec<Obstacle>,
}

impl Flagged {
    /// Adds it to `image`. Returns what of it cannot be saved.
    pub(crate) fn complete(self, image: &mut MemoryImage) -> Vec<Obstacle> {
        let (keys, files) = (&image.settings.keys, &mut image.files);
        let mut images = image.mappings.iter_mut().peekable();
        for mapping in &self.maps {
            let Some(image) = images.next_if(|image| image.start == mapping.start) else {
                continue;
            };
            if let MappingKind::SharedFile { file, .. } = image.kind
                && let Some(file) = files.get_mut(file)
            {
                file.written |= may_write(mapping);
            }
            set_flags(image, mapping, keys);
        }
        self.obstacles
    }
}

/// Sets what of a mapping depends on its flags.
pub(super) fn set_flags(image: &mut MappingImage, mapping: &Mapping, keys: &[u32]) {
    if let MappingKind::SharedFile { may_write: set, .. }
    | MappingKind::Shared { may_write: set, .. }
    | MappingKind::Segment { may_write: set, .. } = &mut image.kind
    {
        *set = may_write(mapping);
    }
    let guards = std::mem::take(&mut image.flags.guards);
    image.flags = MappingFlags {
        guards,
        ..flags(mapping)
    };
    // The key for what can only be executed is the kernel's own choice.
    if mapping.prot() != libc::PROT_EXEC || keys.contains(&mapping.pkey) {
        image.flags.key = mapping.pkey;
    }
}

/// Whether the program may make it writable.
pub(super) fn may_write(mapping: &Mapping) -> bool {
    mapping.flags.unwrap_or_default().has(VmFlags::MAY_WRITE)
}

fn is_external(mapping: &Mapping, externals: &[External]) -> bool {
    let is_its = |e: &External| e.maps(mapping.start, mapping.bytes());
    externals.iter().any(is_its)
}

/// The one of `found` that is `mapping`, or that this is a part of by now: mappings next to each other are joined where they do not
/// differ in anything.
fn around<'a>(mapping: &Mapping, found: &'a [Mapping]) -> Option<&'a Mapping> {
    let at = found.partition_point(|other| other.end <= mapping.start);
    let is_it = |other: &&Mapping| {
        other.start <= mapping.start
            && mapping.end <= other.end
            && (other.prot(), other.shared) == (mapping.prot(), mapping.shared)
            && (other.device, other.inode) == (mapping.device, mapping.inode)
    };
    found.get(at).filter(is_it)
}

fn with_flags(mapping: &Mapping, around: &Mapping) -> Mapping {
    Mapping {
        flags: around.flags,
        pkey: around.pkey,
        page_bytes: around.page_bytes,
        ..mapping.clone()
    }
}

/// Whether there is no page at `address`.
fn is_absent(pagemap: &std::fs::File, address: u64) -> io::Result<bool> {
    let filter = Filter {
        any: Categories::PRESENT | Categories::SWAPPED,
        ..Filter::default()
    };
    let mut absent = true;
    let mut regions = [Region::default(); 1];
    let each = |_| absent = false;
    scan(
        pagemap,
        address,
        address + PAGE_SIZE,
        filter,
        &mut regions,
        each,
    )?;
    Ok(absent)
}

/// The name that the program has given to memory.
fn given_name(mapping: &Mapping) -> Option<String> {
    let name = mapping.name.strip_prefix(b"[anon:");
    let name = name.or_else(|| mapping.name.strip_prefix(b"[anon_shmem:"))?;
    // The kernel allows printable ASCII only.
    Some(String::from_utf8_lossy(name.strip_suffix(b"]")?).into_owned())
}

fn flags(mapping: &Mapping) -> MappingFlags {
    let bits = mapping.flags.unwrap_or_default();
    let advice = [
        (VmFlags::DONT_COPY, libc::MADV_DONTFORK),
        (VmFlags::WIPE_ON_FORK, libc::MADV_WIPEONFORK),
        (VmFlags::DONT_DUMP, libc::MADV_DONTDUMP),
        (VmFlags::HUGE_PAGE, libc::MADV_HUGEPAGE),
        (VmFlags::NO_HUGE_PAGE, libc::MADV_NOHUGEPAGE),
        (VmFlags::MERGEABLE, libc::MADV_MERGEABLE),
        (VmFlags::SEQUENTIAL, libc::MADV_SEQUENTIAL),
        (VmFlags::RANDOM, libc::MADV_RANDOM),
    ];
    if vdso::is_part(&mapping.name) {
        return MappingFlags {
            sealed: bits.has(VmFlags::SEALED),
            ..MappingFlags::default()
        };
    }
    MappingFlags {
        grows_down: bits.has(VmFlags::GROWS_DOWN),
        no_reserve: bits.has(VmFlags::NO_RESERVE),
        accounted: bits.has(VmFlags::ACCOUNT) && !mapping.write,
        locked: bits.has(VmFlags::LOCKED),
        locked_on_fault: bits.has(VmFlags::LOCK_ON_FAULT),
        sealed: bits.has(VmFlags::SEALED),
        droppable: bits.has(VmFlags::DROPPABLE),
        huge_page: mapping.huge_page(),
        name: given_name(mapping),
        key: 0,
        advice: advice
            .into_iter()
            .filter(|(bit, _)| bits.has(*bit))
            .map(|(_, advice)| advice)
            .collect(),
        guards: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::maps::parse;

    #[test]
    fn a_mapping_is_found_in_what_it_was_joined_to() {
        let maps = parse(
            b"1000-3000 rw-p 00000000 00:00 0 \n3000-4000 rw-p 00000000 00:00 0 \n\
              5000-6000 r--p 00000000 fd:01 7 /lib/a\n8000-9000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n",
        )
        .unwrap();
        let found = parse(
            b"1000-4000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me dd \n\
              5000-6000 r--p 00000000 fd:01 8 /lib/a\nVmFlags: rd mr \n\
              8000-8800 rw-s 00000000 00:01 9 /dev/zero (deleted)\nVmFlags: rd wr mw \n",
        )
        .unwrap();
        let flags = |n: usize| around(&maps[n], &found).and_then(|around| around.flags);
        assert!(flags(0).unwrap().has(VmFlags::DONT_DUMP) && flags(1) == flags(0));
        // Another file, and not all of it.
        assert_eq!((flags(2), flags(3)), (None, None));
        let joined = with_flags(&maps[1], around(&maps[1], &found).unwrap());
        assert_eq!((joined.start, joined.end), (maps[1].start, maps[1].end));
    }

    #[test]
    fn flags_come_first_where_something_depends_on_them() {
        let status = std::fs::read("/proc/self/status").unwrap();
        let mut status = Status::parse(&status).unwrap();
        (status.locked_kib, status.huge_tlb_kib) = (0, 0);
        let first = |line: &[u8], status: &Status, externals: &[External]| {
            are_needed_first(&parse(line).unwrap(), status, externals)
        };
        let plain = b"1000-3000 rw-p 00000000 00:00 0 \n";
        let nameless = b"1000-3000 rw-s 00000000 00:01 9 /memfd:x (deleted)\n";
        assert!(!first(plain, &status, &[]));
        assert!(first(nameless, &status, &[]));
        let agents = External {
            key: "agent".into(),
            fds: Vec::new(),
            mappings: vec![(crate::ids::RemoteAddr(0x1000), 0x2000)],
        };
        assert!(!first(nameless, &status, &[agents]));
        status.locked_kib = 4;
        assert!(first(plain, &status, &[]));
        (status.locked_kib, status.huge_tlb_kib) = (0, 2048);
        assert!(first(plain, &status, &[]));
    }
}
