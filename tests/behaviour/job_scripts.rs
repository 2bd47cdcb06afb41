//! Programs that use cards below a shell or another parent, one after the other or several at once, and programs that have children
//! of their own while they do: a snapshot of the whole, swaps and migrations of single offload processes.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapify_tests::{
    Language, Meanwhile, OffloadApp, Running, Session, User, compile, example, poll_until, rounds,
    survives,
};
use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, OnceLock};

/// `snapify run` of a script for bash on so many cards.
fn job(session: &Session, cards: &str, script: &str) -> Command {
    let mut command = session.snapify(["run", "--cards", cards, "--card-memory", "1G", "--"]);
    command.args(["bash", "-c", script]);
    command
}

/// Runs of some seconds.
const MD: &str = "md --steps 160";
const SEARCH: &str = "search --vectors 131072";

/// An example with its size, on a device, as words of a script.
fn words(example_and_size: &str, device: &str) -> String {
    let (name, size) = example_and_size.split_once(' ').expect("a name and a size");
    format!("{} {size} --device {device}", example(name).display())
}

/// A run that goes on until it is killed.
fn endless(device: &str) -> String {
    words("md --steps 1000000", device)
}

/// The digests of undisturbed runs of `md` and `search`.
fn digests() -> [&'static str; 2] {
    static DONE: OnceLock<[String; 2]> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        [MD, SEARCH].map(|example| {
            let session = Session::new();
            let finished = session.finish(&mut job(&session, "1", &words(example, "0")));
            assert!(finished.status.success(), "{finished:?}");
            finished.digest().to_owned()
        })
    });
    done.each_ref().map(String::as_str)
}

/// Starts a script, and waits for these words of its output.
fn start(user: User, cards: &str, script: &str, wait_for: &[&str]) -> OffloadApp {
    let session = Arc::new(Session::of(user));
    let run = session.start(&mut job(&session, cards, script));
    known(session, run, wait_for)
}

/// Restarts the newest snapshot in `snap`, and waits for these words of its output.
fn restart(session: &Arc<Session>, args: &[&str], wait_for: &[&str]) -> OffloadApp {
    let args = [&["restart", "snap"][..], args].concat();
    let run = session.start(&mut session.snapify(args));
    known(session.clone(), run, wait_for)
}

fn known(session: Arc<Session>, mut run: Running, wait_for: &[&str]) -> OffloadApp {
    for words in wait_for {
        run.wait_for(words);
    }
    let host = session.host_of(&mut run).expect("it runs").to_string();
    OffloadApp { session, run, host }
}

/// Kills all of it.
fn kill(app: OffloadApp) -> Arc<Session> {
    let OffloadApp { session, run, host } = app;
    let host = host.parse().expect("a number");
    assert!(session.kill_host(&run, host), "it ran");
    assert_eq!(run.finish().killed_by(), Some(9));
    session
}

/// The processes that use cards.
fn hosts(app: &OffloadApp) -> Vec<i64> {
    let status = app.status();
    let hosts = status["hosts"].as_array().expect("a list");
    hosts.iter().filter_map(Value::as_i64).collect()
}

fn signal(pid: i64, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), signal).expect("send a signal");
}

#[test]
fn a_program_in_a_pipeline_of_a_script() {
    for (user, turns) in [(User::Ordinary, 2), (User::Myself, 1)] {
        survives(
            user,
            |session| {
                let program = words("md --steps 64", "0");
                // Neither the shell nor timeout(1) uses a card.
                let script = format!(
                    "timeout 200 {program} | tee log | grep digest; echo $PIPESTATUS >end; cat log | tail -1"
                );
                job(session, "1", &script)
            },
            rounds(turns),
            Meanwhile::GoesOn,
        );
    }
}

