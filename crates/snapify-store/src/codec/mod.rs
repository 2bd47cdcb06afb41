//! Codecs: ways of making blocks smaller.
//!
//! A codec is a [`Method`] and its number in the index; each is one small file here. A worker has an
//! [`Encoder`] or a [`Decoder`] of its own, which keeps its tables from block to block.

mod deflate;
mod lz4;
pub(crate) mod trial;
mod zstd;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a block is stored. The index of a page file names it by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// As it is.
    None,
    /// As one block of LZ4.
    Lz4,
    /// As one frame of Zstandard.
    Zstd,
    /// As one raw stream of DEFLATE (RFC 1951).
    Deflate,
}

/// What is to be done to blocks before they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Compression {
    /// Nothing: the fastest way to fast storage.
    #[default]
    None,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd {
        /// From -131072 (fast) over 1 to 22 (small).
        level: i32,
    },
    /// DEFLATE.
    Deflate {
        /// From 0 (fast) to 9 (small).
        level: u32,
    },
    /// For each block whatever shortens the writing, as measured while it goes on.
    Auto,
}

/// The level of Zstandard where none is named.
const ZSTD_LEVEL: i32 = 1;

/// The level of DEFLATE where none is named.
const DEFLATE_LEVEL: u32 = 6;

/// A way of making blocks smaller.
pub(crate) trait Method: Send + Sync {
    /// What a worker compresses with.
    fn encoder(&self) -> Box<dyn Encoder>;
    /// What a worker decompresses with.
    fn decoder(&self) -> Box<dyn Decoder>;
}

/// Compresses blocks one after another.
pub(crate) trait Encoder: Send {
    /// Compresses `raw` into the beginning of `out`, and returns the number of bytes; `None` if they are more than
    /// `most`. `out` has at least [`room`] bytes for `raw`.
    fn encode(&mut self, raw: &[u8], out: &mut [u8], most: usize) -> Option<usize>;
}

/// Decompresses blocks one after another.
pub(crate) trait Decoder {
    /// Decompresses `stored`, which must give exactly as many bytes as `raw` has. Whatever `stored` holds, nothing
    /// is written elsewhere.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<(), String>;
}

/// Bytes that any codec needs to compress `raw` bytes, however badly.
pub(crate) fn room(raw: usize) -> usize {
    raw + raw / 8 + 4096
}

impl Codec {
    /// Its number in the index.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Deflate => 3,
        }
    }

    /// The codec with a number.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [Self::None, Self::Lz4, Self::Zstd, Self::Deflate]
            .into_iter()
            .find(|codec| codec.number() == number)
    }

    /// What undoes it; `None` if nothing needs to be undone.
    pub(crate) fn decoder(self) -> Option<Box<dyn Decoder>> {
        let method: Box<dyn Method> = match self {
            Self::None => return None,
            Self::Lz4 => Box::new(lz4::Lz4),
            Self::Zstd => Box::new(zstd::Zstd { level: ZSTD_LEVEL }),
            Self::Deflate => Box::new(deflate::Deflate {
                level: DEFLATE_LEVEL,
            }),
        };
        Some(method.decoder())
    }
}

impl Compression {
    /// The codec of the blocks; `None` if it is decided from block to block.
    pub(crate) fn codec(self) -> Option<Codec> {
        match self {
            Self::None => Some(Codec::None),
            Self::Lz4 => Some(Codec::Lz4),
            Self::Zstd { .. } => Some(Codec::Zstd),
            Self::Deflate { .. } => Some(Codec::Deflate),
            Self::Auto => None,
        }
    }

