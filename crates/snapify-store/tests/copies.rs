//! Copies of points, and the removal of old ones: interrupted anywhere, nothing is lost and nothing half is seen.

mod support;

use snapify_store::{
    Chain, CopyReport, PAGE_SIZE, PageRange, PageWrite, ProgramIdentity, Progress, Snapshot,
    SpaceId, StoreError, copy, copy_size, newest, retain, verify,
};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Chance, Filled, Memory, fast_dir, files_under, header, program, put_member};

/// A chain of so many points, each of some 2 MiB in two members.
fn chain_of(dir: &Path, points: u32) -> Memory {
    let chain = Chain::open_or_create(dir, &program()).unwrap();
    let mut chance = Chance(7);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 300, 10)];
    for number in 1..=points {
        let staging = chain.begin().unwrap();
        put_member(&staging, "host", &memory, &ranges);
        put_member(&staging, "offload-0a", &memory, &ranges);
        let mut header = header();
        header.created_unix_ms += u64::from(number);
        assert_eq!(staging.commit(header).unwrap().number, number);
    }
    memory
}

fn numbers(dir: &Path) -> Vec<u32> {
    let mut numbers: Vec<u32> = fs::read_dir(dir)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn leftovers(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap();
    names
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with(".staging")
        })
        .count()
}

/// The same files with the same contents.
fn assert_same(one: &Path, other: &Path) {
    let of = |dir: &Path| -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = files_under(dir)
            .into_iter()
            .map(|path| {
                (
                    path.strip_prefix(dir).unwrap().to_owned(),
                    fs::read(&path).unwrap(),
                )
            })
            .collect();
        files.sort();
        files
    };
    assert!(
        of(one) == of(other),
        "{} and {} differ",
        one.display(),
        other.display()
    );
}

/// Cancels after so many bytes.
struct Until(AtomicU64);

impl Progress for Until {
    fn advance(&self, bytes: u64) {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(bytes), Ordering::Relaxed);
    }
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

#[test]
fn the_newest_point_is_copied_as_it_is() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("deep/b"));
    assert_eq!(newest(&from).unwrap(), None);
    assert!(matches!(
        copy(&from, &to, &()),
        Err(StoreError::NoSnapshot { .. })
    ));
    chain_of(&from, 3);
    assert_eq!(newest(&from).unwrap(), Some(3));
    let size = copy_size(&from, &to).unwrap();
    assert!(!to.exists());
    let report = copy(&from, &to, &()).unwrap();
    assert_eq!((&*report.copied, report.bytes), (&[3][..], size));
    assert_same(&from.join("000003"), &to.join("000003"));
    assert_eq!((numbers(&to), leftovers(&to)), (vec![3], 0));
    assert_eq!(Snapshot::open(&to, None).unwrap().program(), &program());
    assert!(verify(&to, None, &()).unwrap().is_sound());
    // Once it is there, there is nothing to do.
    assert_eq!(copy_size(&from, &to).unwrap(), 0);
    assert_eq!(copy(&from, &to, &()).unwrap(), CopyReport::default());
}

#[test]
fn an_interrupted_copy_goes_on_where_it_was() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("b"));
    chain_of(&from, 1);
    let size = copy_size(&from, &to).unwrap();
    let mut rounds = 0;
    let mut before = size + 1;
    loop {
        rounds += 1;
        match copy(&from, &to, &Until(AtomicU64::new(1 << 20))) {
            Err(StoreError::Cancelled { .. }) => {
                assert!(numbers(&to).is_empty(), "nothing half is seen");
                assert_eq!(leftovers(&to), 1);
                let left = copy_size(&from, &to).unwrap();
                assert!(left < before, "it gets on");
                before = left;
            }
            Err(error) => panic!("{error}"),
            Ok(report) => {
                assert!(report.resumed > 0);
                break;
            }
        }
        assert!(rounds < 50);
        if before == 0 {
            // Only reading it back is left.
            copy(&from, &to, &()).unwrap();
            break;
        }
    }
    assert!(rounds > 1);
    assert_same(&from.join("000001"), &to.join("000001"));
    assert_eq!(leftovers(&to), 0);
}

#[test]
fn what_never_reached_the_disk_is_copied_again() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("b"));
    chain_of(&from, 1);
    let _ = copy(&from, &to, &Until(AtomicU64::new(1 << 20))).unwrap_err();
    // A crash of the machine: lengths have reached the disk, contents have not.
    let draft = to.join(".staging-copy-000001");
    for file in files_under(&draft) {
        if file.extension().is_some_and(|end| end == "snap") {
            let bytes = fs::metadata(&file).unwrap().len();
            fs::write(&file, vec![0; usize::try_from(bytes).unwrap()]).unwrap();
        }
    }
    copy(&from, &to, &()).unwrap();
    assert_same(&from.join("000001"), &to.join("000001"));
}

