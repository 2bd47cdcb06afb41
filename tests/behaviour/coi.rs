//! Programs written to COI: each of its functions, processes that die, and checkpoints from outside.

use snapify_tests::{
    Finished, Language, Meanwhile, Random, Session, User, compile, survive_rounds, survives,
};
use std::path::PathBuf;
use std::process::Command;

/// The program on the card.
fn sink() -> PathBuf {
    compile("coi_sink.c", Language::CoiSink)
}

/// `snapify run` of a program on the host that is given the one on the card.
fn run(session: &Session, cards: u32, program: &str) -> Command {
    let cards = cards.to_string();
    let mut command = session.snapify(["run", "--cards", &cards, "--card-memory", "256M", "--"]);
    command.arg(compile(program, Language::CoiHost)).arg(sink());
    command
}

fn succeeds(finished: &Finished) {
    assert!(finished.status.success(), "{finished:?}");
}

/// Each function does what COI says, and refuses what it must.
fn does_what_coi_says(user: User) {
    let session = Session::of(user);
    let mut command = run(&session, 2, "coi_basic.c");
    command.arg(compile("coi_library.c", Language::CoiLibrary));
    let finished = session.finish(&mut command);
    succeeds(&finished);
    assert!(
        finished
            .stdout
            .contains("sink coi_sink has 2 arguments, GIVEN is 42, INHERITED is not set"),
        "{finished:?}"
    );
    assert!(
        finished
            .stdout
            .contains("sink memory has 1 arguments, GIVEN is 42, INHERITED is yes"),
        "{finished:?}"
    );
    session.expect_no_process();
}

#[test]
fn each_function_does_what_coi_says() {
    does_what_coi_says(User::Ordinary);
}

#[test]
fn each_function_does_what_coi_says_to_whom_runs_the_tests() {
    does_what_coi_says(User::Myself);
}

#[test]
fn a_process_that_dies_is_told_to_all_who_use_it() {
    let session = Session::new();
    let finished = session.finish(&mut run(&session, 1, "coi_death.c"));
    succeeds(&finished);
    session.expect_no_process();
}

#[test]
fn misuse_is_refused() {
    let session = Session::new();
    let finished = session.finish(&mut run(&session, 1, "coi_misuse.c"));
    succeeds(&finished);
    session.expect_no_process();
}

/// A sink program without a host says so and ends; a host program without cards has no engines.
#[test]
fn alone_both_sides_know_that_they_are() {
    let session = Session::new();
    let libraries = snapify_tests::stage().join("lib");
    let alone = session.finish(session.command(sink()).env("LD_LIBRARY_PATH", &libraries));
    assert_eq!(alone.code(), Some(3), "{alone:?}");
    let program = compile("coi_work.c", Language::CoiHost);
    let mut command = session.command(program);
    command.arg(sink()).env("LD_LIBRARY_PATH", &libraries);
    let alone = session.finish(&mut command);
    assert_eq!(alone.code(), Some(4), "{alone:?}");
}

/// Checkpointed at random moments, killed and restarted: handles stay valid, and the result is the same.
fn survives_restarts(user: User) {
    survives(
        user,
        |session| run(session, 2, "coi_work.c"),
        3,
        Meanwhile::GoesOn,
    );
}

#[test]
fn checkpoints_and_restarts_at_random_moments() {
    survives_restarts(User::Ordinary);
}

#[test]
fn checkpoints_and_restarts_of_whom_runs_the_tests() {
    survives_restarts(User::Myself);
}

/// On restart the cards are exchanged.
#[test]
fn restarts_on_other_cards() {
    let session = Session::new();
    let expected = session.finish(&mut run(&session, 2, "coi_work.c"));
    let mut running = session.start(&mut run(&session, 2, "coi_work.c"));
    running.wait_for("round ");
    let host = session.host_of(&mut running).expect("it runs").to_string();
    session.succeed(["checkpoint", &host, "snap", "--stop"]);
    running.finish();
    let restarted = session.run(["restart", "snap", "--card", "0=1", "--card", "1=0"]);
    succeeds(&restarted);
    assert_eq!(restarted.digest(), expected.digest());
    session.expect_no_process();
}

#[test]
#[ignore = "long: part of `make soak`"]
fn soak_coi() {
    let session = Session::new();
    let expected = session.finish(&mut run(&session, 2, "coi_work.c"));
    let mut random = Random::new();
    for _ in 0..snapify_tests::rounds(20) {
        let (survived, _) = survive_rounds(
            &session,
            run(&session, 2, "coi_work.c"),
            3,
            500,
            Meanwhile::GoesOn,
            &mut random,
        );
        succeeds(&survived);
        assert_eq!(survived.digest(), expected.digest());
    }
    session.expect_no_process();
}
