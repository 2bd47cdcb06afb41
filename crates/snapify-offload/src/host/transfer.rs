//! Transfers between host memory and device memory.
//!
//! Device memory in the local store (buffers, and globals of device images) is copied by the calling thread alone: one
//! copy, no message. Any other address of the offload process is reached through the bounce area and a command.
//!
//! Long transfers go in pieces; between two pieces a pause may come in (paper 1, section 4.1, case 2).
#![allow(unsafe_code)]

use super::{Process, Result};
use crate::layout::{BOUNCE, BOUNCE_BYTES, BUFFERS, STORE_BASE, STORE_BYTES};
use crate::wire::command;
use snapify_fabric::Gate;
use std::sync::PoisonError;

/// Longest piece of a transfer: some milliseconds.
const PIECE: usize = 16 << 20;

impl Process {
    /// Copies `bytes` from host memory to any address of the offload process.
    ///
    /// # Errors
    /// If the range is not memory of the offload process, or it died.
    ///
    /// # Safety
    /// `from` must be valid for reads of `bytes` bytes.
    pub unsafe fn write(&self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return self.status();
        }
        match self.offset_of(to, bytes as u64, "write")? {
            // SAFETY: valid by the caller's promise; offsets come from `offset_of`.
            Some(offset) => unsafe {
                self.in_pieces(bytes, |at, piece| {
                    std::ptr::copy_nonoverlapping(from.add(at), self.place(offset, at), piece);
                })
            },
            // SAFETY: a null pointer aside, valid by the caller's promise.
            None => self.write_elsewhere(to, unsafe { std::slice::from_raw_parts(from, bytes) }),
        }
    }

    /// Copies `bytes` from any address of the offload process to host memory.
    ///
    /// # Errors
    /// If the range is not memory of the offload process, or it died.
    ///
    /// # Safety
    /// `to` must be valid for writes of `bytes` bytes.
    pub unsafe fn read(&self, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return self.status();
        }
        match self.offset_of(from, bytes as u64, "read")? {
            // SAFETY: valid by the caller's promise; offsets come from `offset_of`.
            Some(offset) => unsafe {
                self.in_pieces(bytes, |at, piece| {
                    std::ptr::copy_nonoverlapping(self.place(offset, at), to.add(at), piece);
                })
            },
            None => self.read_elsewhere(from, bytes, |at, piece| {
                // SAFETY: `at` and the piece lie within the `bytes` bytes.
                unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to.add(at), piece.len()) };
                Ok(())
            }),
        }
    }

    /// Copies `bytes` at `from` in this process to `to` in `target` (which may be this process, or one of another
    /// card). Ranges may overlap.
    ///
    /// # Errors
    /// If a range is not memory of its process, or one of them died.
    pub fn copy_to(&self, target: &Process, to: u64, from: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return self.status().and_then(|()| target.status());
        }
        let source = self.offset_of(from, bytes as u64, "copy from")?;
        let destination = target.offset_of(to, bytes as u64, "copy to")?;
        match (source, destination) {
            (Some(source), Some(destination)) => {
                self.copy_stores(target, destination, source, bytes)
            }
            (Some(source), None) => {
                let mut piece = vec![0; BOUNCE_BYTES as usize];
                let mut at = 0;
                while at < bytes {
                    let count = piece.len().min(bytes - at);
                    self.copy_out(source + at as u64, &mut piece[..count])?;
                    target.write_elsewhere(to + at as u64, &piece[..count])?;
                    at += count;
                }
                Ok(())
            }
            (None, Some(destination)) => self.read_elsewhere(from, bytes, |at, piece| {
                target.copy_in(destination + at as u64, piece)
            }),
            (None, None) => self.read_elsewhere(from, bytes, |at, piece| {
                target.write_elsewhere(to + at as u64, piece)
            }),
        }
    }

    /// Copies between two stores, or within one.
    fn copy_stores(&self, target: &Process, to: u64, from: u64, bytes: usize) -> Result<()> {
        let same = std::ptr::eq(self, target);
        // Backwards when the destination is behind the source in the same store: a piece must not be overwritten
        // before it was read.
        let backwards = same && to > from;
        let mut done = 0;
        while done < bytes {
            let piece = PIECE.min(bytes - done);
            let at = if backwards {
                bytes - done - piece
            } else {
                done
            };
            // In the order of ids, which is the order in which a pause closes gates.
            let (first, second) = if self.id() <= target.id() {
                (self, target)
            } else {
                (target, self)
            };
            let _both = if same {
                (first.gate.enter(), None)
            } else {
                let (first, second) = Gate::enter_both(&first.gate, &second.gate);
                (first, Some(second))
            };
            self.status()?;
            target.status()?;
            // SAFETY: both ranges were checked to lie in their stores; `copy` allows overlap.
            unsafe { std::ptr::copy(self.place(from, at), target.place(to, at), piece) };
            done += piece;
        }
        Ok(())
    }

    /// Copies bytes into the store.
    pub(super) fn copy_in(&self, offset: u64, from: &[u8]) -> Result<()> {
        // SAFETY: a slice is valid for its length; the place is checked by the callers.
        unsafe {
            self.in_pieces(from.len(), |at, piece| {
                std::ptr::copy_nonoverlapping(from.as_ptr().add(at), self.place(offset, at), piece);
            })
        }
    }

    /// Copies bytes out of the store.
    pub(super) fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        // SAFETY: as in `copy_in`.
        unsafe {
            self.in_pieces(to.len(), |at, piece| {
                std::ptr::copy_nonoverlapping(
                    self.place(offset, at),
                    to.as_mut_ptr().add(at),
                    piece,
                );
            })
        }
    }

    /// Calls `copy` for each piece, inside the gate.
    fn in_pieces(&self, bytes: usize, mut copy: impl FnMut(usize, usize)) -> Result<()> {
        let mut at = 0;
        while at < bytes {
            let piece = PIECE.min(bytes - at);
            let _inside = self.gate.enter();
            self.status()?;
            copy(at, piece);
            at += piece;
        }
        Ok(())
    }

    /// Pointer to a place in the store that was checked before.
    fn place(&self, offset: u64, at: usize) -> *mut u8 {
        (self.store.address() + offset + at as u64) as *mut u8
    }

    /// Offset in the store of a range of device memory, if it lies there.
    fn offset_of(&self, address: u64, bytes: u64, operation: &'static str) -> Result<Option<u64>> {
        let offset = address.wrapping_sub(STORE_BASE);
        if offset < STORE_BYTES {
            let inside = offset >= BUFFERS && self.buffers().covers(offset, bytes);
            return if inside {
                Ok(Some(offset))
            } else {
                Err(self.bad_address(operation, address, bytes, "no buffer holds that range"))
            };
        }
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let holds = segments.iter().find(|segment| {
            let into = address.wrapping_sub(segment.address);
            into < segment.bytes && bytes <= segment.bytes - into
        });
        Ok(holds.map(|segment| segment.offset + (address - segment.address)))
    }

    /// Writes to memory outside the store, through the bounce area.
    fn write_elsewhere(&self, to: u64, from: &[u8]) -> Result<()> {
        for (index, piece) in from.chunks(BOUNCE_BYTES as usize).enumerate() {
            let address = to.wrapping_add(index as u64 * BOUNCE_BYTES);
            let _bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
            self.copy_in(BOUNCE, piece)?;
            self.bounce(address, piece.len(), true)?;
        }
        Ok(())
    }

    /// Reads from memory outside the store, through the bounce area, and gives each piece with its place to `sink`.
    fn read_elsewhere(
        &self,
        from: u64,
        bytes: usize,
        mut sink: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut piece = vec![0; bytes.min(BOUNCE_BYTES as usize)];
        let mut at = 0;
        while at < bytes {
            let count = piece.len().min(bytes - at);
            {
                let _bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
                self.bounce(from.wrapping_add(at as u64), count, false)?;
                self.copy_out(BOUNCE, &mut piece[..count])?;
            }
            // Not with the bounce area held: the sink may want another process's, whose user may want this one's.
            sink(at, &piece[..count])?;
            at += count;
        }
        Ok(())
    }

    /// Has the process copy between the bounce area and any of its memory.
    fn bounce(&self, address: u64, bytes: usize, inward: bool) -> Result<()> {
        let words = [address, bytes as u64, u64::from(inward)];
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let verb = if inward { "write" } else { "read" };
        let operation = || format!("{verb} {bytes} bytes at {address:#x}");
        self.command(command::COPY, 0, &payload, 1024, &operation)
            .map(|_| ())
    }
}
