//! `snapify.h`.

use super::text;
use crate::error::{last, note};
use crate::snapshot::{self, Refusal, Result, Status};
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// A snapshot of an offload process (`snapify_t`).
#[repr(C)]
pub struct Snapshot {
    path: *mut c_char,
    semaphore: libc::sem_t,
    process: u64,
}

/// What a snapshot is of and where its files are.
struct Subject {
    process: u64,
    path: PathBuf,
}

/// Runs the body of a function: its failure becomes the number that is returned and the text that is noted.
fn guarded(function: &str, body: impl FnOnce() -> Result<()>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(body))
        // What panicked has said where.
        .unwrap_or_else(|_| Err(Refusal::new(Status::Failed, "internal error")));
    match result {
        Ok(()) => Status::Success as i32,
        Err(Refusal { status, text }) => {
            let _ = catch_unwind(|| note(&format!("{function}: {text}")));
            status as i32
        }
    }
}

/// Reads a snapshot's structure.
///
/// # Safety
/// `snapshot` is null or valid; its path is null or a C string.
unsafe fn subject(snapshot: *const Snapshot) -> Result<Subject> {
    let refused = |text: &str| Refusal::new(Status::InvalidArgument, text);
    if snapshot.is_null() {
        return Err(refused("the snapshot is a null pointer"));
    }
    // SAFETY: by the caller's promise; the semaphore, which others may use, is left alone.
    let (path, process) = unsafe { (text((*snapshot).path), (*snapshot).process) };
    let path = path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| refused("the snapshot has no path"))?;
    Ok(Subject {
        process,
        path: path.into(),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn snapify_pause(snapshot: *mut Snapshot) -> i32 {
    guarded("snapify_pause", || {
        // SAFETY: by the interface's contract.
        let subject = unsafe { subject(snapshot) }?;
        snapshot::pause(subject.process, &subject.path)
    })
}

/// The caller's semaphore.
struct Semaphore(*mut libc::sem_t);

// SAFETY: semaphores are for any thread; by the interface's contract it stays until the capture is complete.
unsafe impl Send for Semaphore {}

impl Semaphore {
    fn post(&self) {
        // SAFETY: initialized before the capture began, and there until it is complete.
        unsafe { libc::sem_post(self.0) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn snapify_capture(snapshot: *mut Snapshot, terminate: bool) -> i32 {
    guarded("snapify_capture", || {
        // SAFETY: by the interface's contract.
        let subject = unsafe { subject(snapshot) }?;
        // SAFETY: by the interface's contract.
        let semaphore = Semaphore(unsafe { &raw mut (*snapshot).semaphore });
        let post = Box::new(move || semaphore.post());
        let prepare = || {
            // SAFETY: the structure's own; of an earlier capture nobody may be waiting for it any more.
            unsafe { libc::sem_init(&raw mut (*snapshot).semaphore, 0, 0) };
        };
        let key = snapshot as usize;
        snapshot::capture(
            subject.process,
            key,
            &subject.path,
            terminate,
            prepare,
            post,
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn snapify_wait(snapshot: *mut Snapshot) -> i32 {
    guarded("snapify_wait", || {
        // SAFETY: by the interface's contract.
        unsafe { subject(snapshot) }?;
        let waited = snapshot::wait(snapshot as usize);
        if !matches!(&waited, Err(refusal) if refusal.status == Status::OutOfTurn) {
            // SAFETY: initialized by the capture. The program may have waited for it itself.
            unsafe { libc::sem_trywait(&raw mut (*snapshot).semaphore) };
        }
        waited
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn snapify_resume(snapshot: *mut Snapshot) -> i32 {
    guarded("snapify_resume", || {
        // SAFETY: by the interface's contract.
        let subject = unsafe { subject(snapshot) }?;
        snapshot::resume(subject.process)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn snapify_restore(snapshot: *mut Snapshot, device: i32) -> i32 {
    guarded("snapify_restore", || {
        // SAFETY: by the interface's contract.
        let subject = unsafe { subject(snapshot) }?;
        snapshot::restore(subject.process, &subject.path, device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn snapify_device(process: u64) -> i32 {
    let mut card = -1;
    guarded("snapify_device", || {
        card = snapshot::device(process)?;
        Ok(())
    });
    card
}

#[unsafe(no_mangle)]
pub extern "C" fn snapify_error() -> *const c_char {
    last()
}

#[unsafe(no_mangle)]
pub extern "C" fn snapify_result_name(result: i32) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"SNAPIFY_SUCCESS",
        c"SNAPIFY_INVALID_ARGUMENT",
        c"SNAPIFY_INVALID_PROCESS",
        c"SNAPIFY_OUT_OF_TURN",
        c"SNAPIFY_NO_SUCH_CARD",
        c"SNAPIFY_FILE_ERROR",
        c"SNAPIFY_PROCESS_DIED",
        c"SNAPIFY_FAILED",
    ];
    let name = usize::try_from(result).ok().and_then(|at| NAMES.get(at));
    name.copied().unwrap_or(c"(no snapify_result)").as_ptr()
}
