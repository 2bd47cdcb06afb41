//! Cleaning gives room back and takes nothing away that is to stay, whatever happens meanwhile.

mod support;

use snapify_store::{
    Chain, Compression, PAGE_SIZE, Progress, Snapshot, SpaceId, StoreError, WriteOptions, clean,
    clean_plan, copy, inspect, retain,
};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use support::running::{Program, chain_of, check, numbers, restarted};
use support::{fast_dir, files_under, program};

#[test]
fn what_stays_is_whole_and_what_goes_is_gone() {
    for keep in 1..=6u32 {
        let dir = fast_dir();
        let (mut running, mut then) = chain_of(dir.path(), u64::from(keep), 5);
        let plan = clean_plan(dir.path(), keep).unwrap();
        let report = clean(dir.path(), keep, &()).unwrap();
        let stay: Vec<u32> = (1..=5).skip(5usize.saturating_sub(keep as usize)).collect();
        assert_eq!(numbers(dir.path()), stay);
        assert_eq!(report.rewritten, plan.rewritten);
        assert_eq!(report.removed, plan.removed);
        assert_eq!(report.rewritten.len(), usize::from(keep < 5));
        assert!(report.in_use.is_empty());
        assert_eq!(report.bytes_after, inspect(dir.path()).unwrap().bytes);
        check(dir.path(), &then);
        let oldest = Snapshot::open(dir.path(), Some(stay[0])).unwrap();
        assert_eq!(oldest.chain(), [stay[0]], "it stands alone");
        // The program goes on with its chain, and is cleaned after again.
        let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
        for _ in 0..2 {
            running.go_on();
            let number = running.checkpoint(&chain, None, keep % 2 == 0);
            then.insert(number, running.memory.clone());
        }
        check(dir.path(), &then);
        clean(dir.path(), keep, &()).unwrap();
        check(dir.path(), &then);
        assert!(inspect(dir.path()).unwrap().unfinished.is_empty());
        let again = clean(dir.path(), keep, &()).unwrap();
        assert!(again.rewritten.is_empty() && again.removed.is_empty());
    }
}

#[test]
fn random_chains_are_cleaned_at_random_times() {
    for seed in 0..12 {
        let dir = fast_dir();
        let (mut running, mut then) = chain_of(dir.path(), seed, 3);
        let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
        for round in 0..10 {
            let on = if running.chance.below(4) == 0 {
                // From an earlier point that is still there.
                let there = numbers(dir.path());
                let at = there[running.chance.below(there.len() as u64) as usize];
                running.memory = then[&at].clone();
                running.dirty.clear();
                Some(at)
            } else {
                None
            };
            running.go_on();
            let number = running.checkpoint(&chain, on, round % 3 == 0);
            then.insert(number, running.memory.clone());
            match running.chance.below(4) {
                0 | 1 => {
                    let keep = 1 + running.chance.below(4) as u32;
                    let before = numbers(dir.path());
                    let report = clean(dir.path(), keep, &()).unwrap();
                    let after = numbers(dir.path());
                    assert_eq!(after.len(), before.len().min(keep as usize), "{report:?}");
                }
                2 => {
                    retain(dir.path(), 2).unwrap();
                }
                _ => {}
            }
            check(dir.path(), &then);
        }
    }
}

#[test]
fn the_room_that_a_chain_takes_stays_bounded() {
    let dir = fast_dir();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let mut running = Program::new(1);
    for page in 0..1000 {
        running.put((SpaceId(0), page * PAGE_SIZE), page + 1);
    }
    let (mut most, mut written) = (0, 0);
    for round in 0..60u64 {
        for page in 0..50 {
            let page = (round * 37 + page) % 1000;
            running.put((SpaceId(0), page * PAGE_SIZE), round * 1000 + page + 1);
        }
        running.checkpoint(&chain, None, false);
        let plan = clean_plan(dir.path(), 3).unwrap();
        if plan.is_due() {
            clean(dir.path(), 3, &()).unwrap();
            written += plan.bytes_to_write;
        }
        most = most.max(inspect(dir.path()).unwrap().bytes);
    }
    let memory = 1000 * PAGE_SIZE;
    assert!(most < 2 * memory, "{most}");
    // 60 points of 50 pages each have been written, and not much more than that was moved.
    assert!(
        written > 0 && written < 2 * (60 * 50 * PAGE_SIZE),
        "{written}"
    );
    restarted(dir.path(), 60).assert_is(&running.memory);
}

