//! Several applications on the cards that a user's programs share: memory is accounted for all of them, one may be swapped
//! out for another, and none suffers from what becomes of the others.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapify_tests::{OffloadApp, Session, Shape, User, poll_until};
use std::sync::Arc;

fn shape(name: &'static str, devices: &'static str) -> Shape {
    Shape {
        shared: true,
        ..Shape::of(name, devices)
    }
}

fn signal(pid: &Value, signal: Signal) {
    let pid = pid.as_i64().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).expect("ps tells a process id");
    kill_process(pid, signal).expect("send a signal");
}

/// The cards as `snapify cards --json` lists them.
fn cards(session: &Session) -> Vec<Value> {
    let listed: Value = serde_json::from_str(&session.succeed(["cards", "--json"])).expect("JSON");
    listed["cards"].as_array().expect("a list").clone()
}

/// The last application has ended: so have the daemons, and their sockets are removed.
fn expect_nothing(session: &Session) {
    session.expect_no_process();
    poll_until("the sockets of the cards are removed", || {
        session.left_in("cards").is_empty()
    });
    assert!(session.left_in("apps").is_empty());
}

#[test]
fn one_makes_room_for_another() {
    let mut shape = shape("sgemm", "1");
    shape.cards = "1";
    // Enough for one of them.
    shape.memory = "72M";
    let expected = shape.digest();
    let session = Arc::new(Session::new());
    let first = shape.start_in(&session);
    let alone = cards(&session);
    let [card] = &alone[..] else {
        panic!("{alone:?}")
    };
    let (memory, used) = (card["memory"].as_u64(), card["used"].as_u64());
    assert!(used > memory.map(|memory| memory / 2), "{card}");
    let id = first.places()[0].0.clone();

    first.done("swap-out", &["swap"]);
    let second = shape.start_in(&session);
    let both = cards(&session);
    let [card] = &both[..] else {
        panic!("one daemon: {both:?}")
    };
    assert_eq!(card["applications"].as_array().map(Vec::len), Some(2));
    assert_eq!(card["used"].as_u64(), used);
    assert_eq!(card["shared"], true);
    let there = card["processes"].as_array().expect("a list");
    assert!(there.len() == 1 && there[0] != *id, "{card}");
    // Each application has its own processes, and both see what is left.
    assert_eq!(second.places().len(), 1);
    let free = |app: &OffloadApp| app.status()["cards"][0]["free"].clone();
    assert_eq!(free(&first), free(&second));

    first.refused("swap-in", &["0"], &["card 0", "bytes of memory left"]);
    assert_eq!(second.digest_beside_others(), expected);
    first.done("swap-in", &["0"]);
    assert_eq!(first.digest(), expected);
    expect_nothing(&session);
}

#[test]
fn each_survives_the_others() {
    let shape = shape("md", "1");
    let expected = shape.digest();
    let session = Arc::new(Session::new());
    let (first, second, third) = (
        shape.start_in(&session),
        shape.start_in(&session),
        shape.start_in(&session),
    );
    assert_eq!(cards(&session).len(), 2, "three applications on two cards");
    let before = cards(&session)[0]["used"].as_u64();
    // The one that has started the daemons is killed, with its supervisor.
    signal(&first.status()["supervisor"], Signal::KILL);
    signal(
        &first.host.parse::<i32>().expect("a number").into(),
        Signal::KILL,
    );
    drop(first.run.finish());
    poll_until("its memory is free", || {
        cards(&session)[0]["used"].as_u64() < before
    });
    // One whose supervisor stands still keeps nobody waiting.
    signal(&second.status()["supervisor"], Signal::STOP);
    let stopped = second.run.pid();
    third.done("migrate", &["1"]);
    third.done("swap-out", &["swap"]);
    third.done("swap-in", &["0"]);
    third.done("checkpoint", &["snap"]);
    signal(&stopped.into(), Signal::CONT);
    assert_eq!(second.digest_beside_others(), expected);
    assert_eq!(third.digest(), expected);
    expect_nothing(&session);
}

#[test]
fn restarted_beside_its_original() {
    let shape = shape("md", "1");
    let expected = shape.digest();
    let session = Arc::new(Session::new());
    let original = shape.start_in(&session);
    original.done("checkpoint", &["snap"]);
    // Two that end by themselves would be in each other's way: OpenMP's runtime knows programs by their process ids.
    let host = original.host.parse::<i32>().expect("a number").into();
    signal(&host, Signal::STOP);
    let exchanged = ["--card", "0=1", "--card", "1=0"];
    let restart = [&["restart", "snap", "--share-cards"][..], &exchanged].concat();
    let mut run = session.start(&mut session.snapify(restart));
    let restarted = OffloadApp {
        session: session.clone(),
        host: session.host_of(&mut run).expect("it runs").to_string(),
        run,
    };
    assert_eq!(
        restarted.places(),
        [(original.places()[0].0.clone(), Some(1))]
    );
    assert_eq!(original.places()[0].1, Some(0));
    restarted.done("migrate", &["0"]);
    signal(&host, Signal::KILL);
    assert!(!original.run.finish().status.success());
    assert_eq!(restarted.digest(), expected);
    expect_nothing(&session);
}

#[test]
fn a_card_that_dies_is_replaced_for_those_who_come_later() {
    let shape = shape("md", "1");
    let expected = shape.digest();
    let session = Arc::new(Session::new());
    let first = shape.start_in(&session);
    first.done("swap-out", &["swap"]);
    signal(&cards(&session)[0]["pid"], Signal::KILL);
    poll_until("the card has died", || {
        first.status()["cards"][0]["state"] == "dead"
    });
    let second = shape.start_in(&session);
    assert_eq!(
        cards(&session).len(),
        3,
        "two that live and one that has died"
    );
    // It knows the old one only.
    first.refused("swap-in", &["0"], &["card 0 has died"]);
    first.done("swap-in", &["1"]);
    assert_eq!(second.digest_beside_others(), expected);
    assert_eq!(first.digest(), expected);
    expect_nothing(&session);
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let shape = shape("md", "1");
    let session = Arc::new(Session::new());
    let app = shape.start_in(&session);
    let run = |args: &[&str]| {
        let args = [&["run", "--share-cards"], args, &["--", "/bin/true"]].concat();
        session.run(args)
    };
    let other = run(&["--card-memory", "2G"]);
    assert_eq!(other.code(), Some(1), "{other:?}");
    assert!(
        other.stderr.contains("card 0 is shared and has 1073741824"),
        "{other:?}"
    );
    assert!(run(&["--card-memory", "1G"]).status.success());
    assert!(run(&["--cards", "3"]).status.success());
    assert_eq!(cards(&session).len(), 2, "the third is gone again");
    assert!(run(&["--cards", "0"]).status.success());
    // Nobody else's directory is used.
    if let (Some(_), User::Ordinary) = (User::Ordinary.switch_to(), session.user()) {
        let other = Session::of(User::Myself);
        let mut command = other.snapify(["run", "--share-cards", "--", "/bin/true"]);
        command.env("SNAPIFY_RUNTIME_DIR", session.path("run"));
        let refused = other.finish(&mut command);
        assert_eq!(refused.code(), Some(1), "{refused:?}");
        assert!(
            refused.stderr.contains("must be a directory of yours"),
            "{refused:?}"
        );
    }
    let _ = app.digest();
    expect_nothing(&session);
}
