//! Offload processes that move between cards while their programs run.

use rustix::process::{Pid, Signal, kill_process};
use snapify_tests::{OffloadApp, Random, Shape, User};
use std::time::Duration;

/// Moves whatever can be moved until the program ends; gives how often.
fn move_about(app: &OffloadApp, random: &mut Random) -> usize {
    let mut moves = 0;
    loop {
        let (from, to) = if random.below(2) == 0 {
            ("0", "1")
        } else {
            ("1", "0")
        };
        let moved = app.ask("migrate", &[to, "--from", from]);
        let reason = &moved.stderr;
        if moved.status.success() {
            moves += 1;
        } else if reason.contains("no process")
            || reason.contains("ended")
            || reason.contains("no cards")
        {
            return moves;
        } else {
            let expected = ["no offload process", "name one of them"];
            assert!(
                expected.iter().any(|word| reason.contains(word)),
                "{moved:?}"
            );
        }
        std::thread::sleep(Duration::from_millis(random.below(100)));
    }
}

#[test]
fn back_and_forth_while_it_works() {
    for (name, user) in [("search", User::Ordinary), ("search", User::Myself)] {
        let shape = Shape::of(name, "1");
        let expected = shape.digest();
        let app = shape.start(user);
        let moves = move_about(&app, &mut Random::new());
        assert!(moves > 0);
        assert_eq!(app.digest(), expected, "after {moves} moves");
    }
}

#[test]
fn two_processes_meet_on_one_card() {
    let shape = Shape::of("md", "2");
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    let moved = app.done("migrate", &["1", "--from", "0"]);
    assert_eq!((&moved["from"], &moved["card"]), (&0.into(), &1.into()));
    assert!(app.places().iter().all(|(_, card)| *card == Some(1)));
    assert_eq!(app.status()["cards"][0]["used"], 0, "the source is freed");
    app.refused("migrate", &["1"], &["name one of them"]);
    let id = &app.places()[0].0;
    app.refused("migrate", &["1", "--process", id], &["on card 1 already"]);
    app.refused("migrate", &["2", "--process", id], &["no card 2"]);
    app.refused(
        "migrate",
        &["0", "--from", "0"],
        &["no offload process on card 0"],
    );
    // A snapshot has them where they are now.
    app.done("checkpoint", &["snap", "--stop"]);
    let OffloadApp { session, run, .. } = app;
    assert_eq!(run.finish().killed_by(), Some(9));
    for args in [&["--card", "1=0"][..], &["--cards", "1", "--card", "1=0"]] {
        let restarted = session.run([&["restart", "snap"], args].concat());
        assert!(restarted.status.success(), "{restarted:?}");
        assert_eq!(restarted.digest(), expected, "with {args:?}");
    }
    session.expect_no_process();
}

#[test]
fn a_restarted_program_moves_like_any_other() {
    let shape = Shape::of("md", "1");
    let expected = shape.digest();
    let app = shape.start(User::Ordinary);
    app.done("checkpoint", &["snap", "--stop"]);
    let OffloadApp { session, run, .. } = app;
    run.finish();
    let mut run = session.start(&mut session.snapify(["restart", "snap"]));
    let host = session.host_of(&mut run).expect("it runs").to_string();
    let app = OffloadApp { session, run, host };
    app.done("migrate", &["1"]);
    app.done("swap-out", &["swap"]);
    app.done("swap-in", &["0"]);
    assert_eq!(app.places()[0].1, Some(0));
    assert_eq!(app.digest(), expected);
}

#[test]
fn a_card_that_dies_meanwhile() {
    let mut random = Random::new();
    let shape = Shape::of("kmeans", "1");
    let expected = shape.digest();
    for _ in 0..2 {
        let app = shape.start(User::Ordinary);
        let target = app.status()["cards"][1]["pid"]
            .as_i64()
            .expect("a process id");
        let moved = std::thread::scope(|scope| {
            let moving = scope.spawn(|| app.ask("migrate", &["1"]));
            std::thread::sleep(Duration::from_millis(random.below(60)));
            let target = i32::try_from(target).ok().and_then(Pid::from_raw);
            kill_process(target.expect("a process id"), Signal::KILL).expect("kill the card");
            moving.join().expect("it ran")
        });
        if moved.status.success() {
            // It had moved, and died with the card.
            let OffloadApp { session, run, .. } = app;
            let finished = run.finish();
            assert!(
                finished.status.success() || finished.stderr.contains("card 1"),
                "{finished:?}"
            );
            session.expect_no_process();
        } else {
            assert!(moved.stderr.contains("card 1"), "{moved:?}");
            assert_eq!(app.digest(), expected, "it goes on where it was");
        }
    }
}
