//! A card daemon or an offload process may be killed at any moment: the application is told so as an OpenMP runtime
//! would tell it, never left hanging, and nothing stays behind.

use rustix::process::{Pid, Signal, kill_process};
use snapify_tests::{Random, Running, Session};
use std::time::Duration;

fn start(session: &Session) -> Running {
    session.start(&mut session.offload(2, "kmeans"))
}

fn kill(pid: &serde_json::Value) {
    let pid = pid
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    kill_process(pid.expect("ps tells a process id"), Signal::KILL).expect("kill it");
}

/// Kills what `victim` picks from the application's entry in `ps`, at a random moment.
fn dies(victim: impl Fn(&serde_json::Value) -> &serde_json::Value, words: &[&str]) {
    let mut random = Random::new();
    for _ in 0..3 {
        let session = Session::new();
        let mut run = start(&session);
        run.wait_for("iteration ");
        std::thread::sleep(Duration::from_millis(random.below(500)));
        let applications = session.applications();
        let Some(application) = applications.first() else {
            assert!(run.finish().status.success(), "it had come to its end");
            continue;
        };
        kill(victim(application));
        let finished = run.finish();
        if finished.status.success() {
            assert!(!finished.digest().is_empty(), "it had come to its end");
        } else {
            for word in words {
                assert!(
                    finished.stderr.contains(word),
                    "no '{word}' in {finished:?}"
                );
            }
        }
        session.expect_no_process();
    }
}

#[test]
fn an_offload_process_is_killed() {
    dies(|application| &application["processes"][0]["pid"], &["card"]);
}

#[test]
fn a_card_daemon_is_killed() {
    dies(|application| &application["cards"][1]["pid"], &["card 1"]);
}

#[test]
fn the_host_process_is_killed() {
    let session = Session::new();
    let mut run = start(&session);
    run.wait_for("iteration ");
    let host = session.host_of(&mut run).expect("it runs");
    kill(&host.into());
    assert_eq!(run.finish().killed_by(), Some(9));
    session.expect_no_process();
}

#[test]
fn the_supervisor_is_killed() {
    let session = Session::new();
    let mut run = start(&session);
    run.wait_for("iteration ");
    run.signal(Signal::KILL);
    // The cards die with their supervisor; the program notices at its next target region.
    drop(run.finish());
    session.expect_no_process();
}

#[test]
fn during_a_checkpoint() {
    let mut random = Random::new();
    for _ in 0..4 {
        let session = Session::new();
        let mut run = start(&session);
        run.wait_for("iteration ");
        let host = session.host_of(&mut run).expect("it runs").to_string();
        let applications = session.applications();
        let checkpoint = session.start(&mut session.snapify(["checkpoint", &host, "snap"]));
        std::thread::sleep(Duration::from_millis(random.below(60)));
        kill(&applications[0]["processes"][0]["pid"]);
        let checkpoint = checkpoint.finish();
        let finished = run.finish();
        if checkpoint.status.success() {
            let restarted = session.run(["restart", "snap"]);
            assert!(restarted.status.success(), "{restarted:?}");
        } else {
            assert_eq!(checkpoint.code(), Some(1), "{checkpoint:?}");
            assert!(!checkpoint.stderr.is_empty(), "{checkpoint:?}");
        }
        assert!(
            !finished.status.success() || !finished.digest().is_empty(),
            "{finished:?}"
        );
        session.expect_no_process();
    }
}
