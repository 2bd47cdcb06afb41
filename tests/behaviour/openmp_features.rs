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
