//! Kinds of kernel objects in use while the program is saved, at moments that are not chosen.

use crate::stage::{Stage, User};
use std::time::Duration;

/// Milliseconds between two snapshots, different in every run.
fn moments() -> impl Iterator<Item = Duration> {
    let mut state = std::process::id() ^ std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Duration::from_micros(u64::from(state >> 14 & 0xffff))
    })
}

#[test]
fn objects_in_use_lose_nothing() {
    for user in User::all() {
        let stage = Stage::new("busy", user);
        let mut program = stage.start();
        // The moment of a snapshot is arbitrary: there is nothing to wait for.
        for (round, pause) in moments().take(8).enumerate() {
            std::thread::sleep(pause);
            let name = round.to_string();
            stage.save(program.pid(), &name, round % 2 == 1);
            if round % 2 == 1 {
                program.expect_killed();
                program = stage.restore(&name);
            }
        }
        program.expect("fine");
        assert!(program.end().success());
    }
}

/// The signal of a fault may be on its way to the thread when that is stopped.
#[test]
fn faults_are_taken_once() {
    for user in User::all() {
        let stage = Stage::new("faults", user);
        let mut program = stage.start();
        for (round, pause) in moments().take(20).enumerate() {
            std::thread::sleep(pause / 4);
            let name = round.to_string();
            let kill = round % 5 == 4;
            stage.save(program.pid(), &name, kill);
            if kill {
                program.expect_killed();
                program = stage.restore(&name);
            }
        }
        program.go_on_and_be_fine();
    }
}
