//! Buffers.

use super::{Completion, guarded, named, operate, put, required, slice};
use crate::abi::{
    BUFFER_NORMAL, BUFFER_OPENCL, CoiEvent, MapKind, PROCESS_SOURCE, SINK_OWNERS, flags,
    moves_entire,
};
use crate::buffer::{Buffer, MapInstance, Memory};
use crate::error::{Code, Failure, Result};
use crate::event::Event;
use crate::host::{Host, host};
use crate::memory::Lent;
use crate::process::Process;
use crate::work::Body;
use std::ffi::c_void;
use std::sync::Arc;

/// The copy on the host.
const HOST_PLACE: usize = 0;

/// Checks the arguments that make a buffer, and finds its processes.
///
/// # Safety
/// As for [`slice`].
unsafe fn processes(
    host: &Host,
    size: u64,
    wanted: u32,
    count: u32,
    handles: *const u64,
) -> Result<Vec<(u64, Arc<Process>)>> {
    if size == 0 || wanted & !flags::ALL != 0 || count == 0 {
        return Err(Code::OutOfRange.into());
    }
    let same = flags::SAME_ADDRESS_SINKS | flags::SAME_ADDRESS_SINKS_AND_SOURCE;
    if wanted & same != 0 && wanted & flags::HUGE_PAGE_SIZE != 0 {
        return Err(Code::NotSupported.into());
    }
    if wanted & flags::SAME_ADDRESS_SINKS_AND_SOURCE != 0
        || (wanted & flags::SAME_ADDRESS_SINKS != 0 && count > 1)
    {
        let text = "a buffer has an address of its own in each process";
        return Err(Failure::new(Code::NotSupported, text));
    }
    // SAFETY: by the caller's promise.
    let handles = unsafe { slice(handles, count as usize) }?;
    let mut found = Vec::new();
    for handle in handles {
        found.push((*handle, host.processes.get(*handle)?));
    }
    Ok(found)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferCreate(
    size: u64,
    kind: i32,
    wanted: u32,
    initial: *const c_void,
    count: u32,
    handles: *const u64,
    buffer: *mut u64,
) -> i32 {
    guarded("COIBufferCreate", || {
        required(buffer)?;
        required(handles)?;
        if !matches!(kind, BUFFER_NORMAL | BUFFER_OPENCL) || wanted & flags::SINK_MEMORY != 0 {
            return Err(Code::NotSupported.into());
        }
        let host = host()?;
        // SAFETY: by the interface's contract.
        let processes = unsafe { processes(host, size, wanted, count, handles) }?;
        let made = Buffer::new(size, kind == BUFFER_NORMAL, Memory::New, &processes)?;
        if !initial.is_null() {
            let bytes = usize::try_from(size).map_err(|_| Code::OutOfRange)?;
            // SAFETY: by the interface's contract.
            made.initialize(unsafe { Lent::new(initial.cast_mut().cast(), bytes) });
        }
        let handle = host.buffers.add(made);
        // SAFETY: by the interface's contract.
        unsafe { put(buffer, handle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferCreateFromMemory(
    size: u64,
    kind: i32,
    wanted: u32,
    memory: *mut c_void,
    count: u32,
    handles: *const u64,
    buffer: *mut u64,
) -> i32 {
    guarded("COIBufferCreateFromMemory", || {
        required(buffer)?;
        required(handles)?;
        required(memory)?;
        let on_sink = wanted & flags::SINK_MEMORY != 0;
        if !matches!(kind, BUFFER_NORMAL | BUFFER_OPENCL) || (on_sink && kind != BUFFER_NORMAL) {
            return Err(Code::NotSupported.into());
        }
        if on_sink && (count > 1 || wanted & flags::HUGE_PAGE_SIZE != 0) {
            return Err(Code::ArgumentMismatch.into());
        }
        let host = host()?;
        // SAFETY: by the interface's contract.
        let processes = unsafe { processes(host, size, wanted, count, handles) }?;
        let bytes = usize::try_from(size).map_err(|_| Code::OutOfRange)?;
        let memory = if on_sink {
            Memory::Sink(memory as u64)
        } else {
            // SAFETY: by the interface's contract it stays until the buffer is destroyed.
            Memory::Host(unsafe { Lent::new(memory.cast(), bytes) })
        };
        let made = Buffer::new(size, kind == BUFFER_NORMAL, memory, &processes)?;
        let handle = host.buffers.add(made);
        // SAFETY: by the interface's contract.
        unsafe { put(buffer, handle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn COIBufferDestroy(buffer: u64) -> i32 {
    guarded("COIBufferDestroy", || {
        let host = host()?;
        host.buffers.get(buffer)?.close()?;
        host.buffers.remove(buffer)?.release()
    })
}

/// Begins an operation on one buffer.
///
/// # Safety
/// The events and the place for one are valid.
pub(super) unsafe fn on_buffer(
    host: &Host,
    buffer: &Arc<Buffer>,
    writes: bool,
    (count, events): (u32, *const CoiEvent),
    completion: *mut CoiEvent,
    body: Body,
) -> Result<()> {
    // SAFETY: by the caller's promise.
    unsafe {
        let named = named(host, count, events)?;
        let completion = Completion::parse(completion);
        let order = |done: &Arc<Event>| buffer.enter(done, writes);
        operate(host, named, completion, order, body)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferMap(
    buffer: u64,
    offset: u64,
    length: u64,
    kind: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
    instance: *mut u64,
    data: *mut *mut c_void,
) -> i32 {
    guarded("COIBufferMap", || {
        required(instance)?;
        required(data)?;
        let host = host()?;
        let buffer = host.buffers.get(buffer)?;
        let kind = MapKind::parse(kind)?;
        // No length: the whole buffer.
        let length = match (offset, length) {
            (0, 0) => buffer.size,
            (_, length) => length,
        };
        buffer.check(offset, length)?;
        if kind == MapKind::WriteEntire && length != buffer.size {
            return Err(Code::OutOfRange.into());
        }
        let end = offset + length;
        let mapped = buffer.clone();
        let body = Box::new(move || {
            if kind != MapKind::WriteEntire {
                mapped.bring(HOST_PLACE, offset, end)?;
            }
            if kind != MapKind::ReadOnly {
                mapped.written(HOST_PLACE, offset, end);
            }
            Ok(())
        });
        let address = buffer.host().part(offset, length)?.address();
        buffer.map();
        let map = Arc::new(MapInstance {
            buffer: buffer.clone(),
        });
        let handle = host.maps.add(map);
        let writes = kind != MapKind::ReadOnly;
        // SAFETY: by the interface's contract.
        let begun = unsafe { on_buffer(host, &buffer, writes, (count, events), completion, body) };
        if let Err(failure) = begun {
            let _ = host.maps.remove(handle);
            buffer.unmap();
            return Err(failure);
        }
        // SAFETY: by the interface's contract.
        unsafe {
            put(instance, handle);
            put(data, address.cast());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferUnmap(
    instance: u64,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIBufferUnmap", || {
        let host = host()?;
        // SAFETY: by the interface's contract.
        let named = unsafe { named(host, count, events) }?;
        let buffer = host.maps.remove(instance)?.buffer.clone();
        let mapped = buffer.clone();
        let body = Box::new(move || {
            mapped.unmap();
            Ok(())
        });
        let completion = Completion::parse(completion);
        let order = |done: &Arc<Event>| buffer.enter(done, false);
        // SAFETY: by the interface's contract.
        unsafe { operate(host, named, completion, order, body) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferGetSinkAddress(buffer: u64, address: *mut u64) -> i32 {
    guarded("COIBufferGetSinkAddress", || {
        required(address)?;
        let found = host()?.buffers.get(buffer)?.address(1)?;
        // SAFETY: by the interface's contract.
        unsafe { put(address, found) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferGetSinkAddressEx(
    process: u64,
    buffer: u64,
    address: *mut u64,
) -> i32 {
    guarded("COIBufferGetSinkAddressEx", || {
        required(address)?;
        let host = host()?;
        host.processes.get(process)?;
        let buffer = host.buffers.get(buffer)?;
        let found = buffer.address(buffer.place_of(process)?)?;
        // SAFETY: by the interface's contract.
        unsafe { put(address, found) };
        Ok(())
    })
}

/// The place that a process's handle stands for; nothing for a null handle.
pub(super) fn place(buffer: &Buffer, process: u64) -> Result<Option<usize>> {
    match process {
        0 => Ok(None),
        PROCESS_SOURCE => Ok(Some(HOST_PLACE)),
        process => buffer.place_of(process).map(Some),
    }
}

/// Before a write that the whole buffer moves with; and where it is afterwards.
pub(super) fn move_entire(buffer: &Buffer, place: Option<usize>, entire: bool) -> Result<()> {
    if let (Some(place), true) = (place, entire) {
        buffer.bring(place, 0, buffer.size)?;
        buffer.written(place, 0, buffer.size);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferWriteEx(
    buffer: u64,
    process: u64,
    offset: u64,
    source: *const c_void,
    length: u64,
    copy: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIBufferWrite", || {
        required(source)?;
        let host = host()?;
        let buffer = host.buffers.get(buffer)?;
        let entire = moves_entire(copy)?;
        buffer.check(offset, length)?;
        let place = place(&buffer, process)?;
        let bytes = usize::try_from(length).map_err(|_| Code::OutOfRange)?;
        // SAFETY: by the interface's contract it stays until the completion.
        let from = unsafe { Lent::new(source.cast_mut().cast(), bytes) };
        let target = buffer.clone();
        let body = Box::new(move || {
            move_entire(&target, place, entire)?;
            target.write(place, offset, from)
        });
        // SAFETY: by the interface's contract.
        unsafe { on_buffer(host, &buffer, true, (count, events), completion, body) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferWrite(
    buffer: u64,
    offset: u64,
    source: *const c_void,
    length: u64,
    copy: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    // SAFETY: by the interface's contract.
    unsafe {
        COIBufferWriteEx(
            buffer, 0, offset, source, length, copy, count, events, completion,
        )
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferRead(
    buffer: u64,
    offset: u64,
    target: *mut c_void,
    length: u64,
    copy: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIBufferRead", || {
        required(target)?;
        let host = host()?;
        let buffer = host.buffers.get(buffer)?;
        moves_entire(copy)?;
        buffer.check(offset, length)?;
        let bytes = usize::try_from(length).map_err(|_| Code::OutOfRange)?;
        // SAFETY: by the interface's contract it stays until the completion.
        let to = unsafe { Lent::new(target.cast(), bytes) };
        let source = buffer.clone();
        let body = Box::new(move || source.read(offset, to));
        // SAFETY: by the interface's contract.
        unsafe { on_buffer(host, &buffer, false, (count, events), completion, body) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferCopyEx(
    target: u64,
    process: u64,
    source: u64,
    target_offset: u64,
    source_offset: u64,
    length: u64,
    copy: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIBufferCopy", || {
        let host = host()?;
        let (target, source) = (host.buffers.get(target)?, host.buffers.get(source)?);
        let entire = moves_entire(copy)?;
        // No length: all that fits.
        let length = match length {
            0 => (target.size.saturating_sub(target_offset))
                .min(source.size.saturating_sub(source_offset)),
            length => length,
        };
        target.check(target_offset, length)?;
        source.check(source_offset, length)?;
        let overlap = target_offset.abs_diff(source_offset) < length;
        if Arc::ptr_eq(&target, &source) && overlap {
            return Err(Code::MemoryOverlap.into());
        }
        let place = place(&target, process)?;
        let (to, from) = (target.clone(), source.clone());
        let body = Box::new(move || {
            move_entire(&to, place, entire)?;
            to.copy_from(place, target_offset, &from, source_offset, length)
        });
        // SAFETY: by the interface's contract.
        unsafe {
            let named = named(host, count, events)?;
            let order = |done: &Arc<Event>| {
                let mut before = target.enter(done, true)?;
                before.extend(source.enter(done, false)?);
                Ok(before)
            };
            operate(host, named, Completion::parse(completion), order, body)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferCopy(
    target: u64,
    source: u64,
    target_offset: u64,
    source_offset: u64,
    length: u64,
    copy: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    // SAFETY: by the interface's contract.
    unsafe {
        COIBufferCopyEx(
            target,
            0,
            source,
            target_offset,
            source_offset,
            length,
            copy,
            count,
            events,
            completion,
        )
    }
}

/// States of a buffer.
const VALID: i32 = 0;
const INVALID: i32 = 1;
const VALID_MAY_DROP: i32 = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIBufferSetState(
    buffer: u64,
    process: u64,
    state: i32,
    no_move: i32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIBufferSetState", || {
        let host = host()?;
        let buffer = host.buffers.get(buffer)?;
        if !matches!(state, VALID..=VALID_MAY_DROP) || !matches!(no_move, 0 | 1) {
            return Err(Code::OutOfRange.into());
        }
        let moves = no_move == 0;
        let one = match process {
            SINK_OWNERS => None,
            process => Some(place(&buffer, process)?.ok_or(Code::InvalidHandle)?),
        };
        let set = buffer.clone();
        let body = Box::new(move || {
            let places = one.map_or_else(|| set.owners(), |place| vec![place]);
            let mut places = places.into_iter();
            places.try_for_each(|place| set_state(&set, place, state, moves))
        });
        // SAFETY: by the interface's contract.
        unsafe { on_buffer(host, &buffer, true, (count, events), completion, body) }
    })
}

fn set_state(buffer: &Buffer, place: usize, state: i32, moves: bool) -> Result<()> {
    match state {
        INVALID => {
            // What is valid nowhere else goes to the host.
            if moves && place != HOST_PLACE && !buffer.is_elsewhere(place) {
                buffer.bring(HOST_PLACE, 0, buffer.size)?;
            }
            buffer.set_valid(place, false);
        }
        // A second copy needs a first one.
        VALID_MAY_DROP if !buffer.is_elsewhere(place) => {}
        _ if moves => buffer.bring(place, 0, buffer.size)?,
        _ => buffer.set_valid(place, true),
    }
    Ok(())
}
