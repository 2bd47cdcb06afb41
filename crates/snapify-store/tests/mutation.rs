//! No bytes whatsoever make the reader of page files panic, or set aside memory without bounds.

mod support;

use rustix::fs::{MemfdFlags, memfd_create};
use snapify_store::{PageFile, StoreError, write_pages};
use std::fs::File;
use std::os::unix::fs::FileExt;
use support::{Chance, Filled, Memory};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const ROUNDS: u64 = 30_000;
const TRAILER: usize = 128;

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Makes every checksum above the blocks right again, so that what lies beneath is reached.
fn reseal(bytes: &mut [u8]) {
    let seal = |bytes: &mut [u8], from: usize, to: usize| {
        let sum = xxh3_64(&bytes[from..to]);
        bytes[to..to + 8].copy_from_slice(&sum.to_le_bytes());
    };
    if bytes.len() < 4096 + TRAILER {
        return;
    }
    seal(bytes, 0, 56);
    let trailer = bytes.len() - TRAILER;
    let index = u64_at(bytes, trailer + 24) as usize;
    if index <= trailer {
        let mut hash = Xxh3::new();
        hash.update(&bytes[..4096]);
        hash.update(&bytes[index..trailer]);
        let sum = hash.digest().to_le_bytes();
        bytes[trailer + 72..trailer + 80].copy_from_slice(&sum);
    }
    seal(bytes, trailer, trailer + 120);
}

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

#[test]
fn mutated_files_are_refused_or_harmless() {
    let mut chance = Chance(2024);
    let mut memory = Memory::default();
    let ranges: Vec<_> = (0..12u64)
        .map(|n| memory.add(&mut chance, (n % 3) as u32, n * 0x10_000, n % 4, 20))
        .collect();
    let file = File::from(memfd_create("mutated", MemfdFlags::CLOEXEC).unwrap());
    let summary = write_pages(file.try_clone().unwrap(), "good", &ranges, &memory, &()).unwrap();
    let mut good = vec![0; summary.file_bytes as usize];
    file.read_exact_at(&mut good, 0).unwrap();
    let mut sound = 0;
    for round in 0..ROUNDS {
        let mut bytes = good.clone();
        mutate(&mut bytes, &mut chance);
        if round % 4 != 0 {
            reseal(&mut bytes);
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
                let stored: u64 = pages.runs().iter().map(|r| u64::from(r.pages)).sum();
                assert_eq!(stored, pages.summary().pages_stored);
                let filled = Filled::default();
                match pages.fill(&filled, &()) {
                    Ok(()) => {
                        assert_eq!(filled.0.lock().unwrap().len() as u64, stored);
                        sound += 1;
                    }
                    Err(StoreError::Damaged { .. }) => {}
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
