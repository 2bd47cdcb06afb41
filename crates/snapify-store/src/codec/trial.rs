//! Trying codecs on memory that was saved, for plans.

use super::{Compression, room};
use crate::cpu_time::cpu_time;
use crate::format::BLOCK_BYTES;
use crate::types::PAGE;
use std::time::Duration;

/// What a codec makes of some memory, and how fast one processor does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Which codec, and its level.
    pub compression: Compression,
    /// Bytes stored for each byte of memory.
    pub ratio: f64,
    /// Bytes of memory that are compressed in a second.
    pub rate: f64,
    /// Bytes of memory that are had back in a second.
    pub expand_rate: f64,
}

impl Trial {
    /// Compresses `sample` as it is written to page files, block by block, and has it back. `None` if there is nothing to be
    /// tried: for [`Compression::None`], [`Compression::Auto`] and an empty sample.
    #[must_use]
    pub fn of(compression: Compression, sample: &[u8]) -> Option<Self> {
        let mut encoder = compression.encoder()?;
        let mut decoder = compression.codec()?.decoder()?;
        let mut packed = vec![0; room(BLOCK_BYTES)];
        let mut again = vec![0; BLOCK_BYTES];
        let (mut stored, mut compressing, mut expanding) = (0, Duration::ZERO, Duration::ZERO);
        for block in sample.chunks(BLOCK_BYTES) {
            let begin = cpu_time();
            let bytes = encoder.encode(block, &mut packed, block.len().saturating_sub(PAGE));
            compressing += cpu_time().saturating_sub(begin);
            stored += bytes.map_or(block.len(), |bytes| bytes.next_multiple_of(PAGE));
            if let Some(bytes) = bytes {
                let begin = cpu_time();
                decoder
                    .decode(&packed[..bytes], &mut again[..block.len()])
                    .ok()?;
                expanding += cpu_time().saturating_sub(begin);
            }
        }
        let rate = |time: Duration| sample.len() as f64 / time.as_secs_f64().max(1e-9);
        (!sample.is_empty()).then(|| Self {
            compression,
            ratio: stored as f64 / sample.len() as f64,
            rate: rate(compressing),
            expand_rate: rate(expanding),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compresses_is_told_from_what_does_not() {
        let mut seed = 1u64;
        let mut chance = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        let noise: Vec<u8> = (0..3 << 20).map(|_| chance()).collect();
        let text: Vec<u8> = (0..3 << 20).map(|n| b"abcdefgh"[n % 8]).collect();
        for compression in ["lz4", "zstd:1", "deflate:1"] {
            let compression = compression.parse().unwrap();
            let of = |sample: &[u8]| Trial::of(compression, sample).unwrap();
            assert!(of(&text).ratio < 0.1);
            assert_eq!(of(&noise).ratio, 1.0);
            for trial in [of(&text), of(&noise)] {
                assert!(trial.rate > 0.0 && trial.rate.is_finite());
                assert!(trial.expand_rate > 0.0 && trial.expand_rate.is_finite());
            }
            assert_eq!(Trial::of(compression, &[]), None);
        }
        assert_eq!(Trial::of(Compression::None, &text), None);
        assert_eq!(Trial::of(Compression::Auto, &text), None);
    }
}
