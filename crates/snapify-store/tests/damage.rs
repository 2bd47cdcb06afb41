//! Whatever happens to the files of a snapshot is noticed, and named.

mod support;

use snapify_store::{Snapshot, StoreError, VerifyReport, verify};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{Filled, Memory, fast_dir, files_under, small_chain};

fn report(dir: &Path) -> VerifyReport {
    verify(dir, None, &()).unwrap()
}

/// As a restart does: opens the snapshot, and reads all that is in it.
fn read_all(dir: &Path, memory: &Memory) -> Result<(), StoreError> {
    let snapshot = Snapshot::open(dir, None)?;
    let member = snapshot.member("host")?;
    let _: serde_json::Value = member.json("process.json")?;
    member.bytes("log")?;
    let filled = Filled::default();
    member.pages("pages.snap")?.fill(&filled, &())?;
    filled.assert_is(memory);
    Ok(())
}

#[test]
fn every_flipped_byte_is_noticed() {
    let dir = fast_dir();
    let memory = small_chain(dir.path());
    assert!(report(dir.path()).is_sound());
    let mut flips = 0u32;
    for path in files_under(dir.path()) {
        let good = fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for (at, &byte) in good.iter().enumerate() {
            let bit = 1u8 << (flips % 8);
            file.write_all_at(&[byte ^ bit], at as u64).unwrap();
            let found = report(dir.path());
            let named = found.problems.iter().any(|p| p.path == path);
            assert!(named, "{} at {at}: {found:?}", path.display());
            // The reader notices just as well; it is slower to ask, so not for every byte.
            if at % 61 == 0 {
                assert!(
                    read_all(dir.path(), &memory).is_err(),
                    "{} at {at}",
                    path.display()
                );
            }
            file.write_all_at(&[byte], at as u64).unwrap();
            flips += 1;
        }
    }
    assert!(
        flips > 20_000,
        "header, blocks, index, trailer and metadata"
    );
    assert!(report(dir.path()).is_sound());
    read_all(dir.path(), &memory).unwrap();
}

#[test]
fn a_flipped_bit_in_a_page_is_named_with_file_and_offset() {
    let dir = fast_dir();
    small_chain(dir.path());
    let path = dir.path().join("000001/host/pages.snap");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xaa], 4096 + 17).unwrap();
    let report = report(dir.path());
    assert_eq!(report.problems.len(), 1);
    let problem = &report.problems[0];
    assert_eq!(
        (problem.point, &problem.path, problem.offset),
        (Some(1), &path, Some(4096))
    );
    assert!(!report.points[0].sound);
}

#[test]
fn every_cut_and_every_addition_is_noticed() {
    let dir = fast_dir();
    let memory = small_chain(dir.path());
    for path in files_under(dir.path()) {
        if path.ends_with(".lock") {
            continue;
        }
        let good = fs::read(&path).unwrap();
        let step = (good.len() / 500).max(1);
        let cuts = (0..good.len())
            .step_by(step)
            .map(|len| good[..len].to_vec());
        let longer = [&good[..], b"\n"].concat();
        for bad in cuts.chain([longer, [&good[..], &[0; 4096]].concat()]) {
            fs::write(&path, &bad).unwrap();
            let found = report(dir.path());
            let named = found.problems.iter().any(|p| p.path == path);
            assert!(named, "{} of {} bytes", path.display(), bad.len());
            assert!(read_all(dir.path(), &memory).is_err());
        }
        fs::write(&path, &good).unwrap();
    }
    assert!(report(dir.path()).is_sound());
}

#[test]
fn a_missing_file_is_named() {
    for name in [
        "manifest.json",
        "host/process.json",
        "host/pages.snap",
        "host/log",
    ] {
        let dir = fast_dir();
        let memory = small_chain(dir.path());
        let path = dir.path().join("000001").join(name);
        fs::remove_file(&path).unwrap();
        match read_all(dir.path(), &memory).unwrap_err() {
            StoreError::Missing { path: named } => assert_eq!(named, path),
            other => panic!("{other}"),
        }
        assert!(
            report(dir.path()).problems.iter().any(|p| p.path == path),
            "{name}"
        );
    }
    let dir = fast_dir();
    let memory = small_chain(dir.path());
    fs::remove_file(dir.path().join("chain.json")).unwrap();
    assert!(read_all(dir.path(), &memory).is_err());
    assert!(!report(dir.path()).is_sound());
    let dir = fast_dir();
    let memory = small_chain(dir.path());
    fs::remove_dir_all(dir.path().join("000001/host")).unwrap();
    assert!(read_all(dir.path(), &memory).is_err());
    assert!(!report(dir.path()).is_sound());
}

#[test]
fn what_does_not_belong_there_is_named() {
    for name in ["000001/extra", "000001/host/core", "000002"] {
        let dir = fast_dir();
        small_chain(dir.path());
        let path = dir.path().join(name);
        fs::write(&path, "x").unwrap();
        let report = report(dir.path());
        assert_eq!(report.problems.len(), 1, "{report:?}");
        assert_eq!(report.problems[0].path, path);
    }
}

#[test]
fn links_and_pipes_are_not_followed() {
    let dir = fast_dir();
    let memory = small_chain(dir.path());
    let path = dir.path().join("000001/host/log");
    let aside = dir.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &path).unwrap();
    let error = read_all(dir.path(), &memory).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let error = read_all(dir.path(), &memory).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn files_of_two_snapshots_cannot_be_mixed() {
    let (one, two) = (fast_dir(), fast_dir());
    let memory = small_chain(one.path());
    // The same program, but other pages: sound in itself, and not what the manifest speaks of.
    let mut chance = support::Chance(99);
    let mut other = Memory::default();
    let ranges = [
        other.add(&mut chance, 0, 0x1000, 2, 0),
        other.add(&mut chance, 0, 0x9000, 1, 100),
        other.add(&mut chance, 1, 0, 1, 0),
    ];
    let path = two.path().join("pages");
    let file = fs::File::create_new(&path).unwrap();
    snapify_store::write_pages(file, "pages", &ranges, &other, &()).unwrap();
    fs::copy(&path, one.path().join("000001/host/pages.snap")).unwrap();
    assert!(read_all(one.path(), &memory).is_err());
    assert!(!report(one.path()).is_sound());
}

#[test]
fn a_newer_manifest_is_refused_in_words() {
    let dir = fast_dir();
    let memory = small_chain(dir.path());
    let path = dir.path().join("000001/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replacen("\"version\": 1", "\"version\": 3", 1);
    let (body, _) = text.rsplit_once("\n  \"checksum\"").unwrap();
    let checksum = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    fs::write(
        &path,
        format!("{body}\n  \"checksum\": \"{checksum:016x}\"\n}}\n"),
    )
    .unwrap();
    let error = read_all(dir.path(), &memory).unwrap_err();
    assert!(matches!(error, StoreError::Newer { .. }), "{error}");
    assert!(error.to_string().contains("newer snapify"), "{error}");
}
