//! Incremental snapshots hold what has changed, and a restarted program goes on with its chain.

use rustix::process::Signal;
use snapify_tests::{Language, Session, compile, poll_until, signal, stop_family};
use std::process::Stdio;

#[test]
fn a_schedule_takes_incremental_ones_if_told_to() {
    let session = Session::new();
    let mut command = session.command(compile("fill.c", Language::C));
    command.arg("4").stdin(Stdio::piped());
    let mut program = session.start(&mut command);
    let _stdin = program.take_stdin();
    program.wait_for("ready");
    let pid = program.pid().to_string();
    let mut watch = session.snapify([
        "watch",
        &pid,
        "snap",
        "--every",
        "100ms",
        "--incremental",
        "--json",
    ]);
    let mut watch = session.start(&mut watch);
    poll_until("there is one that builds on another", || {
        let told = session.run(["inspect", "snap", "--json"]).stdout;
        let told: serde_json::Value = serde_json::from_str(&told).unwrap_or_default();
        let points = told["points"].as_array().cloned().unwrap_or_default();
        points.iter().any(|point| !point["parent"].is_null())
    });
    signal(program.pid(), Signal::KILL);
    program.finish();
    watch.wait_for("end");
    watch.finish();
    session.succeed(["verify", "snap"]);
    session.expect_no_process();
}

#[test]
fn a_restarted_program_goes_on_with_its_chain() {
    let session = Session::new();
    let mut command = session.command(compile("fill.c", Language::C));
    command.arg("8").stdin(Stdio::piped());
    let mut program = session.start(&mut command);
    let _stdin = program.take_stdin();
    program.wait_for("ready");
    let pid = program.pid();
    assert!(session.checkpoint(pid, &["snap", "--incremental"])["parent"].is_null());
    let report = session.checkpoint(pid, &["snap"]);
    assert_eq!(report["parent"], 1, "{report}");
    // What it fills its memory with does not change.
    let bytes = report["file_bytes"].as_u64().expect("bytes");
    assert!(bytes < 4 << 20, "{report}");
    stop_family(pid);
    let report = session.checkpoint(pid, &["snap", "--stop"]);
    assert_eq!(report["parent"], 2, "{report}");
    program.finish();

    let pid = session.restart_stopped("snap", 3);
    // What it writes has been followed since: nothing needs to be compared.
    let report = session.checkpoint(pid, &["snap"]);
    assert_eq!(
        (&report["point"], &report["parent"]),
        (&4.into(), &3.into())
    );
    let bytes = report["file_bytes"].as_u64().expect("bytes");
    assert!(bytes < 4 << 20, "{report}");
    let report = session.checkpoint(pid, &["snap"]);
    assert_eq!(report["parent"], 4, "{report}");
    assert!(session.checkpoint(pid, &["snap", "--full"])["parent"].is_null());
    session.succeed(["verify", "snap"]);
    signal(pid, Signal::KILL);
    session.expect_no_process();

    // From an older point it cannot go on with the newest.
    let pid = session.restart_stopped("snap", 4);
    let report = session.checkpoint(pid, &["snap"]);
    assert!(report["parent"].is_null(), "{report}");
    signal(pid, Signal::KILL);
    session.expect_no_process();
}
