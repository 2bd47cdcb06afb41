//! The bytes of a page file, versions 1 and 2 (`docs/format.md`).
//!
//! ```text
//! 0            4096                                  index                               end-128      end
//! | header     | block | block | ... (page aligned)  | blocks | runs | hashes | padding  | trailer    |
//! ```
//!
//! Everything is little-endian. Nothing here trusts a byte: whatever is decoded has been checked, and no
//! memory is set aside for a count before the file is known to hold as much.

pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod summary;
pub(crate) mod trailer;

/// The newest version of the page-file format. A file that uses nothing of it is written as version 1.
pub(crate) const VERSION: u32 = 2;

/// Most bytes that a block written by this version holds before encoding.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

/// Most bytes of a block that is taken from a file: bounds the memory a reader needs.
pub(crate) const MAX_BLOCK_BYTES: u32 = 16 << 20;

/// Puts little-endian fields one after another into a buffer of fixed size.
pub(crate) struct Fields<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn raw(mut self, value: &[u8]) -> Self {
        self.bytes[self.at..self.at + value.len()].copy_from_slice(value);
        self.at += value.len();
        self
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }
}

/// The little-endian number at `at`, which the caller knows to lie inside `bytes`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

/// The little-endian number at `at`, which the caller knows to lie inside `bytes`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}
