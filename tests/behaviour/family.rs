//! Processes that have their memory in common since a fork: it is saved once, and theirs together again after the restart.

use snapify_tests::{Language, Running, Session, User, compile, poll_until};
use std::fs;
use std::io::Write;
use std::process::{ChildStdin, Stdio};

const CHILDREN: u64 = 4;

/// Memory of the parent: 48 MiB, or `SNAPIFY_FAMILY_MEBIBYTES`.
fn mebibytes() -> u64 {
    let wanted = std::env::var("SNAPIFY_FAMILY_MEBIBYTES");
    wanted.map_or(48, |text| text.parse().expect("a number of MiB"))
}

/// Memory of a process and all its descendants in MiB, that which several have counted once (proc(5), `Pss`).
fn proportional(pid: i32) -> u64 {
    let rollup = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(rollup).expect("the process is there");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let own: u64 = number.and_then(|n| n.parse().ok()).expect("kilobytes");
    let children = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(children).expect("the process is there");
    let ids = children
        .split_whitespace()
        .map(|id| id.parse().expect("an id"));
    own / 1024 + ids.map(proportional).sum::<u64>()
}

fn be_whole(running: Running, mut stdin: ChildStdin) {
    stdin.write_all(b"check\n").expect("ask the program");
    drop(stdin);
    let finished = running.finish();
    assert!(
        finished.status.success() && finished.stdout.contains("whole"),
        "{finished:?}"
    );
}

fn survives(user: User, live: &str) {
    let session = Session::of(user);
    let mut command = session.command(compile("family.c", Language::C));
    let mebibytes = mebibytes();
    command.args([mebibytes.to_string(), CHILDREN.to_string()]);
    let mut running = session.start(command.stdin(Stdio::piped()));
    let stdin = running.take_stdin();
    running.wait_for("ready");
    let before = proportional(running.pid());
    let pid = running.pid().to_string();
    session.succeed(["checkpoint", &pid, "snap", live]);
    // Reading must not give each process a copy.
    let after = proportional(running.pid());
    assert!(after <= before + 4, "{before} MiB became {after} MiB");
    be_whole(running, stdin);

    // One page in a hundred is each child's own.
    let most = mebibytes + mebibytes * CHILDREN / 50 + 4;
    let pages = fs::metadata(session.path("snap/000001/host/pages.snap")).expect("the page file");
    assert!(pages.len() >> 20 < most, "{} bytes", pages.len());
    let mut restart = session.snapify(["restart", "snap", "--pid-file", "pid"]);
    let mut restarted = session.start(restart.stdin(Stdio::piped()));
    let stdin = restarted.take_stdin();
    let mut id = None;
    poll_until("the restarted program has an id", || {
        let text = fs::read_to_string(session.path("pid")).unwrap_or_default();
        id = text.trim().parse().ok();
        id.is_some()
    });
    let now = proportional(id.expect("an id"));
    let saved = pages.len() >> 20;
    println!(
        "{mebibytes} MiB, {CHILDREN} children: {before} MiB; {saved} MiB saved; {now} MiB restarted"
    );
    assert!(now < most, "{now} MiB");
    be_whole(restarted, stdin);
}

#[test]
fn common_memory_is_saved_once_and_shared_again() {
    for user in [User::Ordinary, User::Myself] {
        survives(user, "--live=never");
    }
}

#[test]
fn common_memory_is_saved_once_by_live_checkpoints() {
    for user in [User::Ordinary, User::Myself] {
        survives(user, "--live");
    }
}
