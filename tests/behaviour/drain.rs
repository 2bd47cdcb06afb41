//! Snapshots at random instants of a program that keeps all channels busy: no message is lost, doubled or reordered.
//! The models in `crates/snapify-offload/tests/model` tell why; this tells that the code does as they do.

use snapify_tests::{
    Language, Meanwhile, Random, Session, User, compile, poll_until, rounds, survives,
};
use std::process::Command;
use std::time::Duration;

fn storm(session: &Session, cards: &str, length: &str) -> Command {
    let mut command = session.snapify(["run", "--cards", cards, "--"]);
    command
        .arg(compile("omp_storm.c", Language::OpenMp))
        .arg(length);
    command
}

fn has_ended(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state comes after the name, which is in parentheses. A zombie has ended.
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.is_empty() || state.starts_with(['Z', 'X'])
}

/// Takes `wanted` snapshots at random moments, of as many runs as that takes; all must come to their end and the same result.
fn goes_on(cards: &str, wanted: usize) {
    let session = Session::new();
    let mut random = Random::new();
    let mut taken = 0;
    let mut result = None;
    while taken < wanted {
        let mut run = session.start(&mut storm(&session, cards, "30"));
        run.wait_for("round 0");
        let host = session.host_of(&mut run).map(|pid| pid.to_string());
        while let Some(host) = &host
            && taken < wanted
            && run.is_running()
        {
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            let done = session.run(["checkpoint", host, "snap"]);
            if done.status.success() {
                taken += 1;
            } else {
                // The one good reason is that the program has come to its end.
                let reasons = ["no process", "No such file", "ended", "died"];
                let ended = reasons.iter().any(|reason| done.stderr.contains(reason));
                assert!(ended, "{done:?}");
                poll_until("the program has ended", || has_ended(host));
                break;
            }
        }
        let finished = run.finish();
        assert!(finished.status.success(), "after {taken}: {finished:?}");
        let digest = finished.digest().to_owned();
        assert_eq!(*result.get_or_insert(digest.clone()), digest);
        // They are large, and one run's are another program's for the next.
        let _ = std::fs::remove_dir_all(session.path("snap"));
        session.expect_no_process();
    }
}

#[test]
fn a_busy_program_goes_on_through_snapshots() {
    goes_on("2", 4);
}

#[test]
#[ignore = "long: run by `make soak`"]
fn soak_a_busy_program_goes_on_through_snapshots() {
    goes_on("1", rounds(20) * 50);
    goes_on("3", rounds(20) * 50);
}

#[test]
#[ignore = "long: run by `make soak`"]
fn soak_a_busy_program_is_restarted_from_any_of_them() {
    for cards in ["1", "2"] {
        survives(
            User::Ordinary,
            |session| storm(session, cards, "60"),
            20,
            Meanwhile::GoesOn,
        );
    }
}
