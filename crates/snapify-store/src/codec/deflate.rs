//! DEFLATE (RFC 1951), without a container: what Shen et al. compress checkpoints with.

use super::{Decoder, Encoder, Method};
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

pub(super) struct Deflate {
    pub(super) level: u32,
}

impl Method for Deflate {
    fn encoder(&self) -> Box<dyn Encoder> {
        let level = flate2::Compression::new(self.level);
        Box::new(DeflateEncoder(Compress::new(level, false)))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(DeflateDecoder(Decompress::new(false)))
    }
}

struct DeflateEncoder(Compress);

impl Encoder for DeflateEncoder {
    fn encode(&mut self, raw: &[u8], out: &mut [u8], most: usize) -> Option<usize> {
        self.0.reset();
        let most = most.min(out.len());
        let status = self
            .0
            .compress(raw, &mut out[..most], FlushCompress::Finish);
        match status {
            Ok(Status::StreamEnd) => usize::try_from(self.0.total_out()).ok(),
            _ => None,
        }
    }
}

struct DeflateDecoder(Decompress);

impl Decoder for DeflateDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<(), String> {
        self.0.reset(false);
        let status = self
            .0
            .decompress(stored, raw, FlushDecompress::Finish)
            .map_err(|error| error.to_string())?;
        let all =
            self.0.total_in() == stored.len() as u64 && self.0.total_out() == raw.len() as u64;
        if status != Status::StreamEnd || !all {
            return Err(format!(
                "the stream does not end with {} bytes in and {} bytes out",
                stored.len(),
                raw.len()
            ));
        }
        Ok(())
    }
}
