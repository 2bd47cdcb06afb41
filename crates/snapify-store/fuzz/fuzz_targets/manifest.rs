//! Any text at all as chain file and manifest. Run with `cargo +nightly fuzz run manifest`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use snapify_store::{Snapshot, inspect, verify};
use std::fs;

fuzz_target!(|texts: (&[u8], &[u8])| {
    let Ok(dir) = tempfile::tempdir() else {
        return;
    };
    let point = dir.path().join("000001");
    if fs::create_dir(&point).is_err()
        || fs::write(dir.path().join("chain.json"), texts.0).is_err()
        || fs::write(point.join("manifest.json"), texts.1).is_err()
    {
        return;
    }
    let _ = inspect(dir.path());
    let _ = verify(dir.path(), None, &());
    let _ = Snapshot::open(dir.path(), None);
});
