//! Checksums: XXH3-64 with seed 0 everywhere. In JSON they are 16 hexadecimal digits, because numbers over
//! 2^53 do not survive jq.

pub(crate) use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// For `#[serde(with = ...)]` on a `u64` that is a checksum.
pub(crate) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref)] // the signature serde asks for
    pub(crate) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:016x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| D::Error::custom("a checksum has 16 hexadecimal digits"))
    }

    /// Strict: exactly the digits that `serialize` writes, so that no two texts mean the same.
    fn parse(text: &str) -> Option<u64> {
        let strict = text.len() == 16
            && text
                .bytes()
                .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
        strict.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    }

    #[cfg(test)]
    mod tests {
        use super::parse;

        #[test]
        fn only_canonical_text_is_taken() {
            assert_eq!(parse("00000000000000ff"), Some(255));
            for odd in [
                "ff",
                "00000000000000FF",
                "+0000000000000ff",
                "",
                "00000000000000fg",
            ] {
                assert_eq!(parse(odd), None, "{odd}");
            }
        }
    }
}
