//! A program whose memory changes between the points that are taken of it.

use super::{Chance, Filled, Memory, header, program, put_member};
use snapify_store::{
    Chain, Compression, PAGE_SIZE, PageRange, PageWrite, Snapshot, SpaceId, WriteOptions, inspect,
    verify,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub const FILE: &str = "pages.snap";

/// Ranges that hold exactly `pages`, in order.
pub fn ranges_of(pages: impl IntoIterator<Item = (SpaceId, u64)>) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = Vec::new();
    for (space, start) in pages {
        match ranges.last_mut() {
            Some(last) if (last.space, last.start + last.bytes) == (space, start) => {
                last.bytes += PAGE_SIZE;
            }
            _ => ranges.push(PageRange {
                space,
                start,
                bytes: PAGE_SIZE,
            }),
        }
    }
    ranges
}

/// A program's memory that changes, and what is known of its changes.
pub struct Program {
    pub memory: Memory,
    pub dirty: BTreeSet<(SpaceId, u64)>,
    pub chance: Chance,
    pub options: WriteOptions,
}

impl Program {
    pub fn new(seed: u64) -> Self {
        Self {
            memory: Memory::default(),
            dirty: BTreeSet::new(),
            chance: Chance(seed),
            options: WriteOptions::default(),
        }
    }

    pub fn put(&mut self, place: (SpaceId, u64), seed: u64) {
        self.memory.pages.insert(place, seed);
        self.dirty.insert(place);
    }

    /// Maps, unmaps, writes and clears pages; whole spaces come and go.
    pub fn go_on(&mut self) {
        for _ in 0..=self.chance.below(12) {
            let space = SpaceId(self.chance.below(4) as u32);
            let start = self.chance.below(64) * PAGE_SIZE;
            let pages = self.chance.below(20);
            let places = (0..pages).map(|page| (space, start + page * PAGE_SIZE));
            match self.chance.below(8) {
                0 => {
                    self.memory.pages.retain(|place, _| place.0 != space);
                    self.dirty.retain(|place| place.0 != space);
                }
                1 | 2 => {
                    for place in places {
                        self.memory.pages.remove(&place);
                        self.dirty.remove(&place);
                    }
                }
                3 => places.for_each(|place| self.put(place, 0)),
                // The same content in several places, and again later.
                4 => places.for_each(|place| self.put(place, 7)),
                _ => {
                    for place in places {
                        let seed = self.chance.next() | 1;
                        self.put(place, seed);
                    }
                }
            }
        }
    }

    /// Saves a point, incremental if it can be; `compare` without looking at what is dirty.
    pub fn checkpoint(&mut self, chain: &Chain, on: Option<u32>, compare: bool) -> u32 {
        let staging = chain.begin_incremental(on).unwrap();
        let member = staging.member("host").unwrap();
        let out = member.create(FILE).unwrap();
        let all = ranges_of(self.memory.pages.keys().copied());
        let summary = match member.parent_pages(FILE).unwrap() {
            None => PageWrite::full(&all)
                .hashes(5)
                .options(&self.options)
                .write(out, FILE, &self.memory, &()),
            Some(parent) if compare => {
                let gone = parent.outside(&all);
                let write = PageWrite::compared(&parent, &all).gone(&gone);
                let write = write.options(&self.options);
                write.write(out, FILE, &self.memory, &())
            }
            Some(parent) => {
                let zero = |place: &(SpaceId, u64)| self.memory.pages[place] == 0;
                // Some of what is zero is known to be, and not read.
                let known =
                    |place: &(SpaceId, u64)| zero(place) && place.1.is_multiple_of(2 * PAGE_SIZE);
                let changed = ranges_of(self.dirty.iter().filter(|p| !known(p)).copied());
                let zeros = ranges_of(self.dirty.iter().filter(|p| known(p)).copied());
                let gone = parent.outside(&all);
                PageWrite::changes(parent.summary().id(), &changed)
                    .zero(&zeros)
                    .gone(&gone)
                    .hashes(5)
                    .options(&self.options)
                    .write(out, FILE, &self.memory, &())
            }
        };
        member.record_pages(FILE, summary.unwrap()).unwrap();
        let number = staging.commit(header()).unwrap().number;
        self.dirty.clear();
        number
    }
}

/// The memory that point `at` gives back.
pub fn restarted(dir: &Path, at: u32) -> Filled {
    let snapshot = Snapshot::open(dir, Some(at)).unwrap();
    let pages = snapshot.member("host").unwrap().pages(FILE).unwrap();
    let filled = Filled::default();
    pages.fill(&filled, &()).unwrap();
    assert_eq!(filled.0.lock().unwrap().len() as u64, pages.pages());
    filled
}

/// A chain of `points` points, the first full, and what each of them is to give back.
pub fn chain_of(dir: &Path, seed: u64, points: u32) -> (Program, BTreeMap<u32, Memory>) {
    let chain = Chain::open_or_create(dir, &program()).unwrap();
    let mut running = Program::new(seed);
    running.options.compression = [
        Compression::None,
        Compression::Lz4,
        Compression::Zstd { level: 1 },
    ][seed as usize % 3];
    for page in 0..200 {
        running.put((SpaceId(7), page * PAGE_SIZE), page + 1);
    }
    let mut then = BTreeMap::new();
    for _ in 0..points {
        running.go_on();
        let number = running.checkpoint(&chain, None, false);
        then.insert(number, running.memory.clone());
    }
    (running, then)
}

/// Five points: 1 full, 2 and 3 upon it, 4 full, 5 upon 4.
pub fn two_chains(dir: &Path) -> Vec<Memory> {
    let chain = Chain::open_or_create(dir, &program()).unwrap();
    let mut running = Program::new(3);
    let mut then = Vec::new();
    for number in 1..=5 {
        // At least one page more each time, so that every file has a block.
        running.go_on();
        running.put((SpaceId(9), number * PAGE_SIZE), number);
        if number == 4 {
            let staging = chain.begin().unwrap();
            let ranges = ranges_of(running.memory.pages.keys().copied());
            put_member(&staging, "host", &running.memory, &ranges);
            staging.commit(header()).unwrap();
            running.dirty.clear();
        } else {
            running.checkpoint(&chain, None, false);
        }
        then.push(running.memory.clone());
    }
    then
}

/// The numbers of the points in `dir`.
pub fn numbers(dir: &Path) -> Vec<u32> {
    let report = inspect(dir).unwrap();
    report.points.iter().map(|point| point.number).collect()
}

/// Every point in `dir` is sound and gives back its moment.
pub fn check(dir: &Path, then: &BTreeMap<u32, Memory>) {
    for number in numbers(dir) {
        restarted(dir, number).assert_is(&then[&number]);
    }
    let report = verify(dir, None, &()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}
