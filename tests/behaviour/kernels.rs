//! Kernels with the memory behaviour of the NAS parallel benchmarks and of mpiBLAST: saved incrementally a few times, killed and restarted,
//! they come to the same result, bit for bit.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapify_tests::{Finished, Running, Session, User, example, poll_until};

/// A kernel, and how many steps of its smallest class take about a second.
const KERNELS: [(&str, u32); 8] = [
    ("bt", 150),
    ("cg", 200),
    ("ep", 60),
    ("ft", 150),
    ("lu", 200),
    ("mg", 700),
    ("sp", 500),
    ("blast", 150),
];

fn signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("an id");
    kill_process(pid, signal).expect("send a signal");
}

/// Waits until a process stands still.
fn wait_stopped(pid: i32) {
    poll_until("it has stopped", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("State:\tT (stopped)")
    });
}

/// Saves a kernel that has got on by two steps since `running` was last asked. It stands still meanwhile, so that it cannot
/// end first, and afterwards.
fn save(session: &Session, running: &mut Running, pid: i32) -> Value {
    for _ in 0..2 {
        running.wait_for("step ");
    }
    signal(pid, Signal::STOP);
    wait_stopped(pid);
    let id = pid.to_string();
    let args = ["checkpoint", &id, "snap", "--full-every", "9", "--json"];
    serde_json::from_str(&session.succeed(args)).expect("a report")
}

/// Restarts the newest snapshot, and lets it go on.
fn restart(session: &Session, name: &str) -> (Running, i32) {
    let mut command = session.snapify(["restart", "snap", "--pid-file", name]);
    let mut running = session.start(&mut command);
    let mut pid = None;
    poll_until("the restart writes its pid file or ends", || {
        let text = std::fs::read_to_string(session.path(name)).unwrap_or_default();
        pid = text.trim().parse().ok();
        pid.is_some() || !running.is_running()
    });
    let pid = match pid {
        Some(pid) => pid,
        None => panic!("it was not restarted: {:?}", running.finish()),
    };
    wait_stopped(pid);
    signal(pid, Signal::CONT);
    (running, pid)
}

fn is_good(finished: &Finished, kernel: &str) {
    assert!(finished.status.success(), "{kernel}: {finished:?}");
    let verdict = finished.last("verification");
    assert_eq!(verdict, Some("passed"), "{kernel}: {finished:?}");
}

fn survives(user: User, kernel: &str, steps: u32) {
    let session = Session::of(user);
    let program = || {
        let mut command = session.command(example(&format!("kernels/{kernel}")));
        command.args(["--class", "S", "--steps", &steps.to_string()]);
        command
    };
    let expected = session.finish(&mut program());
    is_good(&expected, kernel);

    let mut running = session.start(&mut program());
    let pid = running.pid();
    let full = save(&session, &mut running, pid);
    assert!(full["parent"].is_null(), "{kernel}: {full}");
    for point in 1..=3 {
        signal(pid, Signal::CONT);
        let report = save(&session, &mut running, pid);
        assert_eq!(report["parent"], point, "{kernel}: {report}");
        let size = |report: &Value| report["file_bytes"].as_u64().expect("a size");
        // Of a sparse matrix nothing is ever written, nor of a database.
        if ["cg", "blast"].contains(&kernel) {
            assert!(size(&report) < size(&full) / 3, "{report} {full}");
        }
    }
    signal(pid, Signal::KILL);
    assert_eq!(running.finish().killed_by(), Some(9), "{kernel}");

    // Once more from there, and then to the end.
    let (mut running, pid) = restart(&session, "first");
    save(&session, &mut running, pid);
    signal(pid, Signal::CONT);
    let report = save(&session, &mut running, pid);
    assert_eq!(report["parent"], 5, "{kernel}: {report}");
    signal(pid, Signal::KILL);
    running.finish();
    let (running, _) = restart(&session, "second");
    let finished = running.finish();
    is_good(&finished, kernel);
    assert_eq!(finished.digest(), expected.digest(), "{kernel}");
    session.succeed(["verify", "snap"]);
    session.expect_no_process();
}

#[test]
fn all_of_them_come_to_the_same_result() {
    for (kernel, steps) in KERNELS {
        survives(User::Ordinary, kernel, steps);
    }
}

#[test]
fn some_as_whoever_runs_the_tests() {
    for (kernel, steps) in KERNELS {
        if ["cg", "mg"].contains(&kernel) {
            survives(User::Myself, kernel, steps);
        }
    }
}

#[test]
fn wrong_use_is_told() {
    let session = Session::new();
    for args in [
        &["--class"][..],
        &["--class", "SS"],
        &["--class", "Z"],
        &["--steps", "0"],
        &["--steps", "1x"],
        &["--memory", "1"],
    ] {
        let mut command = session.command(example("kernels/mg"));
        let finished = session.finish(command.args(args));
        assert_eq!(finished.code(), Some(2), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains("usage"), "{finished:?}");
    }
}
