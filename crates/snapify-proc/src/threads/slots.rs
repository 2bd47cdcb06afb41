//! Pages of code in a program's memory from which threads go on by themselves, after a stop that has ended a system call which must
//! not end so.
//!
//! Such a page is part of the memory from then on, and of the snapshot: the call may last for as long as it likes, and nobody need be there
//! when it ends. A later checkpoint uses the same page again for other threads.

use crate::error::ProcError;
use crate::freeze::{FrozenProcess, FrozenThread};
use crate::ids::RemoteAddr;
use crate::procfs::maps::Mapping;
use crate::remote::Tracee;
use snapify_sys::vm;

const PAGE_BYTES: u64 = 4096;

/// Bytes of code and data for one thread.
pub(super) const SLOT_BYTES: u64 = 256;

/// Where in a slot is told that it is in use: not zero, as long as the call has not returned to the program.
pub(super) const BUSY: usize = 0xf8;

/// What such a page begins with, in place of its first slot.
const MAGIC: [u8; 16] = *b"snapify goes on:";

/// Slots for `wanted` threads of a process that is frozen with all that share its memory, in a page that is there already if possible.
///
/// # Errors
/// Those of the remote calls: `EACCES` or `EPERM` where memory must not be executed.
pub(super) fn find(
    tracee: &mut Tracee<'_>,
    threads: &[FrozenThread],
    known: Option<RemoteAddr>,
    wanted: usize,
) -> Result<Vec<RemoteAddr>, ProcError> {
    let mut slots = Vec::new();
    if let Some(page) = known {
        let within = |slot: &RemoteAddr| {
            let range = slot.0..slot.0 + SLOT_BYTES;
            threads
                .iter()
                .any(|thread| range.contains(&thread.registers.rip))
        };
        for slot in slots_of(page) {
            let busy: u64 = tracee.get(RemoteAddr(slot.0 + BUSY as u64))?;
            if busy == 0 && !within(&slot) {
                slots.push(slot);
            }
        }
    }
    while slots.len() < wanted {
        slots.extend(slots_of(new_page(tracee)?));
    }
    slots.truncate(wanted);
    Ok(slots)
}

/// A page of earlier checkpoints.
pub(super) fn known_page(process: &FrozenProcess, maps: &[Mapping]) -> Option<RemoteAddr> {
    maps.iter().find_map(|mapping| page_in(process, mapping))
}

/// Such a page within a mapping: it may have grown together with memory beside it.
fn page_in(process: &FrozenProcess, mapping: &Mapping) -> Option<RemoteAddr> {
    const MOST_BYTES: u64 = 64 * PAGE_BYTES;
    let bytes = mapping.end.0 - mapping.start.0;
    let fits = mapping.read && mapping.write && mapping.exec && !mapping.shared;
    if !fits || !mapping.name.is_empty() || bytes > MOST_BYTES {
        return None;
    }
    let mut pages = (mapping.start.0..mapping.end.0).step_by(PAGE_BYTES as usize);
    let begins = |page: &u64| {
        let mut start = [0; MAGIC.len()];
        vm::read_exact(process.pid.0, *page, &mut start).is_ok() && start == MAGIC
    };
    pages.find(begins).map(RemoteAddr)
}

fn slots_of(page: RemoteAddr) -> impl Iterator<Item = RemoteAddr> {
    (1..PAGE_BYTES / SLOT_BYTES).map(move |n| RemoteAddr(page.0 + n * SLOT_BYTES))
}

/// Memory for what is too large for a slot. It stays.
///
/// # Errors
/// As [`find`].
pub(super) fn room(tracee: &mut Tracee<'_>, bytes: u64) -> Result<RemoteAddr, ProcError> {
    map(tracee, bytes, libc::PROT_READ | libc::PROT_WRITE)
}

fn new_page(tracee: &mut Tracee<'_>) -> Result<RemoteAddr, ProcError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let page = map(tracee, PAGE_BYTES, protection)?;
    tracee.write(page, &MAGIC)?;
    Ok(page)
}

fn map(tracee: &mut Tracee<'_>, bytes: u64, protection: i32) -> Result<RemoteAddr, ProcError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let args = [0, bytes, protection as u64, flags as u64, u64::MAX, 0];
    tracee.syscall("mmap", libc::SYS_mmap, args).map(RemoteAddr)
}
