//! Whatever is done to blocks on their way to the file, the same memory comes back.

mod support;

use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{
    Codec, PageFile, PageFileSummary, PageRange, PageSource, PageWrite, SpaceId, StoreError,
    WriteOptions,
};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use support::{Chance, Filled, Memory, PAGE, PLAIN, disk_dir};

const CODECS: [&str; 8] = [
    "none",
    "lz4",
    "zstd",
    "zstd:-3",
    "zstd:9",
    "deflate",
    "deflate:1",
    "auto",
];

fn options(compression: &str) -> WriteOptions {
    WriteOptions {
        compression: compression.parse().unwrap(),
        ..WriteOptions::default()
    }
}

fn memory_file() -> File {
    File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap())
}

fn bytes_of(file: &File, summary: &PageFileSummary) -> Vec<u8> {
    let mut bytes = vec![0; summary.file_bytes as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Memory of which a third is zero, a third compresses, and a third of that comes more than once.
fn mixed(seed: u64, ranges: u64, most_pages: u64) -> (Memory, Vec<PageRange>) {
    let mut chance = Chance(seed);
    let mut memory = Memory::default();
    let ranges = (0..ranges)
        .map(|n| {
            let pages = chance.below(most_pages + 1);
            memory.add(&mut chance, (n % 3) as u32, n << 32, pages, 30)
        })
        .collect();
    for seed in memory.pages.values_mut().filter(|seed| **seed != 0) {
        *seed = match chance.below(6) {
            0 => PLAIN | chance.below(20),
            1 | 2 => *seed | PLAIN,
            _ => *seed,
        };
    }
    (memory, ranges)
}

fn check(file: File, memory: &Memory) -> PageFile {
    let pages = PageFile::open(file, "pages".into()).unwrap();
    let filled = Filled::default();
    pages.fill(&filled, &()).unwrap();
    filled.assert_is(memory);
    pages.verify(&()).unwrap();
    pages
}

#[test]
fn every_codec_gives_back_what_went_in() {
    for (seed, count, most) in [(1, 1, 1), (2, 5, 0), (3, 60, 40), (4, 3, 3000)] {
        let (memory, ranges) = mixed(seed, count, most);
        for codec in CODECS {
            let file = memory_file();
            let write = PageWrite::full(&ranges).options(&options(codec));
            let summary = write
                .write(file.try_clone().unwrap(), "pages", &memory, &())
                .unwrap();
            let scanned: u64 = ranges.iter().map(|range| range.bytes / 4096).sum();
            assert_eq!(summary.pages_scanned, scanned);
            let pages = check(file, &memory);
            assert_eq!(pages.pages() + summary.pages_zero, scanned);
            if (seed, codec) == (4, "zstd") {
                assert!(pages.blocks().iter().any(|b| b.codec == Codec::Zstd));
                let stored = summary.pages_stored * 4096;
                assert!(summary.file_bytes < stored * 3 / 4, "{summary:?}");
                assert!(summary.pages_shared > 0, "{summary:?}");
            }
        }
    }
}

#[test]
fn the_same_memory_gives_the_same_file_whoever_does_the_work() {
    let (memory, ranges) = mixed(7, 9, 1500);
    let disk = disk_dir();
    for codec in ["none", "lz4", "zstd:-3", "deflate:1"] {
        let mut first: Option<Vec<u8>> = None;
        let ways = [(1, 1, 1), (2, 2, 100_000), (7, 1, 5 << 20), (3, 20, 0)];
        for (workers, queue, write_bytes) in ways {
            let options = WriteOptions {
                workers: Some(workers),
                queue: Some(queue),
                write_bytes: Some(write_bytes),
                share: Some(true),
                ..options(codec)
            };
            let write = PageWrite::full(&ranges).options(&options);
            let file = memory_file();
            let summary = write
                .write(file.try_clone().unwrap(), "pages", &memory, &())
                .unwrap();
            let bytes = bytes_of(&file, &summary);
            let first = first.get_or_insert_with(|| bytes.clone());
            assert!(*first == bytes, "{codec} with {workers} workers");
            // To a disk, and to somebody who takes bytes as they come.
            let path = disk.path().join(codec.replace(':', "_"));
            let on_disk = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)
                .unwrap();
            write
                .write(on_disk.try_clone().unwrap(), "pages", &memory, &())
                .unwrap();
            assert!(*first == bytes_of(&on_disk, &summary), "{codec} on a disk");
            let (mut reader, writer) = io::pipe().unwrap();
            let piped = std::thread::spawn(move || {
                let mut all = Vec::new();
                reader.read_to_end(&mut all).unwrap();
                all
            });
            let writer = File::from(std::os::fd::OwnedFd::from(writer));
            write.write(writer, "pages", &memory, &()).unwrap();
            assert!(*first == piped.join().unwrap(), "{codec} through a pipe");
        }
    }
}

#[test]
fn pages_with_the_same_content_are_stored_once() {
    let mut memory = Memory::default();
    let ranges = [
        memory.add(&mut Chance(1), 0, 0, 1000, 0),
        memory.add(&mut Chance(2), 1, 1 << 30, 1000, 0),
    ];
    // The second thousand repeats the first, in order; every fourth page is one and the same.
    let copy: Vec<u64> = memory.pages.values().take(1000).copied().collect();
    for (n, seed) in memory.pages.values_mut().enumerate() {
        *seed = if n % 4 == 0 { 99 } else { copy[n % 1000] };
    }
    let file = memory_file();
    let options = WriteOptions {
        share: Some(true),
        ..WriteOptions::default()
    };
    let write = PageWrite::full(&ranges).options(&options).hashes(3);
    let summary = write
        .write(file.try_clone().unwrap(), "pages", &memory, &())
        .unwrap();
    assert_eq!((summary.pages_stored, summary.pages_shared), (751, 1249));
    check(file, &memory);
}

/// Gives pages with equal hashes, as far as this source knows, and fails or panics at some place.
struct Odd<'a> {
    memory: &'a Memory,
    at: u64,
    panics: bool,
}

