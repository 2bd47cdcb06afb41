//! The store alone: stages of the pipeline, codecs, incremental files, restarts from chains.
//!
//! Memory is half text and half chance, page by page, so that codecs have something to do. Everything is of one process:
//! memory is copied from an array and into one, as fast as memory is.

use crate::place::Place;
use crate::table::{at_least, median, print, under};
use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use snapify_store::{
    Codec, Compression, PAGE_SIZE, PageFile, PageFileSummary, PageRange, PageSink, PageSource,
    PageWrite, SpaceId, WriteOptions,
};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

const PAGES: u64 = 128 << 10;
const ROUNDS: usize = 5;
const PAGE: usize = PAGE_SIZE as usize;
/// Incremental files on a full one.
const INCREMENTS: u64 = 8;

pub fn run(place: &Place) -> Result<()> {
    let mut memory = Memory::new();
    for (name, dir) in place.directories() {
        pipeline(name, dir, &memory)?;
    }
    processors(&memory)?;
    for (name, dir) in place.directories() {
        chain(name, dir, &mut memory)?;
    }
    Ok(())
}

/// Memory that lies in an array.
pub struct Memory(pub Vec<u8>);

impl Memory {
    fn new() -> Self {
        let mut bytes = vec![0; PAGES as usize * PAGE];
        for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            let (text, chance) = page.split_at_mut(PAGE / 2);
            for (at, byte) in text.iter_mut().enumerate() {
                *byte = b"some text that is much the same everywhere, "[(at + n) % 44];
            }
            noise(n as u64 + 1, chance);
        }
        Self(bytes)
    }

    /// Changes every hundredth page.
    fn change(&mut self, round: u64) -> Vec<PageRange> {
        let pages = (round..PAGES).step_by(100);
        pages
            .map(|page| {
                let begin = page as usize * PAGE;
                noise(round << 32 | page, &mut self.0[begin..begin + PAGE]);
                range(page, 1)
            })
            .collect()
    }
}

fn noise(seed: u64, bytes: &mut [u8]) {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_le_bytes());
    }
}

impl PageSource for Memory {
    fn read(&self, _: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = start as usize;
        buf.copy_from_slice(&self.0[start..start + buf.len()]);
        Ok(())
    }
}

/// Memory that is filled, a mebibyte to a lock.
struct Fresh<'a>(Vec<Mutex<&'a mut [u8]>>);

const MIB: usize = 1 << 20;

impl PageSink for Fresh<'_> {
    fn write(&self, _: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        let (mut at, mut data) = (start as usize, data);
        while !data.is_empty() {
            let part = data.len().min(MIB - at % MIB);
            let mut place = self.0[at / MIB].lock().unwrap_or_else(|p| p.into_inner());
            place[at % MIB..at % MIB + part].copy_from_slice(&data[..part]);
            (at, data) = (at + part, &data[part..]);
        }
        Ok(())
    }
}

pub fn range(page: u64, pages: u64) -> PageRange {
    PageRange {
        space: SpaceId(0),
        start: page * PAGE_SIZE,
        bytes: pages * PAGE_SIZE,
    }
}

pub fn options(codec: &str, workers: Option<usize>) -> Result<WriteOptions> {
    Ok(WriteOptions {
        compression: codec.parse().map_err(anyhow::Error::msg)?,
        workers,
        ..WriteOptions::default()
    })
}

/// Writes to a new file at `path`, and tells the seconds that it took.
pub fn write(
    path: &Path,
    write: &PageWrite<'_>,
    memory: &Memory,
) -> Result<(f64, PageFileSummary)> {
    if path.starts_with("/dev/null") {
        let begin = Instant::now();
        let out = File::options().write(true).open(path)?;
        let summary = write.write(out, "null", memory, &())?;
        return Ok((begin.elapsed().as_secs_f64(), summary));
    }
    // What the file before burdens the disk with is not this one's.
    let _ = std::fs::remove_file(path);
    let dir = path.parent().context("a file has a directory")?;
    rustix::fs::syncfs(File::open(dir)?)?;
    let begin = Instant::now();
    let out = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    let summary = write.write(out, "pages", memory, &())?;
    Ok((begin.elapsed().as_secs_f64(), summary))
}

fn pipeline(name: &str, dir: &Path, memory: &Memory) -> Result<()> {
    let path = dir.join("pages.snap");
    let all = [range(0, PAGES)];
    let gib = (PAGES * PAGE_SIZE) as f64 / (1u64 << 30) as f64;
    let (mut rows, mut alone) = (Vec::new(), Vec::new());
    for codec in ["none", "lz4", "zstd:-3", "zstd:1", "deflate:1", "auto"] {
        let options = options(codec, None)?;
        let whole = PageWrite::full(&all).options(&options);
        let (mut front, mut store, mut both) = (Vec::new(), Vec::new(), Vec::new());
        let mut ratio = 1.0;
        for _ in 0..ROUNDS {
            let (time, summary) = write(&path, &whole, memory)?;
            both.push(time);
            ratio = summary.file_bytes as f64 / (PAGES * PAGE_SIZE) as f64;
            front.push(if codec == "auto" {
                // Where nothing is waited for it would choose to do nothing: what counts is what it has chosen here.
                chosen(&path, &alone)?
            } else {
                write(Path::new("/dev/null"), &whole, memory)?.0
            });
            let part = [range(0, (summary.file_bytes / PAGE_SIZE).min(PAGES))];
            store.push(write(&path, &PageWrite::full(&part), memory)?.0);
        }
        let (front, store, both) = (median(front), median(store), median(both));
        alone.push((options.compression, front));
        rows.push(vec![
            codec.to_owned(),
            format!("{ratio:.2}"),
            format!("{:.2} GiB/s", gib / front),
            format!("{:.2} GiB/s", gib * ratio / store),
            format!("{:.2} GiB/s", gib / both),
            under(both / front.max(store), 1.15, "x"),
        ]);
    }
    std::fs::remove_file(&path)?;
    print(
        &format!("Pipeline to {name}, 512 MiB"),
        &[
            "codec",
            "ratio",
            "collect and compress alone",
            "store alone",
            "all stages",
            "time against the slowest",
        ],
        &rows,
    );
    Ok(())
}

