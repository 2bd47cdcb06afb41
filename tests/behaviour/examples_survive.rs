//! The five kinds of offload programs survive rounds of checkpoint, kill and restart with the same digest, on one
//! card and on two.

use snapify_tests::{Random, Session, rounds, survive_rounds};

const EXAMPLES: [&str; 5] = ["md", "mc", "sgemm", "search", "kmeans"];

fn survives(cards: u32, rounds: usize) {
    let mut random = Random::new();
    for name in EXAMPLES {
        let session = Session::new();
        let expected = session.finish(&mut session.offload(cards, name));
        assert!(expected.status.success(), "{name}: {expected:?}");
        let survived = survive_rounds(
            &session,
            session.offload(cards, name),
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
