//! A full disk is told as such, early where that is possible, and leaves nothing half done.

mod support;

use snapify_store::{Chain, Snapshot, StoreError, write_pages};
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::Command;
use support::{Chance, Memory, disk_dir, header, program, put_member};

const INSIDE: &str = "SNAPIFY_STORE_TEST_SMALL_TMPFS";

/// Runs one ignored test of this file again, with `before` done first in namespaces of its own.
fn again(test: &str, before: &str, dir: &Path) -> bool {
    let script = format!("{before} && exec \"$@\"");
    let status = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &script,
            "sh",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(INSIDE, dir)
        .status()
        .unwrap();
    status.success()
}

#[test]
fn a_small_file_system_fills_up() {
    let may = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no user namespaces here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=6m none {}", dir.path().display());
    assert!(again("inside_a_small_tmpfs", &mount, dir.path()));
}

#[test]
#[ignore = "run by a_small_file_system_fills_up, in a mount namespace"]
fn inside_a_small_tmpfs() {
    let Some(dir) = std::env::var_os(INSIDE) else {
        return;
    };
    let dir = Path::new(&dir);
    let mut chance = Chance(1);
    let mut little = Memory::default();
    let few = [little.add(&mut chance, 0, 0, 100, 0)];
    let mut much = Memory::default();
    let many = [much.add(&mut chance, 0, 0, 3000, 0)];
    let mut zeros = Memory::default();
    let sparse = [zeros.add(&mut chance, 0, 0, 3000, 97)];
    let chain = Chain::open_or_create(&dir.join("chain"), &program()).unwrap();
    let staging = chain.begin().unwrap();
    put_member(&staging, "host", &little, &few);
    staging.commit(header()).unwrap();

    let staging = chain.begin().unwrap();
    let member = staging.member("host").unwrap();
    let file = member.create("pages.snap").unwrap();
    let error = write_pages(file, "pages.snap", &many, &much, &()).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert_eq!(
        error.source().unwrap().to_string(),
        "No space left on device (os error 28)"
    );
    drop(staging);
    assert_eq!(
        Snapshot::open(&dir.join("chain"), None).unwrap().number(),
        1
    );

    // Far more pages than there is room for, but hardly any that need it.
    let staging = chain.begin().unwrap();
    put_member(&staging, "host", &zeros, &sparse);
    assert_eq!(staging.commit(header()).unwrap().number, 2);

    // Metadata that does not fit either.
    let staging = chain.begin().unwrap();
    let member = staging.member("host").unwrap();
    let error = member
        .write_json("process.json", &"x".repeat(8 << 20))
        .unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
}

#[test]
fn a_device_without_room_is_full() {
    let mut chance = Chance(2);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 1000, 0)];
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = write_pages(full, "/dev/full", &ranges, &memory, &()).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
}

#[test]
fn a_pipe_without_a_reader_is_an_error() {
    let mut chance = Chance(3);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 1000, 0)];
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = File::from(std::os::fd::OwnedFd::from(writer));
    let error = write_pages(out, "pipe", &ranges, &memory, &()).unwrap_err();
    assert!(matches!(error, StoreError::IoAt { .. }), "{error}");
}

#[test]
fn a_limit_on_file_sizes_is_told_and_not_run_into() {
    // The limit is the process's, so a process of its own: running into it would be SIGXFSZ.
    let dir = disk_dir();
    let script = "ulimit -f 2048 && exec \"$@\"";
    let status = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "inside_a_file_size_limit",
            "--ignored",
            "--nocapture",
        ])
        .env(INSIDE, dir.path())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "run by a_limit_on_file_sizes_is_told_and_not_run_into"]
fn inside_a_file_size_limit() {
    let Some(dir) = std::env::var_os(INSIDE) else {
        return;
    };
    let path = Path::new(&dir).join("pages");
    let mut chance = Chance(4);
    let mut memory = Memory::default();
    let ranges = [memory.add(&mut chance, 0, 0, 3000, 0)];
    let error =
        write_pages(File::create(&path).unwrap(), "pages", &ranges, &memory, &()).unwrap_err();
    assert!(matches!(error, StoreError::FileSizeLimit { .. }), "{error}");
    let mut zeros = Memory::default();
    let ranges = [zeros.add(&mut chance, 0, 0, 3000, 99)];
    let summary = write_pages(File::create(&path).unwrap(), "pages", &ranges, &zeros, &()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), summary.file_bytes);
}
