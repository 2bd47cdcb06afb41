//! Memory whose file has no name: shared anonymous memory, memfd, removed files, System V segments. Several mappings of one
//! such file are mappings of one object in the image, and stay so.

use super::classify::{Class, classify, place};
use super::extent::{self, Extent};
use crate::capture::{CaptureContext, MemoryPart, distinct};
use crate::error::{Obstacle, ProcError};
use crate::ids::RemoteAddr;
use crate::image::Backing;
use crate::procfs::maps::Mapping;
use crate::remote::Tracee;
use snapify_store::{PAGE_SIZE, SpaceId};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::fd::OwnedFd;

/// Objects by device and inode number.
#[derive(Debug, Default)]
pub(super) struct Found(HashMap<(u64, u64), SpaceId>);

impl Found {
    pub(super) fn of(&self, mapping: &Mapping) -> Option<SpaceId> {
        self.0.get(&key(mapping)).copied()
    }
}

/// Device and inode number as fstat(2) would show them.
fn key(mapping: &Mapping) -> (u64, u64) {
    let (major, minor) = mapping.device;
    (rustix::fs::makedev(major, minor), mapping.inode)
}

/// Finds all objects that are mapped, and where their content is read from. Of an object that has private mappings
/// only, this is not always to be found out.
pub(super) fn capture(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
) -> Result<Found, ProcError> {
    let mut by_key: BTreeMap<(u64, u64), Vec<&Mapping>> = BTreeMap::new();
    for mapping in ctx.maps.iter().filter(|m| m.is_file()) {
        if matches!(classify(mapping, ctx), Class::Shared | Class::PrivateGone) {
            by_key.entry(key(mapping)).or_default().push(mapping);
        }
    }
    let mut found = Found::default();
    for (key, mappings) in by_key {
        let known = ctx.objects().of_inode(key.0, key.1);
        let space = match known.or_else(|| add_file(ctx, mappings[0])) {
            Some(space) => Some(space),
            None => {
                let shared: Vec<&Mapping> = mappings.into_iter().filter(|m| m.shared).collect();
                add_memory(tracee, ctx, key, &shared)?
            }
        };
        if let Some(space) = space {
            found.0.insert(key, space);
        }
    }
    Ok(found)
}

/// By the file itself, which takes a privilege (`CAP_CHECKPOINT_RESTORE` in the first user namespace).
fn add_file(ctx: &CaptureContext<'_>, mapping: &Mapping) -> Option<SpaceId> {
    let name = format!("map_files/{:x}-{:x}", mapping.start.0, mapping.end.0);
    let file = ctx.proc.open_file(&name).ok().map(OwnedFd::from)?;
    let what = String::from_utf8_lossy(&mapping.name).into_owned();
    ctx.objects_mut().add_file(what, file, None).ok()
}

/// By what the process has mapped of it, or can map.
fn add_memory(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
    key: (u64, u64),
    mappings: &[&Mapping],
) -> Result<Option<SpaceId>, ProcError> {
    let Some(&first) = mappings.first() else {
        return Ok(None);
    };
    let what = String::from_utf8_lossy(&first.name).into_owned();
    let backing = backing(first);
    match extent::find(tracee, mappings)? {
        Extent::Mapped(bytes) => {
            let parts = parts(tracee, mappings)?;
            let mut objects = ctx.objects_mut();
            Ok(Some(objects.add_memory(what, bytes, key, parts, backing)))
        }
        Extent::Held(content) => {
            let mut objects = ctx.objects_mut();
            Ok(Some(objects.add_held(what, content, Some(key), backing)))
        }
        Extent::TooLong => {
            let why = "large parts of this shared memory are not mapped by anyone";
            ctx.refuse(Obstacle::new(place(first), why));
            Ok(None)
        }
    }
}

fn backing(mapping: &Mapping) -> Backing {
    match mapping.huge_page() {
        Some(page_bytes) => Backing::HugePages { page_bytes },
        None => Backing::File,
    }
}

/// The id of the System V segment that a mapping is of.
pub(crate) fn segment_id(mapping: &Mapping) -> Option<i32> {
    let digits = mapping.name.strip_prefix(b"/SYSV")?;
    let of_key = mapping.shared
        && digits
            .strip_suffix(b" (deleted)")
            .is_some_and(|digits| digits.len() == 8 && digits.iter().all(u8::is_ascii_hexdigit));
    // The kernel uses the id for the inode number.
    of_key.then(|| i32::try_from(mapping.inode).ok()).flatten()
}

