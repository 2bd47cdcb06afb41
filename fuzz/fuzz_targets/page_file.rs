//! Page files of both versions. The input edits a good one, whose checksums above the blocks are then made right again, or the
//! edits would never get past them: such a file is refused, or gives as many pages as it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{
    PAGE_SIZE, PageFile, PageRange, PageSink, PageSource, PageWrite, SpaceId, StoreError,
    WriteOptions,
};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

#[path = "../../crates/snapify-store/tests/support/seal.rs"]
#[allow(dead_code)] // of which this target uses a part
mod seal;

use seal::{reseal_pages, u64_at};

const CODECS: [&str; 4] = ["none", "lz4", "zstd:1", "deflate:1"];

/// Files to begin with: a full one, and one on it for each codec.
struct Good {
    full: Vec<u8>,
    incremental: Vec<Vec<u8>>,
}

/// Page `n` of space `s` holds the numbers `n` and `s`, again and again; some are zero.
struct Pages;

impl PageSource for Pages {
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        for (page, at) in buf.chunks_mut(PAGE_SIZE as usize).zip(start / PAGE_SIZE..) {
            let value = if at % 5 == 4 {
                0
            } else {
                (at + u64::from(space.0)) as u8
            };
            page.fill(value);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Counted(AtomicU64);

impl PageSink for Counted {
    fn write(&self, _: SpaceId, _: u64, data: &[u8]) -> io::Result<()> {
        self.0
            .fetch_add(data.len() as u64 / PAGE_SIZE, Ordering::Relaxed);
        Ok(())
    }
}

fn memory_file() -> File {
    let file = memfd_create("pages", MemfdFlags::CLOEXEC).expect("memory for a file");
    File::from(file)
}

fn written(write: &PageWrite<'_>) -> (Vec<u8>, snapify_store::PageFileSummary) {
    let file = memory_file();
    let copy = file.try_clone().expect("a descriptor");
    let summary = write
        .write(copy, "good", &Pages, &())
        .expect("write a page file");
    let mut bytes = vec![0; summary.file_bytes as usize];
    file.read_exact_at(&mut bytes, 0).expect("read it");
    (bytes, summary)
}

fn good() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| {
        let range = |space, page: u64, pages: u64| PageRange {
            space: SpaceId(space),
            start: page * PAGE_SIZE,
            bytes: pages * PAGE_SIZE,
        };
        let all = [range(0, 16, 6), range(0, 64, 3), range(1, 16, 4)];
        let (full, summary) = written(&PageWrite::full(&all).hashes(1));
        let incremental = CODECS.map(|codec| {
            let options = WriteOptions {
                compression: codec.parse().expect("a codec"),
                workers: Some(1),
                ..WriteOptions::default()
            };
            let changed = [range(0, 18, 3), range(1, 17, 2)];
            let gone = [range(0, 64, 3)];
            let write = PageWrite::changes(summary.id(), &changed)
                .gone(&gone)
                .hashes(1);
            written(&write.options(&options)).0
        });
        Good {
            full,
            incremental: incremental.into(),
        }
    })
}

/// Edits of six bytes each: where, from the end of the file, and what is put there or added.
fn edit(bytes: &mut Vec<u8>, edits: &[u8]) {
    let length = bytes.len();
    for edit in edits.chunks_exact(6) {
        let from_end = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        let at = if edit[2] & 0x80 == 0 {
            length.saturating_sub(from_end + 1)
        } else {
            from_end.min(length - 1)
        };
        match edit[2] & 3 {
            0 => bytes[at] = edit[3],
            1 => bytes[at] = bytes[at].wrapping_add(edit[3]),
            2 if at + 8 <= length => {
                let value = u64_at(bytes, at).wrapping_add(u64::from(edit[3]) << (edit[4] & 63));
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                // An entry over another.
                let from = length.saturating_sub(32 * (usize::from(edit[4]) + 1));
                if at + 32 <= length && from + 32 <= length {
                    bytes.copy_within(from..from + 32, at);
                }
            }
        }
    }
    if let [.., cut, 0xcc] = edits {
        bytes.truncate(length - usize::from(*cut).min(length));
    }
}

thread_local! {
    /// One is used again and again.
    static FILE: Cell<Option<File>> = const { Cell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, edits)) = data.split_first() else {
        return;
    };
    let good = good();
    let base = match good.incremental.get(usize::from(kind & 7)) {
        Some(incremental) => incremental,
        None => &good.full,
    };
    let mut bytes = base.clone();
    edit(&mut bytes, edits);
    if kind & 0x80 == 0 {
        reseal_pages(&mut bytes);
    }
    let file = FILE.take().unwrap_or_else(memory_file);
    file.set_len(0).expect("empty it");
    file.write_all_at(&bytes, 0).expect("fill it");
    let opened = PageFile::open(file.try_clone().expect("a descriptor"), "edited".into());
    FILE.set(Some(file));
    let pages = match opened {
        Ok(pages) => pages,
        Err(StoreError::Damaged { offset, .. }) => {
            assert!(offset <= bytes.len() as u64, "an offset outside the file");
            return;
        }
        Err(StoreError::Newer { .. }) => return,
        Err(other) => panic!("{other}"),
    };
    let pages = if pages.needs().is_some() {
        let below = memory_file();
        below.write_all_at(&good.full, 0).expect("fill it");
        let below = PageFile::open(below, "full".into()).expect("a good file");
        match pages.with_parents(vec![below]) {
            Ok(pages) => pages,
            Err(_) => return,
        }
    } else {
        pages
    };
    // What is told may be large, though nothing is there: it is not asked for.
    if pages.pages() > 1 << 16 {
        return;
    }
    let counted = Counted::default();
    if pages.fill(&counted, &()).is_ok() {
        assert_eq!(counted.0.into_inner(), pages.pages());
    }
});
