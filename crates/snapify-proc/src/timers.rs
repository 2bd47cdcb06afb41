//! Timers.

use crate::capture::CaptureContext;
use crate::error::ProcError;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use serde::{Deserialize, Serialize};

/// Timers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TimersImage {}

/// Describes them.
///
/// # Errors
/// If the process dies.
pub fn capture(_tracee: &mut Tracee<'_>, _ctx: &CaptureContext<'_>) -> Result<TimersImage, ProcError> {
    Ok(TimersImage {})
}

/// Restores them.
///
/// # Errors
/// If the kernel refuses.
pub fn restore(_tracee: &mut Tracee<'_>, _image: &TimersImage, _ctx: &mut RestoreContext<'_>) -> Result<(), ProcError> {
    Ok(())
}
