//! The stub serves an image that was linked against the real library's versioned names.

use std::path::{Path, PathBuf};
use std::process::Command;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image")
}

/// The library under test lies beside this test's executable, or one above.
fn stub() -> PathBuf {
    let here = std::env::current_exe().expect("a test has an executable");
    let name = "libsnapify_omptarget_stub.so";
    here.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.exists())
        .expect("the library was built with its test")
}

fn cc(arguments: &[&str]) {
    let done = Command::new("cc")
        .args(["-O1", "-Wall", "-fPIC", "-fno-builtin"])
        .args(arguments)
        .current_dir(sources())
        .status()
        .expect("run cc");
    assert!(done.success(), "cc {arguments:?}");
}

#[test]
fn serves_an_image_that_was_linked_against_the_real_library() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stands_in");
    let found = dir.join("found");
    std::fs::create_dir_all(&found).expect("make a directory");
    let path = |name: &str| dir.join(name).display().to_string();
    let (real, image, load) = (path("libomptarget.so.16"), path("image.so"), path("load"));
    cc(&[
        "-shared",
        "-Wl,-soname,libomptarget.so.16",
        "-Wl,--version-script=linked_against.map",
        "linked_against.c",
        "-o",
        &real,
    ]);
    cc(&["-shared", "-Wl,-z,now", "image.c", &real, "-o", &image]);
    cc(&["load.c", "-o", &load]);
    std::fs::copy(stub(), found.join("libomptarget.so.16")).expect("install the stub");

    let output = Command::new(&load)
        .arg(&image)
        .env("LD_LIBRARY_PATH", &found)
        .output()
        .expect("run the loader");
    // The dynamic linker must not complain of missing versions either.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{output:?}");
}
