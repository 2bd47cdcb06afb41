//! A chain file and a manifest with any of their text changed. Run with `cargo +nightly fuzz run manifest`.
//!
//! Checksums are made right again, or nothing behind them would ever be reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use snapify_store::{Chain, PointHeader, ProgramIdentity, Snapshot, inspect, verify};
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the seal at the end of a document.
const SEAL: usize = 36;

struct Sound {
    dir: TempDir,
    chain: Vec<u8>,
    manifest: Vec<u8>,
}

impl Sound {
    fn paths(&self) -> (PathBuf, PathBuf) {
        let dir = self.dir.path();
        (dir.join("chain.json"), dir.join("000001/manifest.json"))
    }
}

static SOUND: LazyLock<Sound> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let program = ProgramIdentity {
        id: "p".into(),
        command: "./p".into(),
    };
    let chain = Chain::open_or_create(dir.path(), &program).expect("open");
    let staging = chain.begin().expect("begin");
    let member = staging.member("host").expect("member");
    member.write_json("process.json", &1).expect("write");
    let header = PointHeader {
        created_unix_ms: 1,
        details: ().into(),
    };
    staging.commit(header).expect("commit");
    let mut sound = Sound {
        dir,
        chain: Vec::new(),
        manifest: Vec::new(),
    };
    let (chain, manifest) = sound.paths();
    sound.chain = fs::read(chain).expect("read");
    sound.manifest = fs::read(manifest).expect("read");
    sound
});

/// Puts each patch at its offset, in place of as many bytes as it says, and seals the text again.
fn patched(text: &[u8], patches: &[(u16, u8, Vec<u8>)]) -> Vec<u8> {
    let mut body = text[..text.len() - SEAL].to_vec();
    for (at, instead, patch) in patches {
        let at = usize::from(*at).min(body.len());
        let end = (at + usize::from(*instead)).min(body.len());
        body.splice(at..end, patch.iter().copied());
    }
    let sum = xxh3_64(&body);
    body.extend_from_slice(format!("\n  \"checksum\": \"{sum:016x}\"\n}}\n").as_bytes());
    body
}

type Patches = Vec<(u16, u8, Vec<u8>)>;

fuzz_target!(|patches: (Patches, Patches)| {
    let (chain, manifest) = SOUND.paths();
    fs::write(chain, patched(&SOUND.chain, &patches.0)).expect("write");
    fs::write(manifest, patched(&SOUND.manifest, &patches.1)).expect("write");
    let dir = SOUND.dir.path();
    let _ = inspect(dir);
    let _ = verify(dir, None, &());
    if let Ok(snapshot) = Snapshot::open(dir, None) {
        for member in snapshot.members() {
            for file in member.files() {
                let _ = member.bytes(&file.name);
                let _ = member.pages(&file.name);
            }
        }
    }
});
