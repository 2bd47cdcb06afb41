//! Rates of writing and reading a page file, beside what the place itself allows.
//!
//! ```text
//! cargo run --release -p snapify-store --example write_rate -- [MIB] [ROUNDS] [DIR ...]
//! ```
//!
//! Writes MIB mebibytes of incompressible memory (1024) to every DIR (`/dev/shm` and the current directory) in
//! turns: as a plain sequential write in pieces of 1 MiB, and as a page file; then reads the page file into
//! memory that nobody has touched. All times include fdatasync. Rounds alternate, and medians are compared, since
//! a shared machine's rates drift.
//!
//! The source copies as a read of another process's memory does, so the page file carries that pass too,
//! which the plain write does not.

use snapify_store::{PAGE_SIZE, PageFile, PageRange, PageSink, PageSource, SpaceId, write_pages};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const O_DIRECT: i32 = 0o40000;

/// Memory that is saved.
struct Memory<'a>(&'a [u8]);

impl PageSource for Memory<'_> {
    fn read(&self, _: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = start as usize;
        buf.copy_from_slice(&self.0[start..start + buf.len()]);
        Ok(())
    }
}

/// Memory that is filled, a mebibyte to a lock.
struct Fresh<'a>(Vec<Mutex<&'a mut [u8]>>);

impl<'a> Fresh<'a> {
    fn new(memory: &'a mut [u8]) -> Self {
        Self(memory.chunks_mut(MIB).map(Mutex::new).collect())
    }
}

impl PageSink for Fresh<'_> {
    fn write(&self, _: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        let mut at = start as usize;
        let mut data = data;
        while !data.is_empty() {
            let part = data.len().min(MIB - at % MIB);
            let mut chunk = self.0[at / MIB].lock().unwrap_or_else(|p| p.into_inner());
            chunk[at % MIB..at % MIB + part].copy_from_slice(&data[..part]);
            at += part;
            data = &data[part..];
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mib: usize = args.next().map_or(Ok(1024), |a| a.parse())?;
    let rounds: usize = args.next().map_or(Ok(5), |a| a.parse())?;
    let mut dirs: Vec<PathBuf> = args.map(PathBuf::from).collect();
    if dirs.is_empty() {
        dirs = vec!["/dev/shm".into(), ".".into()];
    }
    // Aligned, for the baseline that writes from it past the page cache.
    let backing = random(mib * MIB + PAGE_SIZE as usize);
    let begin = backing.as_ptr().align_offset(PAGE_SIZE as usize);
    let memory = &backing[begin..begin + mib * MIB];
    for dir in dirs {
        compare(&dir, memory, rounds)?;
    }
    Ok(())
}

fn compare(dir: &Path, memory: &[u8], rounds: usize) -> Result<(), Box<dyn Error>> {
    let path = dir.join(format!("write_rate.{}", std::process::id()));
    let result = measure(&path, memory, rounds);
    let _ = std::fs::remove_file(&path);
    let [plain, queue, page, hot, fill, read] = result?;
    let gib = memory.len() as f64 / (1u64 << 30) as f64;
    let rate = |time: Duration| gib / time.as_secs_f64();
    println!("{}: {gib} GiB, medians of {rounds} rounds", dir.display());
    println!(
        "  plain sequential write          {:6.2} GiB/s",
        rate(plain)
    );
    println!(
        "  O_DIRECT, 8 writes in flight    {:6.2} GiB/s",
        rate(queue)
    );
    println!(
        "  page file                       {:6.2} GiB/s   {:.0} % of plain, {:.0} % of O_DIRECT",
        rate(page),
        100.0 * rate(page) / rate(plain),
        100.0 * rate(page) / rate(queue),
    );
    println!("  fresh memory from a hot buffer  {:6.2} GiB/s", rate(hot));
    println!("  O_DIRECT, 8 reads in flight     {:6.2} GiB/s", rate(read));
    println!(
        "  fresh memory from the page file {:6.2} GiB/s   {:.0} % of hot, {:.0} % of O_DIRECT",
        rate(fill),
        100.0 * rate(fill) / rate(hot),
        100.0 * rate(fill) / rate(read),
    );
    Ok(())
}

fn measure(path: &Path, memory: &[u8], rounds: usize) -> Result<[Duration; 6], Box<dyn Error>> {
    let ranges = [PageRange {
        space: SpaceId(0),
        start: 0,
        bytes: memory.len() as u64,
    }];
    let mut times: [Vec<Duration>; 6] = Default::default();
    for round in 0..=rounds {
        // Each takes each place in the order in turn: what one leaves behind burdens the next.
        for place in 0..3 {
            let which = (round + place) % 3;
            // Removing the file before, and its page cache, is not part of writing this one.
            remove(path)?;
            times[which].push(match which {
                0 => timed(|| plain(path, memory))?,
                1 => timed(|| queue(path, memory))?,
                _ => timed(|| {
                    write_pages(create(path, 0)?, "page file", &ranges, &Memory(memory), &())
                        .map(drop)
                        .map_err(io::Error::other)
                })?,
            });
        }
        // What is read is always a page file that has just been written.
        remove(path)?;
        write_pages(create(path, 0)?, "page file", &ranges, &Memory(memory), &())?;
        // Large enough that the allocator maps it anew each time: nobody has touched it.
        let mut untouched = vec![0; memory.len()];
        let fresh = Fresh::new(&mut untouched);
        times[3].push(timed(|| hot(&fresh, memory))?);
        drop(untouched);
        let mut untouched = vec![0; memory.len()];
        let fresh = Fresh::new(&mut untouched);
        times[4].push(timed(|| {
            PageFile::open(File::open(path)?, path.to_owned())
                .and_then(|pages| pages.fill(&fresh, &()))
                .map_err(io::Error::other)
        })?);
        drop(untouched);
        times[5].push(timed(|| read_queue(path, memory.len()))?);
    }
    Ok(times.map(|mut of| {
        // The first round only warms the machine up.
        of.remove(0);
        of.sort();
        of[of.len() / 2]
    }))
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed())
}

