//! The five kinds of offload programs survive rounds of checkpoint, kill and restart with the same digest, on one
//! card and on two.

use snapify_tests::{Random, Session, example, rounds, survive_rounds};
use std::process::Command;

/// The examples with sizes that a test can afford.
const EXAMPLES: [(&str, &[&str]); 5] = [
    ("md", &[]),
    ("mc", &[]),
    ("sgemm", &[]),
    ("search", &[]),
    ("kmeans", &[]),
];

fn command(session: &Session, cards: u32, name: &str, args: &[&str]) -> Command {
    let mut command = session.snapify(["run", "--cards", &cards.to_string(), "--"]);
    command
        .arg(example(name))
        .args(args)
        .args(["--devices", &cards.to_string()]);
    command
}

fn survives(cards: u32, rounds: usize) {
    let mut random = Random::new();
    for (name, args) in EXAMPLES {
        let session = Session::new();
        let expected = session.finish(&mut command(&session, cards, name, args));
        assert!(expected.status.success(), "{name}: {expected:?}");
        let survived = survive_rounds(
            &session,
            command(&session, cards, name, args),
            rounds,
            1500,
            &mut random,
        );
        assert!(survived.status.success(), "{name}: {survived:?}");
        assert_eq!(
            survived.digest(),
            expected.digest(),
            "{name} on {cards} cards"
        );
        session.expect_no_process();
    }
}

#[test]
fn on_one_card() {
    survives(1, rounds(2));
}

#[test]
fn on_two_cards() {
    survives(2, rounds(2));
}

#[test]
#[ignore = "long: run by `make soak`"]
fn soak_on_one_card() {
    survives(1, rounds(20));
}

#[test]
#[ignore = "long: run by `make soak`"]
fn soak_on_two_cards() {
    survives(2, rounds(20));
}
