//! Signals that are read (signalfd(2)). The signals themselves are pending for process or thread;
//! this is only the set of those that can be read here.

use super::survey::{Found, Recognized, Seen};
use super::{Object, has_flag};
use crate::error::ProcError;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// A descriptor that signals are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalFd {
    /// The signals that can be read (bit n-1 is signal n).
    pub signals: u64,
}

pub(crate) fn recognize(seen: &Seen) -> Recognized {
    let is_signals = seen.link.as_bytes() == b"anon_inode:[signalfd]";
    let signals = seen.info.signalfd_mask.filter(|_| is_signals)?;
    Some(Ok(Found::Whole(Object::SignalFd(SignalFd { signals }))))
}

impl SignalFd {
    /// Makes a descriptor for these signals: whoever reads it reads those pending for himself.
    ///
    /// # Errors
    /// Those of signalfd4(2).
    pub(crate) fn make(&self, flags: u32) -> Result<OwnedFd, ProcError> {
        let nonblocking = has_flag(flags, libc::O_NONBLOCK);
        snapify_sys::fd::signalfd(self.signals, nonblocking)
            .map_err(ProcError::system("making a signalfd"))
    }
}
