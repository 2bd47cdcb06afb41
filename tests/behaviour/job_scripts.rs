//! Programs that use cards below a shell or another parent, one after the other or several at once, and programs that have children
//! of their own while they do: a snapshot of the whole, swaps and migrations of single offload processes.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapify_tests::{
    Language, Meanwhile, OffloadApp, Running, Session, User, compile, example, poll_until, rounds,
    survives,
};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

/// `snapify run` of a script for bash on so many cards.
fn job(session: &Session, cards: &str, script: &str) -> Command {
    let mut command = session.snapify(["run", "--cards", cards, "--card-memory", "1G", "--"]);
    command.args(["bash", "-c", script]);
    command
}

/// An example with a size, a run of a second or two, as words of a script.
fn words(name: &str, device: &str) -> String {
    let size = match name {
        "md" => "--steps 64",
        _ => "--vectors 49152",
    };
    format!("{} {size} --device {device}", example(name).display())
}

/// The same, of a run that goes on until it is killed.
fn endless(device: &str) -> String {
    let program = example("md");
    format!("{} --steps 1000000 --device {device}", program.display())
}

/// The digests of undisturbed runs of `md` and `search`.
fn digests() -> [&'static str; 2] {
    static DONE: OnceLock<[String; 2]> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        ["md", "search"].map(|name| {
            let session = Session::new();
            let finished = session.finish(&mut job(&session, "1", &words(name, "0")));
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
                let program = words("md", "0");
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
            words("md", "0"),
            words("search", "1")
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

/// Two programs at the same time, which write to files of their own.
fn two(second_device: &str) -> String {
    format!(
        "{} >first & {} >second & echo started; wait -n && wait && tail -qn1 first second",
        words("md", "0"),
        words("search", second_device)
    )
}

/// Waits until both work on their cards.
fn both_at_work(app: &OffloadApp) {
    poll_until("both programs work", || {
        let has = |name: &str, word: &str| {
            std::fs::read_to_string(app.session.path(name)).is_ok_and(|text| text.contains(word))
        };
        has("first", "step ") && has("second", "batch ")
    });
    assert_eq!((hosts(app).len(), app.places().len()), (2, 2));
}

#[test]
fn two_at_the_same_time_on_two_cards() {
    let expected = digests();
    for user in [User::Ordinary, User::Myself] {
        let app = start(user, "2", &two("1"), &["started"]);
        both_at_work(&app);
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
        assert_eq!(
            app.places()
                .iter()
                .filter(|(_, card)| card.is_none())
                .count(),
            1
        );
        session.succeed(["migrate", &on(0), "1"]);
        app.done("checkpoint", &["snap"]);
        session.succeed(["swap-in", &on(1), "0"]);
        app.done("checkpoint", &["snap"]);
        let session = kill(app);
        let ats: &[_] = match user {
            User::Ordinary => &["1", "2"],
            User::Myself => &["1"],
        };
        for at in ats {
            let finished = session.run(["restart", "snap", "--at", at, "--files=truncate"]);
            assert!(finished.status.success(), "{finished:?}");
            for digest in expected {
                assert!(finished.stdout.contains(digest), "{at}: {finished:?}");
            }
        }
        session.expect_no_process();
    }
}

#[test]
fn two_at_the_same_time_on_one_card() {
    let expected = digests();
    let app = start(User::Ordinary, "1", &two("0"), &["started"]);
    both_at_work(&app);
    app.done("checkpoint", &["snap"]);
    app.done("checkpoint", &["snap", "--stop"]);
    let OffloadApp { session, run, .. } = app;
    assert_eq!(run.finish().killed_by(), Some(9));
    let app = restart(&session, &["--files=truncate"], &[]);
    both_at_work(&app);
    let finished = app.run.finish();
    assert!(finished.status.success(), "{finished:?}");
    for digest in expected {
        assert!(finished.stdout.contains(digest), "{finished:?}");
    }
    // Lines of program and shell are all there, once: they go on in the files where they were.
    let text = std::fs::read_to_string(session.path("first")).expect("read the output");
    let steps: Vec<_> = text.lines().filter(|line| line.contains("step ")).collect();
    let mut once = steps.clone();
    once.dedup();
    assert!(!steps.is_empty() && steps == once, "{text}");
    session.expect_no_process();
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
    let expected = session.finish(command.arg(&program).args(["400", "packed"]));
    let mut command = session.snapify(["run", "--cards", "2", "--"]);
    let run = session.start(command.arg(&program).args(["400", "packed"]));
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
            let program = words("md", "0");
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
    let [md, _] = digests();
    let script = format!(
        "{} & {} || echo failed; wait $!; echo the first $?",
        words("md", "0"),
        endless("1")
    );
    // A card dies: the program on it ends, and tells why; the other, and the script, go on.
    let app = start(User::Ordinary, "2", &script, &["step "]);
    poll_until("both use their cards", || app.places().len() == 2);
    let died = app.status()["cards"][1]["pid"]
        .as_i64()
        .expect("a process id");
    signal(died, Signal::KILL);
    let OffloadApp {
        session, mut run, ..
    } = app;
    run.wait_for("failed");
    let finished = run.finish();
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stderr.contains("card 1"), "{finished:?}");
    assert!(finished.stdout.contains("the first 0"), "{finished:?}");
    assert_eq!(finished.digest(), md);
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
