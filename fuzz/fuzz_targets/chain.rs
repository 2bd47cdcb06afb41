//! The files that describe a chain: `chain.json`, manifests and metadata. The input takes the place of one of them in a chain of
//! two points, with the right seal or as it is: looking at the chain, opening and verifying it refuse it, or do no harm.
#![no_main]

use libfuzzer_sys::fuzz_target;
use snapify_store::{
    Chain, PAGE_SIZE, PageRange, PageSource, PageWrite, PointHeader, ProgramIdentity, Snapshot,
    SpaceId, Staging, inspect, verify,
};
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

struct Zeros;

impl PageSource for Zeros {
    fn read(&self, _: SpaceId, _: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(1);
        Ok(())
    }
}

/// The chain, its documents and what they hold.
struct Good {
    dir: TempDir,
    documents: Vec<(PathBuf, Vec<u8>)>,
}

fn point(staging: Staging, parent: Option<snapify_store::PageFileId>) -> snapify_store::PageFileId {
    let member = staging.member("host").expect("a member");
    let text = serde_json::json!({"pid": 1});
    member.write_json("process.json", &text).expect("metadata");
    let range = [PageRange {
        space: SpaceId(0),
        start: PAGE_SIZE,
        bytes: PAGE_SIZE,
    }];
    let write = match parent {
        Some(parent) => PageWrite::changes(parent, &range),
        None => PageWrite::full(&range),
    };
    let file = member.create("pages.snap").expect("a file");
    let summary = write.write(file, "pages.snap", &Zeros, &()).expect("pages");
    member
        .record_pages("pages.snap", summary)
        .expect("an entry");
    drop(member);
    let details = serde_json::json!({"measured": {"saved_bytes": 4096}});
    staging
        .commit(PointHeader {
            created_unix_ms: 1,
            details,
        })
        .expect("a point");
    summary.id()
}

fn good() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.expect("a directory");
        let program = ProgramIdentity {
            id: "boot/1/2".into(),
            command: "./program".into(),
        };
        let chain = Chain::open_or_create(dir.path(), &program).expect("a chain");
        let first = point(chain.begin().expect("a full point"), None);
        let next = chain.begin_incremental(None).expect("an incremental point");
        point(next, Some(first));
        let documents = [
            "chain.json",
            "000001/manifest.json",
            "000002/manifest.json",
            "000002/host/process.json",
        ];
        let documents = documents.map(|name| {
            let path = dir.path().join(name);
            let text = std::fs::read(&path).expect("a document");
            (path, text)
        });
        Good {
            documents: documents.into(),
            dir,
        }
    })
}

/// The text with the seal that it should have (docs/format.md).
fn seal(body: &[u8]) -> Vec<u8> {
    let mut text = body.to_vec();
    text.push(b',');
    let sum = xxh3_64(&text);
    text.extend_from_slice(format!("\n  \"checksum\": \"{sum:016x}\"\n}}\n").as_bytes());
    text
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let good = good();
    let (path, text) = &good.documents[usize::from(kind & 3)];
    let body = if kind & 0x80 == 0 {
        seal(body)
    } else {
        body.to_vec()
    };
    std::fs::write(path, body).expect("write a document");
    let dir = good.dir.path();
    let _ = inspect(dir);
    for at in [None, Some(1), Some(2)] {
        if let Ok(snapshot) = Snapshot::open(dir, at) {
            for member in snapshot.members() {
                for file in member.files() {
                    let _ = member.json::<serde_json::Value>(&file.name);
                    let _ = member.pages(&file.name);
                }
            }
        }
    }
    if verify(dir, None, &()).is_ok_and(|report| report.is_sound()) {
        assert!(
            Snapshot::open(dir, None).is_ok(),
            "sound, and cannot be opened"
        );
    }
    std::fs::write(path, text).expect("write a document");
});
