//! A disk that gets full while a snapshot is written or old ones are cleaned away: what was there before stays whole, the program
//! goes on, and the message says what was being written.

use rustix::process::Signal;
use serde_json::Value;
use snapify_tests::{Finished, Running, Session, example, poll_until};
use std::process::{ChildStdin, Command, Stdio};

/// A small file system in a namespace of its own, which an ordinary user may mount.
struct SmallDisk<'a> {
    session: &'a Session,
    holder: Running,
    stdin: Option<ChildStdin>,
}

impl<'a> SmallDisk<'a> {
    fn mount(session: &'a Session, mebibytes: u32) -> Self {
        let script = format!(
            "mkdir disk && mount -t tmpfs -o size={mebibytes}m none disk && echo mounted && exec cat"
        );
        let mut command = session.command("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped());
        let mut holder = session.start(&mut command);
        let stdin = holder.take_stdin();
        holder.wait_for("mounted");
        Self {
            session,
            holder,
            stdin: Some(stdin),
        }
    }

    /// A command that sees the file system.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.session.command("nsenter");
        command
            .args(["--target", &self.holder.pid().to_string()])
            .args(["--user", "--mount", "--preserve-credentials", "--"])
            .args(words);
        command
    }

    fn path(&self, name: &str) -> String {
        self.session.path("disk").join(name).display().to_string()
    }

    fn snapify(&self, words: &[&str]) -> Finished {
        let snapify = snapify_tests::stage().join("bin/snapify");
        let snapify = snapify.display().to_string();
        let words = [&[&*snapify], words].concat();
        self.session.finish(&mut self.command(&words))
    }

    fn succeed(&self, words: &[&str]) -> Value {
        let finished = self.snapify(words);
        assert!(finished.status.success(), "{words:?}: {finished:?}");
        serde_json::from_str(&finished.stdout).unwrap_or_default()
    }

    /// Leaves so much room.
    fn fill(&self, kibibytes: u32) {
        let (disk, ballast) = (self.path(""), self.path("ballast"));
        let script = format!(
            "free=$(stat -f -c %a {disk}) && fallocate -l $(((free * 4 - {kibibytes}) * 1024)) {ballast}"
        );
        let finished = self
            .session
            .finish(&mut self.command(&["sh", "-c", &script]));
        assert!(finished.status.success(), "{finished:?}");
    }

    fn empty(&self) {
        let finished = self
            .session
            .finish(&mut self.command(&["rm", &self.path("ballast")]));
        assert!(finished.status.success(), "{finished:?}");
    }

    fn unmount(mut self) {
        drop(self.stdin.take());
        self.holder.finish();
    }
}

fn points(told: &Value) -> Vec<u64> {
    let points = told["points"].as_array().cloned().unwrap_or_default();
    points
        .iter()
        .filter_map(|point| point["number"].as_u64())
        .collect()
}

/// Lets a program do a step, and stops it: it cannot end meanwhile.
fn step(running: &mut Running) {
    running.signal(Signal::CONT);
    running.wait_for("step ");
    running.signal(Signal::STOP);
    let status = format!("/proc/{}/status", running.pid());
    poll_until("it has stopped", || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        status.contains("State:\tT (stopped)")
    });
}

fn survives(codec: &str) {
    let session = Session::new();
    let disk = SmallDisk::mount(&session, 48);
    let kernel = example("kernels/lu").display().to_string();
    // Each step writes nearly all of some seven mebibytes.
    let words = [&*kernel, "--class", "W", "--steps", "60"];
    let expected = session.finish(&mut disk.command(&words));
    assert!(expected.status.success(), "{expected:?}");

    let mut running = session.start(&mut disk.command(&words));
    let pid = running.pid().to_string();
    let snap = disk.path("snap");
    let save = [
        "checkpoint",
        &pid,
        &snap,
        "--codec",
        codec,
        "--full-every",
        "9",
        "--json",
    ];
    let refused = |points_there: &[u64], words: &[&str]| {
        let failed = disk.snapify(words);
        assert_eq!(failed.code(), Some(1), "{failed:?}");
        assert!(failed.stderr.contains("disk is full"), "{failed:?}");
        assert!(failed.stderr.contains(&snap), "{failed:?}");
        if points_there.is_empty() {
            return;
        }
        let told = disk.succeed(&["inspect", &snap, "--json"]);
        assert_eq!(points(&told), points_there, "{told}");
        assert_eq!(told["unfinished"], serde_json::json!([]), "{told}");
        disk.succeed(&["verify", &snap]);
    };
    // In the middle of a full one.
    step(&mut running);
    disk.fill(1500);
    refused(&[], &save);
    disk.empty();
    step(&mut running);
    assert!(disk.succeed(&save)["parent"].is_null());

    // In the middle of an incremental one, with more or less room.
    for room in [100, 1500, 3000] {
        step(&mut running);
        disk.fill(room);
        refused(&[1], &save);
        disk.empty();
    }
    for parent in 1..=2 {
        step(&mut running);
        let report = disk.succeed(&save);
        assert_eq!(report["parent"], parent, "{report}");
    }

    // In the middle of a cleaning, if that needs room.
    disk.fill(1500);
    let cleaned = disk.snapify(&["clean", &snap, "--keep", "1"]);
    if !cleaned.status.success() {
        assert!(cleaned.stderr.contains("disk is full"), "{cleaned:?}");
        assert!(cleaned.stderr.contains(&snap), "{cleaned:?}");
    }
    disk.succeed(&["verify", &snap]);
    disk.empty();
    running.signal(Signal::KILL);
    running.finish();
    disk.succeed(&["clean", &snap, "--keep", "1"]);

    let snapify = snapify_tests::stage().join("bin/snapify");
    let snapify = snapify.display().to_string();
    let pid_file = session.path("pid");
    let pid_path = pid_file.display().to_string();
    let words = [&*snapify, "restart", &snap, "--pid-file", &pid_path];
    let mut again = session.start(&mut disk.command(&words));
    let mut pid = None;
    poll_until("the restart writes its pid file or ends", || {
        let text = std::fs::read_to_string(&pid_file).unwrap_or_default();
        pid = text.trim().parse::<i32>().ok();
        pid.is_some() || !again.is_running()
    });
    if let Some(pid) = pid {
        // It was stopped when it was saved.
        let words = ["kill", "-CONT", &pid.to_string()];
        session.finish(&mut disk.command(&words));
    }
    let finished = again.finish();
    assert!(finished.status.success(), "{finished:?}");
    assert_eq!(finished.digest(), expected.digest());
    disk.unmount();
    session.expect_no_process();
}

#[test]
fn uncompressed_snapshots() {
    survives("none");
}

#[test]
fn compressed_snapshots() {
    survives("lz4");
}
