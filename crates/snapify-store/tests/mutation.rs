//! No bytes whatsoever make the reader of page files panic, or set aside memory without bounds.

mod support;

use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{PageFile, PageWrite, StoreError, WriteOptions, write_pages};
use std::fs::File;
use std::os::unix::fs::FileExt;
use support::seal::{TRAILER, reseal_pages, u64_at};
use support::{Chance, Filled, Memory};
use xxhash_rust::xxh3::xxh3_64;

const ROUNDS: u64 = 30_000;

fn mutate(bytes: &mut Vec<u8>, chance: &mut Chance) {
    let trailer = bytes.len() - TRAILER;
    let index = (u64_at(bytes, trailer + 24) as usize).min(trailer);
    for _ in 0..=chance.below(3) {
        // Mostly where structure is.
        let (begin, end) = match chance.below(8) {
            0 => (0, 64),
            1 => (0, bytes.len()),
            2..=5 if index < trailer => (index, trailer),
            _ => (trailer, bytes.len()),
        };
        let at = begin + chance.below((end - begin) as u64) as usize;
        match chance.below(4) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes[at] = chance.next() as u8,
            2 => {
                // A field of one of the values that are most often wrong.
                let at = at & !3;
                let value = match chance.below(6) {
                    0 => 0,
                    1 => u64::MAX,
                    2 => 1 << chance.below(64),
                    3 => bytes.len() as u64,
                    4 => u64::from(u32::MAX),
                    _ => chance.below(64) * 4096,
                };
                let width = if chance.below(2) == 0 { 4 } else { 8 }.min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            }
            _ => {
                // One entry over another.
                let from =
                    index + chance.below(((trailer - index) / 32).max(1) as u64) as usize * 32;
                let to = index + chance.below(((trailer - index) / 32).max(1) as u64) as usize * 32;
                if from + 32 <= bytes.len() && to + 32 <= bytes.len() {
                    bytes.copy_within(from..from + 32, to);
                }
            }
        }
    }
    if chance.below(20) == 0 {
        bytes.truncate(chance.below(bytes.len() as u64 + 1) as usize);
    }
}

