//! Power may be lost at any moment, and take with it whatever was not flushed: every point that was reported as
//! committed gives back its moment, and no point that can be seen gives back anything else than its own.

mod support;

use snapify_store::{Chain, Snapshot, clean, copy, verify};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use support::journal::{Disk, Op, record};
use support::running::{Program, restarted};
use support::{Chance, Memory, disk_dir, fast_dir, header, program};

const INSIDE: &str = "SNAPIFY_STORE_TEST_POWER";

/// Takes points of a program and cleans up behind it. `tell` learns of what is certain from then on.
fn work(dir: &Path, mut tell: impl FnMut(&str, u32, &Memory)) {
    let chain = Chain::open_or_create(dir, &program()).unwrap();
    let mut running = Program::new(11);
    running.options.workers = Some(2);
    for round in 1..=7u32 {
        running.options.compression = if round % 2 == 0 { "lz4" } else { "none" }.parse().unwrap();
        running.go_on();
        let number = running.checkpoint(&chain, None, false);
        tell("committed", number, &running.memory);
        if round == 4 || round == 7 {
            tell("cleaning", number - 1, &running.memory);
            clean(dir, 2, &()).unwrap();
        }
    }
}

#[test]
#[ignore = "run by the other tests, in a process that is watched"]
fn a_program_that_is_watched() {
    let Some(dir) = std::env::var_os(INSIDE) else {
        return;
    };
    work(Path::new(&dir), |what, number, _| {
        println!("{what} {number}")
    });
}

#[test]
#[ignore = "run by the other tests, in a process that is watched"]
fn a_copy_that_is_watched() {
    let Some(dir) = std::env::var_os(INSIDE) else {
        return;
    };
    let (from, to) = (Path::new(&dir).join("../from"), Path::new(&dir).to_owned());
    copy(&from, &to, &()).unwrap();
    println!("committed 7");
}

/// What is done in `dir` by one of the above, in a process of its own.
fn watched(which: &str, dir: &Path) -> Vec<Op> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", which, "--ignored", "--nocapture"])
        .env(INSIDE, dir);
    record(&mut command, dir)
}

/// Lets the power fail again and again, and looks at what is left.
fn fail(ops: &[Op], then: &BTreeMap<u32, Memory>, seed: u64, mut after: impl FnMut(u64, &Path)) {
    let mut disk = Disk::new();
    let mut chance = Chance(seed);
    let (mut oldest, mut newest) = (1, 0);
    let mut failures = 0;
    for op in ops {
        disk.take(op);
        if let Op::Said(line) = op {
            match line.split_once(' ') {
                Some(("committed", number)) => newest = number.parse().unwrap(),
                Some(("cleaning", number)) => oldest = number.parse().unwrap(),
                _ => {}
            }
        }
        for _ in 0..4 {
            let left = fast_dir();
            disk.lose_power(&mut chance, left.path());
            for number in oldest..=newest {
                // A copy has only the points that it needs.
                if then.contains_key(&number) {
                    restarted(left.path(), number).assert_is(&then[&number]);
                }
            }
            // Points that were not reported yet, or are just being removed, are whole if they are there.
            if let Ok(report) = verify(left.path(), None, &()) {
                for point in report.points {
                    let opened = Snapshot::open(left.path(), Some(point.number));
                    assert!(point.sound && opened.is_ok(), "{:?}", report.problems);
                    restarted(left.path(), point.number).assert_is(&then[&point.number]);
                }
            } else {
                assert_eq!(newest, 0, "committed, and not to be seen");
            }
            failures += 1;
            after(failures, left.path());
        }
    }
    assert!(failures > 100, "{failures}");
}

fn expected(dir: &Path) -> BTreeMap<u32, Memory> {
    let mut then = BTreeMap::new();
    work(dir, |what, number, memory| {
        if what == "committed" {
            then.insert(number, memory.clone());
        }
    });
    then
}

/// One test at a time: a process that is just being spawned holds the locks of all threads.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn what_is_committed_survives_a_loss_of_power_at_any_moment() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (dir, again) = (disk_dir(), fast_dir());
    let then = expected(again.path());
    let ops = watched("a_program_that_is_watched", dir.path());
    assert!(ops.len() > 200, "{}", ops.len());
    fail(&ops, &then, 1, |failures, left| {
        // Work goes on with whatever is there.
        if failures % 20 == 0 {
            let chain = Chain::open_or_create(left, &program()).unwrap();
            let mut running = Program::new(failures);
            running.go_on();
            let full = chain.begin().unwrap();
            drop(full);
            let staging = chain.begin_incremental(None).unwrap();
            let point = staging.commit(header()).unwrap();
            clean(left, 1, &()).unwrap();
            assert_eq!(Snapshot::open(left, None).unwrap().number(), point.number);
        }
    });
}

#[test]
fn a_copy_survives_a_loss_of_power_at_any_moment() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let top = fast_dir();
    let then = expected(&{
        let from = top.path().join("from");
        std::fs::create_dir(&from).unwrap();
        from
    });
    let to = top.path().join("to");
    std::fs::create_dir(&to).unwrap();
    let ops = watched("a_copy_that_is_watched", &to);
    let last: BTreeMap<u32, Memory> = then.into_iter().filter(|(n, _)| *n >= 6).collect();
    fail(&ops, &last, 2, |failures, left| {
        // The next attempt completes it.
        if failures % 20 == 0 {
            copy(&top.path().join("from"), left, &()).unwrap();
            restarted(left, 7).assert_is(&last[&7]);
        }
    });
}
