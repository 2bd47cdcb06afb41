//! A chain's life: points appear whole, belong to one program, and are told about without reading pages.

mod support;

use serde_json::{Value, json};
use snapify_store::{Chain, FileKind, ProgramIdentity, Snapshot, StoreError, inspect, verify};
use std::fs;
use std::io::Write;
use support::{
    Chance, Filled, Memory, fast_dir, files_under, header, program, put_member, small_chain,
};

fn other_program() -> ProgramIdentity {
    ProgramIdentity {
        id: "other".into(),
        command: "sha256sum big".into(),
    }
}

#[test]
fn what_is_committed_can_be_opened() {
    let dir = fast_dir();
    let chain_dir = dir.path().join("deep/chain");
    let chain = Chain::open_or_create(&chain_dir, &program()).unwrap();
    assert!(!chain_dir.exists(), "opening changes nothing");
    let mut chance = Chance(3);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 600, 20)];
    for number in 1..=3 {
        let staging = chain.begin().unwrap();
        put_member(&staging, "host", &memory, &ranges);
        put_member(&staging, "offload-0a", &memory, &ranges);
        let point = staging.commit(header()).unwrap();
        assert_eq!(point.number, number);
        assert_eq!(point.path, chain_dir.join(format!("00000{number}")));
    }
    for (at, number) in [(None, 3), (Some(1), 1), (Some(3), 3)] {
        let snapshot = Snapshot::open(&chain_dir, at).unwrap();
        assert_eq!(snapshot.number(), number);
        assert_eq!(snapshot.program(), &program());
        assert_eq!(snapshot.manifest().header, header());
        let names: Vec<_> = snapshot.members().map(|m| m.name().to_owned()).collect();
        assert_eq!(names, ["host", "offload-0a"]);
        let member = snapshot.member("offload-0a").unwrap();
        let process: Value = member.json("process.json").unwrap();
        assert_eq!(process, json!({"pid": 42, "name": "offload-0a"}));
        assert_eq!(member.bytes("log").unwrap(), b"some bytes");
        let filled = Filled::default();
        member
            .pages("pages.snap")
            .unwrap()
            .fill(&filled, &())
            .unwrap();
        filled.assert_is(&memory);
        assert!(matches!(
            snapshot.member("none"),
            Err(StoreError::NoMember { .. })
        ));
        assert!(matches!(
            member.pages("log"),
            Err(StoreError::Missing { .. })
        ));
        assert!(matches!(
            member.bytes("pages.snap"),
            Err(StoreError::Missing { .. })
        ));
    }
    match Snapshot::open(&chain_dir, Some(7)).unwrap_err() {
        StoreError::NoPoint { have, .. } => assert_eq!(have, "1, 2 and 3"),
        other => panic!("{other}"),
    }
    let report = verify(&chain_dir, None, &()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.points.len(), 3);
    let bytes: u64 = files_under(&chain_dir.join("000002"))
        .iter()
        .map(|f| f.metadata().unwrap().len())
        .sum();
    assert_eq!(report.points[1].bytes, bytes);
}

#[test]
fn inspect_tells_all_and_reads_no_pages() {
    let dir = fast_dir();
    small_chain(dir.path());
    let pages = dir.path().join("000001/host/pages.snap");
    let before = fs::metadata(&pages).unwrap().len();
    fs::remove_file(&pages).unwrap();
    let report = inspect(dir.path()).unwrap();
    assert_eq!(report.program, program());
    assert_eq!(report.points.len(), 1);
    let point = &report.points[0];
    assert_eq!((point.number, &point.problem), (1, &None));
    assert_eq!(point.header, Some(header()));
    let files = &point.members[0].files;
    assert_eq!(files.len(), 3);
    let file = files.iter().find(|f| f.kind == FileKind::Pages).unwrap();
    assert_eq!(file.bytes, before);
    assert_eq!(file.pages.unwrap().pages_zero, 1);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["points"][0]["members"][0]["files"][1]["pages"]["pages_stored"],
        3
    );
}

#[test]
fn another_programs_chain_is_refused() {
    let dir = fast_dir();
    small_chain(dir.path());
    let before = files_under(dir.path());
    let error = Chain::open_or_create(dir.path(), &other_program()).unwrap_err();
    assert!(matches!(error, StoreError::OtherProgram { .. }));
    assert!(error.to_string().contains("./md --steps 100"), "{error}");
    assert_eq!(files_under(dir.path()), before);
}

#[test]
fn two_programs_cannot_both_begin_a_chain() {
    let dir = fast_dir();
    let ours = Chain::open_or_create(dir.path(), &program()).unwrap();
    let theirs = Chain::open_or_create(dir.path(), &other_program()).unwrap();
    ours.begin().unwrap().commit(header()).unwrap();
    assert!(matches!(
        theirs.begin(),
        Err(StoreError::OtherProgram { .. })
    ));
}

#[test]
fn a_directory_of_something_else_is_refused_by_name() {
    let dir = fast_dir();
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    for error in [
        Chain::open_or_create(dir.path(), &program()).unwrap_err(),
        Snapshot::open(dir.path(), None).unwrap_err(),
        inspect(dir.path()).unwrap_err(),
        verify(dir.path(), None, &()).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::NotAChain { .. }), "{error}");
        assert!(error.to_string().contains("thesis.tex"), "{error}");
    }
}