#[test]
fn one_after_the_other() {
    let [first, second] = digests();
    for user in [User::Ordinary, User::Myself] {
        let script = format!(
            "{}; echo between $?; {}; echo after $?",
            words(MD, "0"),
            words(SEARCH, "1")
        );
        let app = start(user, "2", &script, &["step "]);
        assert!(app.ask("check", &[]).status.success());
        assert_ne!(hosts(&app), [app.host.parse::<i64>().unwrap()]);
        app.done("checkpoint", &["snap"]);
        let session = kill(app);
        // The second program finds its cards where the first one had found them, though others serve them now.
        let app = restart(&session, &[], &["between 0", "batch "]);
        assert!(app.run.output.contains(first), "{}", app.run.output);
        assert_eq!(hosts(&app).len(), 1, "the first has ended");
        app.done("checkpoint", &["snap"]);
        let session = kill(app);
        let app = restart(&session, &["--card", "1=0"], &["batch "]);
        assert!(app.places().iter().all(|(_, card)| *card == Some(0)));
        app.done("checkpoint", &["snap", "--stop"]);
        assert_eq!(app.run.finish().killed_by(), Some(9));
        session.expect_no_process();
        let ats: &[_] = match user {
            User::Ordinary => &[("1", true), ("3", false)],
            User::Myself => &[("3", false)],
        };
        for (at, whole) in ats {
            let finished = session.run(["restart", "snap", "--at", at]);
            assert!(finished.status.success(), "{finished:?}");
            assert_eq!(finished.stdout.contains(first), *whole, "{finished:?}");
            assert_eq!(finished.digest(), second, "{finished:?}");
            assert!(finished.stdout.ends_with("after 0\n"), "{finished:?}");
        }
        session.expect_no_process();
    }
}

/// What `omp_hold` with so many MiB says for one line of input.
fn sum_of(mebibytes: u32) -> String {
    let session = Session::new();
    let program = compile("omp_hold.c", Language::OpenMp);
    let script = format!("echo go | {} {mebibytes}", program.display());
    let finished = session.finish(&mut job(&session, "1", &script));
    assert!(finished.status.success(), "{finished:?}");
    let sum = finished.last("sum ").expect("a sum");
    format!("sum {sum}")
}

/// Two programs at the same time that hold something on their cards, and go on when the script has read a line.
struct Two {
    app: OffloadApp,
    stdin: Option<ChildStdin>,
}

impl Two {
    fn start(user: User, cards: &str, second_device: &str) -> Self {
        let program = compile("omp_hold.c", Language::OpenMp);
        let program = program.display();
        let script = format!(
            "mkfifo a b; {program} 8 <a >first & OMP_DEFAULT_DEVICE={second_device} {program} 12 <b >second & \
             exec 3>a 4>b 5<&0; echo started; read line <&5; echo go >&3; echo go >&4; exec 3>&- 4>&-; \
             wait -n && wait; cat first second"
        );
        let session = Arc::new(Session::of(user));
        let mut run = session.start(job(&session, cards, &script).stdin(Stdio::piped()));
        let stdin = Some(run.take_stdin());
        let app = known(session, run, &["started"]);
        poll_until("both hold what they shall", || {
            let is_ready = |name: &str| {
                let text = std::fs::read_to_string(app.session.path(name));
                text.is_ok_and(|text| text.contains("ready"))
            };
            is_ready("first") && is_ready("second")
        });
        assert_eq!((hosts(&app).len(), app.places().len()), (2, 2));
        Self { app, stdin }
    }

    /// Restarts a snapshot, and lets it come to its end.
    fn expect(session: &Arc<Session>, args: &[&str]) {
        let args = [&["restart", "snap", "--files=truncate"][..], args].concat();
        let mut run = session.start(session.snapify(args).stdin(Stdio::piped()));
        run.take_stdin().write_all(b"go\n").expect("write a line");
        let finished = run.finish();
        assert!(finished.status.success(), "{finished:?}");
        let expected = format!("ready\n{}\nready\n{}\n", sum_of(8), sum_of(12));
        assert_eq!(finished.stdout, expected, "{finished:?}");
        session.expect_no_process();
    }
}

#[test]
fn two_at_the_same_time_on_two_cards() {
    for user in [User::Ordinary, User::Myself] {
        let Two { app, stdin } = Two::start(user, "2", "1");
        // The whole, and the two of which one is named by its process.
        app.refused("swap-out", &["swap"], &["several", "name one"]);
        let status = app.status();
        let on = |card: u64| {
            let processes = status["processes"].as_array().expect("a list");
            let found = processes.iter().find(|process| process["card"] == card);
            found.expect("one of each card")["host"].to_string()
        };
        let session = app.session.clone();
        session.succeed(["swap-out", &on(1), "swap"]);
        let away = app
            .places()
            .iter()
            .filter(|(_, card)| card.is_none())
            .count();
        assert_eq!(away, 1);
        session.succeed(["migrate", &on(0), "1"]);
        app.done("checkpoint", &["snap"]);
        session.succeed(["swap-in", &on(1), "0"]);
        app.done("checkpoint", &["snap"]);
        let session = kill(app);
        drop(stdin);
        for at in ["1", "2"] {
            Two::expect(&session, &["--at", at]);
        }
    }
}

