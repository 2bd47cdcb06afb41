//! The five kinds of offload programs survive rounds of checkpoint, kill and restart with the same digest, on one
//! card and on two.

use snapify_tests::{Meanwhile, Random, Session, rounds, survive_rounds};
use std::time::Instant;

const EXAMPLES: [&str; 5] = ["md", "mc", "sgemm", "search", "kmeans"];

fn survives(cards: u32, rounds: usize) {
    let mut random = Random::new();
    for name in EXAMPLES {
        let session = Session::new();
        let start = Instant::now();
        let expected = session.finish(&mut session.offload(cards, name));
        assert!(expected.status.success(), "{name}: {expected:?}");
        // On average a round takes half of the longest wait: a run is long enough for some five of them.
        let longest_ms = start.elapsed().as_millis() as u64 / 3;
        let mut left = rounds;
        while left > 0 {
            let (survived, done) = survive_rounds(
                &session,
                session.offload(cards, name),
                left,
                longest_ms,
                Meanwhile::GoesOn,
                &mut random,
            );
            assert!(survived.status.success(), "{name}: {survived:?}");
            assert_eq!(
                survived.digest(),
                expected.digest(),
                "{name} on {cards} cards"
            );
            session.expect_no_process();
            left -= done;
        }
        eprintln!("{name} on {cards} cards: {rounds} rounds, the same digest");
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
