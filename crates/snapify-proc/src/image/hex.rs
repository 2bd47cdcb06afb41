//! Bytes as hexadecimal text, with a length so that trailing zeros (most of a register set) need not be written.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Longest content that is accepted, in bytes.
const LIMIT: usize = 1 << 20;

/// Bytes that are stored as hexadecimal text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HexBytes(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
struct Stored {
    bytes: usize,
    hex: String,
}

impl std::fmt::Debug for HexBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HexBytes({} bytes)", self.0.len())
    }
}

fn digit(value: u8) -> char {
    char::from_digit(u32::from(value & 15), 16).unwrap_or('0')
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let end = self
            .0
            .iter()
            .rposition(|&b| b != 0)
            .map_or(0, |last| last + 1);
        let hex = self.0[..end]
            .iter()
            .flat_map(|&b| [digit(b >> 4), digit(b)])
            .collect();
        Stored {
            bytes: self.0.len(),
            hex,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Stored::deserialize(deserializer)?;
        if stored.bytes > LIMIT || stored.hex.len() > stored.bytes * 2 || stored.hex.len() % 2 != 0
        {
            return Err(D::Error::custom("hexadecimal text of an impossible length"));
        }
        let value = |c: u8| (c as char).to_digit(16).map(|v| v as u8);
        let mut bytes = Vec::with_capacity(stored.bytes);
        for pair in stored.hex.as_bytes().chunks_exact(2) {
            let (Some(high), Some(low)) = (value(pair[0]), value(pair[1])) else {
                return Err(D::Error::custom("not hexadecimal text"));
            };
            bytes.push(high << 4 | low);
        }
        bytes.resize(stored.bytes, 0);
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for bytes in [
            vec![],
            vec![0; 5],
            vec![1, 0, 255, 16, 0, 0, 0],
            (0..=255).collect(),
        ] {
            let json = serde_json::to_string(&HexBytes(bytes.clone())).unwrap();
            assert_eq!(serde_json::from_str::<HexBytes>(&json).unwrap().0, bytes);
        }
    }

    #[test]
    fn odd_text_is_refused() {
        for json in [
            r#"{"bytes":1,"hex":"f"}"#,
            r#"{"bytes":1,"hex":"ffff"}"#,
            r#"{"bytes":1,"hex":"zz"}"#,
            r#"{"bytes":99999999999,"hex":""}"#,
        ] {
            assert!(serde_json::from_str::<HexBytes>(json).is_err(), "{json}");
        }
    }
}
