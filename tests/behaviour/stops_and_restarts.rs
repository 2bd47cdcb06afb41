//! One snapshot may be restarted any number of times and in every way that the command line offers.

use rustix::process::Signal;
use snapify_tests::{Language, Random, Session, User, compile, poll_until, stage};
use std::time::Duration;

/// A program that waits for SIGTERM, and then does `then`.
fn waits_for_sigterm(session: &Session, then: &str) -> std::process::Command {
    let script = format!(
        "import os, signal, sys\ndef handler(*_):\n    {then}\nsignal.signal(signal.SIGTERM, handler)\n\
         print('ready', flush=True)\nwhile True:\n    signal.pause()\n"
    );
    let mut command = session.command("/usr/bin/python3");
    command.args(["-c", &script]);
    command
}

#[test]
fn each_point_restarts_any_number_of_times() {
    let session = Session::new();
    let program = |session: &Session| session.offload(1, "mc");
    let expected = session.finish(&mut program(&session));
    let mut run = session.start(&mut program(&session));
    run.wait_for("batch ");
    let host = session.host_of(&mut run).expect("it runs").to_string();
    session.succeed(["checkpoint", &host, "snap"]);
    session.succeed(["checkpoint", &host, "snap", "--stop"]);
    assert_eq!(run.finish().killed_by(), Some(9));
    for at in ["1", "2", "1"] {
        let restarted = session.run(["restart", "snap", "--at", at]);
        assert!(restarted.status.success(), "{restarted:?}");
        assert_eq!(restarted.digest(), expected.digest(), "at {at}");
    }
    session.expect_no_process();
}

#[test]
fn what_was_on_two_cards_restarts_with_cards_exchanged() {
    let session = Session::new();
    let program = |session: &Session| session.offload(2, "md");
    let expected = session.finish(&mut program(&session));
    let mut run = session.start(&mut program(&session));
    run.wait_for("step ");
    let host = session.host_of(&mut run).expect("it runs").to_string();
    session.succeed(["checkpoint", &host, "snap", "--stop"]);
    run.finish();
    let restarted = session.run(["restart", "snap", "--card", "0=1", "--card", "1=0"]);
    assert!(restarted.status.success(), "{restarted:?}");
    assert_eq!(restarted.digest(), expected.digest());
    session.expect_no_process();
}

#[test]
fn detached_with_a_pid_file() {
    let session = Session::new();
    let mut command = waits_for_sigterm(&session, "open('told', 'w').close(); sys.exit(3)");
    let mut running = session.start(&mut command);
    running.wait_for("ready");
    session.succeed(["checkpoint", &running.pid().to_string(), "snap", "--stop"]);
    assert_eq!(running.finish().killed_by(), Some(9));
    // What goes on in the background keeps the output that it was given; ours would never end.
    let mut restart = session.command("sh");
    restart
        .arg("-c")
        .arg(r#""$0" restart snap --detach --pid-file pid > log 2>&1"#)
        .arg(stage().join("bin/snapify"));
    let detached = session.finish(&mut restart);
    assert!(detached.status.success(), "{detached:?}");
    let pid: i32 = std::fs::read_to_string(session.path("pid"))
        .expect("the pid file is there when the command returns")
        .trim()
        .parse()
        .expect("it holds a process id");
    let listed = session.applications();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["pid"], pid);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).expect("a pid"),
        Signal::TERM,
    )
    .expect("the restarted program is there under that id");
    poll_until("the program handles the signal", || {
        session.path("told").exists()
    });
    session.expect_no_process();
}

#[test]
fn restart_exits_as_the_program_does_and_passes_signals_on() {
    let session = Session::new();
    let mut command = waits_for_sigterm(&session, "os.write(1, b'caught\\n'); sys.exit(9)");
    let mut running = session.start(&mut command);
    running.wait_for("ready");
    session.succeed(["checkpoint", &running.pid().to_string(), "snap", "--stop"]);
    running.finish();
    let mut restart = session.start(
        session
            .snapify(["restart", "snap"])
            .args(["--pid-file", "pid"]),
    );
    poll_until("it runs", || {
        session.path("pid").exists() || !restart.is_running()
    });
    restart.signal(Signal::TERM);
    let finished = restart.finish();
    assert_eq!(finished.code(), Some(9), "{finished:?}");
    assert!(finished.stdout.contains("caught"), "{finished:?}");
    session.expect_no_process();
}

#[test]
fn a_checkpoint_may_come_while_processes_are_being_created() {
    let mut random = Random::new();
    let session = Session::new();
    let program = |session: &Session| session.offload(2, "search");
    let expected = session.finish(&mut program(&session));
    for round in 0..4 {
        let snapshots = format!("snap{round}");
        let mut run = session.start(&mut program(&session));
        let host = session.host_of(&mut run).expect("it runs").to_string();
        std::thread::sleep(Duration::from_millis(random.below(80)));
        session.succeed(["checkpoint", &host, &snapshots, "--stop"]);
        assert_eq!(run.finish().killed_by(), Some(9));
        let restarted = session.run(["restart", &snapshots]);
        assert!(restarted.status.success(), "{restarted:?}");
        assert_eq!(restarted.digest(), expected.digest());
        session.expect_no_process();
    }
}

#[test]
fn as_whoever_runs_the_tests() {
    let session = Session::of(User::Myself);
    let program = |session: &Session| session.offload(2, "search");
    let expected = session.finish(&mut program(&session));
    let mut run = session.start(&mut program(&session));
    run.wait_for("batch ");
    let host = session.host_of(&mut run).expect("it runs").to_string();
    session.succeed(["checkpoint", &host, "snap", "--stop"]);
    run.finish();
    let restarted = session.run(["restart", "snap"]);
    assert!(restarted.status.success(), "{restarted:?}");
    assert_eq!(restarted.digest(), expected.digest());
    session.expect_no_process();
}

#[test]
fn output_to_a_file_goes_on_where_it_was() {
    let session = Session::new();
    let file = std::fs::File::create(session.path("out")).expect("create a file");
    User::Ordinary.give(&session.path("out"));
    let mut command = session.command(compile("threads.cpp", Language::Cxx));
    command.arg("6000");
    let expected = session.finish(&mut command);
    let mut child = session
        .command(compile("threads.cpp", Language::Cxx))
        .arg("6000")
        .stdout(file)
        .spawn()
        .expect("start the program");
    poll_until("it writes", || {
        std::fs::metadata(session.path("out")).is_ok_and(|found| found.len() > 20)
    });
    session.succeed(["checkpoint", &child.id().to_string(), "snap", "--stop"]);
    child.wait().expect("wait for the program");
    let restarted = session.run(["restart", "snap"]);
    assert!(restarted.status.success(), "{restarted:?}");
    let written = std::fs::read_to_string(session.path("out")).expect("read the output");
    assert_eq!(written, expected.stdout);
}
