//! Snapshots by the clock, the last few kept, copied to a second place: whatever is killed, full or away meanwhile, what is
//! there can be restarted, and the program is none the wiser.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapify_tests::{Language, Random, Running, Session, User, compile, example, poll_until};
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

/// A program with some memory, which tells on demand whether that is whole.
struct Fill {
    running: Running,
    stdin: Option<ChildStdin>,
}

impl Fill {
    fn start(session: &Session, mebibytes: u32) -> Self {
        let mut command = session.command(compile("fill.c", Language::C));
        command.arg(mebibytes.to_string());
        let mut fill = Self::of(session, &mut command);
        fill.running.wait_for("ready");
        fill
    }

    /// The program, started or restarted by `command`.
    fn of(session: &Session, command: &mut Command) -> Self {
        let mut running = session.start(command.stdin(Stdio::piped()));
        let stdin = running.take_stdin();
        Self {
            running,
            stdin: Some(stdin),
        }
    }

    fn pid(&self) -> String {
        self.running.pid().to_string()
    }

    fn expect_whole(&mut self) {
        let stdin = self.stdin.as_mut().expect("it runs");
        stdin.write_all(b"check\n").expect("ask the program");
        assert_eq!(self.running.wait_for("e"), "whole");
    }

    fn end(mut self) {
        self.expect_whole();
        drop(self.stdin.take());
        let finished = self.running.finish();
        assert!(finished.status.success(), "{finished:?}");
    }

    fn kill(self) {
        self.running.signal(Signal::KILL);
        assert_eq!(self.running.finish().killed_by(), Some(9));
    }
}

/// `snapify watch --json` of a program.
fn watch(session: &Session, fill: &Fill, arguments: &[&str]) -> Running {
    let mut command = session.snapify(["watch", "--json", &fill.pid()]);
    session.start(command.args(arguments))
}

/// Waits for an event of a kind.
fn event(watch: &mut Running, kind: &str) -> Value {
    let line = watch.wait_for(&format!("\"event\":\"{kind}\""));
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn points(dir: &Path) -> Vec<u32> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut points: Vec<u32> = names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    points.sort_unstable();
    points
}

fn expect_sound(session: &Session, dir: &str) {
    let verified = session.run(["verify", dir]);
    assert!(verified.status.success(), "{verified:?}");
}

fn restart(session: &Session, arguments: &[&str]) -> Fill {
    Fill::of(session, session.snapify(["restart"]).args(arguments))
}

/// Ends a watch, which has to end well.
fn stop(watch: Running) -> String {
    watch.signal(Signal::TERM);
    let finished = watch.finish();
    assert_eq!(finished.code(), Some(0), "{finished:?}");
    assert!(
        finished.stdout.contains("\"reason\":\"signal\""),
        "{finished:?}"
    );
    finished.stdout
}

/// The process that a watch has started to copy.
fn copier_of(watch: &Running) -> Option<i32> {
    let pid = watch.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .find(|child: &i32| {
            let words = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(b"copy")
        })
}

fn signal(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).expect("a process id"), signal);
}

fn killed_programs_go_on(user: User) {
    let session = Session::of(user);
    let fill = Fill::start(&session, 8);
    let mut watch = watch(
        &session,
        &fill,
        &["snap", "--every", "200ms", "--keep", "2"],
    );
    assert_eq!(event(&mut watch, "watching")["pid"], fill.running.pid());
    for point in 1..=4 {
        let taken = event(&mut watch, "snapshot");
        assert_eq!(taken["report"]["point"], point, "{taken}");
        assert!(taken["next_seconds"].is_number(), "{taken}");
    }
    fill.kill();
    let finished = watch.finish();
    assert_eq!(finished.code(), Some(0), "{finished:?}");
    assert!(
        finished.stdout.contains("\"reason\":\"program\""),
        "{finished:?}"
    );
    // The last two stay, and what they build on.
    let left = points(&session.path("snap"));
    assert!(left.len() >= 2 && left.last() >= Some(&4), "{left:?}");
    expect_sound(&session, "snap");
    restart(&session, &["snap"]).end();
    session.expect_no_process();
}

#[test]
fn a_killed_program_goes_on_from_its_last_snapshot() {
    killed_programs_go_on(User::Ordinary);
}

#[test]
fn as_whoever_runs_the_tests() {
    killed_programs_go_on(User::Myself);
}