/// Notes the content of a System V segment of `bytes`, of which the process has these mappings.
///
/// # Errors
/// Those of shmat(2), if the segment is not completely mapped.
pub(crate) fn segment_content(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
    id: i32,
    bytes: u64,
    mappings: &[&Mapping],
) -> Result<SpaceId, ProcError> {
    let what = format!("shared memory segment {id}");
    let backing = Backing::Segment { id };
    let parts = parts(tracee, mappings)?;
    let mut spans: Vec<(u64, u64)> = mappings
        .iter()
        .map(|m| (m.offset, m.offset + m.bytes()))
        .collect();
    spans.sort_unstable();
    let covered = spans.iter().fold(0, |covered, &(start, end)| match start {
        _ if start > covered => covered,
        _ => end.max(covered),
    });
    if covered >= bytes {
        let mut objects = ctx.objects_mut();
        let key = key(mappings[0]);
        return Ok(objects.add_memory(what, bytes, key, parts, backing));
    }
    let args = [id as u64, 0, libc::SHM_RDONLY as u64, 0, 0, 0];
    let start = tracee.syscall("shmat", libc::SYS_shmat, args)?;
    let content = hold(tracee, start, bytes);
    tracee.syscall("shmdt", libc::SYS_shmdt, [start, 0, 0, 0, 0, 0])?;
    let mut objects = ctx.objects_mut();
    Ok(objects.add_held(what, content?, None, backing))
}

/// Copies `bytes` of shared memory at `start`; pages that do not exist are zero.
pub(super) fn hold(tracee: &mut Tracee<'_>, start: u64, bytes: u64) -> Result<Vec<u8>, ProcError> {
    let mut content = vec![0; bytes as usize];
    let mut parts = Vec::new();
    let end = start + bytes.next_multiple_of(PAGE_SIZE);
    if swap_in_use() {
        parts.push(MemoryPart {
            offset: 0,
            bytes,
            pid: tracee.pid().0,
            address: start,
        });
    } else {
        resident(tracee, (start, end), 0, &mut parts)?;
    }
    for part in parts {
        let length = part.bytes.min(bytes - part.offset) as usize;
        let place = &mut content[part.offset as usize..][..length];
        tracee.read(RemoteAddr(part.address), place)?;
    }
    Ok(content)
}

/// Where the pages of an object are mapped: (offset, address, bytes), by offset, each once.
fn parts(tracee: &mut Tracee<'_>, mappings: &[&Mapping]) -> Result<Vec<MemoryPart>, ProcError> {
    let everything = swap_in_use();
    let mut parts = Vec::new();
    for mapping in mappings {
        // Of huge pages mincore(2) tells only which this process has touched.
        if everything || !mapping.read || mapping.huge_page().is_some() {
            parts.push(MemoryPart {
                offset: mapping.offset,
                bytes: mapping.bytes(),
                pid: tracee.pid().0,
                address: mapping.start.0,
            });
        } else {
            let range = (mapping.start.0, mapping.end.0);
            resident(tracee, range, mapping.offset, &mut parts)?;
        }
    }
    Ok(distinct(parts))
}

/// mincore(2) does not tell of pages of shared memory that are swapped out; if there may be such, all pages are read.
fn swap_in_use() -> bool {
    let Ok(text) = fs::read_to_string("/proc/meminfo") else {
        return true;
    };
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    value("SwapTotal:") != value("SwapFree:")
}

/// Adds the parts of a range of shared memory, which begins at `offset` of its object, whose pages exist: reading the
/// others would make them.
fn resident(
    tracee: &mut Tracee<'_>,
    (start, end): (u64, u64),
    offset: u64,
    parts: &mut Vec<MemoryPart>,
) -> Result<(), ProcError> {
    let scratch = tracee.scratch();
    let mut pages = vec![0_u8; scratch.len as usize];
    let mut at = start;
    while at < end {
        let bytes = (end - at).min(scratch.len * PAGE_SIZE);
        tracee.syscall(
            "mincore",
            libc::SYS_mincore,
            [at, bytes, scratch.addr.0, 0, 0, 0],
        )?;
        let pages = &mut pages[..(bytes / PAGE_SIZE) as usize];
        tracee.read(scratch.addr, pages)?;
        let mut page = 0;
        for run in pages.chunk_by(|a, b| a & 1 == b & 1) {
            if run[0] & 1 == 1 {
                let address = at + page * PAGE_SIZE;
                parts.push(MemoryPart {
                    offset: offset + (address - start),
                    bytes: run.len() as u64 * PAGE_SIZE,
                    pid: tracee.pid().0,
                    address,
                });
            }
            page += run.len() as u64;
        }
        at += bytes;
    }
    Ok(())
}