#[test]
fn two_at_the_same_time_on_one_card() {
    let Two { app, stdin } = Two::start(User::Ordinary, "1", "0");
    app.done("checkpoint", &["snap"]);
    app.done("checkpoint", &["snap", "--stop"]);
    let OffloadApp { session, run, .. } = app;
    assert_eq!(run.finish().killed_by(), Some(9));
    drop(stdin);
    Two::expect(&session, &[]);
}

#[test]
fn a_program_with_children_of_its_own() {
    let program = compile("omp_children.c", Language::OpenMp);
    for (user, turns) in [(User::Ordinary, 2), (User::Myself, 1)] {
        survives(
            user,
            |session| {
                let mut command = session.snapify(["run", "--cards", "1", "--"]);
                command.arg(&program).args(["400", "packed"]);
                command
            },
            rounds(turns),
            Meanwhile::GoesOn,
        );
    }
    // What the card has for it can come and go, whatever the child has inherited.
    let session = Arc::new(Session::new());
    let mut command = session.snapify(["run", "--cards", "2", "--"]);
    let expected = session.finish(command.arg(&program).args(["800", "packed"]));
    let mut command = session.snapify(["run", "--cards", "2", "--"]);
    let run = session.start(command.arg(&program).args(["800", "packed"]));
    let app = known(session.clone(), run, &["round 20"]);
    assert!(app.ask("check", &[]).status.success());
    app.done("swap-out", &["swap"]);
    app.done("checkpoint", &["snap"]);
    app.done("swap-in", &["1"]);
    app.done("migrate", &["0"]);
    app.done("checkpoint", &["snap"]);
    let session = kill(app);
    for at in ["1", "2"] {
        let finished = session.run(["restart", "snap", "--at", at]);
        assert!(finished.status.success(), "{finished:?}");
        assert_eq!(finished.digest(), expected.digest(), "{finished:?}");
    }
    let packed = std::fs::read_to_string(session.path("packed")).expect("read what was packed");
    assert!(packed.lines().all(|line| line.starts_with("packed.")));
    session.expect_no_process();
}

#[test]
fn below_python_and_make() {
    let python = "import subprocess, sys\n\
                  done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n\
                  print(done.returncode, done.stdout.splitlines()[-1])";
    survives(
        User::Ordinary,
        |session| {
            let program = words("md --steps 64", "0");
            let makefile = format!("all:\n\t@python3 -c \"$$SCRIPT\" {program}\n");
            std::fs::write(session.path("Makefile"), makefile).expect("write a file");
            let mut command = session.snapify(["run", "--cards", "1", "--", "make", "-s"]);
            command.env("SCRIPT", python);
            command
        },
        rounds(2),
        Meanwhile::GoesOn,
    );
}

#[test]
fn what_goes_wrong_concerns_one_of_them() {
    let program = compile("omp_hold.c", Language::OpenMp);
    let script = format!(
        "mkfifo a; {} 8 <a >first & exec 3>a; {} || echo failed; echo go >&3; exec 3>&-; wait $!; echo the first $?; \
         cat first",
        program.display(),
        endless("1")
    );
    // A card dies: the program on it ends, and tells why; the other, and the script, go on.
    let app = start(User::Ordinary, "2", &script, &["step "]);
    poll_until("both use their cards", || app.places().len() == 2);
    let died = app.status()["cards"][1]["pid"].as_i64();
    signal(died.expect("a process id"), Signal::KILL);
    let OffloadApp { session, run, .. } = app;
    let finished = run.finish();
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stderr.contains("card 1"), "{finished:?}");
    let end = format!("failed\nthe first 0\nready\n{}\n", sum_of(8));
    assert!(finished.stdout.ends_with(&end), "{finished:?}");
    session.expect_no_process();
}

