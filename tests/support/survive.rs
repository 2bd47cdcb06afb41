//! Rounds of checkpoint, kill and restart at random moments.

use crate::session::{Finished, Running, Session, poll_until};
use crate::{Random, User};
use std::process::Command;
use std::time::{Duration, Instant};

/// What a program does between a checkpoint and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// It goes on in every other round.
    GoesOn,
    /// Nothing: it would remove or change files that an earlier state needs, and files are not saved.
    Nothing,
}

/// Runs `command`; then, up to `rounds` times, after up to `longest_ms` milliseconds: takes a snapshot, kills the
/// program with SIGKILL and restarts it. Alternately the checkpoint ends the program itself (`--stop`), or the program
/// goes on after the checkpoint until it is killed. Gives what the last incarnation said, and how many rounds there
/// were: the program may come to its end before.
///
/// The command may be `snapify run …` or a plain program. With [`Meanwhile::Nothing`] it never goes on after a checkpoint.
pub fn survive_rounds(
    session: &Session,
    mut command: Command,
    rounds: usize,
    longest_ms: u64,
    meanwhile: Meanwhile,
    random: &mut Random,
) -> (Finished, usize) {
    let supervised = command
        .get_program()
        .to_string_lossy()
        .ends_with("/snapify");
    let snapshots = session.path("snapshots");
    // Those of an earlier run of the program are another program's.
    let _ = std::fs::remove_dir_all(&snapshots);
    let snapshots = snapshots.display().to_string();
    let mut running = session.start(&mut command);
    let mut host = if supervised {
        session.host_of(&mut running)
    } else {
        Some(running.pid())
    };
    let mut done = 0;
    for round in 0..rounds {
        // The moment is random: there is no event to wait for.
        std::thread::sleep(Duration::from_millis(random.below(longest_ms)));
        let Some(pid) = host else { break };
        let stop = meanwhile == Meanwhile::Nothing || random.below(2) == 0;
        let number = pid.to_string();
        let mut args = vec!["checkpoint", &number, &snapshots];
        if stop {
            args.push("--stop");
        }
        let checkpoint = session.run(&args);
        if !checkpoint.status.success() {
            // The one good reason is that the program had come to its end.
            let reason = &checkpoint.stderr;
            assert!(
                reason.contains("no process") || reason.contains("ended"),
                "round {round}: {checkpoint:?}"
            );
            let finished = running.finish();
            assert!(
                finished.status.success(),
                "round {round}: the checkpoint failed: {checkpoint:?}\nand the program: {finished:?}"
            );
            return (finished, done);
        }
        if !stop {
            std::thread::sleep(Duration::from_millis(random.below(longest_ms / 4)));
            if !session.kill_host(&running, pid) {
                break;
            }
        }
        let killed = running.finish();
        if !stop && killed.status.success() {
            // It came to its end before the kill: that is a result as well, and so is the restart's.
            eprintln!("round {round}: the program ended before it was killed");
        } else {
            assert_eq!(killed.killed_by(), Some(9), "round {round}: {killed:?}");
        }
        let pid_file = session.path("pid");
        let _ = std::fs::remove_file(&pid_file);
        running = session.start(
            session
                .snapify(["restart", &snapshots])
                .arg("--pid-file")
                .arg(&pid_file),
        );
        host = wait_for_pid(&mut running, &pid_file);
        done += 1;
    }
    (running.finish(), done)
}

/// Runs what `make` gives to its end, and then again through rounds of checkpoint, kill and restart at random moments: the
/// last line of output, which is the result, must be the same, and nothing may be left.
pub fn survives(
    user: User,
    make: impl Fn(&Session) -> Command,
    default_rounds: usize,
    meanwhile: Meanwhile,
) {
    let session = Session::of(user);
    let mut command = make(&session);
    let begin = Instant::now();
    let expected = session.finish(&mut command);
    assert!(expected.status.success(), "{expected:?}");
    let result = expected.stdout.lines().last();
    assert!(result.is_some(), "there is no result: {expected:?}");
    // On average a round takes half of the longest wait: a run is long enough for some five of them.
    let longest_ms = (begin.elapsed().as_millis() as u64 / 3).max(20);
    let mut random = Random::new();
    let mut left = crate::rounds(default_rounds);
    while left > 0 {
        let (survived, done) = survive_rounds(
            &session,
            make(&session),
            left,
            longest_ms,
            meanwhile,
            &mut random,
        );
        assert!(survived.status.success(), "{survived:?}");
        assert_eq!(survived.stdout.lines().last(), result, "{survived:?}");
        session.expect_no_process();
        left -= done;
    }
}

/// Waits until a restart has written its pid file; None if it has ended without.
fn wait_for_pid(running: &mut Running, file: &std::path::Path) -> Option<i32> {
    let mut pid = None;
    poll_until("the restart writes its pid file or ends", || {
        pid = std::fs::read_to_string(file)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        pid.is_some() || !running.is_running()
    });
    pid
}
