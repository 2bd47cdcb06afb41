//! What goes into a page file comes out of it, whatever it is written to, and errors say where.

mod support;

use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{
    PageFile, PageFileSummary, PageRange, PageSink, PageSource, Progress, RunKind, SpaceId,
    StoreError, write_pages,
};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Chance, Filled, Memory, PAGE, disk_dir, fast_dir};

fn memory_file() -> File {
    File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap())
}

fn open(file: File) -> PageFile {
    PageFile::open(file, "pages".into()).unwrap()
}

/// Ranges of all sizes, in no order, over three spaces.
fn random_memory(seed: u64, ranges: u64, most_pages: u64, zeros: u64) -> (Memory, Vec<PageRange>) {
    let mut chance = Chance(seed);
    let mut memory = Memory::default();
    let mut next = [0u64; 3];
    let mut all = Vec::new();
    for _ in 0..ranges {
        let space = chance.below(3);
        let at = &mut next[space as usize];
        *at += chance.below(3) * PAGE as u64;
        let pages = chance.below(most_pages + 1);
        all.push(memory.add(&mut chance, space as u32, *at, pages, zeros));
        *at += pages * PAGE as u64;
    }
    for i in (1..all.len()).rev() {
        all.swap(i, chance.below(i as u64 + 1) as usize);
    }
    (memory, all)
}

fn check(file: File, memory: &Memory, summary: &PageFileSummary) {
    let pages = open(file);
    assert_eq!(pages.summary(), summary);
    let stored = memory.stored().len() as u64;
    assert_eq!(summary.pages_scanned, memory.pages.len() as u64);
    assert_eq!(summary.pages_stored, stored);
    assert_eq!(summary.pages_zero, summary.pages_scanned - stored);
    for space in 0..4 {
        let there = memory
            .stored()
            .keys()
            .filter(|k| k.0 == SpaceId(space))
            .count();
        assert_eq!(pages.bytes(SpaceId(space)), (there * PAGE) as u64);
    }
    let filled = Filled::default();
    pages.fill(&filled, &()).unwrap();
    filled.assert_is(memory);
    pages.verify(&()).unwrap();
}

#[test]
fn random_memory_comes_back() {
    for (seed, ranges, most_pages, zeros) in [
        (1, 0, 0, 0),
        (2, 1, 1, 0),
        (3, 40, 3, 100),
        (4, 3000, 2, 0),
        (5, 3000, 2, 60),
        (6, 20, 700, 0),
        (7, 20, 700, 50),
        (8, 20, 700, 95),
        (9, 300, 40, 30),
        (10, 5, 1500, 99),
    ] {
        let (memory, ranges) = random_memory(seed, ranges, most_pages, zeros);
        let file = memory_file();
        let twin = file.try_clone().unwrap();
        let summary = write_pages(file, "pages", &ranges, &memory, &()).unwrap();
        check(twin, &memory, &summary);
    }
}

#[test]
fn blocks_are_large_however_small_the_ranges() {
    let (memory, ranges) = random_memory(11, 4000, 2, 70);
    let file = memory_file();
    let twin = file.try_clone().unwrap();
    write_pages(file, "pages", &ranges, &memory, &()).unwrap();
    let pages = open(twin);
    let (last, most) = pages.blocks().split_last().unwrap();
    assert!(!most.is_empty() && last.raw_bytes > 0);
    assert!(most.iter().all(|block| block.raw_bytes >= 512 << 10));
}