/// Removes the file of the turn before, and waits until the disk has nothing more to do for it.
fn remove(path: &Path) -> io::Result<()> {
    if path.exists() {
        std::fs::remove_file(path)?;
    }
    let dir = path.parent().unwrap_or(Path::new("."));
    rustix::fs::syncfs(File::open(dir)?)?;
    Ok(())
}

/// A new file each time, as a snapshot is.
fn create(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(flags)
        .open(path)
}

fn plain(path: &Path, memory: &[u8]) -> io::Result<()> {
    let mut file = create(path, 0)?;
    for part in memory.chunks(MIB) {
        file.write_all(part)?;
    }
    file.sync_data()
}

fn queue(path: &Path, memory: &[u8]) -> io::Result<()> {
    let file = create(path, O_DIRECT)?;
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::empty(),
        0,
        memory.len() as u64,
    )?;
    eight(memory.len(), |at, _| {
        file.write_all_at(&memory[at..at + MIB], at as u64)
    })?;
    file.sync_data()
}

/// Reads as much of the file as there was memory, and forgets it.
fn read_queue(path: &Path, bytes: usize) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(O_DIRECT)
        .open(path)?;
    eight(bytes, |at, buf| file.read_exact_at(buf, at as u64))
}

/// Calls `work` for every mebibyte of `bytes`, from eight threads, each with an aligned buffer.
fn eight(bytes: usize, work: impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut backing = vec![0; MIB + PAGE_SIZE as usize];
        let begin = backing.as_ptr().align_offset(PAGE_SIZE as usize);
        let buf = &mut backing[begin..begin + MIB];
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed) * MIB;
            if at >= bytes {
                return Ok(());
            }
            work(at, buf)?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a worker panicked")))
        })
    })
}

/// Fills memory from one mebibyte that stays in the cache, with two threads.
fn hot(fresh: &Fresh, memory: &[u8]) -> io::Result<()> {
    let mib = fresh.0.len();
    thread::scope(|scope| {
        for half in [0..mib / 2, mib / 2..mib] {
            scope.spawn(move || {
                for chunk in half {
                    let _ = fresh.write(SpaceId(0), (chunk * MIB) as u64, &memory[..MIB]);
                }
            });
        }
    });
    Ok(())
}

/// Xorshift: nothing in it compresses, and no page is zero.
fn random(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for word in memory.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_le_bytes());
    }
    memory
}
