//! `libcoi_device.so.0`: the sink side of COI, for programs that a host process starts on a card by
//! `COIProcessCreateFromFile` and its kin.
//!
//! It attaches the program to its card while the dynamic loader starts it, before its `main`. In a program that was not
//! started by a card's daemon all functions return `COI_NOT_INITIALIZED`.
//!
//! `include/coi/coi_sink.h` tells what the functions do.

use snapify_offload::sink::{Attached, attach};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// Results of `COIRESULT` that occur here.
mod result {
    pub const SUCCESS: i32 = 0;
    pub const ERROR: i32 = 1;
    pub const NOT_INITIALIZED: i32 = 2;
    pub const DOES_NOT_EXIST: i32 = 5;
    pub const INVALID_POINTER: i32 = 6;
    pub const OUT_OF_RANGE: i32 = 7;
    pub const INVALID_HANDLE: i32 = 14;
    pub const MISSING_DEPENDENCY: i32 = 19;
    pub const UNDEFINED_SYMBOL: i32 = 20;
    pub const INVALID_FILE: i32 = 24;
}

/// An event of the host process (`COIEVENT`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    opaque: [u64; 2],
}

static ATTACHED: OnceLock<Option<Attached>> = OnceLock::new();

/// The dynamic loader calls it before `main`.
// SAFETY: an array of functions that the loader calls with the program's arguments, which this one does not use.
#[unsafe(link_section = ".init_array")]
#[used]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let attached = catch_unwind(attach).unwrap_or_else(|_| Err("it panicked".into()));
    let attached = attached.unwrap_or_else(|why| {
        eprintln!("libcoi_device: this program cannot serve its host process: {why}");
        // Nobody would ever hear of it.
        std::process::exit(1)
    });
    let _ = ATTACHED.set(attached);
}

/// Does something with the connection to the card. No panic leaves this library.
fn attached(body: impl FnOnce(&Attached) -> i32) -> i32 {
    let Some(attached) = ATTACHED.get().and_then(Option::as_ref) else {
        return result::NOT_INITIALIZED;
    };
    catch_unwind(AssertUnwindSafe(|| body(attached))).unwrap_or(result::ERROR)
}

/// Lets run functions run.
#[unsafe(no_mangle)]
pub extern "C" fn COIPipelineStartExecutingRunFunctions() -> i32 {
    attached(|attached| {
        attached.start_executing();
        result::SUCCESS
    })
}

/// Waits until the host process destroys this one.
#[unsafe(no_mangle)]
pub extern "C" fn COIProcessWaitForShutdown() -> i32 {
    attached(|attached| {
        attached.wait_for_shutdown();
        result::SUCCESS
    })
}

/// Sends out what has been printed.
#[unsafe(no_mangle)]
pub extern "C" fn COIProcessProxyFlush() -> i32 {
    // SAFETY: flushes all streams of the C library, which lock themselves.
    if unsafe { libc::fflush(std::ptr::null_mut()) } == 0 {
        result::SUCCESS
    } else {
        result::ERROR
    }
}

/// Loads a library that lies on the card.
///
/// # Safety
/// `file` is null or a C string, `library` null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessLoadSinkLibraryFromFile(
    file: *const c_char,
    _name: *const c_char,
    _search_path: *const c_char,
    flags: u32,
    library: *mut u64,
) -> i32 {
    attached(|attached| {
        if file.is_null() || library.is_null() {
            return result::INVALID_POINTER;
        }
        // SAFETY: a C string, by the caller's promise.
        let file = unsafe { CStr::from_ptr(file) };
        let Ok(flags) = c_int::try_from(flags) else {
            return result::OUT_OF_RANGE;
        };
        match attached.load_library(file, flags) {
            Ok(number) => {
                // SAFETY: a place for it, by the caller's promise. 0 is no handle.
                unsafe { library.write(u64::from(number) + 1) };
                result::SUCCESS
            }
            Err(why) => refusal(&file.to_string_lossy(), &why),
        }
    })
}

/// Why the dynamic loader refuses a library, by its words (dlerror(3) has nothing else).
fn refusal(file: &str, why: &str) -> i32 {
    if why.contains("undefined symbol") {
        result::UNDEFINED_SYMBOL
    } else if why.contains("cannot open shared object file") {
        if why.starts_with(file) {
            result::DOES_NOT_EXIST
        } else {
            result::MISSING_DEPENDENCY
        }
    } else {
        result::INVALID_FILE
    }
}

/// Keeps the memory of a buffer, even if the host process destroys the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn COIBufferAddRef(buffer: *mut c_void) -> i32 {
    attached(|attached| {
        if attached.refer(buffer as u64) {
            result::SUCCESS
        } else {
            result::INVALID_HANDLE
        }
    })
}

/// Takes one `COIBufferAddRef` back.
#[unsafe(no_mangle)]
pub extern "C" fn COIBufferReleaseRef(buffer: *mut c_void) -> i32 {
    attached(|attached| {
        if attached.release(buffer as u64) {
            result::SUCCESS
        } else {
            result::INVALID_HANDLE
        }
    })
}

/// Signals a user event of the host process.
#[unsafe(no_mangle)]
pub extern "C" fn COIEventSignalUserEvent(event: Event) -> i32 {
    attached(|attached| match attached.signal(event.opaque) {
        Ok(()) => result::SUCCESS,
        Err(_) => result::ERROR,
    })
}
