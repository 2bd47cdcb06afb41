//! A queued signal in an image.

use crate::image::hex::HexBytes;
use serde::{Deserialize, Serialize};
use snapify_sys::ptrace::{RawSiginfo, SIGINFO_BYTES};

/// A queued signal: the kernel's `siginfo_t` as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiginfoImage {
    /// Its number, for people; the one in `info` counts.
    pub signal: i32,
    /// The whole structure.
    pub info: HexBytes,
}

impl SiginfoImage {
    /// Takes what the kernel told.
    #[must_use]
    pub fn new(info: &RawSiginfo) -> Self {
        Self {
            signal: crate::ptrace::signal_number(info),
            info: HexBytes(info.to_vec()),
        }
    }

    /// The structure for the kernel; `None` if it has another size or no valid signal number.
    #[must_use]
    pub fn raw(&self) -> Option<RawSiginfo> {
        let raw: RawSiginfo = self.info.0.as_slice().try_into().ok()?;
        (1..=64)
            .contains(&crate::ptrace::signal_number(&raw))
            .then_some(raw)
    }
}

const _: () = assert!(SIGINFO_BYTES == 128);
