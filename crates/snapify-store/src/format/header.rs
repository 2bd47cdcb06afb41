//! The first page of a page file: what the file is.

use super::{BLOCK_BYTES, Fields, MAX_BLOCK_BYTES, VERSION, u32_at, u64_at};
use crate::checksum::xxh3_64;
use crate::types::{PAGE, PAGE_SIZE};
use crate::{SpaceId, StoreError};
use std::path::Path;

const MAGIC: &[u8; 8] = b"SNAPPAGE";

/// Where the header's own checksum lies; it covers everything before.
const CHECKSUM_AT: usize = 56;

/// The file stands alone: a page that it does not hold is zero.
const KIND_FULL: u32 = 0;

/// What the header says, beyond what is the same in every file of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Most bytes in a block before encoding.
    pub(crate) block_bytes: u32,
}

impl Header {
    /// The header of the files that are written.
    pub(crate) const WRITTEN: Self = Self {
        block_bytes: BLOCK_BYTES as u32,
    };

    /// The first page of the file.
    pub(crate) fn encode(self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        Fields::new(&mut page)
            .raw(MAGIC)
            .u32(VERSION)
            .u32(PAGE as u32)
            .u32(self.block_bytes)
            .u32(KIND_FULL);
        let checksum = xxh3_64(&page[..CHECKSUM_AT]);
        Fields::new(&mut page[CHECKSUM_AT..]).u64(checksum);
        page
    }

    /// Reads the first page of the file `path`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or [`StoreError::Newer`] for a version or kind that is not known.
    pub(crate) fn decode(page: &[u8; PAGE], path: &Path) -> Result<Self, StoreError> {
        let damaged = |offset: u64, what: &str| Err(StoreError::damaged(path, offset, what));
        if &page[..8] != MAGIC {
            return damaged(0, "it does not begin as a page file does");
        }
        // The place of this checksum is the same in every version, so a flipped bit in the version does
        // not read as a newer one.
        if u64_at(page, CHECKSUM_AT) != xxh3_64(&page[..CHECKSUM_AT]) {
            return damaged(0, "the header's checksum does not match");
        }
        let version = u32_at(page, 8);
        if version > VERSION {
            return Err(StoreError::Newer {
                path: path.to_owned(),
                found: format!("page file version {version}"),
                known: format!("versions up to {VERSION}"),
            });
        }
        if version == 0 {
            return damaged(8, "there is no version 0");
        }
        if u64::from(u32_at(page, 12)) != PAGE_SIZE {
            return damaged(12, "pages of another size than 4096 bytes");
        }
        let block_bytes = u32_at(page, 16);
        if !(PAGE as u32..=MAX_BLOCK_BYTES).contains(&block_bytes)
            || !u64::from(block_bytes).is_multiple_of(PAGE_SIZE)
        {
            return damaged(16, "an impossible block size");
        }
        let kind = u32_at(page, 20);
        if kind != KIND_FULL {
            return Err(StoreError::Newer {
                path: path.to_owned(),
                found: format!("page file kind {kind}"),
                known: "full page files".into(),
            });
        }
        if page[24..CHECKSUM_AT].iter().any(|&b| b != 0) {
            return damaged(24, "reserved bytes are in use");
        }
        if page[CHECKSUM_AT + 8..].iter().any(|&b| b != 0) {
            return damaged(64, "reserved bytes are in use");
        }
        Ok(Self { block_bytes })
    }
}

/// Describes a page in words for error messages.
pub(crate) fn place(space: SpaceId, start: u64) -> String {
    format!("{start:#x} of memory {space}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(page: &[u8; PAGE]) -> Result<Header, StoreError> {
        Header::decode(page, Path::new("p"))
    }

    fn sealed(change: impl FnOnce(&mut [u8; PAGE])) -> [u8; PAGE] {
        let mut page = Header::WRITTEN.encode();
        change(&mut page);
        let checksum = xxh3_64(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    #[test]
    fn it_comes_back() {
        assert_eq!(decode(&Header::WRITTEN.encode()).unwrap(), Header::WRITTEN);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = Header::WRITTEN.encode();
        for at in 0..PAGE {
            for bit in 0..8 {
                let mut bad = good;
                bad[at] ^= 1 << bit;
                assert!(
                    matches!(decode(&bad), Err(StoreError::Damaged { .. })),
                    "byte {at} bit {bit}"
                );
            }
        }
    }

    #[test]
    fn a_newer_version_or_kind_is_refused_in_words() {
        let version = decode(&sealed(|p| p[8] = 2)).unwrap_err();
        assert!(version.to_string().contains("newer snapify"), "{version}");
        let kind = decode(&sealed(|p| p[20] = 1)).unwrap_err();
        assert!(matches!(kind, StoreError::Newer { .. }), "{kind}");
    }

    #[test]
    fn impossible_values_are_refused_even_with_a_good_checksum() {
        for (at, value) in [
            (8, 0u32),
            (12, 8192),
            (16, 0),
            (16, 4097),
            (16, 32 << 20),
            (24, 1),
        ] {
            let page = sealed(|p| p[at..at + 4].copy_from_slice(&value.to_le_bytes()));
            assert!(
                matches!(decode(&page), Err(StoreError::Damaged { .. })),
                "{value} at {at}"
            );
        }
    }
}