#[test]
fn a_signal_ends_the_snapshots_and_not_the_program() {
    for sent in [Signal::TERM, Signal::INT] {
        let session = Session::new();
        let mut fill = Fill::start(&session, 64);
        let mut watch = watch(&session, &fill, &["snap", "--every", "50ms"]);
        event(&mut watch, "snapshot");
        // Perhaps in the middle of one.
        watch.signal(sent);
        let finished = watch.finish();
        assert_eq!(finished.code(), Some(0), "{finished:?}");
        assert!(
            finished.stdout.contains("\"reason\":\"signal\""),
            "{finished:?}"
        );
        fill.expect_whole();
        expect_sound(&session, "snap");
        fill.end();
        session.expect_no_process();
    }
}

#[test]
fn an_application_with_a_card_survives_the_loss_of_everything() {
    let session = Session::new();
    let program = |command: &mut Command| {
        command
            .arg("--")
            .arg(example("md"))
            .args(["--steps", "160", "--devices", "1"]);
    };
    let mut plain = session.snapify(["run", "--cards", "1"]);
    program(&mut plain);
    let expected = session.finish(&mut plain);
    assert!(expected.status.success(), "{expected:?}");

    let mut command = session.snapify([
        "run", "--cards", "1", "--every", "300ms", "--into", "local", "--shared", "shared",
        "--log", "log",
    ]);
    program(&mut command);
    let mut running = session.start(&mut command);
    let host = session.host_of(&mut running);
    let log = || std::fs::read_to_string(session.path("log")).unwrap_or_default();
    poll_until("a snapshot is taken and copied", || {
        log().contains("\"event\":\"copied\"") || !running.is_running()
    });
    let Some(host) = host.filter(|_| running.is_running()) else {
        // It was quicker than its snapshots.
        assert_eq!(running.finish().digest(), expected.digest());
        return;
    };
    // The supervisor first: whatever it has started has to end with it, but for the program.
    running.signal(Signal::KILL);
    session.kill_host(&running, host);
    let killed = running.finish();
    assert!(!killed.status.success(), "{killed:?}");
    session.expect_no_process();
    // The node is gone with what was on it.
    std::fs::remove_dir_all(session.path("local")).expect("remove what is on the node");
    let last = points(&session.path("shared")).pop().expect("a copy");
    let mut command = session.snapify([
        "restart", "--local", "local", "--shared", "shared", "--every", "300ms", "--keep", "3",
    ]);
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
    assert_eq!(finished.digest(), expected.digest());
    // New snapshots have not taken the numbers of those that are on shared storage.
    let new = points(&session.path("local"));
    assert!(new.iter().all(|point| *point > last), "{last} {new:?}");
    session.expect_no_process();
}

#[test]
fn a_full_disk_keeps_the_chain_and_is_tried_again() {
    let session = Session::new();
    let fill = compile("fill.c", Language::C);
    let snapify = snapify_tests::stage().join("bin/snapify");
    // A user namespace of its own lets an ordinary user mount a file system that is soon full.
    let script = format!(
        "set -e; mkdir small; mount -t tmpfs -o size=40m none small; mkfifo in; {fill} 8 < in > out & pid=$!; exec 3> in; \
         until grep -q ready out; do :; done; touch events; \
         {snapify} watch $pid small/snap --every 200ms --keep 1 --json > events & watch=$!; \
         until grep -q '\"event\":\"snapshot\"' events; do :; done; \
         until fallocate -l 30m small/ballast; do :; done; \
         until grep -q '\"event\":\"failed\"' events; do :; done; \
         {snapify} verify small/snap; ls -A small/snap | grep -c '^0'; \
         grep -c snapshot events > before; rm small/ballast; \
         until [ $(grep -c '\"event\":\"snapshot\"' events) -gt $(cat before) ]; do :; done; \
         kill $watch; wait $watch; {snapify} verify small/snap; \
         echo check >&3; until grep -q -e whole -e damaged out; do :; done; tail -n 1 out; exec 3>&-; wait $pid; \
         echo ended $?; grep failed events | head -n 1 >&2",
        fill = fill.display(),
        snapify = snapify.display(),
    );
    let mut command = session.command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stderr.contains("the disk is full"), "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(
        lines[lines.len() - 2..],
        ["whole", "ended 0"],
        "{finished:?}"
    );
    assert!(!finished.stdout.contains("DAMAGED"), "{finished:?}");
}

