//! Copies of sections of arrays between memory and buffers.

use super::buffer::{move_entire, on_buffer, place};
use super::{guarded, required};
use crate::abi::{CoiEvent, Section, moves_entire};
use crate::buffer::Buffer;
use crate::buffer::section::{pairs, runs};
use crate::error::{Code, Result};
use crate::host::host;
use crate::memory::Lent;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From memory, as a write to what a process's handle stands for.
    ToBuffer { process: u64 },
    /// To memory.
    ToMemory,
}

/// Pieces of a section in memory and of one in a buffer: offset in the buffer, and bytes of the program.
///
/// # Safety
/// All of the section `memory` is valid until the operation is over.
unsafe fn pieces(
    buffer: &Buffer,
    offset: u64,
    in_buffer: &Section,
    memory: &Section,
) -> Result<Vec<(u64, Lent)>> {
    let mut found = Vec::new();
    for (there, here) in pairs(&runs(in_buffer)?, &runs(memory)?)? {
        let at = offset
            .checked_add_signed(in_buffer.base)
            .and_then(|at| at.checked_add(there.offset))
            .ok_or(Code::OutOfRange)?;
        buffer.check(at, there.bytes)?;
        let address = (memory.base as *mut u8).wrapping_add(here.offset as usize);
        // SAFETY: by the caller's promise.
        found.push((at, unsafe { Lent::new(address, here.bytes as usize) }));
    }
    Ok(found)
}

/// Begins a copy between two sections.
///
/// # Safety
/// The sections are null or valid, all of the one in memory until the operation is over; the events and the place for one are
/// valid.
unsafe fn begin(
    direction: Direction,
    buffer: u64,
    offset: u64,
    (in_buffer, memory): (*const Section, *const Section),
    copy: i32,
    events: (u32, *const CoiEvent),
    completion: *mut CoiEvent,
) -> Result<()> {
    required(in_buffer)?;
    required(memory)?;
    // SAFETY: by the caller's promise.
    let (in_buffer, memory) = unsafe { (*in_buffer, *memory) };
    if memory.base == 0 {
        return Err(Code::InvalidPointer.into());
    }
    let host = host()?;
    let buffer = host.buffers.get(buffer)?;
    let entire = moves_entire(copy)?;
    let target = match direction {
        Direction::ToBuffer { process } => place(&buffer, process)?,
        Direction::ToMemory => None,
    };
    // SAFETY: by the caller's promise.
    let pieces = unsafe { pieces(&buffer, offset, &in_buffer, &memory) }?;
    let writes = direction != Direction::ToMemory;
    let copied = buffer.clone();
    let body = Box::new(move || {
        move_entire(&copied, target, entire)?;
        let mut pieces = pieces.into_iter();
        pieces.try_for_each(|(at, bytes)| {
            if writes {
                copied.write(target, at, bytes)
            } else {
                copied.read(at, bytes)
            }
        })
    });
    // SAFETY: by the caller's promise.
    unsafe { on_buffer(host, &buffer, writes, events, completion, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferWriteMultiD(
    buffer: u64,
    process: u64,
    offset: u64,
    target: *const Section,
    source: *const Section,
    copy: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIBufferWriteMultiD", || {
        let direction = Direction::ToBuffer { process };
        let (sections, events) = ((target, source), (count, events));
        // SAFETY: by the interface's contract.
        unsafe {
            begin(
                direction, buffer, offset, sections, copy, events, completion,
            )
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferReadMultiD(
    buffer: u64,
    offset: u64,
    target: *const Section,
    source: *const Section,
    copy: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIBufferReadMultiD", || {
        let direction = Direction::ToMemory;
        let (sections, events) = ((source, target), (count, events));
        // SAFETY: by the interface's contract.
        unsafe {
            begin(
                direction, buffer, offset, sections, copy, events, completion,
            )
        }
    })
}
