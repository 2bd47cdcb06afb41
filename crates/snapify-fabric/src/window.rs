//! Windows: memory that several processes map, for one-sided transfers.
//!
//! A window is a sparse file without a name on a RAM-backed file system. Room in it is set aside before it
//! is touched, so that a full file system is an error of [`SharedFile::reserve`] and not a `SIGBUS` later.
#![allow(unsafe_code)]

use crate::futex::{self, Scope};
use crate::moves::Moves;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

/// Room is set aside in steps of this many bytes: a signal interrupts fallocate(2), which on tmpfs then gives
/// back all that the call had done.
const RESERVE_STEP: u64 = 64 << 20;

/// An operation on a window failed.
#[derive(thiserror::Error, Debug)]
pub enum WindowError {
    /// The file could not be made.
    #[error("cannot make a window of {bytes} bytes in {}: {source}", dir.display())]
    Create {
        /// Where.
        dir: PathBuf,
        /// How large.
        bytes: u64,
        /// Why not.
        source: io::Error,
    },
    /// The file system of the window (the card's memory) is full.
    #[error("no room for {bytes} more bytes in the window")]
    NoSpace {
        /// What was asked for.
        bytes: u64,
    },
    /// Another call failed.
    #[error("cannot {operation} {bytes} bytes of a window: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// How much.
        bytes: u64,
        /// Why not.
        source: io::Error,
    },
    /// A range that leaves the window.
    #[error("{bytes} bytes at offset {offset:#x} leave the window")]
    OutOfBounds {
        /// Start.
        offset: u64,
        /// Length.
        bytes: u64,
    },
}

/// The file behind a window.
#[derive(Debug)]
pub struct SharedFile {
    file: OwnedFd,
    bytes: u64,
}

impl SharedFile {
    /// Makes a sparse file of `bytes` bytes, without a name, on the file system of `dir`.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn create_in(dir: &Path, bytes: u64) -> Result<Self, WindowError> {
        let failed = |errno: Errno| WindowError::Create {
            dir: dir.to_owned(),
            bytes,
            source: errno.into(),
        };
        let file = rustix::fs::open(
            dir,
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
        .map_err(failed)?;
        rustix::fs::ftruncate(&file, bytes).map_err(failed)?;
        Ok(Self { file, bytes })
    }

    /// Makes a sparse file of `bytes` bytes in memory of this process alone (memfd_create(2)).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn create_private(bytes: u64) -> Result<Self, WindowError> {
        let failed = io_error("make a private window of", bytes);
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("snapify-window", flags).map_err(&failed)?;
        rustix::fs::ftruncate(&file, bytes).map_err(&failed)?;
        Ok(Self { file, bytes })
    }

    /// Takes over a window's file that came from elsewhere.
    ///
    /// # Errors
    /// If its size cannot be learned.
    pub fn from_fd(file: OwnedFd) -> Result<Self, WindowError> {
        let stat = rustix::fs::fstat(&file).map_err(io_error("look at", 0))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(Self { file, bytes })
    }

    /// Its size in bytes, holes included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory that it takes.
    ///
    /// # Errors
    /// If fstat(2) fails.
    pub fn allocated(&self) -> Result<u64, WindowError> {
        let stat = rustix::fs::fstat(&self.file).map_err(io_error("look at", 0))?;
        // st_blocks counts units of 512 bytes whatever the file system's block size.
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
    }

    /// Sets memory aside for a range; what is there already stays. On failure part of it may be set aside.
    ///
    /// # Errors
    /// [`WindowError::NoSpace`] if the file system is full.
    pub fn reserve(&self, offset: u64, bytes: u64) -> Result<(), WindowError> {
        self.check(offset, bytes)?;
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let step = RESERVE_STEP.min(end - at);
            match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, at, step) {
                Ok(()) => at += step,
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC) => return Err(WindowError::NoSpace { bytes }),
                Err(errno) => return Err(io_error("set aside", bytes)(errno)),
            }
        }
        Ok(())
    }

    /// Gives the memory of a range back; it reads as zeros afterwards.
    ///
    /// # Errors
    /// If the file system cannot punch holes.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), WindowError> {
        self.check(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.file, flags, offset, bytes) {
                Err(Errno::INTR) => {}
                other => return other.map_err(io_error("give back", bytes)),
            }
        }
    }

    /// Maps the whole file, at `address` if one is given (which must be free), else anywhere.
    ///
    /// # Errors
    /// If the address is taken, or address space is short.
    pub fn map(&self, address: Option<u64>) -> Result<Mapping, WindowError> {
        let failed = io_error("map", self.bytes);
        let bytes = usize::try_from(self.bytes).map_err(|_| failed(Errno::NOMEM))?;
        let (at, flags) = match address {
            Some(at) => (at as *mut _, MapFlags::FIXED_NOREPLACE),
            None => (std::ptr::null_mut(), MapFlags::empty()),
        };
        // SAFETY: a new mapping that replaces none: without an address the kernel finds a free place, with
        // one it refuses a place that is taken.
        let base = unsafe {
            rustix::mm::mmap(
                at,
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE | flags,
                &self.file,
                0,
            )
        }
        .map_err(&failed)?;
        let mapping = Mapping {
            base: base.cast(),
            bytes,
            moves: Moves::default(),
        };
        if address.is_some_and(|at| at != mapping.address()) {
            // A kernel before 4.17 takes FIXED_NOREPLACE for a hint.
            return Err(failed(Errno::EXIST));
        }
        Ok(mapping)
    }

    /// Gives the file up, though others may still use this object: its descriptor leads to `/dev/null` from now on.
    ///
    /// # Errors
    /// If `/dev/null` cannot be opened; the file stays then.
    pub fn sever(&self) -> Result<(), WindowError> {
        let failed = io_error("sever", self.bytes);
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(&failed)?;
        self.lead_to(null.as_fd())
    }

    /// Makes the descriptor lead to another file, though others may still use this object. Its number stays.
    ///
    /// # Errors
    /// If dup3(2) fails; the file stays then.
    pub fn lead_to(&self, other: BorrowedFd<'_>) -> Result<(), WindowError> {
        // SAFETY: dup3(2) onto a descriptor that this object owns, and that stays open.
        let done = unsafe { libc::dup3(other.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
        if done < 0 {
            let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::BADF);
            Err(io_error("redirect", self.bytes)(errno))
        } else {
            Ok(())
        }
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), WindowError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(WindowError::OutOfBounds { offset, bytes }),
        }
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<SharedFile> for OwnedFd {
    fn from(shared: SharedFile) -> Self {
        shared.file
    }
}

