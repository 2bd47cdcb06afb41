//! Whatever is wrong gets a clear error before anything is changed: the application goes on, earlier snapshots stay
//! valid, and neither half a snapshot nor a stray process is left.

use rustix::process::Signal;
use snapify_tests::{Finished, Language, Running, Session, User, compile, poll_until};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};

/// A plain program with some memory, which tells on demand whether that is whole.
struct Fill {
    running: Running,
    stdin: Option<ChildStdin>,
}

impl Fill {
    fn start(session: &Session, mebibytes: u32) -> Self {
        let mut command = session.command(compile("fill.c", Language::C));
        command.arg(mebibytes.to_string()).stdin(Stdio::piped());
        let mut running = session.start(&mut command);
        let stdin = running.take_stdin();
        running.wait_for("ready");
        Self {
            running,
            stdin: Some(stdin),
        }
    }

    fn pid(&self) -> String {
        self.running.pid().to_string()
    }

    fn expect_whole(&mut self) {
        self.stdin
            .as_mut()
            .expect("it runs")
            .write_all(b"check\n")
            .expect("ask the program");
        assert_eq!(self.running.wait_for("e"), "whole");
    }

    fn end(mut self) {
        drop(self.stdin.take());
        let finished = self.running.finish();
        assert!(finished.status.success(), "{finished:?}");
    }
}

fn refused(finished: &Finished, words: &[&str]) {
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stdout.is_empty(), "{finished:?}");
    for word in words {
        assert!(
            finished.stderr.contains(word),
            "no '{word}' in {finished:?}"
        );
    }
}

fn leftovers(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir)
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| {
                    path.file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with(".staging"))
                })
                .collect()
        })
        .unwrap_or_default()
}

fn points(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| entry.path().join("manifest.json").exists())
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .count()
    })
}

#[test]
fn no_such_process() {
    let session = Session::new();
    let finished = session.run(["checkpoint", "4194303", "snap"]);
    refused(&finished, &["4194303"]);
    assert!(
        !session.path("snap").exists(),
        "nothing is created for a process that is not there"
    );
}

#[test]
fn someone_elses_process() {
    let session = Session::new();
    let other = if User::Ordinary.switch_to().is_some() {
        Some(
            Session::of(User::Myself).start(Session::of(User::Myself).command("sleep").arg("1000")),
        )
    } else {
        None
    };
    let pid = other.as_ref().map_or(1, Running::pid).to_string();
    refused(&session.run(["checkpoint", &pid, "snap"]), &[&pid, "user"]);
    refused(&session.run(["check", &pid]), &[&pid, "user"]);
}

#[test]
fn what_is_not_supported_is_named() {
    let session = Session::new();
    // A connection to somebody who is not saved.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = other.local_addr().expect("an address");
    let mut command = session.command("/usr/bin/python3");
    command.args([
        "-c",
        &format!(
            "import socket,sys\ns=socket.create_connection(('127.0.0.1',{}))\nprint('ready',flush=True)\nsys.stdin.read()\nprint('bye')",
            address.port()
        ),
    ]);
    command.stdin(Stdio::piped());
    let mut running = session.start(&mut command);
    let stdin = running.take_stdin();
    running.wait_for("ready");
    let pid = running.pid().to_string();
    let address = address.to_string();
    refused(
        &session.run(["checkpoint", &pid, "snap"]),
        &["socket", &address],
    );
    assert_eq!(points(&session.path("snap")), 0);
    let check = session.run(["check", &pid, "--json"]);
    assert_eq!(check.code(), Some(1), "{check:?}");
    assert!(check.stdout.contains(&address), "{check:?}");
    drop(stdin);
    let finished = running.finish();
    assert!(
        finished.status.success() && finished.stdout.contains("bye"),
        "{finished:?}"
    );
}

#[test]
fn process_dies_during_the_checkpoint() {
    let session = Session::new();
    let fill = Fill::start(&session, 600);
    let dir = session.path("snap");
    let mut checkpoint = session.start(&mut session.snapify(["checkpoint", &fill.pid(), "snap"]));
    poll_until("the checkpoint begins to write", || {
        !leftovers(&dir).is_empty() || !checkpoint.is_running()
    });
    fill.running.signal(Signal::KILL);
    let finished = checkpoint.finish();
    if finished.status.success() {
        assert_eq!(points(&dir), 1, "it was quicker than the kill");
    } else {
        refused(&finished, &["ended"]);
        assert_eq!(points(&dir), 0);
    }
    assert_eq!(leftovers(&dir), Vec::<PathBuf>::new());
    let killed = fill.running.finish();
    assert_eq!(killed.killed_by(), Some(9));
    session.expect_no_process();
}

#[test]
fn interrupted_checkpoint() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let session = Session::new();
        let mut fill = Fill::start(&session, 600);
        let dir = session.path("snap");
        let mut checkpoint =
            session.start(&mut session.snapify(["checkpoint", &fill.pid(), "snap"]));
        poll_until("the checkpoint begins to write", || {
            !leftovers(&dir).is_empty() || !checkpoint.is_running()
        });
        checkpoint.signal(signal);
        let finished = checkpoint.finish();
        assert!(
            !finished.status.success() || points(&dir) == 1,
            "{finished:?}"
        );
        // Killed outright, the command cannot wait until its work is undone; the program goes on all the same.
        fill.expect_whole();
        poll_until("no half snapshot is left", || leftovers(&dir).is_empty());
        fill.end();
        session.expect_no_process();
    }
}

