//! Live checkpoints: the program goes on while its memory is saved.

use snapify_tests::{Language, Running, Session, compile};
use std::io::Write;
use std::process::{ChildStdin, Stdio};

/// A program with so many MiB of incompressible memory.
fn fill(session: &Session, mebibytes: u32) -> (Running, ChildStdin) {
    let mut command = session.command(compile("fill.c", Language::C));
    command.arg(mebibytes.to_string()).stdin(Stdio::piped());
    let mut running = session.start(&mut command);
    let stdin = running.take_stdin();
    running.wait_for("ready");
    (running, stdin)
}

fn checkpoint(session: &Session, running: &Running, dir: &str, live: &str) -> serde_json::Value {
    let pid = running.pid().to_string();
    let told = session.succeed(["checkpoint", &pid, dir, "--json", live]);
    serde_json::from_str(&told).expect("a report")
}

#[test]
fn large_programs_go_on_by_themselves() {
    let session = Session::new();
    let (small, _stdin) = fill(&session, 8);
    assert_eq!(
        checkpoint(&session, &small, "small", "--live=auto")["live"],
        false
    );
    assert_eq!(
        checkpoint(&session, &small, "small", "--live")["live"],
        true
    );
    let (large, mut stdin) = fill(&session, 96);
    assert_eq!(
        checkpoint(&session, &large, "large", "--live=never")["live"],
        false
    );
    let report = checkpoint(&session, &large, "large", "--live=auto");
    assert_eq!(report["live"], true);
    let seconds = |name: &str| report[name].as_f64().expect("seconds");
    assert!(
        seconds("frozen_seconds") < seconds("total_seconds"),
        "{report}"
    );
    let children = format!("/proc/{0}/task/{0}/children", large.pid());
    assert_eq!(std::fs::read_to_string(children).expect("its children"), "");
    stdin.write_all(b"check\n").expect("ask the program");
    drop(stdin);
    let finished = large.finish();
    assert!(
        finished.status.success() && finished.stdout.contains("whole"),
        "{finished:?}"
    );

    let mut restart = session.snapify(["restart", "large"]);
    let mut restarted = session.start(restart.stdin(Stdio::piped()));
    let mut stdin = restarted.take_stdin();
    stdin.write_all(b"check\n").expect("ask the program");
    drop(stdin);
    let finished = restarted.finish();
    assert!(
        finished.status.success() && finished.stdout.contains("whole"),
        "{finished:?}"
    );
}

#[test]
fn stopping_and_going_on_is_wrong_use() {
    let session = Session::new();
    let both = session.run(["checkpoint", "1", "snap", "--stop", "--live"]);
    assert_eq!(both.code(), Some(2), "{both:?}");
}