/// A window in this process's address space; unmapped when dropped.
///
/// Other processes, and other threads of this one, read and write the same memory at any time. Reading and
/// writing here therefore copies bytes and never makes references to them; who needs order uses
/// [`atomic`](Self::atomic) words.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
    moves: Moves,
}

// SAFETY: the pointer is to shared memory that is only accessed by copying bytes and through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Where it starts.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// How long it is, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Pointer to a range of the window, checked to lie within.
    ///
    /// # Errors
    /// [`WindowError::OutOfBounds`].
    #[inline]
    pub fn range(&self, offset: u64, bytes: u64) -> Result<*mut u8, WindowError> {
        match offset.checked_add(bytes) {
            // SAFETY: `offset` is at most the mapping's length.
            Some(end) if end <= self.bytes as u64 => Ok(unsafe { self.base.add(offset as usize) }),
            _ => Err(WindowError::OutOfBounds { offset, bytes }),
        }
    }

    /// Writes bytes into the window.
    ///
    /// # Errors
    /// [`WindowError::OutOfBounds`].
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), WindowError> {
        let to = self.range(offset, from.len() as u64)?;
        // SAFETY: `to` is valid for as many bytes; a slice of this process's own memory does not overlap it.
        unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Reads bytes from the window.
    ///
    /// # Errors
    /// [`WindowError::OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), WindowError> {
        let from = self.range(offset, to.len() as u64)?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// A word of the window.
    ///
    /// # Errors
    /// [`WindowError::OutOfBounds`], also for an offset that is no multiple of 4.
    #[inline]
    pub fn atomic(&self, offset: u64) -> Result<&AtomicU32, WindowError> {
        if !offset.is_multiple_of(4) {
            return Err(WindowError::OutOfBounds { offset, bytes: 4 });
        }
        let word = self.range(offset, 4)?;
        // SAFETY: aligned (the mapping starts at a page), inside the mapping, which lives as long as `self`, and
        // never accessed other than atomically while it is used as a word.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// Sleeps while `word`, one of this window's, holds `expected`, until somebody wakes it. May return early.
    pub(crate) fn sleep(&self, word: &AtomicU32, expected: u32) {
        self.moves.sleep(word, expected);
    }

    /// Shows another file from now on, in the same place. Where that is shorter, the rest cannot be accessed.
    ///
    /// Other threads may go on reading and writing all the while; who of them sleeps on one of the [`words`](Self::atomic)
    /// at `words` finds itself on the new file. `old` is a mapping of the file that was shown so far. One replacement at a
    /// time.
    ///
    /// # Errors
    /// If the kernel is out of memory; the window may then show the new file in part.
    pub fn show(&self, file: &SharedFile, old: &Mapping, words: &[u64]) -> Result<(), WindowError> {
        let shown = self
            .bytes
            .min(usize::try_from(file.bytes).unwrap_or(self.bytes));
        let failed = io_error("replace", self.bytes as u64);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: both calls together replace exactly this mapping; all access is by copying bytes and through atomics,
        // to which the change is one of content, and what becomes inaccessible is not accessed by the caller's promise.
        // A page fault in between waits until the mapping is there again.
        unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
            rustix::mm::mmap(self.base.cast(), shown, access, flags, &file.file, 0)
                .map_err(&failed)?;
            if shown < self.bytes {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                let rest = self.base.add(shown).cast();
                rustix::mm::mmap_anonymous(rest, self.bytes - shown, ProtFlags::empty(), flags)
                    .map_err(&failed)?;
            }
        }
        self.moves.rouse(|| {
            // Who has counted itself in may have found either file.
            for window in [self, old] {
                for word in words.iter().filter_map(|word| window.atomic(*word).ok()) {
                    futex::wake_all(word, Scope::Shared);
                }
            }
        });
        Ok(())
    }

    /// Replaces the memory by memory of this process alone, in the same place, because the window's peer is gone for
    /// good: the first `keep` bytes (whole pages) by zeros, the rest by nothing that could be accessed.
    ///
    /// # Errors
    /// If the kernel is out of memory; the window stays then, at least in part.
    pub fn sever(&self, keep: u64) -> Result<(), WindowError> {
        let keep = self.bytes.min(usize::try_from(keep).unwrap_or(self.bytes));
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let failed = io_error("sever", self.bytes as u64);
        // SAFETY: both calls together replace exactly this mapping; all access is by copying bytes and through atomics,
        // to which the change is one of content, and what becomes inaccessible is not accessed by the caller's promise.
        unsafe {
            if keep > 0 {
                let access = ProtFlags::READ | ProtFlags::WRITE;
                rustix::mm::mmap_anonymous(self.base.cast(), keep, access, flags)
                    .map_err(&failed)?;
            }
            if keep < self.bytes {
                // No access, so that it does not count as memory that might be needed.
                let rest = self.base.add(keep).cast();
                rustix::mm::mmap_anonymous(rest, self.bytes - keep, ProtFlags::empty(), flags)
                    .map_err(&failed)?;
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

fn io_error(operation: &'static str, bytes: u64) -> impl Fn(Errno) -> WindowError {
    move |errno| WindowError::Io {
        operation,
        bytes,
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_show_the_same_memory() {
        let file = SharedFile::create_in(Path::new("/dev/shm"), 1 << 20).unwrap();
        let a = file.map(None).unwrap();
        let b = SharedFile::from_fd(file.as_fd().try_clone_to_owned().unwrap())
            .unwrap()
            .map(Some(0x3000_0000_0000))
            .unwrap();
        assert_eq!(b.address(), 0x3000_0000_0000);
        assert!(file.map(Some(0x3000_0000_0000)).is_err());
        a.write(4090, b"across a page").unwrap();
        let mut got = [0; 13];
        b.read(4090, &mut got).unwrap();
        assert_eq!(&got, b"across a page");
        a.atomic(64).unwrap().store(7, Ordering::SeqCst);
        assert_eq!(b.atomic(64).unwrap().load(Ordering::SeqCst), 7);
        file.discard(4096, 4096).unwrap();
        b.read(4090, &mut got).unwrap();
        assert_eq!(&got, b"across\0\0\0\0\0\0\0");
        a.sever(8192).unwrap();
        file.sever().unwrap();
        a.read(4090, &mut got).unwrap();
        assert_eq!(got, [0; 13]);
    }

    #[test]
    fn nothing_leaves_the_window() {
        let file = SharedFile::create_in(Path::new("/dev/shm"), 8192).unwrap();
        let map = file.map(None).unwrap();
        assert!(map.write(8190, b"abc").is_err());
        assert!(map.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(map.range(8192, 0).is_ok());
        assert!(map.atomic(2).is_err() && map.atomic(8192).is_err());
        assert!(file.reserve(4096, 8192).is_err());
        assert!(file.discard(u64::MAX, 1).is_err());
    }

    #[test]
    fn room_is_counted_and_given_back() {
        let file = SharedFile::create_in(Path::new("/dev/shm"), 1 << 30).unwrap();
        assert_eq!(file.allocated().unwrap(), 0);
        file.reserve(1 << 20, 130 << 20).unwrap();
        assert_eq!(file.allocated().unwrap(), 130 << 20);
        file.discard(1 << 20, 100 << 20).unwrap();
        assert_eq!(file.allocated().unwrap(), 30 << 20);
    }
}
