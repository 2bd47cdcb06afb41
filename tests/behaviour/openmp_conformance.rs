//! What the OpenMP standard (4.5) says of devices holds for cards, in every line as with the stock plugin; and a region that fails
//! ends the program with a message that names card, cause and region, in whatever way it fails.

use snapify_tests::{Language, Session, compile};

/// What the program tells of device `number`, without the number.
fn lines(output: &str, number: u32) -> Vec<&str> {
    let prefix = format!("device {number}: ");
    output
        .lines()
        .filter_map(|line| line.strip_prefix(&*prefix))
        .collect()
}

fn conforms(cards: u32) {
    let session = Session::new();
    let program = compile("omp_conformance.c", Language::OpenMp);
    let mut command = session.snapify(["run", "--cards", &cards.to_string(), "--"]);
    let ours = session.finish(command.arg(&program));
    assert!(ours.status.success(), "{ours:?}");
    let mut command = session.command(&program);
    let stock = session.finish(command.env("LD_LIBRARY_PATH", "/usr/lib/llvm-16/lib"));
    // The stock plugin's devices share one memory, and all but the first fail at 'declare target link'.
    let expected = lines(&stock.stdout, 0);
    assert!(expected.len() > 60, "{stock:?}");
    for card in 0..cards {
        assert_eq!(lines(&ours.stdout, card), expected, "card {card}");
    }
    let printed = ours
        .stdout
        .lines()
        .filter(|line| *line == "printed in a region");
    assert_eq!(printed.count(), cards as usize);
    session.expect_no_process();
}

#[test]
fn on_one_card() {
    conforms(1);
}

#[test]
fn on_two_cards() {
    conforms(2);
}

/// The program knows itself what is right: with the stock plugin, whose regions share a runtime with the host, that runtime stops
/// in some of them.
#[test]
fn combined_constructs_and_their_clauses() {
    let session = Session::new();
    let program = compile("omp_constructs.c", Language::OpenMp);
    let mut command = session.snapify(["run", "--cards", "2", "--"]);
    let finished = session.finish(command.arg(&program));
    assert!(finished.status.success(), "{finished:?}");
    let first = lines(&finished.stdout, 0);
    assert!(first.len() > 40, "{finished:?}");
    assert_eq!(lines(&finished.stdout, 1), first);
    session.expect_no_process();
}

#[test]
fn a_region_that_fails_is_named() {
    let session = Session::new();
    let program = compile("omp_failure.c", Language::OpenMp);
    let ways = [
        ("segfault", "SIGSEGV"),
        ("aborts", "SIGABRT"),
        ("overflow", "SIG"),
        ("out_of_memory", "SIGSEGV"),
        ("leaves", "exited with status 0"),
        ("within_team", "SIGABRT"),
        ("without_waiting", "SIGABRT"),
        ("among_others", "SIGABRT"),
    ];
    for (way, cause) in ways {
        let mut command = session.snapify(["run", "--cards", "2", "--card-memory", "128M", "--"]);
        let finished = session.finish(command.arg(&program).args([way, "1"]));
        assert!(!finished.status.success(), "{way}: {finished:?}");
        assert!(!finished.stdout.contains("went on"), "{way}: {finished:?}");
        let region = format!("the target region of {way}, line ");
        for word in ["snapify: ", "card 1", cause, &region] {
            assert!(
                finished.stderr.contains(word),
                "{way}: no '{word}' in {finished:?}"
            );
        }
    }
    session.expect_no_process();
}
