//! Any bytes at all as a page file. Run with `cargo +nightly fuzz run page_file`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{PageFile, PageSink, SpaceId};
use std::fs::File;
use std::io::{self, Write};

struct Nowhere;

impl PageSink for Nowhere {
    fn write(&self, _: SpaceId, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = memfd_create("fuzz", MemfdFlags::CLOEXEC) else {
        return;
    };
    let mut file = File::from(file);
    if file.write_all(bytes).is_err() {
        return;
    }
    if let Ok(pages) = PageFile::open(file, "fuzz".into()) {
        let _ = pages.verify(&());
        let _ = pages.fill(&Nowhere, &());
    }
});
