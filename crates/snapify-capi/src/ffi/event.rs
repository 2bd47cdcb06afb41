//! Events.

use super::{guarded, put, required, slice};
use crate::abi::CoiEvent;
use crate::error::{Code, Failure};
use crate::event::{Known, wait_until};
use crate::host::host;
use std::ffi::c_void;
use std::time::Duration;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIEventWait(
    count: u16,
    events: *const CoiEvent,
    timeout: i32,
    all: u8,
    signalled: *mut u32,
    indices: *mut u32,
) -> i32 {
    guarded("COIEventWait", || {
        let most = match timeout {
            -1 => None,
            0.. => Some(Duration::from_millis(timeout.unsigned_abs().into())),
            _ => return Err(Code::OutOfRange.into()),
        };
        if count == 0 {
            return Err(Code::OutOfRange.into());
        }
        let all = all != 0;
        let needed = count > 1 && !all;
        if signalled.is_null() != indices.is_null() || (needed && signalled.is_null()) {
            return Err(Code::ArgumentMismatch.into());
        }
        // SAFETY: by the interface's contract.
        let handles = unsafe { slice(events, usize::from(count)) }?;
        let host = host()?;
        let known = handles.iter().map(|handle| host.events.find(*handle));
        let known: Vec<Known> = known.collect::<Result<_, _>>()?;
        let pending: Vec<_> = known
            .iter()
            .filter_map(|known| match known {
                Known::Event(event) => Some(event.clone()),
                Known::Signalled(_) => None,
            })
            .collect();
        let over = |known: &Known| known.outcome().is_some();
        let enough = || {
            if all {
                known.iter().all(over)
            } else {
                known.iter().any(over)
            }
        };
        let came = wait_until(&pending, most, |_| enough().then_some(())).is_some();
        let mut found = 0;
        let mut failed = None;
        for (index, known) in (0..).zip(&known) {
            if let Some(outcome) = known.outcome() {
                if !indices.is_null() {
                    // SAFETY: by the interface's contract there is room for as many as there are events.
                    unsafe { put(indices.add(found), index) };
                }
                found += 1;
                failed = failed.or(outcome.err());
            }
        }
        // SAFETY: by the interface's contract.
        unsafe { put(signalled, found as u32) };
        match failed {
            Some(code) => Err(Failure::new(code, "what was waited for has failed")),
            None if !came => Err(Code::TimeOutReached.into()),
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIEventRegisterUserEvent(event: *mut CoiEvent) -> i32 {
    guarded("COIEventRegisterUserEvent", || {
        required(event)?;
        let handle = host()?.events.register();
        // SAFETY: by the interface's contract.
        unsafe { put(event, handle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn COIEventUnregisterUserEvent(event: CoiEvent) -> i32 {
    guarded("COIEventUnregisterUserEvent", || {
        host()?.events.unregister(event)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn COIEventSignalUserEvent(event: CoiEvent) -> i32 {
    guarded("COIEventSignalUserEvent", || {
        host()?.events.user(event)?.fire(Ok(()));
        Ok(())
    })
}

/// A function of the program that is called when an event is signalled.
type CallbackFunction = unsafe extern "C" fn(CoiEvent, i32, *const c_void);

/// What the program wants to be given with the call.
struct UserData(*const c_void);

// SAFETY: it is only passed on; by the interface's contract any thread may call the function with it.
unsafe impl Send for UserData {}

impl UserData {
    fn get(&self) -> *const c_void {
        self.0
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIEventRegisterCallback(
    event: CoiEvent,
    callback: Option<CallbackFunction>,
    user: *const c_void,
    flags: u64,
) -> i32 {
    guarded("COIEventRegisterCallback", || {
        let callback = callback.ok_or(Code::InvalidPointer)?;
        if flags != 0 {
            return Err(Code::ArgumentMismatch.into());
        }
        let user = UserData(user);
        let call = move |outcome: Result<(), Code>| {
            let result = outcome.err().unwrap_or(Code::Success);
            // SAFETY: by the interface's contract the function may be called so.
            unsafe { callback(event, result as i32, user.get()) };
        };
        match host()?.events.find(event)? {
            Known::Event(event) => event.on_fire(Box::new(call)),
            Known::Signalled(outcome) => call(outcome),
        }
        Ok(())
    })
}
