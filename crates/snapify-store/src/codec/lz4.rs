//! LZ4: the cheapest codec, for storage that is almost as fast as memory.

use super::{Decoder, Encoder, Method};

pub(super) struct Lz4;

impl Method for Lz4 {
    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Self)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Self)
    }
}

impl Encoder for Lz4 {
    fn encode(&mut self, raw: &[u8], out: &mut [u8], most: usize) -> Option<usize> {
        let bytes = lz4_flex::block::compress_into(raw, out).ok()?;
        (bytes <= most).then_some(bytes)
    }
}

impl Decoder for Lz4 {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<(), String> {
        match lz4_flex::block::decompress_into(stored, raw) {
            Ok(bytes) if bytes == raw.len() => Ok(()),
            Ok(bytes) => Err(format!("{bytes} bytes came out of {}", raw.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}
