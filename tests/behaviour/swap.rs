//! Swap-out and swap-in of offload processes of running programs (paper 1, section 5): the card's memory is free, the
//! program goes on until it needs the process and then waits, and its result is the same.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapify_tests::{Language, OffloadApp, Session, Shape, User, compile, poll_until};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

fn kill(pid: &Value) {
    let pid = pid.as_i64().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).expect("ps tells a process id");
    kill_process(pid, Signal::KILL).expect("kill it");
}

/// Bytes that are used on each card.
fn used(app: &OffloadApp) -> Vec<u64> {
    let status = app.status();
    let cards = status["cards"].as_array().expect("a list of cards");
    cards
        .iter()
        .map(|card| card["used"].as_u64().expect("bytes"))
        .collect()
}

/// What a directory holds.
fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn off_the_card_and_onto_another() {
    let shape = Shape::of("md", "1");
    let expected = shape.digest();
    for user in [User::Ordinary, User::Myself] {
        let app = shape.start(user);
        assert!(used(&app)[0] > 0);
        let out = app.done("swap-out", &["swap"]);
        assert_eq!((&out["from"], &out["card"]), (&0.into(), &Value::Null));
        assert_eq!(used(&app), [0, 0], "all of the card's memory is free");
        let [(id, None)] = &app.places()[..] else {
            panic!("{:?}", app.places())
        };
        assert_eq!(&out["process"], id);
        assert_eq!(
            app.status()["processes"][0]["store_bytes"],
            out["store_bytes"]
        );
        assert!(entries(&app.session.path("swap")) > 0);
        // Nothing of it is left on the card, where there is nothing for the daemon to miss.
        let back = app.done("swap-in", &["1", "--process", &id[..6]]);
        assert_eq!((&back["from"], &back["card"]), (&0.into(), &1.into()));
        assert_eq!(app.places(), [(id.clone(), Some(1))]);
        assert_eq!(used(&app)[0], 0);
        assert!(!app.session.path("swap").exists(), "the image is removed");
        assert_eq!(app.digest(), expected);
    }
}