/// Opens `rounds` mutations of `good`, each of which is refused or gives as many pages as it says.
fn mutations(good: &[u8], rounds: u64, chance: &mut Chance, below: Option<&dyn Fn() -> PageFile>) {
    let file = memory_file();
    let mut sound = 0;
    for round in 0..rounds {
        let mut bytes = good.to_vec();
        mutate(&mut bytes, chance);
        if round % 4 != 0 {
            reseal_pages(&mut bytes);
        }
        file.set_len(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        match PageFile::open(file.try_clone().unwrap(), "mutated".into()) {
            Err(StoreError::Damaged { offset, .. }) => {
                assert!(offset <= bytes.len() as u64, "an offset outside the file");
            }
            Err(StoreError::Newer { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(pages) => {
                // Sound as far as the index goes: then every page of it has a place.
                let summary = pages.summary();
                let expected = summary.pages_stored + summary.pages_shared;
                assert_eq!(pages.pages(), expected);
                let pages = match below {
                    Some(below) if pages.needs().is_some() => {
                        match pages.with_parents(vec![below()]) {
                            Ok(pages) => pages,
                            Err(StoreError::Damaged { .. }) => continue,
                            Err(other) => panic!("{other}"),
                        }
                    }
                    _ => pages,
                };
                let filled = Filled::default();
                match pages.fill(&filled, &()) {
                    Ok(()) => {
                        assert_eq!(filled.0.lock().unwrap().len() as u64, pages.pages());
                        sound += 1;
                    }
                    Err(StoreError::Damaged { .. } | StoreError::Incomplete { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    assert!(
        sound > 0,
        "some mutations only move pages about, under new checksums"
    );
}

fn memory_file() -> File {
    File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap())
}

/// Writes a page file, and returns its bytes.
fn written(write: &PageWrite<'_>, memory: &Memory) -> Vec<u8> {
    let file = memory_file();
    let summary = write
        .write(file.try_clone().unwrap(), "good", memory, &())
        .unwrap();
    let mut good = vec![0; summary.file_bytes as usize];
    file.read_exact_at(&mut good, 0).unwrap();
    good
}

#[test]
fn mutated_files_are_refused_or_harmless() {
    let mut chance = Chance(2024);
    let mut memory = Memory::default();
    let ranges: Vec<_> = (0..12u64)
        .map(|n| memory.add(&mut chance, (n % 3) as u32, n * 0x10_000, n % 4, 20))
        .collect();
    let good = written(&PageWrite::full(&ranges), &memory);
    assert_eq!(good[8], 1);
    mutations(&good, ROUNDS, &mut chance, None);
}

#[test]
fn mutated_incremental_files_are_refused_or_harmless() {
    let mut chance = Chance(2025);
    let mut memory = Memory::default();
    let ranges: Vec<_> = (0..12u64)
        .map(|n| memory.add(&mut chance, (n % 3) as u32, n * 0x10_000, n % 4, 20))
        .collect();
    let old = written(&PageWrite::full(&ranges).hashes(1), &memory);
    let below = || {
        let file = memory_file();
        file.write_all_at(&old, 0).unwrap();
        PageFile::open(file, "old".into()).unwrap()
    };
    // Pages that compress, some of them twice.
    for (n, seed) in memory.pages.values_mut().enumerate() {
        *seed = [*seed, 0, support::PLAIN | n as u64, support::PLAIN][n % 4];
    }
    for compression in ["lz4", "zstd", "deflate"] {
        let options = WriteOptions {
            compression: compression.parse().unwrap(),
            workers: Some(1),
            ..WriteOptions::default()
        };
        let (changed, gone) = ranges.split_at(9);
        let id = below().summary().id();
        let write = PageWrite::changes(id, changed).gone(gone).hashes(1);
        let good = written(&write.options(&options), &memory);
        assert_eq!(good[8], 2);
        mutations(&good, ROUNDS / 4, &mut chance, Some(&below));
    }
}

#[test]
fn noise_is_refused() {
    let mut chance = Chance(7);
    let file = File::from(memfd_create("noise", MemfdFlags::CLOEXEC).unwrap());
    for _ in 0..300 {
        let mut bytes = vec![0; chance.below(40_000) as usize];
        for byte in &mut bytes {
            *byte = chance.next() as u8;
        }
        file.set_len(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let result = PageFile::open(file.try_clone().unwrap(), "noise".into());
        assert!(matches!(result, Err(StoreError::Damaged { .. })));
    }
}

#[test]
fn a_huge_sparse_file_costs_no_memory() {
    // A trailer that is right in itself and speaks of an index of a tebibyte, all holes.
    let file = File::from(memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap());
    write_pages(
        file.try_clone().unwrap(),
        "empty",
        &[],
        &Memory::default(),
        &(),
    )
    .unwrap();
    let mut header = vec![0; 4096];
    file.read_exact_at(&mut header, 0).unwrap();
    let entries = 1u64 << 35;
    let index_bytes = (entries * 32 + TRAILER as u64).next_multiple_of(4096);
    let total = 4096 + index_bytes;
    let mut trailer = vec![0u8; TRAILER];
    trailer[..8].copy_from_slice(b"SNAPTAIL");
    trailer[8..12].copy_from_slice(&1u32.to_le_bytes());
    trailer[12..16].copy_from_slice(&128u32.to_le_bytes());
    for (at, value) in [
        (16, total),
        (24, 4096),
        (32, 0),
        (40, entries),
        (48, entries),
        (64, entries),
    ] {
        trailer[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let sum = xxh3_64(&trailer[..120]);
    trailer[120..].copy_from_slice(&sum.to_le_bytes());
    file.set_len(total).unwrap();
    file.write_all_at(&trailer, total - TRAILER as u64).unwrap();
    let result = PageFile::open(file, "sparse".into());
    assert!(matches!(result, Err(StoreError::Damaged { .. })));
}
