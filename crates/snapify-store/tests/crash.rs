//! A writer that dies leaves the chain as it was, and does not stand in the way of the next.

mod support;

use snapify_store::{Chain, Snapshot, inspect, verify};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::{Chance, Memory, fast_dir, files_under, header, program, put_member, small_chain};

const INSIDE: &str = "SNAPIFY_STORE_TEST_CRASH";

/// Starts a writer in a process of its own, and returns once it is in the middle of a point.
fn writer(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_writer_that_waits_for_its_death",
            "--ignored",
            "--nocapture",
        ])
        .env(INSIDE, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.lines().any(|line| line.unwrap().contains("halfway")));
    child
}

#[test]
#[ignore = "run by the other tests, in a process that is then killed"]
fn a_writer_that_waits_for_its_death() {
    let Some(dir) = std::env::var_os(INSIDE) else {
        return;
    };
    let mut chance = Chance(5);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 500, 0)];
    let chain = Chain::open_or_create(Path::new(&dir), &program()).unwrap();
    let staging = chain.begin().unwrap();
    put_member(&staging, "host", &memory, &ranges);
    staging
        .member("offload-1")
        .unwrap()
        .create("pages.snap")
        .unwrap();
    println!("halfway");
    // Until the pipe that nobody writes to ends: with this process.
    let (mut reader, _writer) = std::io::pipe().unwrap();
    std::io::Read::read(&mut reader, &mut [0]).unwrap();
}

#[test]
fn a_writer_killed_halfway_leaves_the_last_point_and_no_lock() {
    let dir = fast_dir();
    small_chain(dir.path());
    let before = files_under(dir.path());
    let mut child = writer(dir.path());
    let chain = Chain::open_or_create(dir.path(), &program()).unwrap();
    assert!(matches!(
        chain.begin(),
        Err(snapify_store::StoreError::Busy { .. })
    ));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(inspect(dir.path()).unwrap().unfinished.len(), 1);
    assert!(verify(dir.path(), None, &()).unwrap().is_sound());
    assert_eq!(Snapshot::open(dir.path(), None).unwrap().number(), 1);
    let staging = chain.begin().unwrap();
    drop(staging);
    assert_eq!(
        files_under(dir.path()),
        before,
        "what the dead writer left is gone"
    );
    assert_eq!(chain.begin().unwrap().commit(header()).unwrap().number, 2);
}

#[test]
fn a_first_writer_killed_halfway_leaves_a_directory_for_anyone() {
    let dir = fast_dir();
    let mut child = writer(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(
        Snapshot::open(dir.path(), None),
        Err(snapify_store::StoreError::NoSnapshot { .. })
    ));
    small_chain(dir.path());
    assert_eq!(Snapshot::open(dir.path(), None).unwrap().number(), 1);
    assert!(inspect(dir.path()).unwrap().unfinished.is_empty());
}

#[test]
fn a_crash_between_chain_file_and_point_leaves_a_directory_for_anyone() {
    let (dir, elsewhere) = (fast_dir(), fast_dir());
    small_chain(elsewhere.path());
    std::fs::copy(
        elsewhere.path().join("chain.json"),
        dir.path().join("chain.json"),
    )
    .unwrap();
    std::fs::write(dir.path().join(".staging-chain.json"), "half").unwrap();
    let mut other = program();
    other.id = "another".into();
    let chain = Chain::open_or_create(dir.path(), &other).unwrap();
    chain.begin().unwrap().commit(header()).unwrap();
    assert_eq!(Snapshot::open(dir.path(), None).unwrap().program(), &other);
    assert!(!dir.path().join(".staging-chain.json").exists());
}
