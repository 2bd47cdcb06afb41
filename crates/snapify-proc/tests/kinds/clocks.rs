//! Time that passes between a snapshot and the restart.

use crate::stage::{Stage, User};
use std::time::Duration;

/// How long a program does not exist.
const GAP: Duration = Duration::from_millis(1500);

/// The program finds CLOCK_MONOTONIC where it was, and what waits for absolute times of it waits as long as it should; so it
/// is when a restored program is saved again.
#[test]
fn monotonic_time_stands_still_meanwhile() {
    for user in User::all() {
        let stage = Stage::new("clocks", user);
        let original = stage.start();
        stage.save(original.pid(), "first", false);
        stage.save(original.pid(), "second", true);
        original.expect_killed();
        std::thread::sleep(GAP);
        let restored = stage.restore("second");
        assert!(
            !restored.said().contains("CLOCK_MONOTONIC"),
            "{}",
            restored.said()
        );
        stage.save(restored.pid(), "third", true);
        restored.expect_killed();
        std::thread::sleep(GAP);
        stage.restore("third").go_on_and_be_fine();
    }
}
