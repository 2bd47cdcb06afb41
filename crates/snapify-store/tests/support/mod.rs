//! Memory to save, memory to fill, and a source of chance that repeats.
#![allow(dead_code)] // each test file uses its part

pub mod journal;
pub mod running;
pub mod seal;

use snapify_store::{
    Chain, PAGE_SIZE, PageRange, PageSink, PageSource, PointHeader, ProgramIdentity, SpaceId,
    Staging, write_pages,
};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub const PAGE: usize = PAGE_SIZE as usize;

/// A place that is quick to write to, if the machine has one.
pub fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// A directory on a disk: that of the test's own program.
pub fn disk_dir() -> tempfile::TempDir {
    let exe = std::env::current_exe().unwrap();
    tempfile::tempdir_in(exe.parent().unwrap()).unwrap()
}

/// splitmix64.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A page whose seed has this bit can be compressed.
pub const PLAIN: u64 = 1 << 63;

/// Pages by space and address, each with a seed: 0 for a zero page.
#[derive(Default, Clone)]
pub struct Memory {
    pub pages: BTreeMap<(SpaceId, u64), u64>,
}

impl Memory {
    pub fn page(seed: u64) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        if seed != 0 {
            let mut chance = Chance(seed);
            let repeat = if seed & PLAIN == 0 { 1 } else { 8 };
            for words in page.chunks_exact_mut(8 * repeat) {
                let word = chance.next().to_le_bytes();
                words
                    .chunks_exact_mut(8)
                    .for_each(|w| w.copy_from_slice(&word));
            }
        }
        page
    }

    /// `pages` pages at `start` of `space`, of which about `zeros` in 100 are zero.
    pub fn add(
        &mut self,
        chance: &mut Chance,
        space: u32,
        start: u64,
        pages: u64,
        zeros: u64,
    ) -> PageRange {
        for page in 0..pages {
            let zero = chance.below(100) < zeros;
            let seed = if zero { 0 } else { chance.next() & !PLAIN | 1 };
            self.pages
                .insert((SpaceId(space), start + page * PAGE_SIZE), seed);
        }
        PageRange {
            space: SpaceId(space),
            start,
            bytes: pages * PAGE_SIZE,
        }
    }

    /// The pages that are not zero.
    pub fn stored(&self) -> BTreeMap<(SpaceId, u64), u64> {
        let pages = self.pages.iter().filter(|(_, seed)| **seed != 0);
        pages.map(|(place, seed)| (*place, *seed)).collect()
    }
}

impl PageSource for Memory {
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        for (page, at) in buf.chunks_exact_mut(PAGE).zip((start..).step_by(PAGE)) {
            let seed = self
                .pages
                .get(&(space, at))
                .ok_or_else(|| io::Error::other("read outside the ranges"))?;
            page.copy_from_slice(&Self::page(*seed));
        }
        Ok(())
    }
}

/// What a page file puts where.
#[derive(Default)]
pub struct Filled(pub Mutex<BTreeMap<(SpaceId, u64), Vec<u8>>>);

impl PageSink for Filled {
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        let mut pages = self.0.lock().unwrap();
        for (page, at) in data.chunks(PAGE).zip((start..).step_by(PAGE)) {
            if pages.insert((space, at), page.to_vec()).is_some() {
                return Err(io::Error::other("a page came twice"));
            }
        }
        Ok(())
    }
}

impl Filled {
    pub fn assert_is(&self, memory: &Memory) {
        let filled = self.0.lock().unwrap();
        let stored = memory.stored();
        assert!(filled.keys().eq(stored.keys()), "other pages than expected");
        for (place, seed) in stored {
            assert!(filled[&place] == Memory::page(seed), "page at {place:?}");
        }
    }
}

pub fn program() -> ProgramIdentity {
    ProgramIdentity {
        id: "boot-1/42/1000".into(),
        command: "./md --steps 100".into(),
    }
}

pub fn header() -> PointHeader {
    PointHeader {
        created_unix_ms: 1_700_000_000_000,
        details: serde_json::json!({"cards": 2}),
    }
}

/// A member with metadata, a page file and a raw file.
pub fn put_member(staging: &Staging, name: &str, memory: &Memory, ranges: &[PageRange]) {
    let member = staging.member(name).unwrap();
    member
        .write_json(
            "process.json",
            &serde_json::json!({"pid": 42, "name": name}),
        )
        .unwrap();
    let file = member.create("pages.snap").unwrap();
    let summary = write_pages(file, "pages.snap", ranges, memory, &()).unwrap();
    member.record_pages("pages.snap", summary).unwrap();
    let mut raw = member.create("log").unwrap();
    io::Write::write_all(&mut raw, b"some bytes").unwrap();
    member.record_file("log").unwrap();
}

/// A chain with one small point in `dir`; returns what was saved.
pub fn small_chain(dir: &Path) -> Memory {
    let mut chance = Chance(1);
    let mut memory = Memory::default();
    let ranges = [
        memory.add(&mut chance, 0, 0x1000, 2, 0),
        memory.add(&mut chance, 0, 0x9000, 1, 100),
        memory.add(&mut chance, 1, 0, 1, 0),
    ];
    let chain = Chain::open_or_create(dir, &program()).unwrap();
    let staging = chain.begin().unwrap();
    put_member(&staging, "host", &memory, &ranges);
    staging.commit(header()).unwrap();
    memory
}

/// Every file under `dir`.
pub fn files_under(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_under(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    files
}
