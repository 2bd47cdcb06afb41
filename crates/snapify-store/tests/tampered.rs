//! Manifests that somebody has changed and sealed again: chains that go round in circles or lead astray, lengths that are not so,
//! names that lead elsewhere. They are refused by name, and the newest point that has nothing to do with them is offered.

mod support;

use snapify_store::{Chain, Snapshot, StoreError, inspect, verify};
use std::error::Error;
use std::fs;
use std::path::Path;
use support::running::{FILE, Program, restarted, two_chains};
use support::seal::reseal_json;
use support::{fast_dir, program};

/// Replaces the first `old` in the manifest of a point, which must be there, and seals it again.
fn tamper(dir: &Path, point: u32, old: &str, new: &str) {
    let path = dir.join(format!("{point:06}/manifest.json"));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(old), "{old} is not in {text}");
    fs::write(&path, reseal_json(&text.replacen(old, new, 1))).unwrap();
}

/// What is told of point `at` when it is restarted.
fn refusal(dir: &Path, at: u32) -> StoreError {
    let open = || {
        let snapshot = Snapshot::open(dir, Some(at))?;
        snapshot.member("host")?.pages(FILE)
    };
    open().map(|_| ()).expect_err("it is not as it was written")
}

/// An error with all that is behind it.
fn words(error: &dyn Error) -> String {
    let mut all = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        all += &format!(": {error}");
        cause = error.source();
    }
    all
}

/// The parent, or anything else that stands in a member of its own, in the manifest of a point.
fn member(dir: &Path, point: u32, name: &str) -> String {
    let path = dir.join(format!("{point:06}/manifest.json"));
    let text = fs::read_to_string(path).unwrap();
    let begin = text.find(&format!("\"{name}\": ")).unwrap();
    let line = text[begin..].lines().next().unwrap();
    line.trim_end_matches(',').to_owned()
}

#[test]
fn the_tool_that_seals_is_right() {
    let dir = fast_dir();
    let then = two_chains(dir.path());
    tamper(
        dir.path(),
        5,
        "\"created_unix_ms\": ",
        "\"created_unix_ms\": 1",
    );
    restarted(dir.path(), 5).assert_is(&then[4]);
}

#[test]
fn what_contradicts_itself_is_refused_by_name() {
    // Which point, what of it, and what it becomes. Points: 1 full, 2 and 3 upon it, 4 full, 5 upon 4.
    let tampered: [(u32, &str, &str); 14] = [
        // Circles, and ways that lead nowhere.
        (5, "parent", "\"parent\": 5"),
        (2, "parent", "\"parent\": 3"),
        (3, "parent", "\"parent\": 4294967295"),
        (3, "parent", "\"parent\": 0"),
        (5, "parent", "\"parent\": null"),
        (4, "parent", "\"parent\": 3"),
        // To a point that is there, and is another's.
        (5, "parent", "\"parent\": 3"),
        (3, "parent", "\"parent\": 1"),
        // Another point's manifest.
        (5, "point", "\"point\": 4"),
        (4, "kind", "\"kind\": \"incremental\""),
        // Lengths and figures.
        (5, "bytes", "\"bytes\": 18446744073709551615"),
        (5, "bytes", "\"bytes\": 4096"),
        (4, "pages_stored", "\"pages_stored\": 18446744073709551615"),
        (4, "runs", "\"runs\": 4294967296"),
    ];
    for (point, what, new) in tampered {
        let dir = fast_dir();
        let then = two_chains(dir.path());
        tamper(dir.path(), point, &member(dir.path(), point, what), new);
        let error = refusal(dir.path(), point);
        let text = error.to_string();
        let StoreError::Broken { link, whole, .. } = error else {
            panic!("{new}: {text}");
        };
        // What a point of the other chain is told to build on is where the fault shows.
        assert!(link <= point, "{new}: {text}");
        let offered = whole.expect("the other chain is whole");
        assert!(text.contains(&format!("restart --at {offered}")), "{text}");
        restarted(dir.path(), offered).assert_is(&then[offered as usize - 1]);
        let report = verify(dir.path(), None, &()).unwrap();
        let verdict = report.points.iter().find(|verdict| verdict.number == point);
        assert!(verdict.is_none_or(|verdict| !verdict.sound), "{new}");
        assert!(!report.is_sound(), "{new}");
        inspect(dir.path()).unwrap();
    }
}

#[test]
fn two_points_that_build_on_each_other_come_to_an_end() {
    let dir = fast_dir();
    two_chains(dir.path());
    // 1 upon 3 upon 2 upon 1.
    tamper(
        dir.path(),
        1,
        "\"kind\": \"full\"",
        "\"kind\": \"incremental\"",
    );
    tamper(dir.path(), 1, "\"parent\": null", "\"parent\": 3");
    for point in 1..=3 {
        let text = words(&refusal(dir.path(), point));
        assert!(text.contains("000001/manifest.json"), "{text}");
    }
    restarted(dir.path(), 5);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["..", ".", "../000004/host", "a/b", "", ".hidden", "/etc"] {
        for what in ["host", FILE] {
            let dir = fast_dir();
            two_chains(dir.path());
            let (old, new) = (
                format!("\"name\": \"{what}\""),
                format!("\"name\": \"{name}\""),
            );
            tamper(dir.path(), 5, &old, &new);
            let text = words(&Snapshot::open(dir.path(), None).unwrap_err());
            assert!(text.contains("000005/manifest.json"), "{name}: {text}");
            assert!(text.contains("restart --at 4"), "{name}: {text}");
        }
    }
}

#[test]
fn a_chain_of_an_older_version_is_read_and_gone_on_with() {
    // Version 1 has full points only.
    let dir = fast_dir();
    let then = two_chains(dir.path());
    for point in [5, 3, 2] {
        fs::remove_dir_all(dir.path().join(format!("{point:06}"))).unwrap();
    }
    assert_eq!(member(dir.path(), 4, "version"), "\"version\": 1");
    restarted(dir.path(), 4).assert_is(&then[3]);
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let mut running = Program::new(8);
    running.memory = then[3].clone();
    running.go_on();
    assert_eq!(running.checkpoint(&chain, None, false), 5);
    assert_eq!(member(dir.path(), 5, "parent"), "\"parent\": 4");
    restarted(dir.path(), 5).assert_is(&running.memory);
    // A newer one is refused in words, with what there is besides.
    tamper(dir.path(), 5, "\"version\": 2", "\"version\": 3");
    let text = words(&Snapshot::open(dir.path(), None).unwrap_err());
    for words in ["version 3", "restart --at 4"] {
        assert!(text.contains(words), "{text}");
    }
}