#[test]
fn full_disk() {
    let session = Session::new();
    // A user namespace of its own lets an ordinary user mount a file system that is soon full.
    let fill = compile("fill.c", Language::C);
    let script = format!(
        "set -e; mkdir small; mount -t tmpfs -o size=24m none small; mkfifo in; {} 64 < in > out & pid=$!; exec 3> in; \
         until grep -q ready out; do :; done; \
         if {} checkpoint $pid small/snap; then echo succeeded; fi; ls -A small; echo check >&3; \
         until grep -q -e whole -e damaged out; do :; done; tail -n 1 out; exec 3>&-; wait $pid; echo ended $?",
        fill.display(),
        snapify_tests::stage().join("bin/snapify").display(),
    );
    let mut command = session.command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stderr.contains("the disk is full"), "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(lines, ["whole", "ended 0"], "{finished:?}");
}

#[test]
fn damaged_snapshots_are_refused() {
    let session = Session::new();
    let fill = Fill::start(&session, 4);
    session.succeed(["checkpoint", &fill.pid(), "good", "--stop"]);
    fill.running.finish();
    session.succeed(["verify", "good"]);
    let spoil = |how: &str, spoil: &dyn Fn(&Path), words: &[&str]| {
        let dir = session.path("bad");
        let copied = session.finish(session.command("cp").args(["-a", "good", "bad"]));
        assert!(copied.status.success(), "{copied:?}");
        spoil(&dir.join("000001"));
        for command in ["verify", "restart"] {
            let finished = session.run([command, "bad"]);
            assert_eq!(finished.code(), Some(1), "{how}: {command}: {finished:?}");
            for word in words {
                assert!(
                    finished.stderr.contains(word) || finished.stdout.contains(word),
                    "{how}: {command}: no '{word}' in {finished:?}"
                );
            }
        }
        std::fs::remove_dir_all(&dir).expect("remove the damaged copy");
        session.expect_no_process();
    };
    let pages = |dir: &Path| dir.join("host/pages.snap");
    spoil(
        "flipped bit",
        &|dir| flip(&pages(dir), 1 << 20),
        &["pages.snap"],
    );
    spoil(
        "flipped bit of metadata",
        &|dir| flip(&dir.join("host/process.json"), 100),
        &["process.json"],
    );
    spoil(
        "truncated",
        &|dir| {
            let file = std::fs::File::options()
                .write(true)
                .open(pages(dir))
                .expect("open");
            file.set_len(2 << 20).expect("truncate");
        },
        &["pages.snap"],
    );
    spoil(
        "missing file",
        &|dir| std::fs::remove_file(pages(dir)).expect("remove"),
        &["pages.snap"],
    );
    spoil(
        "newer version",
        &|dir| {
            let manifest = dir.join("manifest.json");
            let text = std::fs::read_to_string(&manifest).expect("read the manifest");
            let mut value: serde_json::Value =
                serde_json::from_str(&text).expect("the manifest is JSON");
            value["version"] = 999.into();
            std::fs::write(&manifest, value.to_string()).expect("write the manifest");
        },
        &["version", "999"],
    );
    spoil(
        "no manifest",
        &|dir| std::fs::remove_file(dir.join("manifest.json")).expect("remove"),
        &["bad"],
    );
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("read a file of the snapshot");
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).expect("write a file of the snapshot");
}

#[test]
fn directories_that_are_no_place_for_a_snapshot() {
    let session = Session::new();
    let one = Fill::start(&session, 1);
    let two = Fill::start(&session, 1);
    session.succeed(["checkpoint", &one.pid(), "snap"]);
    refused(
        &session.run(["checkpoint", &two.pid(), "snap"]),
        &["snap", "another program"],
    );
    std::fs::create_dir(session.path("full")).expect("make a directory");
    std::fs::write(session.path("full/thesis.tex"), "precious").expect("write a file");
    let full = session.run(["checkpoint", &two.pid(), "full"]);
    assert_eq!(full.code(), Some(1), "{full:?}");
    std::fs::write(session.path("file"), "").expect("write a file");
    refused(&session.run(["checkpoint", &two.pid(), "file"]), &["file"]);
    refused(&session.run(["restart", "nowhere"]), &["nowhere"]);
    refused(&session.run(["restart", "full"]), &["full"]);
    refused(&session.run(["restart", "snap", "--at", "7"]), &["7"]);
    one.end();
    two.end();
}

#[test]
fn restart_without_its_cards() {
    let session = Session::new();
    let mut command = session.offload(2, "sgemm");
    let mut run = session.start(&mut command);
    run.wait_for("round ");
    let host = session.host_of(&mut run).expect("it runs").to_string();
    session.succeed(["checkpoint", &host, "snap", "--stop"]);
    assert_eq!(run.finish().killed_by(), Some(9));
    refused(
        &session.run(["restart", "snap", "--cards", "1"]),
        &["card 1"],
    );
    refused(
        &session.run(["restart", "snap", "--card", "1=5"]),
        &["card 5"],
    );
    refused(
        &session.run(["restart", "snap", "--card-memory", "1M"]),
        &["card", "memory"],
    );
    session.expect_no_process();
    // None of that has hurt the snapshot.
    let finished = session.run(["restart", "snap"]);
    assert!(finished.status.success(), "{finished:?}");
    session.expect_no_process();
}

#[test]
fn two_checkpoints_at_once() {
    let session = Session::new();
    let mut fill = Fill::start(&session, 400);
    let both = [
        session.start(&mut session.snapify(["checkpoint", &fill.pid(), "snap"])),
        session.start(&mut session.snapify(["checkpoint", &fill.pid(), "snap"])),
    ];
    let ended = both.map(Running::finish);
    let good = ended
        .iter()
        .filter(|finished| finished.status.success())
        .count();
    assert!(good >= 1, "{ended:?}");
    assert_eq!(points(&session.path("snap")), good);
    fill.expect_whole();
    session.succeed(["verify", "snap"]);
    fill.end();
}
