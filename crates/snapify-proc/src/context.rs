//! Working directory, limits and more.

use crate::capture::CaptureContext;
use crate::error::ProcError;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use serde::{Deserialize, Serialize};

/// Working directory, limits and more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ContextImage {}

/// Describes them.
///
/// # Errors
/// If the process dies.
pub fn capture(_tracee: &mut Tracee<'_>, _ctx: &CaptureContext<'_>) -> Result<ContextImage, ProcError> {
    Ok(ContextImage {})
}

/// Restores them.
///
/// # Errors
/// If the kernel refuses.
pub fn restore(_tracee: &mut Tracee<'_>, _image: &ContextImage, _ctx: &mut RestoreContext<'_>) -> Result<(), ProcError> {
    Ok(())
}

/// The last remote calls of a restore: what takes privileges away (capabilities in every thread, no_new_privs) or would be in the
/// way of the calls before (resource limits). Affinity, scheduling, names and timer slack of threads are the threads' own.
///
/// # Errors
/// If the kernel refuses.
pub fn restore_last(
    _tracee: &mut Tracee<'_>,
    _image: &ContextImage,
    _ctx: &mut RestoreContext<'_>,
) -> Result<(), ProcError> {
    Ok(())
}