#[test]
fn where_nothing_is_nothing_is_found() {
    let dir = fast_dir();
    let missing = dir.path().join("missing");
    assert!(matches!(
        Snapshot::open(&missing, None),
        Err(StoreError::Missing { .. })
    ));
    for result in [
        Snapshot::open(dir.path(), None).map(drop),
        inspect(dir.path()).map(drop),
        verify(dir.path(), None, &()).map(drop),
    ] {
        assert!(matches!(result, Err(StoreError::NoSnapshot { .. })));
    }
}

#[test]
fn a_second_writer_is_refused_and_readers_are_not() {
    let dir = fast_dir();
    small_chain(dir.path());
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let staging = chain.begin().unwrap();
    staging.member("host").unwrap();
    assert!(matches!(chain.begin(), Err(StoreError::Busy { .. })));
    assert_eq!(Snapshot::open(dir.path(), None).unwrap().number(), 1);
    assert_eq!(inspect(dir.path()).unwrap().unfinished.len(), 1);
    assert!(verify(dir.path(), None, &()).unwrap().is_sound());
    drop(staging);
    assert!(inspect(dir.path()).unwrap().unfinished.is_empty());
    chain.begin().unwrap();
}

#[test]
fn nothing_remains_of_what_is_not_committed() {
    let dir = fast_dir();
    let chain_dir = dir.path().join("a/b");
    let chain = Chain::open_or_create(&chain_dir, &program()).unwrap();
    let staging = chain.begin().unwrap();
    let member = staging.member("host").unwrap();
    member.write_json("process.json", &json!({})).unwrap();
    drop(staging);
    assert!(!dir.path().join("a").exists());
    small_chain(&chain_dir);
    let before = files_under(dir.path());
    let staging = chain.begin().unwrap();
    staging
        .member("host")
        .unwrap()
        .create("pages.snap")
        .unwrap();
    match staging.commit(header()).unwrap_err() {
        StoreError::Unrecorded { path } => assert!(path.ends_with("host/pages.snap")),
        other => panic!("{other}"),
    }
    assert_eq!(files_under(dir.path()), before);
}

#[test]
fn a_file_that_is_not_what_was_recorded_is_not_committed() {
    let dir = fast_dir();
    let mut chance = Chance(3);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 6, 0)];
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    for sabotage in 0..3 {
        let staging = chain.begin().unwrap();
        let member = staging.member("host").unwrap();
        let file = member.create("pages.snap").unwrap();
        let twin = file.try_clone().unwrap();
        let mut summary =
            snapify_store::write_pages(file, "pages.snap", &ranges, &memory, &()).unwrap();
        match sabotage {
            0 => twin.set_len(4096).unwrap(),
            1 => (&twin).write_all(b"not a header").unwrap(),
            _ => summary.pages_zero += 1,
        }
        member.record_pages("pages.snap", summary).unwrap();
        let error = staging.commit(header()).unwrap_err();
        assert!(
            matches!(error, StoreError::Damaged { .. }),
            "{sabotage}: {error}"
        );
    }
    assert!(matches!(
        Snapshot::open(dir.path(), None),
        Err(StoreError::NoSnapshot { .. })
    ));
}

#[test]
fn names_are_plain_and_not_taken_twice() {
    let dir = fast_dir();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let staging = chain.begin().unwrap();
    for name in ["", "..", "a/b", ".hidden", "manifest.json"] {
        assert!(
            matches!(staging.member(name), Err(StoreError::Name { .. })),
            "{name}"
        );
    }
    let member = staging.member("host").unwrap();
    assert!(matches!(
        staging.member("host"),
        Err(StoreError::Name { .. })
    ));
    member.write_json("a.json", &1).unwrap();
    assert!(matches!(
        member.create("a.json"),
        Err(StoreError::Name { .. })
    ));
    assert!(matches!(
        member.create("../x"),
        Err(StoreError::Name { .. })
    ));
}

#[test]
fn metadata_written_by_others_is_recorded_if_well_formed() {
    let dir = fast_dir();
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    let staging = chain.begin().unwrap();
    let member = staging.member("offload-1").unwrap();
    let mut file = member.create("process.json").unwrap();
    file.write_all(b"{\"pid\": ").unwrap();
    let error = member.record_file("process.json").unwrap_err();
    assert!(matches!(error, StoreError::Json { .. }), "{error}");
    file.write_all(b"7}").unwrap();
    member.record_file("process.json").unwrap();
    staging.commit(header()).unwrap();
    let snapshot = Snapshot::open(dir.path(), None).unwrap();
    let process: Value = snapshot
        .member("offload-1")
        .unwrap()
        .json("process.json")
        .unwrap();
    assert_eq!(process["pid"], 7);
}

#[test]
fn snapshots_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = fast_dir();
    let chain_dir = dir.path().join("chain");
    small_chain(&chain_dir);
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&chain_dir), 0o700);
    for file in files_under(&chain_dir) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}
