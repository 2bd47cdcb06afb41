//! A cleaner that is killed leaves every point whole, and what it leaves behind is removed by the next.
//!
//! Alone in its program: a process that is just being spawned holds the locks of all threads.

mod support;

use snapify_store::{Chain, clean, inspect};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use support::running::{chain_of, check, numbers, restarted};
use support::{fast_dir, program};

const INSIDE: &str = "SNAPIFY_STORE_TEST_CLEAN";

#[test]
#[ignore = "run by a_cleaner_may_be_killed_at_any_moment, in a process that is then killed"]
fn a_cleaner_that_is_killed() {
    let Some(dir) = std::env::var_os(INSIDE) else {
        return;
    };
    println!("begin");
    clean(Path::new(&dir), 2, &()).unwrap();
}

#[test]
fn a_cleaner_may_be_killed_at_any_moment() {
    let dir = fast_dir();
    let (mut running, mut then) = chain_of(dir.path(), 4, 3);
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    for round in 0..25u64 {
        running.go_on();
        let number = running.checkpoint(&chain, None, false);
        then.insert(number, running.memory.clone());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_cleaner_that_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env(INSIDE, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(out.any(|line| line.unwrap().contains("begin")));
        // From before it has begun to after it has ended: a cleaning takes some milliseconds.
        let begin = std::time::Instant::now();
        while begin.elapsed().as_micros() < u128::from(round * 400) {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        drop(out);
        let there = numbers(dir.path());
        assert!(there.ends_with(&[number - 1, number]), "{there:?}");
        for number in there {
            restarted(dir.path(), number).assert_is(&then[&number]);
        }
    }
    clean(dir.path(), 2, &()).unwrap();
    check(dir.path(), &then);
    assert!(inspect(dir.path()).unwrap().unfinished.is_empty());
}
