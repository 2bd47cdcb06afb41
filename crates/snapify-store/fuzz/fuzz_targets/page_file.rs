//! A page file with any of its bytes changed. Run with `cargo +nightly fuzz run page_file`.
//!
//! Checksums are made right again, or nothing behind them would ever be reached.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{PageFile, PageRange, PageSink, PageSource, SpaceId, StoreError, write_pages};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const TRAILER: usize = 128;

/// What is done to a sound file.
#[derive(Arbitrary, Debug)]
struct Input {
    /// Bytes to put at offsets, counted from the end so that index and trailer are near.
    patches: Vec<(u16, Vec<u8>)>,
    /// Length to cut the file to.
    cut: Option<u16>,
    reseal: bool,
}

struct Striped;

impl PageSource for Striped {
    fn read(&self, _: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        for (page, number) in buf.chunks_mut(4096).zip(start / 4096..) {
            page.fill((number % 3) as u8);
        }
        Ok(())
    }
}

struct Aligned;

impl PageSink for Aligned {
    fn write(&self, _: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        assert!(start.is_multiple_of(4096) && data.len().is_multiple_of(4096));
        assert!(start.checked_add(data.len() as u64).is_some());
        Ok(())
    }
}

fn memory_file() -> File {
    File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memfd_create"))
}

static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let file = memory_file();
    let ranges =
        [(0, 0, 5), (0, 0x10_0000, 3), (7, 0x4000, 4)].map(|(space, start, pages)| PageRange {
            space: SpaceId(space),
            start,
            bytes: pages * 4096,
        });
    let out = file.try_clone().expect("dup");
    let summary = write_pages(out, "sound", &ranges, &Striped, &()).expect("write");
    let mut bytes = vec![0; summary.file_bytes as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
});

fn reseal(bytes: &mut [u8]) {
    let Some(trailer) = bytes.len().checked_sub(TRAILER).filter(|&t| t >= 4096) else {
        return;
    };
    let sum = xxh3_64(&bytes[..56]);
    bytes[56..64].copy_from_slice(&sum.to_le_bytes());
    let mut index = [0; 8];
    index.copy_from_slice(&bytes[trailer + 24..trailer + 32]);
    let index = u64::from_le_bytes(index);
    if index <= trailer as u64 {
        let mut hash = Xxh3::new();
        hash.update(&bytes[..4096]);
        hash.update(&bytes[index as usize..trailer]);
        bytes[trailer + 72..trailer + 80].copy_from_slice(&hash.digest().to_le_bytes());
    }
    let sum = xxh3_64(&bytes[trailer..trailer + 120]);
    bytes[trailer + 120..].copy_from_slice(&sum.to_le_bytes());
}

fuzz_target!(|input: Input| {
    let mut bytes = SOUND.clone();
    for (back, patch) in &input.patches {
        let at = bytes.len().saturating_sub(usize::from(*back));
        let len = patch.len().min(bytes.len() - at);
        bytes[at..at + len].copy_from_slice(&patch[..len]);
    }
    if let Some(cut) = input.cut {
        bytes.truncate(cut.into());
    }
    if input.reseal {
        reseal(&mut bytes);
    }
    let file = memory_file();
    file.write_all_at(&bytes, 0).expect("write");
    match PageFile::open(file, "fuzz".into()) {
        Ok(pages) => match pages.fill(&Aligned, &()) {
            Ok(()) | Err(StoreError::Damaged { .. }) => {}
            Err(other) => panic!("{other}"),
        },
        Err(StoreError::Damaged { .. } | StoreError::Newer { .. }) => {}
        Err(other) => panic!("{other}"),
    }
});
