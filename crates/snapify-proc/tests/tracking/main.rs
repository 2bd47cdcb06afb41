//! What counts as unchanged has not changed, whatever a program does to its memory. As root and as an ordinary user.

#[path = "../kinds/stage.rs"]
#[allow(dead_code)]
mod stage;

use stage::{Stage, User};

/// Follows a program; returns how many of how many bytes have changed in all.
fn follow(stage: &Stage, pid: i32, rounds: u32, live: bool) -> (u64, u64) {
    let mut engine = stage.engine();
    engine
        .arg("follow")
        .arg(pid.to_string())
        .arg(stage.path("followed"))
        .arg(rounds.to_string());
    if live {
        engine.arg("--live");
    }
    let output = engine.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let (changed, rest) = told.split_once(" of ").unwrap();
    let all = rest.split(' ').next().unwrap();
    (changed.parse().unwrap(), all.parse().unwrap())
}

#[test]
fn no_change_is_missed() {
    for user in User::all() {
        for live in [false, true] {
            let stage = Stage::of("tracking", "restless", user);
            let program = stage.start();
            let (changed, all) = follow(&stage, program.pid(), 25, live);
            assert!(changed > 0 && changed < all, "{changed} of {all}");
            program.go_on_and_be_fine();
        }
    }
}

#[test]
fn a_restored_program_is_tracked_too() {
    for user in User::all() {
        let stage = Stage::of("tracking", "restless", user);
        let program = stage.start();
        stage.save(program.pid(), "image", true);
        program.expect_killed();
        let restored = stage.restore("image");
        follow(&stage, restored.pid(), 10, true);
        restored.go_on_and_be_fine();
    }
}