/// Seconds that collecting and compressing take with the codecs that the file at `path` was written with, block by block, where all
/// of it takes as long as in `alone` with each. Of Zstandard, whose levels a file does not tell, level 1.
fn chosen(path: &Path, alone: &[(Compression, f64)]) -> Result<f64> {
    let pages = PageFile::open(File::open(path)?, path.to_owned())?;
    let seconds = |codec| {
        let compression = match codec {
            Codec::None => Compression::None,
            Codec::Lz4 => Compression::Lz4,
            Codec::Zstd => Compression::Zstd { level: 1 },
            Codec::Deflate => Compression::Deflate { level: 1 },
        };
        let known = alone.iter().find(|(known, _)| *known == compression);
        known.map_or(0.0, |(_, seconds)| *seconds)
    };
    let all = (PAGES * PAGE_SIZE) as f64;
    let blocks = pages.blocks().iter();
    Ok(blocks
        .map(|block| f64::from(block.raw_bytes) / all * seconds(block.codec))
        .sum())
}

/// The same work with one processor and with two.
fn processors(memory: &Memory) -> Result<()> {
    let all = [range(0, PAGES)];
    let every = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| every.is_set(*cpu));
    one.set(first.context("there is a processor")?);
    let mut rows = Vec::new();
    for codec in ["lz4", "zstd:1"] {
        let (mut alone, mut two) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (set, workers, times) in [(&one, 1, &mut alone), (&every, 2, &mut two)] {
                // Threads that are made from here on have it too.
                sched_setaffinity(None, set)?;
                let options = options(codec, Some(workers))?;
                let whole = PageWrite::full(&all).options(&options);
                let written = write(Path::new("/dev/null"), &whole, memory);
                sched_setaffinity(None, &every)?;
                times.push(written?.0);
            }
        }
        let ratio = median(alone) / median(two);
        rows.push(vec![codec.to_owned(), at_least(ratio, 1.7)]);
    }
    print("Two processors against one", &["codec", "speed"], &rows);
    Ok(())
}

fn chain(name: &str, dir: &Path, memory: &mut Memory) -> Result<()> {
    let path = |n: u64| dir.join(format!("chain-{n}.snap"));
    let open = |n: u64| -> Result<PageFile> { Ok(PageFile::open(File::open(path(n))?, path(n))?) };
    let all = [range(0, PAGES)];
    let (mut full, mut incremental, mut size) = (Vec::new(), Vec::new(), 0.0);
    let whole = PageWrite::full(&all);
    let mut last = None;
    for _ in 0..ROUNDS {
        let (time, summary) = write(&path(0), &whole, memory)?;
        full.push(time);
        last = Some(summary.id());
    }
    for n in 1..=INCREMENTS {
        let changed = memory.change(n);
        let parent = last.context("there is a full file")?;
        let (time, summary) = write(&path(n), &PageWrite::changes(parent, &changed), memory)?;
        incremental.push(time);
        size = summary.file_bytes as f64 / (changed.len() as u64 * PAGE_SIZE) as f64;
        last = Some(summary.id());
    }
    // Another full one, of the same memory.
    let alone: PathBuf = dir.join("alone.snap");
    write(&alone, &whole, memory)?;
    let (mut from_full, mut from_chain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (chained, times) in [(false, &mut from_full), (true, &mut from_chain)] {
            let mut fresh = vec![0; memory.0.len()];
            let begin = Instant::now();
            let pages = if chained {
                let parents = (0..INCREMENTS).rev().map(open).collect::<Result<_>>()?;
                open(INCREMENTS)?.with_parents(parents)?
            } else {
                PageFile::open(File::open(&alone)?, alone.clone())?
            };
            let sink = Fresh(fresh.chunks_mut(MIB).map(Mutex::new).collect());
            pages.fill(&sink, &())?;
            times.push(begin.elapsed().as_secs_f64());
            drop(sink);
            anyhow::ensure!(fresh == memory.0, "other memory came back");
        }
    }
    for n in 0..=INCREMENTS {
        std::fs::remove_file(path(n))?;
    }
    std::fs::remove_file(alone)?;
    let rows = vec![
        vec![
            "an incremental file of 1 % against a full one".to_owned(),
            at_least(median(full) / median(incremental), 30.0),
        ],
        vec![
            "its size against that of the changed pages".to_owned(),
            under(size, 1.05, "x"),
        ],
        vec![
            format!("restart from one full and {INCREMENTS} incremental files against one full"),
            under(median(from_chain) / median(from_full), 1.3, "x"),
        ],
    ];
    print(
        &format!("Chains on {name}, 512 MiB"),
        &["operation", "figure"],
        &rows,
    );
    Ok(())
}