#[test]
fn disk_memory_and_pipe_give_the_same_bytes_every_time() {
    let (memory, ranges) = random_memory(12, 60, 400, 40);
    let mut contents = Vec::new();
    for dir in [fast_dir(), disk_dir(), disk_dir()] {
        let path = dir.path().join("pages");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        // What was there before must not show.
        file.write_all_at(&[7; 100], 50 << 20).unwrap();
        let summary = write_pages(file, "pages", &ranges, &memory, &()).unwrap();
        check(File::open(&path).unwrap(), &memory, &summary);
        contents.push(std::fs::read(&path).unwrap());
        assert_eq!(contents.last().unwrap().len() as u64, summary.file_bytes);
    }
    let (mut reader, writer) = io::pipe().unwrap();
    let piped = std::thread::scope(|scope| {
        let collected = scope.spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let out = File::from(std::os::fd::OwnedFd::from(writer));
        let summary = write_pages(out, "pipe", &ranges, &memory, &()).unwrap();
        let bytes = collected.join().unwrap();
        assert_eq!(bytes.len() as u64, summary.file_bytes);
        bytes
    });
    contents.push(piped);
    assert!(contents.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn direct_io_is_off_again_afterwards() {
    let dir = disk_dir();
    let path = dir.path().join("pages");
    let file = File::create_new(&path).unwrap();
    let twin = file.try_clone().unwrap();
    let (memory, ranges) = random_memory(13, 3, 300, 0);
    let direct = || {
        let flags = rustix::fs::fcntl_getfl(&twin).unwrap();
        flags.contains(rustix::fs::OFlags::DIRECT)
    };
    write_pages(file, "pages", &ranges, &memory, &()).unwrap();
    assert!(!direct());
    let file = twin.try_clone().unwrap();
    write_pages(file, "pages", &ranges, &Memory::default(), &()).unwrap_err();
    assert!(!direct());
}

#[test]
fn one_space_can_be_read_alone() {
    let (memory, ranges) = random_memory(14, 60, 100, 20);
    let file = memory_file();
    let twin = file.try_clone().unwrap();
    write_pages(file, "pages", &ranges, &memory, &()).unwrap();
    let filled = Filled::default();
    let only = |space| space == SpaceId(1);
    open(twin).fill_spaces(&only, &filled, &()).unwrap();
    let mut expected = memory.clone();
    expected.pages.retain(|place, _| place.0 == SpaceId(1));
    filled.assert_is(&expected);
}

/// Counts, and cancels after so many bytes.
struct Limited {
    done: AtomicU64,
    limit: u64,
}

impl Progress for Limited {
    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.done.load(Ordering::Relaxed) >= self.limit
    }
}

fn limited(limit: u64) -> Limited {
    Limited {
        done: AtomicU64::new(0),
        limit,
    }
}

#[test]
fn progress_adds_up_and_cancels() {
    let (memory, ranges) = random_memory(15, 20, 700, 30);
    let total: u64 = ranges.iter().map(|r| r.bytes).sum();
    let file = memory_file();
    let twin = file.try_clone().unwrap();
    let all = limited(u64::MAX);
    let summary = write_pages(file, "pages", &ranges, &memory, &all).unwrap();
    assert_eq!(all.done.load(Ordering::Relaxed), total);
    let pages = open(twin);
    let all = limited(u64::MAX);
    pages.fill(&Filled::default(), &all).unwrap();
    assert_eq!(
        all.done.load(Ordering::Relaxed),
        summary.pages_stored * PAGE as u64
    );
    let early = limited(3 << 20);
    let error = pages.fill(&Filled::default(), &early).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled { .. }), "{error}");
    let file = memory_file();
    let twin = file.try_clone().unwrap();
    let error = write_pages(file, "pages", &ranges, &memory, &limited(3 << 20)).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled { .. }), "{error}");
    assert!(PageFile::open(twin, "pages".into()).is_err());
}

/// Fails, or panics, at one place.
struct Trap<'a> {
    memory: &'a Memory,
    at: (SpaceId, u64),
    panics: bool,
}

impl PageSource for Trap<'_> {
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        let span = start..start + buf.len() as u64;
        if space == self.at.0 && span.contains(&self.at.1) {
            assert!(!self.panics, "the source has had enough");
            return Err(io::Error::from_raw_os_error(14));
        }
        self.memory.read(space, start, buf)
    }
}

#[test]
fn a_source_that_fails_is_named_with_its_place() {
    let mut chance = Chance(16);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 5, 0x10_0000, 4000, 10)];
    for page in [0, 700, 3999] {
        let at = (SpaceId(5), 0x10_0000 + page * PAGE as u64);
        let source = Trap {
            memory: &memory,
            at,
            panics: false,
        };
        match write_pages(memory_file(), "pages", &ranges, &source, &()).unwrap_err() {
            StoreError::Source {
                space,
                start,
                bytes,
                source,
                ..
            } => {
                assert_eq!(space, SpaceId(5));
                assert!((start..start + bytes).contains(&at.1));
                assert_eq!(source.raw_os_error(), Some(14));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_source_that_panics_takes_nobody_hostage() {
    let mut chance = Chance(17);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 4000, 10)];
    let source = Trap {
        memory: &memory,
        at: (SpaceId(0), 0x20_0000),
        panics: true,
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        write_pages(memory_file(), "pages", &ranges, &source, &())
    }));
    assert!(result.is_err());
}

struct Refusing;

impl PageSink for Refusing {
    fn write(&self, _: SpaceId, start: u64, _: &[u8]) -> io::Result<()> {
        if start >= 0x20_0000 {
            return Err(io::Error::from_raw_os_error(14));
        }
        Ok(())
    }
}