#[test]
fn the_image_goes_with_the_process_that_needs_it() {
    let program = compile("omp_leave.c", Language::OpenMp);
    let session = Arc::new(Session::new());
    let script = format!(
        "exec 3<&0; {} <&3; echo it ended with $?; read line <&3",
        program.display()
    );
    let mut command = job(&session, "1", &script);
    let mut run = session.start(command.stdin(Stdio::piped()));
    let stdin = run.take_stdin();
    let mut app = known(session.clone(), run, &["ready"]);
    app.done("swap-out", &["kept/swap"]);
    assert!(session.path("kept/swap").exists());
    signal(hosts(&app)[0], Signal::KILL);
    app.run.wait_for("it ended with 137");
    poll_until("nobody needs the image", || {
        !session.path("kept/swap").exists() && app.places().is_empty()
    });
    assert!(hosts(&app).is_empty());
    // The script alone can be saved as well.
    app.done("checkpoint", &["snap"]);
    drop(stdin);
    assert_eq!(app.run.finish().code(), Some(1), "read has met the end");
    session.expect_no_process();
}

#[test]
fn refused_in_words() {
    let app = start(
        User::Ordinary,
        "1",
        &format!("{}; true", endless("0")),
        &["step "],
    );
    app.done("checkpoint", &["snap"]);
    // The original still runs, and starts programs that look for its cards.
    let session = app.session.clone();
    let refused = session.run(["restart", "snap"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("still runs"), "{refused:?}");
    // A process that uses cards stands for its whole application.
    let host = hosts(&app)[0].to_string();
    let report: Value =
        serde_json::from_str(&session.succeed(["checkpoint", &host, "snap", "--json"]))
            .expect("JSON");
    assert_eq!(report["point"], 2);
    assert_eq!(report["pid"].to_string(), app.host);
    app.refused("swap-in", &["0"], &["not swapped out"]);
    kill(app);

    // One that the shell has left to somebody else is not saved with it, and must not be lost unnoticed.
    let script = format!("({} &); read line", endless("0"));
    let session = Arc::new(Session::new());
    let mut command = job(&session, "1", &script);
    let mut run = session.start(command.stdin(Stdio::piped()));
    let stdin = run.take_stdin();
    let app = known(session, run, &["step "]);
    app.refused("checkpoint", &["snap"], &["uses cards", "not a descendant"]);
    signal(hosts(&app)[0], Signal::KILL);
    drop(stdin);
    assert_eq!(app.run.finish().code(), Some(1), "read has met the end");
}

#[test]
fn what_a_card_writes_goes_where_its_program_writes() {
    let program = compile("omp_says.c", Language::OpenMp);
    let program = program.display();
    for script in [
        format!("exec 3<&0; {program} <&3 | sed -u s/^/there./; true"),
        format!("exec 3<&0; {program} <&3 >file; sed s/^/there./ file"),
    ] {
        let session = Arc::new(Session::new());
        let mut run = session.start(job(&session, "1", &script).stdin(Stdio::piped()));
        let mut stdin = run.take_stdin();
        let host = session.host_of(&mut run).expect("it runs").to_string();
        let mut app = OffloadApp { session, run, host };
        stdin.write_all(b"one\n").expect("write a line");
        match script.contains("file") {
            false => drop(app.run.wait_for("there.host says 2")),
            true => poll_until("the program has written", || {
                let text = std::fs::read_to_string(app.session.path("file"));
                text.is_ok_and(|text| text.contains("host says 2\n"))
            }),
        }
        app.done("checkpoint", &["snap", "--stop"]);
        let session = app.session.clone();
        assert_eq!(app.run.finish().killed_by(), Some(9));
        let mut restart = session.snapify(["restart", "snap"]);
        let mut run = session.start(restart.stdin(Stdio::piped()));
        let mut stdin = run.take_stdin();
        stdin.write_all(b"two\nthree\n").expect("write lines");
        drop(stdin);
        let finished = run.finish();
        assert!(finished.status.success(), "{finished:?}");
        let mut said = finished.stdout.lines();
        assert!(said.all(|line| line.starts_with("there.")), "{finished:?}");
        assert!(
            finished
                .stdout
                .ends_with("there.card says 4\nthere.host says 4\n"),
            "{finished:?}"
        );
        session.expect_no_process();
    }
}
