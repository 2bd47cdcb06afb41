//! `snapify.h`: the paper's operations from inside an application, as its figures use them, out of turn, and under load.

use snapify_tests::{Finished, Language, Session, User, compile, example, stage};
use std::io::Write;
use std::process::{Command, Stdio};

/// `snapify run` of a program with the arguments that follow it.
fn run(session: &Session, cards: u32) -> Command {
    let cards = cards.to_string();
    let mut command = session.snapify(["run", "--cards", &cards, "--card-memory", "256M", "--"]);
    command.env(
        "PATH",
        format!("{}:/usr/bin:/bin", stage().join("bin").display()),
    );
    command
}

fn figure(session: &Session, cards: u32, name: &str, directory: &str) -> Command {
    let mut command = run(session, cards);
    command
        .arg(example(&format!("snapify/{name}")))
        .arg(example("snapify/sink"))
        .arg(directory);
    command
}

fn succeeds(finished: &Finished) {
    assert!(finished.status.success(), "{finished:?}");
}

/// The application gives the same result with the operations and without.
fn same_result(user: User, cards: u32, name: &str, words: &str) {
    let session = Session::of(user);
    let plain = session.finish(&mut figure(&session, cards, name, "-"));
    succeeds(&plain);
    let saved = session.finish(&mut figure(&session, cards, name, "images"));
    succeeds(&saved);
    assert!(saved.stdout.contains(words), "{saved:?}");
    assert_eq!(saved.digest(), plain.digest());
    session.expect_no_process();
}

#[test]
fn figure_6_swaps_out_and_in() {
    same_result(User::Ordinary, 2, "swap", "now on card 1");
    same_result(User::Ordinary, 1, "swap", "now on card 0");
}

#[test]
fn figure_6_as_whoever_runs_the_tests() {
    same_result(User::Myself, 2, "swap", "now on card 1");
}

#[test]
fn figure_7_moves_from_card_to_card() {
    same_result(User::Ordinary, 2, "migrate", "moved to card 1");
}

#[test]
fn figure_5_checkpoints_itself_and_is_restarted() {
    for user in [User::Ordinary, User::Myself] {
        let session = Session::of(user);
        let plain = session.finish(&mut figure(&session, 1, "checkpoint", "-"));
        succeeds(&plain);
        let continued = session.finish(&mut figure(&session, 1, "checkpoint", "images"));
        succeeds(&continued);
        assert!(continued.stdout.contains("continued"), "{continued:?}");
        assert_eq!(continued.digest(), plain.digest());
        let restarted = session.run(["restart", "images/application"]);
        succeeds(&restarted);
        assert!(restarted.stdout.contains("restarted"), "{restarted:?}");
        assert_eq!(restarted.digest(), plain.digest());
        session.expect_no_process();
    }
}

#[test]
fn out_of_turn_they_are_refused() {
    for user in [User::Ordinary, User::Myself] {
        let session = Session::of(user);
        let mut command = run(&session, 1);
        command
            .arg(compile("capi_misuse.c", Language::CoiHost))
            .arg(compile("coi_sink.c", Language::CoiSink))
            .arg(session.dir());
        let finished = session.finish(&mut command);
        succeeds(&finished);
        session.expect_no_process();
    }
}

#[test]
fn a_busy_process_is_saved_swapped_and_moved() {
    let session = Session::new();
    let under_load = |directory: &str| {
        let mut command = run(&session, 2);
        command
            .arg(compile("capi_load.c", Language::CoiHost))
            .arg(compile("coi_sink.c", Language::CoiSink))
            .args([directory, "12"]);
        let finished = session.finish(&mut command);
        succeeds(&finished);
        finished
    };
    assert_eq!(under_load("images").digest(), under_load("-").digest());
    session.expect_no_process();
}

/// The static library, by the flags that pkg-config gives.
#[test]
fn programs_link_by_pkg_config() {
    let session = Session::new();
    let prefix = stage();
    let text =
        std::fs::read_to_string(prefix.join("lib/pkgconfig/snapify.pc")).expect("snapify.pc");
    let value = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key));
        let found = found.unwrap_or_else(|| panic!("no {key} in {text}"));
        let prefix = prefix.display().to_string();
        found
            .replace("${libdir}", &format!("{prefix}/lib"))
            .replace("${includedir}", &format!("{prefix}/include"))
    };
    let program = session.path("static");
    let source = session.path("static.c");
    std::fs::write(
        &source,
        "#include <snapify.h>\n#include <stdio.h>\nint main(void) {\n uint32_t n = 9;\n \
         COIRESULT r = COIEngineGetCount(COI_DEVICE_MIC, &n);\n printf(\"%u cards\\n\", n);\n return r; }\n",
    )
    .expect("write a program");
    let flags = value("Cflags: ");
    let private = value("Libs.private: ");
    let compiled = Command::new("cc")
        .args(flags.split_whitespace())
        .arg("-o")
        .args([&program, &source])
        .arg(prefix.join("lib/libsnapify.a"))
        .args(private.split_whitespace())
        .status()
        .expect("run cc");
    assert!(compiled.success());
    let mut command = run(&session, 2);
    command.arg(&program);
    let finished = session.finish(&mut command);
    succeeds(&finished);
    assert!(finished.stdout.contains("2 cards"), "{finished:?}");
}

#[test]
fn ps_shows_what_the_program_itself_has_swapped_out() {
    let session = Session::new();
    let mut command = run(&session, 2);
    command
        .arg(compile("capi_away.c", Language::CoiHost))
        .arg(compile("coi_sink.c", Language::CoiSink))
        .arg(session.path("images"))
        .stdin(Stdio::piped());
    let mut running = session.start(&mut command);
    let mut stdin = running.take_stdin();
    let mut seen = |word: &str| {
        running.wait_for(word);
        let applications = session.applications();
        let processes = applications[0]["processes"].clone();
        let processes = processes.as_array().expect("a list").iter();
        let seen = processes.map(|process| {
            (
                process["state"].as_str().unwrap_or_default().to_owned(),
                process["card"].as_u64(),
            )
        });
        let seen: Vec<_> = seen.collect();
        stdin.write_all(b"\n").expect("write a line");
        seen
    };
    assert_eq!(seen("there"), [("running".into(), Some(0))]);
    assert_eq!(seen("away"), [("swapped-out".into(), Some(0))]);
    assert_eq!(seen("back"), [("running".into(), Some(1))]);
    assert_eq!(seen("gone"), []);
    succeeds(&running.finish());
    session.expect_no_process();
}
