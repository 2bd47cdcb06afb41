//! Signal dispositions and shared pending signals.

use crate::capture::CaptureContext;
use crate::error::ProcError;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use serde::{Deserialize, Serialize};

/// Signal dispositions and shared pending signals.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SignalImage {}

/// Describes them.
///
/// # Errors
/// If the process dies.
pub fn capture(_tracee: &mut Tracee<'_>, _ctx: &CaptureContext<'_>) -> Result<SignalImage, ProcError> {
    Ok(SignalImage {})
}

/// Restores them.
///
/// # Errors
/// If the kernel refuses.
pub fn restore(_tracee: &mut Tracee<'_>, _image: &SignalImage, _ctx: &mut RestoreContext<'_>) -> Result<(), ProcError> {
    Ok(())
}