#[test]
fn a_sink_that_fails_is_named_with_the_block() {
    let mut chance = Chance(18);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 2000, 0)];
    let file = memory_file();
    let twin = file.try_clone().unwrap();
    write_pages(file, "pages", &ranges, &memory, &()).unwrap();
    let pages = open(twin);
    match pages.fill(&Refusing, &()).unwrap_err() {
        StoreError::Sink {
            path,
            block,
            offset,
            start,
            ..
        } => {
            assert_eq!(path, Path::new("pages"));
            assert_eq!(pages.blocks()[block].offset, offset);
            assert!(start >= 0x20_0000);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn odd_ranges_are_refused_before_anything_is_written() {
    let file = memory_file();
    let mut twin = file.try_clone().unwrap();
    twin.write_all(b"precious").unwrap();
    let range = PageRange {
        space: SpaceId(0),
        start: 12,
        bytes: 4096,
    };
    let error = write_pages(file, "pages", &[range], &Memory::default(), &()).unwrap_err();
    assert!(matches!(error, StoreError::Range { .. }), "{error}");
    assert_eq!(twin.metadata().unwrap().len(), 8);
}

#[test]
fn every_cut_of_a_file_is_refused() {
    let (memory, ranges) = random_memory(19, 5, 3, 20);
    let file = memory_file();
    let twin = file.try_clone().unwrap();
    let summary = write_pages(file, "pages", &ranges, &memory, &()).unwrap();
    let mut bytes = vec![0; summary.file_bytes as usize];
    twin.read_exact_at(&mut bytes, 0).unwrap();
    for len in (0..bytes.len()).rev() {
        twin.set_len(len as u64).unwrap();
        let result = PageFile::open(twin.try_clone().unwrap(), "pages".into());
        assert!(matches!(result, Err(StoreError::Damaged { .. })), "{len}");
    }
    // And what is too long as well.
    for extra in [1, 127, 128, 4096, 100_000] {
        twin.set_len(0).unwrap();
        twin.write_all_at(&bytes, 0).unwrap();
        twin.set_len((bytes.len() + extra) as u64).unwrap();
        let result = PageFile::open(twin.try_clone().unwrap(), "pages".into());
        assert!(
            matches!(result, Err(StoreError::Damaged { .. })),
            "+{extra}"
        );
    }
}

#[test]
fn a_damaged_block_is_named_and_reaches_no_sink() {
    let mut chance = Chance(20);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 1024, 0)];
    let dir = fast_dir();
    let path = dir.path().join("pages");
    let file = File::create_new(&path).unwrap();
    write_pages(file, "pages", &ranges, &memory, &()).unwrap();
    let victim = open(File::open(&path).unwrap()).blocks()[2];
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let at = victim.offset + 5000;
    file.write_all_at(&[0x55; 1], at).unwrap();
    let pages = open(File::open(&path).unwrap());
    let filled = Filled::default();
    for error in [
        pages.fill(&filled, &()).unwrap_err(),
        pages.verify(&()).unwrap_err(),
    ] {
        match error {
            StoreError::Damaged { offset, what, .. } => {
                assert_eq!(offset, victim.offset);
                assert!(what.contains("block 2"), "{what}");
            }
            other => panic!("{other}"),
        }
    }
    let spoilt: Vec<u64> = pages
        .runs()
        .iter()
        .filter(|r| matches!(r.kind, RunKind::Data { block: 2, .. }))
        .map(|r| r.start)
        .collect();
    let filled = filled.0.lock().unwrap();
    assert!(
        spoilt
            .iter()
            .all(|start| !filled.contains_key(&(SpaceId(0), *start)))
    );
}

#[test]
fn what_is_no_regular_file_cannot_be_opened() {
    let null = File::open("/dev/null").unwrap();
    assert!(matches!(
        PageFile::open(null, "null".into()),
        Err(StoreError::Damaged { .. })
    ));
}

#[test]
fn a_sample_is_spread_over_all_pages() {
    let mut chance = Chance(21);
    let mut memory = Memory::default();
    // 16 MiB without zero pages, in three spaces.
    let ranges: Vec<_> = (0..8u64)
        .map(|n| memory.add(&mut chance, (n % 3) as u32, n << 30, 512, 0))
        .collect();
    let file = memory_file();
    write_pages(file.try_clone().unwrap(), "pages", &ranges, &memory, &()).unwrap();
    let pages = open(file);
    let all = pages.sample(1 << 30).unwrap();
    assert_eq!(all.len(), pages.pages() as usize * PAGE);
    let some = pages.sample(4 << 20).unwrap();
    assert!((2 << 20..8 << 20).contains(&some.len()), "{}", some.len());
    // From the first pages and from the last.
    let saved: Vec<&[u8]> = all.chunks(some.len()).collect();
    for part in [saved[0], saved[saved.len() - 1]] {
        let known: std::collections::HashSet<&[u8]> = part.chunks(4096).collect();
        assert!(some.chunks(4096).any(|page| known.contains(page)));
    }
    assert!(!pages.sample(1).unwrap().is_empty());
}
