//! Directories that a program has made for itself in places for temporary files.

use crate::stage::{Running, Stage, User};
use std::fs;
use std::path::PathBuf;

/// Starts the program; gives its directory too.
fn start(stage: &Stage) -> (Running, PathBuf) {
    let mut running = stage.start_and_hear();
    let directory = PathBuf::from(running.line());
    running.expect("ready");
    (running, directory)
}

#[test]
fn what_the_program_has_removed_since_is_made_again() {
    for user in User::all() {
        let stage = Stage::new("scratch", user);
        let (original, directory) = start(&stage);
        stage.save(original.pid(), "first", false);
        original.go_on_and_be_fine();
        assert!(!directory.exists());
        let restored = stage.restore("first");
        assert!(directory.exists());
        // What is restored can be saved again, and loses its directory again.
        stage.save(restored.pid(), "second", true);
        restored.expect_killed();
        fs::remove_dir_all(&directory).unwrap();
        stage.restore("second").go_on_and_be_fine();
        assert!(!directory.exists());
    }
}

#[test]
fn shared_memory_in_a_file_goes_back_and_other_files_stay() {
    for user in User::all() {
        let stage = Stage::new("scratch", user);
        let (original, directory) = start(&stage);
        stage.save(original.pid(), "image", true);
        original.expect_killed();
        let (shared, small) = (directory.join("deep/shared"), directory.join("small"));
        // The same file with another content, as a program leaves it that has gone on after the checkpoint.
        fs::write(&shared, vec![b'x'; 64 << 10]).unwrap();
        fs::write(&small, "topology, and more").unwrap();
        let restored = stage.restore("image");
        assert_eq!(fs::read(&small).unwrap(), b"topology, and more");
        fs::write(&small, "topology").unwrap();
        restored.go_on_and_be_fine();
    }
}

/// Where another file has the name by now, it is somebody else's.
#[test]
fn another_file_of_that_name_is_not_overwritten() {
    let stage = Stage::new("scratch", User::Ourselves);
    let (original, directory) = start(&stage);
    stage.save(original.pid(), "image", true);
    original.expect_killed();
    let shared = directory.join("deep/shared");
    let others = directory.join("deep/others");
    fs::write(&others, vec![b'x'; 64 << 10]).unwrap();
    fs::rename(&others, &shared).unwrap();
    let restored = stage.restore("image");
    assert!(fs::read(&shared).unwrap().iter().all(|&byte| byte == b'x'));
    drop(restored);
    fs::remove_dir_all(&directory).unwrap();
}
