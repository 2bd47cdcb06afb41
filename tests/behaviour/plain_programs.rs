//! Plain programs, which know nothing of cards, survive rounds of checkpoint, kill and restart.

use snapify_tests::{Language, Meanwhile, Session, User, compile, survives};
use std::process::Command;

const ROUNDS: usize = 3;

fn numpy(session: &Session) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/numpy_threads.py");
    let copy = session.path("numpy_threads.py");
    std::fs::copy(script, &copy).expect("copy the script");
    let mut command = session.command("/usr/bin/python3");
    command.arg(copy).arg("30");
    command
}

fn threads(session: &Session) -> Command {
    let mut command = session.command(compile("threads.cpp", Language::Cxx));
    command.arg("8000");
    command
}

#[test]
fn python_with_numpy_threads() {
    survives(User::Ordinary, numpy, ROUNDS, Meanwhile::GoesOn);
}

#[test]
fn cxx_threads() {
    survives(User::Ordinary, threads, ROUNDS, Meanwhile::GoesOn);
}

#[test]
fn cxx_threads_of_whoever_runs_the_tests() {
    survives(User::Myself, threads, ROUNDS, Meanwhile::GoesOn);
}

#[test]
fn sha256sum_of_a_big_file() {
    survives(
        User::Ordinary,
        |session| {
            let big = session.path("big");
            let file = std::fs::File::create(&big).expect("create a big file");
            file.set_len(3 << 30).expect("make it big");
            let mut command = session.command("sha256sum");
            command.arg("big");
            command
        },
        ROUNDS,
        Meanwhile::GoesOn,
    );
}
