//! Memory that direct I/O takes: page-aligned, reused from block to block.

use crate::types::PAGE;
use std::ops::{Deref, DerefMut};

/// A fixed number of bytes that begin at a multiple of the page size.
pub(crate) struct AlignedBuf {
    backing: Vec<u8>,
    begin: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zero bytes. Memory that is never touched costs nothing.
    pub(crate) fn new(len: usize) -> Self {
        // One page more than asked for, so that an aligned part of `len` bytes exists. The vector is never
        // resized, so its memory stays where it is.
        let backing = vec![0u8; len + PAGE];
        let begin = backing.as_ptr().align_offset(PAGE);
        Self {
            backing,
            begin,
            len,
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.backing[self.begin..self.begin + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.backing[self.begin..self.begin + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_and_of_the_length_asked_for() {
        for len in [0, 1, PAGE, 5 * PAGE] {
            let buf = AlignedBuf::new(len);
            assert_eq!(buf.as_ptr().addr() % PAGE, 0);
            assert_eq!(buf.len(), len);
        }
    }
}
