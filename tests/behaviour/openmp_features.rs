//! OpenMP target features work on cards, in programs compiled by a stock compiler.

use snapify_tests::{Language, Session, compile};

#[test]
fn all_features_on_two_cards() {
    let session = Session::new();
    let mut command = session.snapify(["run", "--cards", "2", "--"]);
    command.arg(compile("omp_features.c", Language::OpenMp));
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
    session.expect_no_process();
}

#[test]
fn all_features_on_one_card() {
    let session = Session::new();
    let mut command = session.snapify(["run", "--cards", "1", "--"]);
    command.arg(compile("omp_features.c", Language::OpenMp));
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
}

#[test]
fn a_card_has_only_its_memory() {
    let session = Session::new();
    let mut command = session.snapify(["run", "--cards", "1", "--card-memory", "64M", "--"]);
    command.arg(compile("omp_memory.c", Language::OpenMp));
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
}

#[test]
fn objects_lambdas_and_templates() {
    let session = Session::new();
    let mut command = session.snapify(["run", "--cards", "2", "--"]);
    command.arg(compile("omp_objects.cpp", Language::OpenMp));
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
}

#[test]
fn children_of_the_host_process_leave_its_card_alone() {
    let session = Session::new();
    let mut command = session.snapify(["run", "--cards", "1", "--"]);
    command.arg(compile("omp_fork.c", Language::OpenMp));
    let finished = session.finish(&mut command);
    assert!(finished.status.success(), "{finished:?}");
    session.expect_no_process();
}

#[test]
fn a_region_that_crashes_is_named() {
    let session = Session::new();
    let mut command = session.snapify(["run", "--cards", "2", "--"]);
    command
        .arg(compile("omp_crash.c", Language::OpenMp))
        .arg("1");
    let finished = session.finish(&mut command);
    assert!(!finished.status.success(), "{finished:?}");
    assert!(!finished.stdout.contains("went on"), "{finished:?}");
    for word in ["card 1", "SIGSEGV", "the target region of faulty, line 7"] {
        assert!(
            finished.stderr.contains(word),
            "no '{word}' in {finished:?}"
        );
    }
    session.expect_no_process();
}

#[test]
fn shared_memory_that_a_program_requires_is_refused_in_words() {
    let session = Session::new();
    let mut command = session.snapify(["run", "--cards", "1", "--"]);
    command.arg(compile("omp_requires.c", Language::OpenMp));
    let finished = session.finish(&mut command);
    assert!(!finished.status.success(), "{finished:?}");
    assert!(
        finished.stderr.contains("unified_shared_memory"),
        "{finished:?}"
    );
    assert!(!finished.stdout.contains("ran"), "{finished:?}");
}
