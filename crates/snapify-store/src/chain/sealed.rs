//! JSON documents that carry their own checksum, and are still JSON.
//!
//! The last member of the object is `"checksum"`, and covers every byte of the text before it:
//!
//! ```text
//! {
//!   "format": "snapify-chain",
//!   ...
//!   "last": 1,                             <- covered up to and including this comma
//!   "checksum": "0123456789abcdef"
//! }
//! ```
//!
//! This seal is the same in every version, so that a damaged document is not mistaken for a newer one.

use super::files;
use crate::StoreError;
use crate::checksum::xxh3_64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;

/// More than any document of this kind needs.
const MOST_BYTES: u64 = 64 << 20;

/// Which document it is. Read before anything else of it is.
#[derive(serde::Deserialize)]
struct Kind {
    format: String,
    version: u32,
}

/// The text of `value`, an object with members, sealed.
pub(crate) fn seal<T: Serialize>(value: &T, path: &Path) -> Result<Vec<u8>, StoreError> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|source| StoreError::Json {
        path: path.to_owned(),
        source,
    })?;
    // The object's last line is its closing brace.
    let open = text.len().saturating_sub(2);
    debug_assert_eq!(&text[open..], b"\n}");
    text.truncate(open);
    text.push(b',');
    let end = tail(xxh3_64(&text));
    text.extend_from_slice(end.as_bytes());
    Ok(text)
}

fn tail(checksum: u64) -> String {
    format!("\n  \"checksum\": \"{checksum:016x}\"\n}}\n")
}

/// Reads a sealed document of `format`, and also returns its text.
///
/// # Errors
/// [`StoreError::Missing`], [`StoreError::Damaged`] if the seal does not match, [`StoreError::Newer`] if its
/// version is greater than `version`, [`StoreError::Json`], [`StoreError::Io`].
pub(crate) fn read<T: DeserializeOwned>(
    path: &Path,
    format: &str,
    version: u32,
) -> Result<(T, Vec<u8>), StoreError> {
    let file = files::open(path)?;
    let bytes = file
        .metadata()
        .map_err(StoreError::io("look at", path))?
        .len();
    if bytes > MOST_BYTES {
        return Err(StoreError::damaged(path, MOST_BYTES, "it is too long"));
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(StoreError::io("read", path))?;
    // Before the checksum: a newer version may have another kind of it.
    if let Ok(kind) = serde_json::from_slice::<Kind>(&text)
        && kind.format == format
        && kind.version > version
    {
        return Err(StoreError::Newer {
            path: path.to_owned(),
            found: format!("{format} version {}", kind.version),
            known: format!("versions up to {version}"),
        });
    }
    let body = text.len().saturating_sub(tail(0).len());
    if &text[body..] != tail(xxh3_64(&text[..body])).as_bytes() {
        return Err(StoreError::damaged(
            path,
            0,
            "its checksum does not match its text",
        ));
    }
    let json = |source| StoreError::Json {
        path: path.to_owned(),
        source,
    };
    let kind: Kind = serde_json::from_slice(&text).map_err(json)?;
    if kind.format != format {
        return Err(StoreError::damaged(
            path,
            0,
            format!("it is a {:?}, not a {format:?}", kind.format),
        ));
    }
    let value = serde_json::from_slice(&text).map_err(json)?;
    Ok((value, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn put(text: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn get(text: &[u8]) -> Result<(Value, Vec<u8>), StoreError> {
        read(put(text).path(), "f", 1)
    }

    fn sample(version: u32) -> Vec<u8> {
        let value = json!({"format": "f", "version": version, "list": [1, {"a": "b"}]});
        seal(&value, Path::new("x")).unwrap()
    }

    #[test]
    fn it_comes_back_and_is_ordinary_json() {
        let text = sample(1);
        let (value, same) = get(&text).unwrap();
        assert_eq!(value["list"][1]["a"], "b");
        assert_eq!(same, text);
        let plain: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(plain["checksum"].as_str().unwrap().len(), 16);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let good = sample(1);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(
                    // A version that became greater reads like one of the future.
                    matches!(
                        get(&bad),
                        Err(StoreError::Damaged { .. } | StoreError::Newer { .. })
                    ),
                    "{at} {bit}"
                );
            }
            assert!(matches!(get(&good[..at]), Err(StoreError::Damaged { .. })));
        }
        let mut longer = good.clone();
        longer.push(b'\n');
        assert!(get(&longer).is_err());
    }

    #[test]
    fn a_newer_version_is_refused_in_words() {
        let error = get(&sample(2)).unwrap_err();
        assert!(matches!(error, StoreError::Newer { .. }));
        assert!(error.to_string().contains("newer snapify"), "{error}");
    }
}
