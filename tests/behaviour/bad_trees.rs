//! What goes wrong with trees of processes: ones that never stand still, a checkpoint that is killed at any moment, systems that
//! allow less than is needed. The programs go on unharmed, and people are told what to do.

use rustix::process::Signal;
use snapify_tests::{Finished, Language, Running, Session, User, compile, poll_until};
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Instant;

/// A tree of processes that tells on demand that it is alive, and at its end whether all of it was well.
struct Lively {
    running: Running,
    stdin: ChildStdin,
}

impl Lively {
    fn start(session: &Session, command: &mut Command) -> Self {
        let mut lively = Self::over(session, command);
        lively.running.wait_for("ready");
        lively
    }

    fn over(session: &Session, command: &mut Command) -> Self {
        let mut running = session.start(command.stdin(Stdio::piped()));
        let stdin = running.take_stdin();
        Self { running, stdin }
    }

    fn restart(session: &Session, dir: &str) -> Self {
        Self::over(session, &mut session.snapify(["restart", dir]))
    }

    fn pid(&self) -> String {
        self.running.pid().to_string()
    }

    fn expect_alive(&mut self) {
        self.stdin.write_all(b"how far\n").expect("ask the program");
        self.running.wait_for("round");
    }

    fn end_well(self) {
        drop(self.stdin);
        let finished = self.running.finish();
        let said_so = finished.stdout.contains("fine");
        assert!(finished.status.success() && said_so, "{finished:?}");
    }
}

fn lively(session: &Session) -> Command {
    session.command(compile("lively.c", Language::C))
}

fn leftovers(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let hidden = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(".staging");
    entries.filter(|entry| hidden(&entry.file_name())).count()
}

fn is_traced(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.contains("TracerPid:\t0\n")
}

/// Kills checkpoints at moments that are spread over the whole of one.
fn killed_at_every_phase(live: &str) {
    const MOMENTS: u32 = 6;
    let session = Session::new();
    let mut program = Lively::start(&session, &mut lively(&session));
    let pid = program.pid();
    let begin = Instant::now();
    session.succeed(["checkpoint", &pid, "first", live]);
    let whole = begin.elapsed();
    let snap = session.path("snap");
    for moment in 0..=MOMENTS {
        let checkpoint = session.start(&mut session.snapify(["checkpoint", &pid, "snap", live]));
        // The moment is what matters: there is no event to wait for.
        std::thread::sleep(whole * moment / MOMENTS);
        checkpoint.signal(Signal::KILL);
        let finished = checkpoint.finish();
        assert!(
            finished.killed_by() == Some(9) || finished.status.success(),
            "{finished:?}"
        );
        poll_until("what was begun is undone", || {
            !is_traced(program.running.pid()) && leftovers(&snap) == 0
        });
        program.expect_alive();
    }
    session.succeed(["checkpoint", &pid, "last", live]);
    program.expect_alive();
    let children = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(children).expect("its children");
    assert_eq!(children.split_whitespace().count(), 4, "{children}");
    program.end_well();
    let mut restarted = Lively::restart(&session, "last");
    restarted.expect_alive();
    restarted.end_well();
    session.expect_no_process();
}

#[test]
fn a_checkpoint_is_killed_at_every_phase() {
    killed_at_every_phase("--live=never");
}

#[test]
fn a_live_checkpoint_is_killed_at_every_phase() {
    killed_at_every_phase("--live");
}

#[test]
fn a_tree_that_never_stands_still() {
    for user in [User::Ordinary, User::Myself] {
        let session = Session::of(user);
        let mut program = Lively::start(&session, lively(&session).arg("churn"));
        let mut saved = 0;
        for _ in 0..3 {
            let finished = session.run(["checkpoint", &program.pid(), "snap"]);
            // It may be refused, within bounds and in words; nothing else may happen to it.
            if finished.status.success() {
                saved += 1;
            } else {
                assert!(finished.stderr.contains("go on making"), "{finished:?}");
            }
            program.expect_alive();
        }
        program.end_well();
        assert!(saved > 0, "it was never saved");
        let mut restarted = Lively::restart(&session, "snap");
        restarted.expect_alive();
        restarted.end_well();
        session.expect_no_process();
    }
}

#[test]
fn its_ids_are_taken_by_the_original() {
    let session = Session::new();
    let mut original = Lively::start(&session, &mut lively(&session));
    session.succeed(["checkpoint", &original.pid(), "snap"]);
    let mut first = Lively::restart(&session, "snap");
    let mut second = Lively::restart(&session, "snap");
    for program in [&mut original, &mut first, &mut second] {
        program.expect_alive();
    }
    original.end_well();
    first.end_well();
    second.end_well();
    session.expect_no_process();
}

/// A command carried out with no other capabilities than these, which only root can have.
fn with_only(session: &Session, capabilities: &str, command: &Command) -> Command {
    let mut bare = session.command("setpriv");
    bare.arg("--inh-caps=-all");
    bare.arg(format!("--bounding-set=-all{capabilities}"));
    bare.arg(command.get_program()).args(command.get_args());
    bare
}

#[test]
fn root_with_hardly_any_capability() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let session = Session::of(User::Myself);
    // As in most containers.
    let few = |command: &Command| with_only(&session, ",+setfcap", command);
    let program = Lively::start(&session, &mut few(&lively(&session)));
    let pid = program.pid();
    let finished = session.finish(&mut few(&session.snapify(["checkpoint", &pid, "snap"])));
    assert!(finished.status.success(), "{finished:?}");
    program.end_well();
    let restart = session.snapify(["restart", "snap"]);
    let mut restarted = Lively::over(&session, &mut few(&restart));
    restarted.expect_alive();
    restarted.end_well();
    let finished = session.finish(&mut with_only(&session, "", &restart));
    refused(&finished, &["CAP_SETFCAP"]);
    session.expect_no_process();
}

fn refused(finished: &Finished, words: &[&str]) {
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    for word in words {
        assert!(finished.stderr.contains(word), "no '{word}': {finished:?}");
    }
}

#[test]
fn no_user_namespaces_to_be_had() {
    let session = Session::new();
    let program = Lively::start(&session, &mut lively(&session));
    session.succeed(["checkpoint", &program.pid(), "snap"]);
    program.end_well();
    // A user namespace in which there can be no other is what a system is that has none.
    let script = format!(
        "echo 0 >/proc/sys/user/max_user_namespaces && \
         exec setpriv --ambient-caps=-all --inh-caps=-all {} restart snap",
        snapify_tests::stage().join("bin/snapify").display()
    );
    let mut command = session.command("unshare");
    command.args(["--user", "--map-current-user", "--keep-caps"]);
    command.args(["sh", "-c", &script]);
    let finished = session.finish(&mut command);
    refused(&finished, &["user.max_user_namespaces", "administrator"]);
    session.expect_no_process();
}