#[test]
fn a_copy_killed_at_its_last_step_is_completed() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("b"));
    chain_of(&from, 1);
    copy(&from, &to, &()).unwrap();
    // As if it had been killed between the last two renames.
    fs::rename(to.join("000001"), to.join(".staging-copy-000001")).unwrap();
    let report = copy(&from, &to, &()).unwrap();
    assert_eq!(report.resumed, report.bytes);
    assert_same(&from.join("000001"), &to.join("000001"));
}

#[test]
fn a_damaged_source_is_not_copied() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("b"));
    chain_of(&from, 2);
    let victim = from.join("000002/host/pages.snap");
    let mut bytes = fs::read(&victim).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&victim, &bytes).unwrap();
    let error = copy(&from, &to, &()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(numbers(&to).is_empty());
    // Not complete: the one before it is the newest then.
    fs::remove_file(&victim).unwrap();
    assert_eq!(copy(&from, &to, &()).unwrap().copied, [1]);
    assert_eq!((numbers(&to), leftovers(&to)), (vec![1], 0));
}

/// Adds a point that builds on the newest one, in which one page has changed to `seed`.
fn add_incremental(dir: &Path, memory: &mut Memory, seed: u64) -> u32 {
    let chain = Chain::open_or_create(dir, &program()).unwrap();
    memory.pages.insert((SpaceId(0), 5 * PAGE_SIZE), seed);
    let changed = [PageRange {
        space: SpaceId(0),
        start: 5 * PAGE_SIZE,
        bytes: PAGE_SIZE,
    }];
    let staging = chain.begin_incremental(None).unwrap();
    for name in ["host", "offload-0a"] {
        let member = staging.member(name).unwrap();
        let parent = member.parent_pages("pages.snap").unwrap().unwrap();
        let out = member.create("pages.snap").unwrap();
        let summary = PageWrite::changes(parent.summary().id(), &changed)
            .write(out, "pages.snap", memory, &())
            .unwrap();
        member.record_pages("pages.snap", summary).unwrap();
    }
    let mut header = header();
    header.created_unix_ms += seed;
    staging.commit(header).unwrap().number
}

fn assert_holds(dir: &Path, at: u32, memory: &Memory) {
    let snapshot = Snapshot::open(dir, Some(at)).unwrap();
    let filled = Filled::default();
    let pages = snapshot
        .member("host")
        .unwrap()
        .pages("pages.snap")
        .unwrap();
    pages.fill(&filled, &()).unwrap();
    filled.assert_is(memory);
}

#[test]
fn what_a_point_builds_on_is_copied_with_it_and_kept_with_it() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("b"));
    let mut memory = chain_of(&from, 2);
    assert_eq!(add_incremental(&from, &mut memory, 100), 3);
    let third = memory.clone();
    assert_eq!(add_incremental(&from, &mut memory, 200), 4);
    // Interrupted between two points, the older one is there already.
    let first = fs::metadata(from.join("000002/host/pages.snap"))
        .unwrap()
        .len();
    let enough = Until(AtomicU64::new(2 * first + (1 << 12)));
    assert!(copy(&from, &to, &enough).is_err());
    assert_eq!(numbers(&to), [2]);
    assert_eq!(copy(&from, &to, &()).unwrap().copied, [3, 4]);
    assert_holds(&to, 4, &memory);
    assert_holds(&to, 3, &third);
    assert!(verify(&to, None, &()).unwrap().is_sound());
    assert_eq!(add_incremental(&from, &mut memory, 300), 5);
    assert_eq!(copy(&from, &to, &()).unwrap().copied, [5]);
    assert_holds(&to, 5, &memory);
    // Two points are kept, and the two that they build on.
    assert_eq!(retain(&from, 2).unwrap().removed, [1]);
    assert_eq!(numbers(&from), [2, 3, 4, 5]);
    assert!(verify(&from, None, &()).unwrap().is_sound());
    // With a full one, the older ones are needed no more.
    let chain = Chain::open_or_create(&from, &program()).unwrap();
    chain.begin().unwrap().commit(header()).unwrap();
    assert_eq!(retain(&from, 1).unwrap().removed, [2, 3, 4, 5]);
    assert_holds(&to, 5, &memory);
}