#[test]
fn both_at_once_and_exchanged() {
    let shape = Shape::of("kmeans", "2");
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    let several = ["name one of them"];
    app.refused("swap-out", &["swap"], &several);
    app.done("swap-out", &["swap", "--card", "0"]);
    app.done("swap-out", &["swap", "--card", "1"]);
    assert_eq!(used(&app), [0, 0]);
    app.refused("swap-in", &["0"], &several);
    let places = app.places();
    let from = |card: u64| {
        let status = app.status();
        let processes = status["processes"].as_array().expect("a list");
        let found = processes.iter().find(|process| process["card"] == card);
        found.expect("one of each card")["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let (first, second) = (from(0), from(1));
    app.done("swap-in", &["1", "--process", &first]);
    app.done("swap-in", &["0", "--process", &second]);
    assert_eq!(places.len(), 2);
    let mut now = app.places();
    now.sort();
    let mut wanted = vec![(first, Some(1)), (second, Some(0))];
    wanted.sort();
    assert_eq!(now, wanted);
    assert_eq!(app.digest(), expected);
}

#[test]
fn a_snapshot_holds_what_is_swapped_out() {
    let shape = Shape::of("kmeans", "2");
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    app.done("swap-out", &["swap", "--card", "1"]);
    app.done("checkpoint", &["snap"]);
    app.done("checkpoint", &["snap"]);
    assert_eq!(
        app.places()
            .iter()
            .filter(|(_, card)| card.is_none())
            .count(),
        1
    );
    app.session.succeed(["verify", "snap"]);
    // The original goes on, swapped out still.
    app.done("swap-in", &["1"]);
    app.done("swap-out", &["swap", "--card", "0"]);
    app.done("checkpoint", &["snap", "--stop"]);
    let OffloadApp { session, run, .. } = app;
    assert_eq!(run.finish().killed_by(), Some(9));
    assert!(
        !session.path("swap").exists(),
        "the image goes with the application"
    );
    for at in ["1", "3"] {
        let restarted = session.run(["restart", "snap", "--at", at]);
        assert!(restarted.status.success(), "{restarted:?}");
        assert_eq!(restarted.digest(), expected, "at {at}");
    }
    // On one card, if that is large enough.
    let restarted = session.run(["restart", "snap", "--cards", "1", "--card", "1=0"]);
    assert!(restarted.status.success(), "{restarted:?}");
    assert_eq!(restarted.digest(), expected);
    session.expect_no_process();
}

#[test]
fn the_image_goes_with_the_application_and_nothing_else_does() {
    for victim in ["host", "supervisor"] {
        let app = Shape::of("md", "1").start(User::Ordinary);
        app.done("swap-out", &["kept/swap"]);
        let other = app.session.path("kept/other");
        std::fs::write(&other, "").expect("write a file");
        let status = app.status();
        kill(
            &status[if victim == "host" {
                "pid"
            } else {
                "supervisor"
            }],
        );
        let OffloadApp { session, run, .. } = app;
        let finished = run.finish();
        assert!(!finished.status.success(), "{finished:?}");
        // Nobody else can bring the process back: the program does not wait for it for ever.
        session.expect_no_process();
        // What a killed supervisor leaves behind is removed by whoever looks next.
        assert!(session.applications().is_empty());
        assert!(!session.path("kept/swap").exists(), "{victim}");
        assert!(other.exists(), "{victim}");
    }
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let shape = Shape::of("md", "1");
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    app.refused("swap-in", &["1"], &["not swapped out"]);
    app.refused(
        "swap-out",
        &["swap", "--card", "1"],
        &["no offload process on card 1"],
    );
    app.refused(
        "swap-out",
        &["swap", "--process", "0123456789"],
        &["0123456789"],
    );
    std::fs::write(app.session.path("file"), "").expect("write a file");
    app.refused("swap-out", &["file"], &["file"]);
    assert_eq!(
        app.ask("swap-out", &["swap", "--process", "xyz"]).code(),
        Some(2)
    );
    assert_eq!(app.ask("swap-in", &["one"]).code(), Some(2));
    app.done("checkpoint", &["snap"]);
    app.refused("swap-out", &["snap"], &["holds snapshots"]);
    app.done("swap-out", &["swap"]);
    app.refused("swap-out", &["swap"], &["it is swapped out"]);
    app.refused("migrate", &["1"], &["it is swapped out"]);
    app.refused("swap-in", &["7"], &["no card 7", "has 2"]);
    // A card that has died, and the one that is left.
    kill(&app.status()["cards"][0]["pid"]);
    poll_until("the card has died", || {
        app.status()["cards"][0]["state"] == "dead"
    });
    app.refused("swap-in", &["0"], &["card 0 has died"]);
    assert_eq!(app.places().len(), 1);
    app.done("swap-in", &["1"]);
    assert_eq!(app.digest(), expected);
}

#[test]
fn a_program_without_cards_has_nothing_to_swap() {
    let session = Session::new();
    let mut plain = session.command("/bin/sleep");
    let plain = session.start(plain.arg("1000"));
    let pid = plain.pid().to_string();
    for args in [
        ["swap-out", &pid, "swap"],
        ["swap-in", &pid, "0"],
        ["migrate", &pid, "0"],
    ] {
        let finished = session.run(args);
        assert_eq!(finished.code(), Some(1), "{finished:?}");
        assert!(finished.stderr.contains("no cards"), "{finished:?}");
    }
    let mut idle = session.snapify(["run", "--cards", "2", "--"]);
    let mut idle = session.start(idle.args(["/bin/sleep", "1000"]));
    let host = session.host_of(&mut idle).expect("it runs").to_string();
    let finished = session.run(["migrate", &host, "1"]);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(!finished.stderr.is_empty() && !session.path("swap").exists());
}

#[test]
fn a_full_card_takes_nothing() {
    let mut shape = Shape::of("sgemm", "2");
    shape.memory = "48M";
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    let before = app.places();
    app.refused(
        "migrate",
        &["1", "--from", "0"],
        &["card 1", "bytes of memory left"],
    );
    app.done("swap-out", &["swap", "--card", "0"]);
    app.refused("swap-in", &["1"], &["card 1", "bytes of memory left"]);
    assert!(entries(&app.session.path("swap")) > 0, "it is still there");
    app.done("swap-in", &["0"]);
    assert_eq!(app.places().len(), before.len());
    assert_eq!(app.digest(), expected);
}

#[test]
fn a_damaged_image_is_refused_and_can_be_mended() {
    let shape = Shape::of("md", "1");
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    app.done("swap-out", &["swap"]);
    let mut found = vec![app.session.path("swap")];
    let store = loop {
        let path = found.pop().expect("there is a store.snap");
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("read a directory");
            found.extend(entries.flatten().map(|entry| entry.path()));
        } else if path.ends_with("store.snap") {
            break path;
        }
    };
    let whole = std::fs::read(&store).expect("read the image");
    let mut damaged = whole.clone();
    damaged[5000] ^= 0x10;
    std::fs::write(&store, &damaged).expect("damage it");
    app.refused("swap-in", &["1"], &["store.snap"]);
    std::fs::write(&store, &whole[..whole.len() / 2]).expect("cut it off");
    app.refused("swap-in", &["1"], &["store.snap"]);
    assert_eq!(used(&app), [0, 0]);
    std::fs::write(&store, &whole).expect("mend it");
    app.done("swap-in", &["1"]);
    assert_eq!(app.digest(), expected);
}

#[test]
fn several_tools_at_once() {
    let shape = Shape::of("kmeans", "2");
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    std::thread::scope(|scope| {
        let tools: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| app.ask("swap-out", &["swap", "--card", "0"])))
            .collect();
        let snapshot = scope.spawn(|| app.ask("checkpoint", &["snap"]));
        let outcomes: Vec<_> = tools
            .into_iter()
            .map(|tool| tool.join().expect("it ran"))
            .collect();
        let done = outcomes.iter().filter(|tool| tool.status.success()).count();
        assert_eq!(done, 1, "{outcomes:?}");
        for tool in outcomes.iter().filter(|tool| !tool.status.success()) {
            assert!(
                tool.stderr.contains("no offload process on card 0"),
                "{tool:?}"
            );
        }
        assert!(snapshot.join().expect("it ran").status.success());
    });
    app.done("swap-in", &["0"]);
    assert_eq!(app.digest(), expected);
}

