//! Compressed snapshots: smaller, and the same memory comes back; old ones are cleaned away and the program goes on.

use snapify_tests::{Session, User};
use std::io::Write;
use std::process::Stdio;

/// Holds text and chance, and tells their digest each time that it reads a line.
const PROGRAM: &str = "\
import hashlib, os, sys
data = [b'all work and no play ' * 500000, os.urandom(1 << 20), bytes(1 << 24)]
while True:
    print('digest', hashlib.sha256(b''.join(data)).hexdigest(), flush=True)
    if not sys.stdin.readline():
        break
";

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("a JSON object")
}

fn come_back(user: User) {
    let session = Session::of(user);
    let mut command = session.command("/usr/bin/python3");
    command.args(["-c", PROGRAM]).stdin(Stdio::piped());
    let mut program = session.start(&mut command);
    let digest = program.wait_for("digest");
    let pid = program.pid().to_string();
    let ways: [&[&str]; 4] = [
        &["--codec", "none"],
        &["--codec", "lz4", "--workers", "1"],
        &["--codec", "zstd:3", "--workers", "3"],
        &["--codec", "auto"],
    ];
    let mut sizes = Vec::new();
    for (n, way) in ways.iter().enumerate() {
        let dir = format!("dir-{n}");
        let args = [&["checkpoint", &pid, &dir, "--full", "--json"], *way].concat();
        let report = json(&session.succeed(args));
        sizes.push(report["file_bytes"].as_u64().expect("a size"));
        let verified = session.run(["verify", &dir]);
        assert!(verified.status.success(), "{verified:?}");
    }
    assert!(sizes[1] < sizes[0] - (6 << 20), "{sizes:?}");
    assert!(sizes[2] < sizes[0] - (6 << 20), "{sizes:?}");
    // Another one into each, of which one stays.
    for n in 0..ways.len() {
        let dir = format!("dir-{n}");
        session.succeed(["checkpoint", &pid, &dir, "--codec", "deflate:1"]);
        let report = json(&session.succeed(["clean", &dir, "--keep", "1", "--json"]));
        assert_eq!(report["removed"], serde_json::json!([1]), "{report}");
    }
    drop(program.take_stdin());
    assert!(program.finish().status.success());
    for n in 0..ways.len() {
        let mut restart = session.snapify(["restart", &format!("dir-{n}")]);
        restart.stdin(Stdio::piped());
        let mut again = session.start(&mut restart);
        let mut stdin = again.take_stdin();
        stdin.write_all(b"\n").expect("write to the program");
        assert_eq!(again.wait_for("digest"), digest);
        // It is being run, and not being read any more.
        let report =
            json(&session.succeed(["clean", &format!("dir-{n}"), "--keep", "1", "--json"]));
        assert_eq!(report["in_use"], serde_json::json!([]), "{report}");
        drop(stdin);
        assert!(again.finish().status.success());
    }
}

#[test]
fn an_ordinary_users_program_comes_back() {
    come_back(User::Ordinary);
}

#[test]
fn a_program_of_whoever_runs_the_tests_comes_back() {
    come_back(User::Myself);
}

#[test]
fn what_is_no_codec_is_refused() {
    let session = Session::new();
    for codec in ["gzip", "lz4:1", "zstd:23"] {
        let refused = session.run(["checkpoint", "1", "dir", "--codec", codec]);
        assert_eq!(refused.code(), Some(2), "{refused:?}");
    }
}
