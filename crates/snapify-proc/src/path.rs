//! Paths in images. Linux paths are bytes; JSON strings are not. A path that is UTF-8 is written as
//! a string that people can read, any other as `{"hex": "..."}`, so that none is lost.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path (or another name of bytes) as it is stored in an image.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ImagePath(PathBuf);

impl ImagePath {
    /// Takes bytes as the kernel gave them.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(std::ffi::OsString::from_vec(bytes.into()).into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }

    /// As a path of this system.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl std::ops::Deref for ImagePath {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for ImagePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl From<PathBuf> for ImagePath {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl From<&Path> for ImagePath {
    fn from(path: &Path) -> Self {
        Self(path.to_owned())
    }
}

impl fmt::Debug for ImagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ImagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(String),
    Bytes { hex: String },
}

impl Serialize for ImagePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.as_bytes()) {
            Ok(text) => text.serialize(serializer),
            Err(_) => {
                let hex = self
                    .as_bytes()
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                Stored::Bytes { hex }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for ImagePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Stored::deserialize(deserializer)? {
            Stored::Text(text) => Ok(Self::from_bytes(text)),
            Stored::Bytes { hex } => {
                let digit = |pair: &[u8]| {
                    let text = std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2)?;
                    u8::from_str_radix(text, 16).ok()
                };
                let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(digit).collect();
                bytes
                    .map(Self::from_bytes)
                    .ok_or_else(|| D::Error::custom("path is no hexadecimal text"))
            }
        }
    }
}

impl PartialEq<&str> for ImagePath {
    fn eq(&self, other: &&str) -> bool {
        self.0.as_os_str() == OsStr::new(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back() {
        for bytes in [
            &b"/tmp/a b"[..],
            b"/tmp/\xff\x00x",
            b"",
            "/tmp/\u{e4}".as_bytes(),
        ] {
            let path = ImagePath::from_bytes(bytes);
            let json = serde_json::to_string(&path).unwrap();
            assert_eq!(
                serde_json::from_str::<ImagePath>(&json).unwrap(),
                path,
                "{json}"
            );
        }
        assert_eq!(
            serde_json::to_string(&ImagePath::from_bytes("/a")).unwrap(),
            "\"/a\""
        );
    }

    #[test]
    fn bad_hex_is_refused() {
        for json in [r#"{"hex":"f"}"#, r#"{"hex":"zz"}"#, "3", "{}"] {
            assert!(serde_json::from_str::<ImagePath>(json).is_err(), "{json}");
        }
    }
}
