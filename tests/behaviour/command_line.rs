//! What scripts rely on: exit statuses, JSON, help.

use rustix::process::Signal;
use snapify_tests::{Language, Session, compile};

#[test]
fn wrong_use_exits_with_2() {
    let session = Session::new();
    for args in [
        &["checkpoint"][..],
        &["checkpoint", "0", "d"],
        &["restart"],
        &["fly"],
        &["run", "--cards", "x", "--", "true"],
    ] {
        assert_eq!(session.run(args).code(), Some(2), "{args:?}");
    }
}

#[test]
fn help_has_examples() {
    let session = Session::new();
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["checkpoint", "--help"],
        &["restart", "--help"],
    ] {
        let help = session.succeed(args);
        assert!(help.contains("Examples"), "{args:?}: {help}");
    }
}

#[test]
fn run_exits_as_the_program_does() {
    let session = Session::new();
    let run = |script: &str| session.run(["run", "--cards", "1", "--", "sh", "-c", script]);
    assert_eq!(run("exit 0").code(), Some(0));
    assert_eq!(run("exit 42").code(), Some(42));
    assert_eq!(run("kill -9 $$").killed_by(), Some(9));
    assert_eq!(run("kill -TERM $$").killed_by(), Some(15));
    let missing = session.run(["run", "--", "/no/such/program"]);
    assert_eq!(missing.code(), Some(1), "{missing:?}");
    assert!(missing.stderr.contains("/no/such/program"), "{missing:?}");
    session.expect_no_process();
}

#[test]
fn signals_reach_the_program() {
    let session = Session::new();
    let script = "import os, signal, sys\n\
                  signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'got it\\n'), sys.exit(7)))\n\
                  print('ready', flush=True)\n\
                  while True: signal.pause()\n";
    let args = [
        "run",
        "--cards",
        "0",
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ];
    let mut run = session.start(&mut session.snapify(args));
    run.wait_for("ready");
    run.signal(Signal::TERM);
    let finished = run.finish();
    assert_eq!(finished.code(), Some(7), "{finished:?}");
    assert!(finished.stdout.contains("got it"), "{finished:?}");
}

#[test]
fn ps_checkpoint_inspect_and_verify_speak_json() {
    let session = Session::new();
    let mut command = session.offload(2, "kmeans");
    let mut run = session.start(&mut command);
    run.wait_for("iteration ");
    let host = session.host_of(&mut run).expect("it runs");
    let application = session.applications().remove(0);
    assert_eq!(application["pid"], host);
    assert_eq!(application["cards"].as_array().map(Vec::len), Some(2));
    assert_eq!(application["processes"].as_array().map(Vec::len), Some(2));
    let parse =
        |text: String| serde_json::from_str::<serde_json::Value>(&text).expect("one JSON object");
    let report = parse(session.succeed(["checkpoint", &host.to_string(), "snap", "--json"]));
    assert_eq!(report["point"], 1);
    assert_eq!(
        report["members"].as_array().map(Vec::len),
        Some(3),
        "{report}"
    );
    let report =
        parse(session.succeed(["checkpoint", &host.to_string(), "snap", "--json", "--stop"]));
    assert_eq!(report["point"], 2);
    run.finish();
    let inspected = parse(session.succeed(["inspect", "snap", "--json"]));
    assert_eq!(
        inspected["points"].as_array().map(Vec::len),
        Some(2),
        "{inspected}"
    );
    parse(session.succeed(["verify", "snap", "--json"]));
    assert!(session.succeed(["inspect", "snap"]).contains("host"));
    assert!(
        session.succeed(["ps"]).lines().count() <= 1,
        "nothing runs any more"
    );
}

#[test]
fn check_says_yes_to_what_can_be_saved() {
    let session = Session::new();
    let mut command = session.command(compile("fill.c", Language::C));
    command.arg("1").stdin(std::process::Stdio::piped());
    let mut running = session.start(&mut command);
    running.wait_for("ready");
    let pid = running.pid().to_string();
    session.succeed(["check", &pid]);
    drop(running.take_stdin());
    assert!(running.finish().status.success());
}
