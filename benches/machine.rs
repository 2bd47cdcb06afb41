//! The machine's limits: what a checkpoint and a restart are measured against.

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fdatasync, open};
use rustix::io::{pwrite, write};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const MIB: usize = 1 << 20;

/// Page-aligned memory.
pub struct Buffer {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is plain bytes, owned by the value.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Fresh memory, not yet touched.
    pub fn fresh(bytes: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .context("map memory")?;
        Ok(Self {
            start: start.cast(),
            bytes,
        })
    }

    /// Memory full of incompressible bytes.
    pub fn random(bytes: usize) -> Result<Self> {
        let mut buffer = Self::fresh(bytes)?;
        let mut state = 1u64;
        for chunk in buffer.as_mut().chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_ne_bytes());
        }
        Ok(buffer)
    }

    pub fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as the value; nothing writes to it while shared.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    pub fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives the value.
        unsafe {
            let _ = munmap(self.start.cast(), self.bytes);
        }
    }
}

/// Seconds that it takes to write `data` to a new file in `dir`, plainly and in order, until it is stable.
///
/// On a disk this is `O_DIRECT` with eight requests of 1 MiB in flight on a preallocated file, the fastest that the
/// facts about such disks name; where the file system refuses `O_DIRECT`, one `write` after the other.
pub fn plain_write(dir: &Path, data: &Buffer) -> Result<f64> {
    let path = dir.join("plain");
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
    let begin = Instant::now();
    let direct = open(&path, flags | OFlags::DIRECT, Mode::from_raw_mode(0o600));
    // tmpfs takes the flag since Linux 6.6, but has no device that requests could queue for.
    let in_memory = rustix::fs::statfs(dir).is_ok_and(|fs| fs.f_type == 0x0102_1994);
    match direct {
        Ok(file) if !in_memory => {
            fallocate(&file, FallocateFlags::empty(), 0, data.bytes as u64)
                .context("preallocate")?;
            let next = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| -> Result<()> {
                            loop {
                                let at = next.fetch_add(MIB, Ordering::Relaxed);
                                let Some(piece) = data.as_ref().get(at..(at + MIB).min(data.bytes))
                                else {
                                    return Ok(());
                                };
                                if piece.is_empty() {
                                    return Ok(());
                                }
                                pwrite(&file, piece, at as u64).context("write directly")?;
                            }
                        })
                    })
                    .collect();
                writers
                    .into_iter()
                    .try_for_each(|writer| writer.join().expect("a writer does not panic"))
            })?;
            fdatasync(&file).context("sync")?;
        }
        _ => {
            let file = open(&path, flags, Mode::from_raw_mode(0o600)).context("create a file")?;
            for piece in data.as_ref().chunks(MIB) {
                let mut rest = piece;
                while !rest.is_empty() {
                    rest = &rest[write(&file, rest).context("write")?..];
                }
            }
            fdatasync(&file).context("sync")?;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(seconds)
}

/// Seconds that it takes to fill `bytes` of fresh memory from a hot buffer.
pub fn fill(bytes: usize) -> Result<f64> {
    let source = Buffer::random(MIB / 4)?;
    let mut fresh = Buffer::fresh(bytes)?;
    let begin = Instant::now();
    for piece in fresh.as_mut().chunks_mut(MIB / 4) {
        piece.copy_from_slice(&source.as_ref()[..piece.len()]);
    }
    Ok(begin.elapsed().as_secs_f64())
}
