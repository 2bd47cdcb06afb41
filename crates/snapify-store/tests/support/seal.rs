//! Makes the checksums right again of what was changed, so that what lies beneath is reached.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of the trailer of a page file.
pub const TRAILER: usize = 128;

/// The number at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// Makes every checksum of a page file right that is above its blocks: of header, index and trailer.
pub fn reseal_pages(bytes: &mut [u8]) {
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

/// Makes the seal of a JSON document right: its last 36 bytes.
pub fn reseal_json(text: &str) -> String {
    let body = &text[..text.len().saturating_sub(36)];
    let sum = xxh3_64(body.as_bytes());
    format!("{body}\n  \"checksum\": \"{sum:016x}\"\n}}\n")
}
