//! Zstandard: the best ratio for its time, at levels from negative (fast) to 22 (small).

use super::{Decoder, Encoder, Method};
use zstd::bulk::{Compressor, Decompressor};

pub(super) struct Zstd {
    pub(super) level: i32,
}

impl Method for Zstd {
    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(ZstdEncoder(Compressor::new(self.level).ok()))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(ZstdDecoder(Decompressor::new().ok()))
    }
}

/// Without a context there was no memory for one: then nothing is compressed.
struct ZstdEncoder(Option<Compressor<'static>>);

impl Encoder for ZstdEncoder {
    fn encode(&mut self, raw: &[u8], out: &mut [u8], most: usize) -> Option<usize> {
        // It notes early that what is compressed does not fit.
        let most = most.min(out.len());
        self.0
            .as_mut()?
            .compress_to_buffer(raw, &mut out[..most])
            .ok()
    }
}

struct ZstdDecoder(Option<Decompressor<'static>>);

impl Decoder for ZstdDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<(), String> {
        let decompressor = self.0.as_mut().ok_or("no memory to decompress with")?;
        match decompressor.decompress_to_buffer(stored, raw) {
            Ok(bytes) if bytes == raw.len() => Ok(()),
            Ok(bytes) => Err(format!("{bytes} bytes came out of {}", raw.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}