    /// What does it; `None` if nothing is to be done, or not always the same.
    pub(crate) fn encoder(self) -> Option<Box<dyn Encoder>> {
        let method: Box<dyn Method> = match self {
            Self::None | Self::Auto => return None,
            Self::Lz4 => Box::new(lz4::Lz4),
            Self::Zstd { level } => Box::new(zstd::Zstd { level }),
            Self::Deflate { level } => Box::new(deflate::Deflate { level }),
        };
        Some(method.encoder())
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd { level } => write!(f, "zstd:{level}"),
            Self::Deflate { level } => write!(f, "deflate:{level}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> Self {
        compression.to_string()
    }
}

impl TryFrom<String> for Compression {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => {
                let level: i32 = level
                    .parse()
                    .map_err(|_| format!("{level:?} is no level of compression"))?;
                (name, Some(level))
            }
            None => (text, None),
        };
        let within = |level: i32, least: i32, most: i32| {
            if (least..=most).contains(&level) {
                return Ok(level);
            }
            Err(format!("{name} has levels from {least} to {most}"))
        };
        match (name, level) {
            ("none", None) => Ok(Self::None),
            ("lz4", None) => Ok(Self::Lz4),
            ("auto", None) => Ok(Self::Auto),
            ("zstd", level) => {
                let level = within(level.unwrap_or(ZSTD_LEVEL), -(1 << 17), 22)?;
                Ok(Self::Zstd { level })
            }
            ("deflate", level) => {
                let level = within(level.unwrap_or(DEFLATE_LEVEL as i32), 0, 9)?;
                Ok(Self::Deflate {
                    level: level as u32,
                })
            }
            ("none" | "lz4" | "auto", Some(_)) => Err(format!("{name} has no levels")),
            _ => Err(format!(
                "{name:?} is no codec: there are none, lz4, zstd[:LEVEL], deflate[:LEVEL] and auto"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 6] = [
        Compression::Lz4,
        Compression::Zstd { level: -5 },
        Compression::Zstd { level: 1 },
        Compression::Zstd { level: 19 },
        Compression::Deflate { level: 1 },
        Compression::Deflate { level: 9 },
    ];

    /// Half of it chance, half of it text.
    fn sample() -> Vec<u8> {
        let mut seed = 1u64;
        (0..40_000u32)
            .map(|n| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if n < 20_000 {
                    (seed >> 56) as u8
                } else {
                    b"all work and no play "[n as usize % 21]
                }
            })
            .collect()
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let raw = sample();
        for compression in ALL {
            let mut encoder = compression.encoder().unwrap();
            let mut decoder = compression.codec().unwrap().decoder().unwrap();
            let mut out = vec![0; room(raw.len())];
            // A second time, since encoders keep their tables.
            for _ in 0..2 {
                let n = encoder.encode(&raw, &mut out, raw.len()).unwrap();
                assert!(n < 25_000, "{compression}: {n}");
                let mut back = vec![1; raw.len()];
                decoder.decode(&out[..n], &mut back).unwrap();
                assert!(back == raw, "{compression}");
                assert!(
                    decoder
                        .decode(&out[..n], &mut vec![0; raw.len() - 1])
                        .is_err()
                );
                assert!(
                    decoder
                        .decode(&out[..n], &mut vec![0; raw.len() + 1])
                        .is_err()
                );
                assert!(decoder.decode(&out[..n - 1], &mut back).is_err());
            }
            assert_eq!(
                encoder.encode(&raw, &mut out, 10_000),
                None,
                "{compression}"
            );
        }
    }

    #[test]
    fn damaged_streams_are_refused_or_give_something_else() {
        let raw = sample();
        let mut seed = 3u64;
        for compression in ALL {
            let mut encoder = compression.encoder().unwrap();
            let mut decoder = compression.codec().unwrap().decoder().unwrap();
            let mut out = vec![0; room(raw.len())];
            let n = encoder.encode(&raw, &mut out, raw.len()).unwrap();
            let mut back = vec![0; raw.len()];
            for _ in 0..400 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let mut bad = out[..n].to_vec();
                let at = (seed >> 33) as usize % n;
                bad[at] ^= 1 << ((seed >> 20) % 8);
                let _ = decoder.decode(&bad, &mut back);
                let _ = decoder.decode(&bad[at..], &mut back);
            }
            decoder.decode(&out[..n], &mut back).unwrap();
            assert!(back == raw, "{compression}: it still works after errors");
        }
    }

    #[test]
    fn names_are_read_and_written() {
        for text in [
            "none",
            "lz4",
            "zstd:1",
            "zstd:-7",
            "zstd:22",
            "deflate:9",
            "auto",
        ] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), text);
        }
        assert_eq!("zstd".parse(), Ok(Compression::Zstd { level: 1 }));
        assert_eq!("deflate".parse(), Ok(Compression::Deflate { level: 6 }));
        for text in [
            "",
            "lz4:1",
            "zstd:23",
            "zstd:",
            "zstd:a",
            "deflate:-1",
            "gzip",
            "Zstd",
        ] {
            assert!(text.parse::<Compression>().is_err(), "{text}");
        }
    }
}
