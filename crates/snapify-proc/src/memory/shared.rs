//! Shared memory whose file has no name: shared anonymous memory, memfd, removed files. Several mappings of one
//! such file are mappings of one object in the image, and stay so.

use super::classify::{Class, classify};
use crate::capture::CaptureContext;
use crate::error::ProcError;
use crate::procfs::maps::Mapping;
use crate::remote::Tracee;
use snapify_store::{PAGE_SIZE, SpaceId};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;

/// Shared objects by device and inode number.
#[derive(Debug, Default)]
pub(super) struct Found(BTreeMap<(u64, u64), SpaceId>);

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

/// Finds all shared objects that are mapped, and where their content is read from.
pub(super) fn capture(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
) -> Result<Found, ProcError> {
    let mut by_key: BTreeMap<(u64, u64), Vec<&Mapping>> = BTreeMap::new();
    for mapping in ctx.maps.iter().filter(|m| m.shared && m.is_file()) {
        if classify(mapping, ctx) == Class::Shared {
            by_key.entry(key(mapping)).or_default().push(mapping);
        }
    }
    let mut found = Found::default();
    for (key, mappings) in by_key {
        let known = ctx.objects().of_inode(key.0, key.1);
        let space = match known {
            Some(space) => space,
            None => add(tracee, ctx, key, &mappings)?,
        };
        found.0.insert(key, space);
    }
    Ok(found)
}

fn add(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
    key: (u64, u64),
    mappings: &[&Mapping],
) -> Result<SpaceId, ProcError> {
    let first = mappings[0];
    let what = String::from_utf8_lossy(first.path()).into_owned();
    if let Some(file) = open_mapped(ctx, first) {
        let added = ctx.objects_mut().add_file(what.clone(), file, None);
        if let Ok(space) = added {
            return Ok(space);
        }
    }
    // Only root may open the file itself. All that the process can reach of it is what it has mapped.
    let end = mappings
        .iter()
        .map(|m| m.offset + m.bytes())
        .max()
        .unwrap_or(0);
    let everything = swap_in_use();
    let mut parts = Vec::new();
    for mapping in mappings {
        if everything || !mapping.read {
            parts.push((mapping.offset, mapping.start.0, mapping.bytes()));
        } else {
            resident(tracee, mapping, &mut parts)?;
        }
    }
    parts.sort_unstable();
    // Mappings of the same pages at several places: one is enough.
    let mut distinct: Vec<(u64, u64, u64)> = Vec::with_capacity(parts.len());
    for (offset, address, bytes) in parts {
        let covered = distinct.last().map_or(0, |last| last.0 + last.2);
        let skip = covered.saturating_sub(offset).min(bytes);
        if skip < bytes {
            distinct.push((offset + skip, address + skip, bytes - skip));
        }
    }
    Ok(ctx.objects_mut().add_memory(what, end, key, distinct))
}

/// Opens the mapped file; `None` without the privilege (`CAP_CHECKPOINT_RESTORE` in the first user namespace).
fn open_mapped(ctx: &CaptureContext<'_>, mapping: &Mapping) -> Option<OwnedFd> {
    let name = format!("map_files/{:x}-{:x}", mapping.start.0, mapping.end.0);
    ctx.proc.open_file(&name).ok().map(OwnedFd::from)
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

/// Adds the parts of a mapping whose pages exist: reading the others would make them.
fn resident(
    tracee: &mut Tracee<'_>,
    mapping: &Mapping,
    parts: &mut Vec<(u64, u64, u64)>,
) -> Result<(), ProcError> {
    let scratch = tracee.scratch();
    let mut pages = vec![0_u8; scratch.len as usize];
    let mut at = mapping.start.0;
    while at < mapping.end.0 {
        let bytes = (mapping.end.0 - at).min(scratch.len * PAGE_SIZE);
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
                let offset = mapping.offset + (address - mapping.start.0);
                parts.push((offset, address, run.len() as u64 * PAGE_SIZE));
            }
            page += run.len() as u64;
        }
        at += bytes;
    }
    Ok(())
}