#[test]
fn other_chains_are_left_alone() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("b"));
    chain_of(&from, 2);
    // It has gone on from a copy on another node.
    copy(&from, &to, &()).unwrap();
    let chain = Chain::open_or_create(&to, &program()).unwrap();
    chain.begin().unwrap().commit(header()).unwrap();
    let staging = Chain::open_or_create(&from, &program())
        .unwrap()
        .begin()
        .unwrap();
    let mut later = header();
    later.created_unix_ms += 99;
    staging.commit(later.clone()).unwrap();
    let error = copy(&from, &to, &()).unwrap_err();
    assert!(
        matches!(error, StoreError::Conflict { number: 3, .. }),
        "{error}"
    );
    // Numbers greater than that are no conflict.
    let mut staging = Chain::open_or_create(&from, &program())
        .unwrap()
        .begin()
        .unwrap();
    staging.number_after(3);
    assert_eq!(staging.commit(later).unwrap().number, 4);
    assert_eq!(copy(&from, &to, &()).unwrap().copied, [4]);
    assert_eq!(numbers(&to), [2, 3, 4]);
    // Another program's.
    let other = top.path().join("c");
    let theirs = ProgramIdentity {
        id: "other".into(),
        command: "x".into(),
    };
    let chain = Chain::open_or_create(&other, &theirs).unwrap();
    chain.begin().unwrap().commit(header()).unwrap();
    assert!(matches!(
        copy(&from, &other, &()),
        Err(StoreError::OtherProgram { .. })
    ));
    let strange = top.path().join("d");
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("thesis.tex"), "x").unwrap();
    assert!(matches!(
        copy(&from, &strange, &()),
        Err(StoreError::NotAChain { .. })
    ));
    assert_eq!(fs::read_dir(&strange).unwrap().count(), 1);
}

#[test]
fn two_copies_at_once_are_refused() {
    let top = fast_dir();
    let (from, to) = (top.path().join("a"), top.path().join("b"));
    chain_of(&from, 1);
    let staging = Chain::open_or_create(&to, &program())
        .unwrap()
        .begin()
        .unwrap();
    assert!(matches!(
        copy(&from, &to, &()),
        Err(StoreError::Busy { .. })
    ));
    drop(staging);
    copy(&from, &to, &()).unwrap();
}

#[test]
fn old_points_go_and_the_newest_stay() {
    let top = fast_dir();
    let dir = top.path();
    chain_of(dir, 5);
    let done = retain(dir, 2).unwrap();
    assert_eq!((done.removed, done.in_use), (vec![1, 2, 3], vec![]));
    assert_eq!((numbers(dir), leftovers(dir)), (vec![4, 5], 0));
    assert!(verify(dir, None, &()).unwrap().is_sound());
    // Numbers go on, and at least one always stays.
    assert!(retain(dir, 2).unwrap().removed.is_empty());
    assert_eq!(retain(dir, 0).unwrap().removed, [4]);
    let staging = Chain::open_or_create(dir, &program())
        .unwrap()
        .begin()
        .unwrap();
    assert!(matches!(retain(dir, 1), Err(StoreError::Busy { .. })));
    assert_eq!(staging.commit(header()).unwrap().number, 6);
}

#[test]
fn a_damaged_point_does_not_count_as_one_to_keep() {
    let top = fast_dir();
    let dir = top.path();
    chain_of(dir, 4);
    fs::write(dir.join("000004/host/log"), "short").unwrap();
    assert_eq!(retain(dir, 1).unwrap().removed, [1, 2]);
    assert_eq!(numbers(dir), [3, 4]);
    assert_eq!(newest(dir).unwrap(), Some(3));
    // If none is whole, whatever is there may be all that somebody has.
    fs::remove_file(dir.join("000003/manifest.json")).unwrap();
    assert!(retain(dir, 1).unwrap().removed.is_empty());
}

#[test]
fn a_removal_that_was_interrupted_is_completed_by_the_next_writer() {
    let top = fast_dir();
    let dir = top.path();
    chain_of(dir, 3);
    fs::rename(dir.join("000001"), dir.join(".staging-removed-000001")).unwrap();
    fs::remove_dir_all(dir.join(".staging-removed-000001/host")).unwrap();
    assert!(verify(dir, None, &()).unwrap().is_sound());
    assert_eq!(retain(dir, 1).unwrap().removed, [2]);
    Chain::open_or_create(dir, &program())
        .unwrap()
        .begin()
        .unwrap();
    assert_eq!(leftovers(dir), 0);
    assert_eq!(numbers(dir), [3]);
}