#[test]
fn killed_watchers_and_copiers_leave_nothing_half() {
    let session = Session::new();
    let mut fill = Fill::start(&session, 8);
    let mut random = Random::new();
    let arguments = [
        "--local", "local", "--shared", "shared", "--every", "100ms", "--rate", "40M", "--keep",
        "2",
    ];
    for round in 0..snapify_tests::rounds(6) {
        let mut watch = watch(&session, &fill, &arguments);
        event(&mut watch, "watching");
        // The moment is random: there is no event to wait for.
        std::thread::sleep(Duration::from_millis(random.below(700)));
        if round % 2 == 0 {
            watch.signal(Signal::KILL);
        } else {
            if let Some(copier) = copier_of(&watch) {
                signal(copier, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(random.below(200)));
            watch.signal(Signal::KILL);
        }
        watch.finish();
        fill.expect_whole();
        for dir in ["local", "shared"] {
            if !points(&session.path(dir)).is_empty() {
                expect_sound(&session, dir);
            }
        }
    }
    // All of that is gone on with.
    let mut watch = watch(&session, &fill, &arguments);
    event(&mut watch, "copied");
    event(&mut watch, "copied");
    stop(watch);
    for dir in ["local", "shared"] {
        expect_sound(&session, dir);
        // What is kept and what it builds on, and what a copier still had to do with.
        let left = points(&session.path(dir));
        assert!(left.len() <= 16 + 3, "{left:?}");
    }
    fill.kill();
    session.expect_no_process();
    restart(&session, &["--local", "local", "--shared", "shared"]).end();
    restart(&session, &["shared"]).end();
    session.expect_no_process();
}

#[test]
fn shared_storage_that_fails_or_stalls_holds_nobody_up() {
    let session = Session::new();
    let fill = Fill::start(&session, 8);
    // Nothing can be created below a file.
    std::fs::write(session.path("lustre"), "").expect("write a file");
    let mut watch = watch(
        &session,
        &fill,
        &[
            "snap",
            "--every",
            "200ms",
            "--shared",
            "lustre/snap",
            "--rate",
            "1M",
        ],
    );
    let failed = event(&mut watch, "copy-failed");
    assert!(
        failed["message"]
            .as_str()
            .is_some_and(|why| why.contains("lustre")),
        "{failed}"
    );
    event(&mut watch, "snapshot");
    event(&mut watch, "snapshot");
    std::fs::remove_file(session.path("lustre")).expect("remove the file");
    // Now it is there, and slow; then it stops altogether.
    poll_until("a copy is under way", || {
        session.path("lustre/snap/.staging-copy-000001").exists()
            || points_staged(&session.path("lustre/snap"))
    });
    let mut copier = None;
    poll_until("there is a copier", || {
        copier = copier_of(&watch);
        copier.is_some()
    });
    signal(copier.expect("a copier"), Signal::STOP);
    let before = event(&mut watch, "snapshot");
    let after = event(&mut watch, "snapshot");
    assert!(before["report"]["point"].as_u64() < after["report"]["point"].as_u64());
    // It cannot even be told to end, and that is not waited for long.
    stop(watch);
    expect_sound(&session, "snap");
    // What there is of the copy is gone on with, even though what it is a copy of may be gone.
    session.succeed(["copy", "snap", "lustre/snap"]);
    expect_sound(&session, "lustre/snap");
    fill.kill();
    restart(&session, &["lustre/snap"]).end();
    session.expect_no_process();
}

#[test]
fn shared_storage_that_vanishes_and_a_killed_copier_are_got_over() {
    let session = Session::new();
    let fill = Fill::start(&session, 8);
    let arguments = [
        "snap",
        "--every",
        "300ms",
        "--shared",
        "lustre/snap",
        "--rate",
        "2M",
    ];
    let mut watch = watch(&session, &fill, &arguments);
    let under_way = |watch: &Running| {
        let mut copier = None;
        poll_until("a copy is under way", || {
            copier = copier_of(watch);
            copier.is_some() && points_staged(&session.path("lustre/snap"))
        });
        copier.expect("a copier")
    };
    let copier = under_way(&watch);
    // It is in the middle of a copy of some seconds. Where it is to go is a file all of a sudden, so that it cannot be
    // made again either.
    std::fs::rename(session.path("lustre"), session.path("elsewhere")).expect("take it away");
    std::fs::write(session.path("lustre"), "").expect("put something in the way");
    signal(copier, Signal::KILL);
    let failed = event(&mut watch, "copy-failed");
    let why = failed["message"].as_str().unwrap_or_default();
    assert!(why.contains("died"), "{failed}");
    let failed = event(&mut watch, "copy-failed");
    let why = failed["message"].as_str().unwrap_or_default();
    assert!(why.contains("lustre"), "{failed}");
    event(&mut watch, "snapshot");
    // It is back, with what there was of the copy.
    std::fs::remove_file(session.path("lustre")).expect("remove what is in the way");
    std::fs::rename(session.path("elsewhere"), session.path("lustre")).expect("bring it back");
    let copied = event(&mut watch, "copied");
    assert!(copied["bytes"].as_u64() > Some(8 << 20), "{copied}");
    stop(watch);
    expect_sound(&session, "lustre/snap");
    fill.kill();
    restart(&session, &["lustre/snap"]).end();
    session.expect_no_process();
}

/// What `snapify inspect` tells of the points of a directory.
fn inspected(session: &Session, dir: &str) -> Vec<Value> {
    let told = session.run(["inspect", dir, "--json"]).stdout;
    let told: Value = serde_json::from_str(&told).unwrap_or_default();
    told["points"].as_array().cloned().unwrap_or_default()
}

fn is_compressed(point: &Value) -> bool {
    point["header"]["details"]["measured"]["compressed"] == true
}

#[test]
fn snapshots_are_written_and_follow_each_other_as_is_said() {
    let session = Session::new();
    let mut command = session.snapify([
        "run",
        "--cards",
        "0",
        "--every",
        "100ms",
        "--into",
        "snap",
        "--keep",
        "50",
        "--full-every",
        "3",
        "--codec",
        "lz4",
        "--workers",
        "2",
        "--queue",
        "2",
        "--segment",
        "64K",
        "--",
    ]);
    command.arg(compile("fill.c", Language::C)).arg("8");
    let mut fill = Fill::of(&session, &mut command);
    fill.running.wait_for("ready");
    let mut taken = Vec::new();
    poll_until("there are seven", || {
        taken = inspected(&session, "snap");
        taken.len() >= 7 && taken.iter().all(|point| point["problem"].is_null())
    });
    for (n, point) in taken.iter().enumerate() {
        let builds_on = if n % 3 == 0 { Value::Null } else { n.into() };
        assert_eq!(point["parent"], builds_on, "{point}");
    }
    assert!(taken.iter().step_by(3).all(is_compressed), "{taken:?}");
    let host = session.host_of(&mut fill.running).expect("it runs");
    assert!(session.kill_host(&fill.running, host));
    fill.running.finish();
    session.expect_no_process();
    let before = points(&session.path("snap")).len();

    // And after a restart. What is not known to have changed is saved as well.
    let mut again = restart(
        &session,
        &[
            "snap",
            "--every",
            "100ms",
            "--keep",
            "50",
            "--full-every",
            "2",
            "--codec",
            "zstd:1",
        ],
    );
    again.expect_whole();
    poll_until("there are four more", || {
        taken = inspected(&session, "snap");
        taken.len() >= before + 4 && taken.iter().all(|point| point["problem"].is_null())
    });
    let new: Vec<_> = taken[before..].iter().collect();
    assert!(
        new.iter().any(|point| !point["parent"].is_null()),
        "{new:?}"
    );
    assert!(
        new.iter()
            .any(|point| point["parent"].is_null() && is_compressed(point))
    );
    again.end();
    expect_sound(&session, "snap");
    session.expect_no_process();
}

/// Whether a copy is being made in `dir`.
fn points_staged(dir: &Path) -> bool {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .any(|name| name.starts_with(".staging-copy"))
}

#[test]
fn a_copy_is_slowed_down_interrupted_and_gone_on_with() {
    let session = Session::new();
    let fill = Fill::start(&session, 16);
    session.succeed(["checkpoint", &fill.pid(), "a"]);
    let mut copy =
        session.start(&mut session.snapify(["copy", "a", "b", "--rate", "4M", "--json"]));
    copy.wait_for("\"event\":\"copying\"");
    copy.signal(Signal::TERM);
    let interrupted = copy.finish();
    assert_eq!(interrupted.code(), Some(1), "{interrupted:?}");
    assert!(points(&session.path("b")).is_empty());
    let done = session.succeed(["copy", "a", "b", "--json"]);
    let last: Value = serde_json::from_str(done.lines().last().expect("a line")).expect("JSON");
    assert_eq!(
        (&last["event"], &last["points"][0]),
        (&"copied".into(), &1.into())
    );
    assert!(last["resumed"].as_u64() > Some(0), "{last}");
    expect_sound(&session, "b");
    assert!(session.succeed(["copy", "a", "b"]).contains("already"));
    // Another program's place is left alone.
    let other = Fill::start(&session, 1);
    session.succeed(["checkpoint", &other.pid(), "c"]);
    let refused = session.run(["copy", "a", "c"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("another program"), "{refused:?}");
    other.kill();
    fill.kill();
}

#[test]
fn the_newest_of_two_places_is_restarted() {
    let session = Session::new();
    let fill = Fill::start(&session, 4);
    let pid = fill.pid();
    session.succeed(["checkpoint", &pid, "local"]);
    session.succeed(["copy", "local", "shared"]);
    session.succeed(["checkpoint", &pid, "local", "--full"]);
    fill.kill();
    let levels = ["--local", "local", "--shared", "shared"];
    let from = |expected: &str| {
        let mut fill = restart(&session, &levels);
        fill.expect_whole();
        let found = session.applications()[0]["restarted_from"].clone();
        assert_eq!(found, session.path(expected).display().to_string());
        fill
    };
    from("local").end();
    // A page file with a wrong bit is as good as none, which is found out while it is read.
    let newest = session.path("local/000002/host/pages.snap");
    let whole = std::fs::read(&newest).expect("read a page file");
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, &bytes).expect("damage it");
    let older = session.path("local/000001");
    std::fs::rename(&older, session.path("aside")).expect("hide the older one");
    let fallen_back = from("shared");
    fallen_back.end();
    // What is not complete is not even tried.
    std::fs::write(&newest, &whole[..middle]).expect("cut it");
    from("shared").end();
    std::fs::remove_dir_all(session.path("local")).expect("lose the node");
    from("shared").end();
    std::fs::remove_dir_all(session.path("shared")).expect("lose everything");
    let finished = session.run(["restart", "--local", "local", "--shared", "shared"]);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    session.expect_no_process();
}

#[test]
fn wrong_use_is_refused() {
    let session = Session::new();
    for (arguments, code) in [
        (&["run", "--every", "10m", "--", "true"][..], 2),
        (&["run", "--into", "snap", "--", "true"], 2),
        (&["watch", "1", "--every", "10m"], 2),
        (&["watch", "1", "snap"], 2),
        (&["watch", "1", "snap", "--every", "0s"], 2),
        (&["watch", "1", "snap", "--every", "10m", "--keep", "0"], 2),
        (
            &["watch", "1", "snap", "--every", "1m", "--codec", "gzip"],
            2,
        ),
        (&["watch", "1", "snap", "--every", "1m", "--queue", "0"], 2),
        (
            &[
                "run",
                "--every",
                "1m",
                "--into",
                "a",
                "--full-every",
                "65",
                "--",
                "true",
            ],
            2,
        ),
        (
            &[
                "run",
                "--every",
                "1m",
                "--into",
                "a",
                "--segment",
                "1",
                "--",
                "true",
            ],
            2,
        ),
        (&["copy", "a", "b", "--rate", "0"], 2),
        (&["restart"], 2),
        (&["watch", "4194303", "snap", "--every", "10m"], 1),
        (&["copy", "a", "b"], 1),
        (
            &[
                "run", "--cards", "0", "--every", "1h", "--into", "snap", "--log", "no/where",
                "--", "true",
            ],
            1,
        ),
    ] {
        let finished = session.run(arguments);
        assert_eq!(finished.code(), Some(code), "{arguments:?}: {finished:?}");
        assert!(!finished.stderr.is_empty(), "{arguments:?}");
    }
    // A schedule that never comes to pass changes nothing.
    let finished = session.run([
        "run", "--cards", "0", "--every", "1h", "--into", "snap", "--", "sh", "-c", "exit 7",
    ]);
    assert_eq!(finished.code(), Some(7), "{finished:?}");
    assert!(!session.path("snap").exists());
    session.expect_no_process();
}
