//! Pages that are told to be the same as others are stored once, come back everywhere, and stay so when a chain is cleaned.

mod support;

use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{
    Chain, PAGE_SIZE, PageFile, PageRange, PageWrite, SamePages, Snapshot, SpaceId, StoreError,
    clean,
};
use std::collections::BTreeMap;
use std::fs::File;
use support::{Chance, Filled, Memory, fast_dir, header, program};

const PARENT: SpaceId = SpaceId(0);
const CHILD: SpaceId = SpaceId(1);

fn range(space: SpaceId, page: u64, pages: u64) -> PageRange {
    PageRange {
        space,
        start: page * PAGE_SIZE,
        bytes: pages * PAGE_SIZE,
    }
}

/// A parent with zeros among its pages, and a child that has written some of those it had from it.
fn family() -> (Memory, Vec<PageRange>, Vec<SamePages>) {
    let mut chance = Chance(7);
    let mut memory = Memory::default();
    memory.add(&mut chance, PARENT.0, 100 * PAGE_SIZE, 900, 20);
    for page in 200..700 {
        let seed = memory.pages[&(PARENT, page * PAGE_SIZE)];
        memory.pages.insert((CHILD, page * PAGE_SIZE), seed);
    }
    let own = range(CHILD, 300, 50);
    memory.add(&mut chance, CHILD.0, own.start, 50, 20);
    let same = |page, pages| SamePages {
        pages: range(CHILD, page, pages),
        original: (PARENT, page * PAGE_SIZE),
    };
    let same = vec![same(200, 100), same(350, 350)];
    (memory, vec![range(PARENT, 100, 900), own], same)
}

fn written(write: &PageWrite<'_>, memory: &Memory) -> (PageFile, Filled) {
    let file = File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap());
    let twin = file.try_clone().unwrap();
    let summary = write.write(file, "pages", memory, &()).unwrap();
    let pages = PageFile::open(twin, "pages".into()).unwrap();
    assert_eq!(pages.summary(), &summary);
    let filled = Filled::default();
    pages.fill(&filled, &()).unwrap();
    (pages, filled)
}

#[test]
fn they_are_stored_once_and_come_back_everywhere() {
    let (memory, ranges, same) = family();
    for seed in [None, Some(3)] {
        let write = PageWrite::full(&ranges).same(&same);
        let write = match seed {
            Some(seed) => write.hashes(seed),
            None => write,
        };
        let (pages, filled) = written(&write, &memory);
        filled.assert_is(&memory);
        let summary = pages.summary();
        assert_eq!(summary.pages_scanned, memory.pages.len() as u64);
        let of = |pages: &BTreeMap<(SpaceId, u64), u64>, wanted: &dyn Fn(SpaceId, u64) -> bool| {
            let places = pages.keys().filter(|place| wanted(place.0, place.1));
            places.count() as u64
        };
        let own =
            |space, start| space == PARENT || (300 * PAGE_SIZE..350 * PAGE_SIZE).contains(&start);
        let stored = memory.stored();
        assert_eq!(summary.pages_stored, of(&stored, &own));
        assert_eq!(summary.pages_shared, of(&stored, &|s, a| !own(s, a)));
        // Those of the child that are common, and no others.
        let common: u64 = pages.common(CHILD, PARENT).iter().map(|r| r.bytes).sum();
        assert_eq!(common, summary.pages_shared * PAGE_SIZE);
        assert_eq!(pages.common(PARENT, SpaceId(2)), []);
        // Only what is the child's own is read for it.
        let common = pages.common(CHILD, PARENT);
        let is_common = |start: u64, end: u64| {
            let mut ranges = common.iter();
            ranges.any(|range| range.start <= start && end <= range.start + range.bytes)
        };
        let filled = Filled::default();
        let wanted = |run: &snapify_store::Run| {
            run.space == CHILD && !is_common(run.start, run.start + run.bytes())
        };
        pages.fill_runs(&wanted, &filled, &()).unwrap();
        let mut expected = memory.clone();
        expected
            .pages
            .retain(|&(space, start), _| space == CHILD && own(space, start));
        filled.assert_is(&expected);
    }
}

#[test]
fn they_are_stored_once_still_when_a_chain_is_cleaned() {
    let (memory, ranges, same) = family();
    let dir = fast_dir();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let before = {
        let staging = chain.begin().unwrap();
        let member = staging.member("host").unwrap();
        let file = member.create("pages.snap").unwrap();
        let write = PageWrite::full(&ranges).same(&same);
        let summary = write.write(file, "pages.snap", &memory, &()).unwrap();
        member.record_pages("pages.snap", summary).unwrap();
        drop(member);
        staging.commit(header()).unwrap();
        summary
    };
    // The child writes to one of the common pages.
    let mut memory = memory;
    let written = [range(CHILD, 400, 1)];
    memory.add(&mut Chance(9), CHILD.0, written[0].start, 1, 0);
    let staging = chain.begin_incremental(Some(1)).unwrap();
    let member = staging.member("host").unwrap();
    let file = member.create("pages.snap").unwrap();
    let write = PageWrite::changes(before.id(), &written);
    let summary = write.write(file, "pages.snap", &memory, &()).unwrap();
    member.record_pages("pages.snap", summary).unwrap();
    drop(member);
    staging.commit(header()).unwrap();
    drop(chain);
    clean(dir.path(), 1, &()).unwrap();
    let snapshot = Snapshot::open(dir.path(), None).unwrap();
    let pages = snapshot
        .member("host")
        .unwrap()
        .pages("pages.snap")
        .unwrap();
    assert_eq!(pages.files(), 1);
    let filled = Filled::default();
    pages.fill(&filled, &()).unwrap();
    filled.assert_is(&memory);
    // The page that was common may have been zero.
    let shared = pages.summary().pages_shared;
    assert!(shared == before.pages_shared || shared + 1 == before.pages_shared);
    assert!(pages.summary().pages_stored <= before.pages_stored + 1);
}

#[test]
fn they_are_for_full_files_and_pages_of_their_own() {
    let (memory, ranges, same) = family();
    let refused = |write: PageWrite<'_>| {
        let file = File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap());
        let result = write.write(file, "pages", &memory, &());
        assert!(
            matches!(result, Err(StoreError::Range { .. })),
            "{result:?}"
        );
    };
    let (pages, _) = written(&PageWrite::full(&ranges).same(&same), &memory);
    refused(PageWrite::changes(pages.summary().id(), &ranges).same(&same));
    let mut twice = same.clone();
    twice[0].pages.bytes += PAGE_SIZE;
    refused(PageWrite::full(&ranges).same(&twice));
}