impl PageSource for Odd<'_> {
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        if (start..start + buf.len() as u64).contains(&self.at) {
            assert!(!self.panics, "this source panics");
            return Err(io::Error::other("it cannot be read"));
        }
        self.memory.read(space, start, buf)
    }
}

#[test]
fn failures_end_all_stages() {
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut Chance(1), 0, 0, 6000, 0)];
    for codec in ["lz4", "auto"] {
        let options = WriteOptions {
            queue: Some(1),
            ..options(codec)
        };
        for at in [0, 3000, 5999] {
            let at = at * PAGE as u64;
            let write = PageWrite::full(&ranges).options(&options);
            let odd = |panics| Odd {
                memory: &memory,
                at,
                panics,
            };
            let error = write.write(memory_file(), "pages", &odd(false), &());
            assert!(matches!(error, Err(StoreError::Source { .. })));
            let panicked = std::panic::catch_unwind(|| {
                let _ = write.write(memory_file(), "pages", &odd(true), &());
            });
            assert!(panicked.is_err());
        }
        // Nobody takes what is stored.
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        let write = PageWrite::full(&ranges).options(&options);
        let error = write.write(writer, "pages", &memory, &());
        assert!(matches!(error, Err(StoreError::IoAt { .. })));
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = write.write(full, "pages", &memory, &());
        assert!(matches!(error, Err(StoreError::DiskFull { .. })));
    }
}

#[test]
fn a_damaged_compressed_block_reaches_no_sink() {
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut Chance(1), 0, 0, 3, 0)];
    memory.pages.values_mut().for_each(|seed| *seed |= PLAIN);
    for codec in ["lz4", "zstd", "deflate"] {
        let file = memory_file();
        PageWrite::full(&ranges)
            .options(&options(codec))
            .write(file.try_clone().unwrap(), "pages", &memory, &())
            .unwrap();
        file.write_all_at(&[0x55], 4096 + 40).unwrap();
        let pages = PageFile::open(file, "pages".into()).unwrap();
        let filled = Filled::default();
        let error = pages.fill(&filled, &()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { offset: 4096, .. }));
        assert!(filled.0.lock().unwrap().is_empty());
    }
}
