//! Timelines of `DIR/reports`: they are refused, or drawn as a page without scripts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use snapify_report::{Page, REPORTS_DIR, kept, page};
use std::sync::OnceLock;
use tempfile::TempDir;

fn dir() -> &'static TempDir {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.expect("a directory");
        std::fs::create_dir(dir.path().join(REPORTS_DIR)).expect("a folder");
        dir
    })
}

fuzz_target!(|data: &[u8]| {
    let dir = dir().path();
    let path = dir.join(REPORTS_DIR).join("000000000000001-x.json");
    std::fs::write(path, data).expect("write a file");
    let (timelines, unreadable) = kept(dir, 1).expect("the folder can be read");
    assert_eq!(timelines.len() + unreadable.len(), 1);
    let drawn = page(&Page {
        dir: "d",
        program: "p",
        timelines: &timelines,
        points: &[],
        unreadable: &unreadable,
    });
    assert!(!drawn.contains("<script"), "something was not escaped");
});
