//! The exported functions: raw pointers in, numbers out.
//!
//! By the interface's contract pointers that are not null are valid for what they are for. Calls come from any thread. No panic
//! may leave this module: it would unwind into C.
#![allow(non_snake_case, reason = "names of the interface")]

mod buffer;
mod engine;
mod event;
mod pipeline;
mod process;
mod section;
mod snapshot;

use crate::abi::{CoiEvent, EVENT_ASYNC, EVENT_SYNC};
use crate::error::{Code, Failure, Result, note};
use crate::event::{Event, Known};
use crate::host::{Host, note_fork};
use crate::work::{Body, Dependencies, perform};
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

/// Runs the body of a function: its failure becomes the code that is returned and the text that is noted.
fn guarded(function: &str, body: impl FnOnce() -> Result<()>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        // What panicked has said where.
        Err(Failure::new(Code::Error, "internal error"))
    });
    match result {
        Ok(()) => Code::Success as i32,
        Err(Failure { code, text }) => {
            let name = crate::error::name(code as i32).to_string_lossy();
            let text = if text.is_empty() {
                format!("{function}: {name}")
            } else {
                format!("{function}: {text} ({name})")
            };
            // Never from within the thread's own text.
            let _ = catch_unwind(|| note(&text));
            code as i32
        }
    }
}

extern "C" fn in_child_of_fork() {
    note_fork();
}

/// Learns of forks from now on.
pub fn watch_forks() {
    // SAFETY: the handler only stores to an atomic, which a child of a process with threads may do. This library is never
    // unloaded (build.rs).
    unsafe { libc::pthread_atfork(None, None, Some(in_child_of_fork)) };
}

/// A text, if the pointer is not null. What is no UTF-8 is replaced.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: by the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text).to_string_lossy().into_owned() })
}

/// The elements of an array.
///
/// # Safety
/// `array` is null or valid for `count` elements for as long as the call lasts.
unsafe fn slice<'a, T>(array: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if array.is_null() {
        return Err(Code::InvalidPointer.into());
    }
    // SAFETY: by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(array, count) })
}

/// The elements of an array that must be there if, and only if, it has any.
///
/// # Safety
/// As for [`slice`].
unsafe fn matching<'a, T>(array: *const T, count: usize) -> Result<&'a [T]> {
    if array.is_null() != (count == 0) {
        return Err(Code::ArgumentMismatch.into());
    }
    // SAFETY: by the caller's promise.
    unsafe { slice(array, count) }
}

/// Makes sure that a pointer is not null.
fn required<T>(pointer: *const T) -> Result<()> {
    if pointer.is_null() {
        Err(Code::InvalidPointer.into())
    } else {
        Ok(())
    }
}

/// Stores a value, unless the pointer is null.
///
/// # Safety
/// `place` is null or valid for a write.
unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: by the caller's promise.
        unsafe { place.write(value) };
    }
}

/// How the end of an operation is told.
#[derive(Clone, Copy)]
enum Completion {
    /// The call returns then.
    Wait,
    /// Not at all.
    Nobody,
    /// By an event, whose handle goes here.
    Event(*mut CoiEvent),
}

impl Completion {
    fn parse(place: *mut CoiEvent) -> Self {
        match place as usize {
            0 | EVENT_SYNC => Self::Wait,
            EVENT_ASYNC => Self::Nobody,
            _ => Self::Event(place),
        }
    }

    fn waits(self) -> bool {
        matches!(self, Self::Wait)
    }

    /// Hands out the handle of an event, if one is wanted.
    ///
    /// # Safety
    /// The place, if there is one, is valid.
    unsafe fn tell(self, host: &Host, done: &Arc<Event>) {
        if let Self::Event(place) = self {
            let handle = host.events.publish(done);
            // SAFETY: by the caller's promise.
            unsafe { place.write(handle) };
        }
    }
}

/// The events that an operation waits for.
///
/// # Safety
/// As for [`slice`].
unsafe fn named(host: &Host, count: u32, events: *const CoiEvent) -> Result<Vec<Known>> {
    // SAFETY: by the caller's promise.
    let events = unsafe { matching(events, count as usize) }?;
    events
        .iter()
        .map(|event| host.events.find(*event))
        .collect()
}

/// Has an operation done, now or later. `order` gives it its place among others and tells which come before.
///
/// # Safety
/// The place in `completion` is valid.
unsafe fn operate(
    host: &Host,
    named: Vec<Known>,
    completion: Completion,
    order: impl FnOnce(&Arc<Event>) -> Result<Vec<Arc<Event>>>,
    body: Body,
) -> Result<()> {
    let done = Event::new();
    let ordering = host.ordering.lock().unwrap_or_else(PoisonError::into_inner);
    let implied = order(&done).inspect_err(|failure| {
        // Others may be behind it already.
        done.fire(Err(failure.code));
    })?;
    drop(ordering);
    let dependencies = Dependencies { named, implied };
    // SAFETY: by the caller's promise.
    unsafe { completion.tell(host, &done) };
    if completion.waits() {
        return perform(&dependencies, &done, body);
    }
    let later = (host.workers).perform_later(dependencies, done.clone(), body);
    later.inspect_err(|failure| {
        done.fire(Err(failure.code));
    })
}