#[test]
fn a_program_may_exit_while_it_is_swapped_out() {
    let session = Arc::new(Session::new());
    let mut command = session.snapify(["run", "--cards", "1", "--"]);
    command
        .arg(compile("omp_leave.c", Language::OpenMp))
        .stdin(Stdio::piped());
    let mut run = session.start(&mut command);
    let stdin = run.take_stdin();
    run.wait_for("ready 42");
    let host = session.host_of(&mut run).expect("it runs").to_string();
    let app = OffloadApp { session, run, host };
    app.done("swap-out", &["kept/swap"]);
    std::fs::write(app.session.path("kept/other"), "").expect("write a file");
    drop(stdin);
    let OffloadApp { session, run, .. } = app;
    let finished = run.finish();
    assert_eq!(finished.code(), Some(5), "{finished:?}");
    session.expect_no_process();
    assert!(!session.path("kept/swap").exists());
    assert_eq!(entries(&session.path("kept")), 1, "nothing else is removed");
}

#[test]
fn a_card_that_dies_after_a_process_has_come_back_to_it() {
    let app = Shape::of("md", "1").start(User::Ordinary);
    app.done("swap-out", &["swap"]);
    app.done("swap-in", &["1"]);
    kill(&app.status()["cards"][1]["pid"]);
    let OffloadApp { session, run, .. } = app;
    let finished = run.finish();
    assert!(!finished.status.success(), "{finished:?}");
    assert!(finished.stderr.contains("card 1"), "{finished:?}");
    session.expect_no_process();
    assert!(!session.path("swap").exists());
    assert!(session.applications().is_empty());
}
