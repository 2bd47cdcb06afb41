//! The machine's limits: what a checkpoint and a restart are measured against.

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fdatasync, open};
use rustix::io::{pread, pwrite};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::path::Path;
use std::sync::Mutex;
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

// SAFETY: as above; memory belongs to no thread.
unsafe impl Send for Buffer {}

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

/// Seconds that it takes to write `data` to a new file in `dir`, plainly and in order, until it is stable, and seconds
/// that it takes to read it again into warm memory.
///
/// On a disk both are `O_DIRECT` with eight requests of 1 MiB in flight, the writing on a preallocated file: the
/// fastest that the facts about such disks name. Where the file system refuses `O_DIRECT`, one request after the other.
pub fn plain_write_and_read(dir: &Path, data: &Buffer) -> Result<(f64, f64)> {
    let path = dir.join("plain");
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC;
    let begin = Instant::now();
    // tmpfs takes the flag since Linux 6.6, but has no device that requests could queue for.
    let in_memory = rustix::fs::statfs(dir).is_ok_and(|fs| fs.f_type == 0x0102_1994);
    let mode = Mode::from_raw_mode(0o600);
    let direct = open(&path, flags | OFlags::DIRECT, mode).ok();
    let (file, depth) = match direct.filter(|_| !in_memory) {
        Some(file) => {
            fallocate(&file, FallocateFlags::empty(), 0, data.bytes as u64)
                .context("preallocate")?;
            (file, 8)
        }
        None => (open(&path, flags, mode).context("create a file")?, 1),
    };
    in_pieces(data.bytes, depth, |at| {
        let end = (at + MIB).min(data.bytes);
        pwrite(&file, &data.as_ref()[at..end], at as u64)
            .map(drop)
            .context("write")
    })?;
    fdatasync(&file).context("sync")?;
    let write = begin.elapsed().as_secs_f64();

    let mut targets: Vec<Mutex<Buffer>> = Vec::new();
    for _ in 0..depth {
        targets.push(Mutex::new(Buffer::random(MIB)?));
    }
    let begin = Instant::now();
    in_pieces(data.bytes, depth, |at| {
        let mut target = targets.iter().find_map(|target| target.try_lock().ok());
        let target = target.as_mut().context("a buffer for each reader")?;
        pread(&file, target.as_mut(), at as u64)
            .map(drop)
            .context("read")
    })?;
    let read = begin.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok((write, read))
}

/// Calls `request` for each MiB of `bytes`, `depth` of them at a time.
fn in_pieces(
    bytes: usize,
    depth: usize,
    request: impl Fn(usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let at = next.fetch_add(MIB, Ordering::Relaxed);
                if at >= bytes {
                    return Ok(());
                }
                request(at)?;
            }
        };
        let workers: Vec<_> = (0..depth).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

/// Whether so many bytes of memory can be taken without taking them from others (`MemAvailable`, proc(5)).
pub fn has_room(bytes: u64) -> Result<bool> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kilobytes: u64 = number.context("the memory that is left")?.parse()?;
    Ok(bytes <= kilobytes << 10)
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

/// Seconds for a copy of `data` into fresh memory.
pub fn copy(data: &Buffer) -> Result<f64> {
    warm(data.bytes)?;
    let mut fresh = Buffer::fresh(data.bytes)?;
    let begin = Instant::now();
    fresh.as_mut().copy_from_slice(data.as_ref());
    Ok(begin.elapsed().as_secs_f64())
}

/// Touches as much memory, in huge pages if there are any, and frees it again. What takes memory next gets this. A virtual machine
/// may have given memory that was free for seconds back to its host, and gets it again page by page, several times as slowly:
/// that is not what is to be measured, and would hit now the one side of a comparison and now the other.
pub fn warm(bytes: usize) -> Result<()> {
    let mut fresh = Buffer::fresh(bytes.next_multiple_of(2 << 20))?;
    // SAFETY: advice about pages that this value owns does not change what is in them.
    unsafe {
        // A kernel without huge pages has none to warm.
        let _ = madvise(fresh.start.cast(), fresh.bytes, Advice::LinuxHugepage);
    }
    for page in fresh.as_mut().chunks_mut(4096) {
        page[0] = 1;
    }
    Ok(())
}