#[test]
fn what_is_being_read_is_left_alone() {
    let dir = fast_dir();
    let (_, then) = chain_of(dir.path(), 2, 5);
    let reader = Snapshot::open(dir.path(), Some(4)).unwrap();
    let before = files_under(dir.path());
    let report = clean(dir.path(), 2, &()).unwrap();
    assert_eq!(report.in_use, [4]);
    assert!(report.rewritten.is_empty() && report.removed.is_empty());
    let after = files_under(dir.path());
    let after: Vec<_> = after
        .into_iter()
        .filter(|p| !p.ends_with(".cleaner"))
        .collect();
    assert_eq!(before, after);
    let pages = reader.member("host").unwrap().pages("pages.snap").unwrap();
    let filled = support::Filled::default();
    pages.fill(&filled, &()).unwrap();
    filled.assert_is(&then[&4]);
    drop((pages, reader));
    assert_eq!(clean(dir.path(), 2, &()).unwrap().rewritten, [4]);
    check(dir.path(), &then);
}

/// Cancels after so many questions.
struct Until(AtomicU64);

impl Progress for Until {
    fn cancelled(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }
}

#[test]
fn a_cleaning_that_is_called_off_or_fails_changes_nothing() {
    let dir = fast_dir();
    let (_, then) = chain_of(dir.path(), 0, 4);
    let error = clean(dir.path(), 2, &Until(AtomicU64::new(0))).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled { .. }), "{error}");
    assert_eq!(numbers(dir.path()), [1, 2, 3, 4]);
    check(dir.path(), &then);
    // A damaged block below is noticed before anything that is still whole is given up.
    let pages = dir.path().join("000001/host/pages.snap");
    let mut bytes = fs::read(&pages).unwrap();
    bytes[5000] ^= 1;
    fs::write(&pages, bytes).unwrap();
    assert!(clean(dir.path(), 2, &()).is_err());
    assert_eq!(numbers(dir.path()), [1, 2, 3, 4]);
    assert!(inspect(dir.path()).unwrap().unfinished.is_empty());
}

#[test]
fn points_are_written_and_read_while_others_are_cleaned_away() {
    let dir = fast_dir();
    let (mut running, mut then) = chain_of(dir.path(), 1, 3);
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    for _ in 0..25 {
        running.go_on();
        std::thread::scope(|scope| {
            scope.spawn(|| clean(dir.path(), 2, &()).unwrap());
            scope.spawn(|| {
                // The newest may have become an old one, and gone, until it is opened.
                match Snapshot::open(dir.path(), None) {
                    Ok(snapshot) => {
                        let member = snapshot.member("host").unwrap();
                        let pages = member.pages("pages.snap").unwrap();
                        pages.fill(&support::Filled::default(), &()).unwrap();
                    }
                    Err(StoreError::Missing { .. } | StoreError::Broken { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            });
            let number = running.checkpoint(&chain, None, false);
            then.insert(number, running.memory.clone());
        });
    }
    clean(dir.path(), 2, &()).unwrap();
    assert_eq!(numbers(dir.path()), [27, 28]);
    check(dir.path(), &then);
}

#[test]
fn a_cleaned_chain_is_copied_to_where_its_old_points_are() {
    let (from, to) = (fast_dir(), fast_dir());
    let (mut running, mut then) = chain_of(from.path(), 5, 3);
    copy(from.path(), to.path(), &()).unwrap();
    clean(from.path(), 1, &()).unwrap();
    let chain = Chain::open_or_create(from.path(), &program()).unwrap();
    running.go_on();
    let number = running.checkpoint(&chain, None, false);
    then.insert(number, running.memory.clone());
    let report = copy(from.path(), to.path(), &()).unwrap();
    assert_eq!(report.copied, [number]);
    check(to.path(), &then);
    check(from.path(), &then);
    clean(to.path(), 1, &()).unwrap();
    check(to.path(), &then);
}

#[test]
fn nothing_to_clean_is_an_error_or_nothing() {
    let dir = fast_dir();
    assert!(matches!(
        clean(dir.path(), 1, &()),
        Err(StoreError::NoSnapshot { .. })
    ));
    assert!(clean_plan(dir.path(), 1).is_err());
    let dir = fast_dir();
    support::small_chain(dir.path());
    let plan = clean_plan(dir.path(), 1).unwrap();
    assert!(!plan.is_due() && plan.bytes_to_write == 0);
    assert_eq!(WriteOptions::default().compression, Compression::None);
}
