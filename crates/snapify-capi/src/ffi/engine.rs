//! Engines, and functions that belong to nothing.

use super::{guarded, put, required};
use crate::abi::{DEVICE_MAX, DEVICE_MIC, DEVICE_SOURCE, EngineInfo};
use crate::error::{self, Code, Failure, Result};
use crate::host::{Host, host};
use std::ffi::c_char;

/// Handles of engines: this, and the card's number.
const ENGINE: u64 = 7 << 40;

/// The handle of a card.
pub fn engine_of(card: u32) -> u64 {
    ENGINE | (u64::from(card) + 1) << 4
}

/// The card of a handle.
pub fn card_of(host: &Host, engine: u64) -> Result<u32> {
    let cards = host.cards()?;
    let found = (0..cards).find(|&card| engine_of(card) == engine);
    found.ok_or_else(|| Code::InvalidHandle.into())
}

fn count(host: &Host, kind: i32) -> Result<u32> {
    match kind {
        DEVICE_MIC => host.cards(),
        // Of other kinds there are none; this machine is no engine.
        DEVICE_SOURCE..DEVICE_MAX => Ok(0),
        _ => Err(Code::DoesNotExist.into()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIEngineGetCount(kind: i32, out: *mut u32) -> i32 {
    guarded("COIEngineGetCount", || {
        required(out)?;
        let count = count(host()?, kind)?;
        // SAFETY: by the interface's contract.
        unsafe { put(out, count) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIEngineGetHandle(kind: i32, index: u32, engine: *mut u64) -> i32 {
    guarded("COIEngineGetHandle", || {
        required(engine)?;
        let count = count(host()?, kind)?;
        if index >= count {
            let text = format!("there is no card {index}: this program has {count}");
            return Err(Failure::new(Code::OutOfRange, text));
        }
        // SAFETY: by the interface's contract.
        unsafe { put(engine, engine_of(index)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIEngineGetInfo(engine: u64, size: u32, info: *mut EngineInfo) -> i32 {
    guarded("COIEngineGetInfo", || {
        required(info)?;
        let host = host()?;
        let card = card_of(host, engine)?;
        if size as usize != size_of::<EngineInfo>() {
            return Err(Code::SizeMismatch.into());
        }
        let memory = host.runtime()?.card_memory(card).unwrap_or(0);
        let processes = host.processes.all().into_iter();
        let used: u64 = processes
            .filter(|(_, process)| process.offload.card() == card)
            .map(|(_, process)| process.offload.store_bytes())
            .sum();
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        let mut told = EngineInfo {
            driver_version: [0; 255],
            isa: DEVICE_MIC,
            cores: threads,
            misc_flags: 2,
            threads,
            frequency: 0,
            load: [0; 1024],
            memory,
            memory_free: memory.saturating_sub(used),
            swap: 0,
            swap_free: 0,
            vendor: 0,
            device: 0,
            subsystem: 0,
            stepping: 0,
            sku: 0,
        };
        let version = concat!("snapify ", env!("CARGO_PKG_VERSION"));
        for (to, from) in told.driver_version.iter_mut().zip(version.chars()) {
            *to = u32::from(from).cast_signed();
        }
        // SAFETY: by the interface's contract.
        unsafe { put(info, told) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn COIResultGetName(result: i32) -> *const c_char {
    error::name(result).as_ptr()
}

/// Nanoseconds: the processors' own counters do not go on where they were after a restart elsewhere.
#[unsafe(no_mangle)]
pub extern "C" fn COIPerfGetCycleCounter() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[unsafe(no_mangle)]
pub extern "C" fn COIPerfGetCycleFrequency() -> u64 {
    1_000_000_000
}
