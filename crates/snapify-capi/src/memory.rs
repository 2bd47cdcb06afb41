//! Memory of the program that is used after the call that named it, and memory of buffers on the host.

use crate::error::{Code, Failure, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bytes of the program: it has promised to leave them alone, and there, until an operation is over.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the program has promised that nobody else uses the bytes; any thread may.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// Bytes at an address.
    ///
    /// # Safety
    /// They must stay valid, for writes if they are written to, until the operation that they are lent for is over.
    pub unsafe fn new(address: *mut u8, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// A part of it, checked.
    pub fn part(self, offset: u64, bytes: u64) -> Result<Self> {
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.bytes as u64) {
            return Err(Code::OutOfRange.into());
        }
        Ok(Self {
            address: self.address.wrapping_add(offset as usize),
            bytes: bytes as usize,
        })
    }

    /// Its address.
    pub fn address(self) -> *mut u8 {
        self.address
    }

    /// How many bytes there are.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Copies from it to as many other bytes; they may overlap.
    pub fn copy_to(self, to: Self) {
        let bytes = self.bytes.min(to.bytes);
        // SAFETY: both are valid for so many bytes, as their makers have promised.
        unsafe { std::ptr::copy(self.address, to.address, bytes) };
    }

    /// Fills it from the start with what there is.
    pub fn fill(self, from: &[u8]) {
        let bytes = self.bytes.min(from.len());
        // SAFETY: valid for so many bytes, as its maker has promised.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.address, bytes) };
    }
}

/// Whole pages of zeros, which take memory only when they are touched.
#[derive(Debug)]
pub struct Pages(Lent);

impl Pages {
    /// So many bytes, rounded up to pages.
    pub fn new(bytes: u64) -> Result<Self> {
        let no_memory = || {
            let text = format!("there is no memory for a buffer of {bytes} bytes");
            Failure::new(Code::OutOfMemory, text)
        };
        let rounded = bytes.checked_next_multiple_of(4096);
        let length = rounded.and_then(|bytes| usize::try_from(bytes).ok());
        let length = length.ok_or_else(no_memory)?;
        // SAFETY: new memory, at a place that the kernel chooses.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let address = address.map_err(|_| no_memory())?;
        Ok(Self(Lent {
            address: address.cast(),
            bytes: length,
        }))
    }

    /// All of it.
    pub fn lend(&self) -> Lent {
        self.0
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: made by `new`; what was lent of it belongs to operations of the buffer, which are over.
        let _ = unsafe { munmap(self.0.address.cast(), self.0.bytes) };
    }
}

/// Copies bytes of the program into a process.
pub fn write(process: &snapify_offload::host::Process, to: u64, from: Lent) -> Result<()> {
    // SAFETY: valid, as its maker has promised.
    Ok(unsafe { process.write(to, from.address, from.bytes) }?)
}

/// Copies bytes of a process into the program.
pub fn read(process: &snapify_offload::host::Process, to: Lent, from: u64) -> Result<()> {
    // SAFETY: valid for writes, as its maker has promised.
    Ok(unsafe { process.read(to.address, from, to.bytes) }?)
}
