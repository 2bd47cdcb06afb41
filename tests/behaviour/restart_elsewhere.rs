//! Restarts among files that lie elsewhere by now, or have grown.

use snapify_tests::{Language, Session, compile, poll_until};
use std::process::Stdio;

/// `appends.c` as a file of the session's, in a directory that it works in and reads and writes in.
fn start(session: &Session) -> (snapify_tests::Running, std::process::ChildStdin) {
    let old = session.path("old");
    let made = session.finish(session.command("mkdir").arg(&old));
    assert!(made.status.success(), "{made:?}");
    let copied = session.finish(
        session
            .command("cp")
            .arg(compile("appends.c", Language::C))
            .arg(old.join("program")),
    );
    assert!(copied.status.success(), "{copied:?}");
    let mut command = session.command(old.join("program"));
    command.current_dir(&old).stdin(Stdio::piped());
    let mut running = session.start(&mut command);
    let stdin = running.take_stdin();
    running.wait_for("ready");
    (running, stdin)
}

/// Ends the original after it has written once more.
fn end(running: snapify_tests::Running, stdin: std::process::ChildStdin) {
    drop(stdin);
    let finished = running.finish();
    assert!(finished.status.success(), "{finished:?}");
}

#[test]
fn below_another_root() {
    let session = Session::new();
    let (running, stdin) = start(&session);
    session.succeed(["checkpoint", &running.pid().to_string(), "snap"]);
    end(running, stdin);
    std::fs::rename(session.path("old"), session.path("new")).expect("move the directory");

    let lost = session.run(["restart", "snap"]);
    assert_eq!(lost.code(), Some(1), "{lost:?}");
    for name in ["old/program", "old/log", "working directory"] {
        assert!(lost.stderr.contains(name), "{name}: {lost:?}");
    }
    let root = format!(
        "--root={}={}",
        session.path("old").display(),
        session.path("new").display()
    );
    let restarted = session.run(["restart", "snap", &root, "--files=truncate"]);
    assert!(restarted.status.success(), "{restarted:?}");
    assert!(
        restarted
            .stdout
            .contains(&format!("in {}", session.path("new").display())),
        "{restarted:?}"
    );
    let log = std::fs::read_to_string(session.path("new/log")).expect("read the log");
    assert_eq!(log, "before\nafter\n");
}

#[test]
fn files_keep_what_they_have_got_or_are_cut_back() {
    let session = Session::new();
    let (running, stdin) = start(&session);
    session.succeed(["checkpoint", &running.pid().to_string(), "snap"]);
    end(running, stdin);
    let log = session.path("old/log");
    let read = || std::fs::read_to_string(&log).expect("read the log");
    poll_until("it is written", || read() == "before\nafter\n");
    assert!(session.run(["restart", "snap"]).status.success());
    assert_eq!(read(), "before\nafter\nafter\n");
    let cut = session.run(["restart", "snap", "--files=truncate"]);
    assert!(cut.status.success(), "{cut:?}");
    assert_eq!(read(), "before\nafter\n");
}

#[test]
fn a_changed_program_is_refused_by_name() {
    let session = Session::new();
    let (running, stdin) = start(&session);
    session.succeed(["checkpoint", &running.pid().to_string(), "snap"]);
    end(running, stdin);
    let program = session.path("old/program");
    std::fs::remove_file(&program).expect("remove the program");
    std::fs::copy(compile("idle.c", Language::C), &program).expect("put another in its place");
    let refused = session.run(["restart", "snap"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("old/program"), "{refused:?}");
    let log = std::fs::read_to_string(session.path("old/log")).expect("read the log");
    assert_eq!(log, "before\nafter\n");
}
