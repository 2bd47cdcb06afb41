//! The first page of a page file: what the file is.

use super::summary::PageFileId;
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

/// A page that the file does not mention is that of the file it builds on.
const KIND_INCREMENTAL: u32 = 1;

/// The index holds a hash of each stored page.
const FLAG_HASHES: u32 = 1;

/// The file took the place of another one, on which others build.
const FLAG_STANDS_FOR: u32 = 2;

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Version of the format: the oldest that can say what the file holds.
    pub(crate) version: u32,
    /// Most bytes in a block before encoding.
    pub(crate) block_bytes: u32,
    /// The file that an incremental one builds on; `None` for a full one.
    pub(crate) parent: Option<PageFileId>,
    /// The seed of the page hashes, if the index holds any.
    pub(crate) hash_seed: Option<u64>,
    /// The file whose place this one has taken.
    pub(crate) stands_for: Option<PageFileId>,
}

impl Header {
    /// The header of a full file in which nothing of later versions is used.
    pub(crate) const PLAIN: Self = Self {
        version: 1,
        block_bytes: BLOCK_BYTES as u32,
        parent: None,
        hash_seed: None,
        stands_for: None,
    };

    /// The first page of the file.
    pub(crate) fn encode(self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        let kind = self.parent.map_or(KIND_FULL, |_| KIND_INCREMENTAL);
        let hashes = self.hash_seed.map_or(0, |_| FLAG_HASHES);
        let stands = self.stands_for.map_or(0, |_| FLAG_STANDS_FOR);
        Fields::new(&mut page)
            .raw(MAGIC)
            .u32(self.version)
            .u32(PAGE as u32)
            .u32(self.block_bytes)
            .u32(kind)
            .u64(self.parent.map_or(0, |id| id.0))
            .u32(hashes | stands)
            .u32(0)
            .u64(self.hash_seed.unwrap_or(0))
            .u64(self.stands_for.map_or(0, |id| id.0));
        let checksum = xxh3_64(&page[..CHECKSUM_AT]);
        Fields::new(&mut page[CHECKSUM_AT..]).u64(checksum);
        page
    }

    /// Reads the first page of the file `path`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or [`StoreError::Newer`] for a version, kind or flag that is not known.
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
        let newer = |found: String, known: &str| {
            Err(StoreError::Newer {
                path: path.to_owned(),
                found,
                known: known.into(),
            })
        };
        let version = u32_at(page, 8);
        if version > VERSION {
            return newer(
                format!("page file version {version}"),
                &format!("versions up to {VERSION}"),
            );
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
        if kind > KIND_INCREMENTAL || (version == 1 && kind != KIND_FULL) {
            return newer(
                format!("page file kind {kind}"),
                "full and incremental page files",
            );
        }
        let flags = u32_at(page, 32);
        if version > 1 && flags & !(FLAG_HASHES | FLAG_STANDS_FOR) != 0 {
            return newer(format!("page file flags {flags:#x}"), "flags 1 and 2");
        }
        let header = Self {
            version,
            block_bytes,
            parent: (kind == KIND_INCREMENTAL).then(|| PageFileId(u64_at(page, 24))),
            hash_seed: (flags & FLAG_HASHES != 0).then(|| u64_at(page, 40)),
            stands_for: (flags & FLAG_STANDS_FOR != 0).then(|| PageFileId(u64_at(page, 48))),
        };
        // What is not meant to be there would come back different.
        if header.encode() != *page {
            return damaged(24, "reserved bytes are in use");
        }
        if version == 1 && page[24..CHECKSUM_AT].iter().any(|&b| b != 0) {
            return damaged(24, "reserved bytes are in use");
        }
        Ok(header)
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
        let mut page = Header::PLAIN.encode();
        change(&mut page);
        let checksum = xxh3_64(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    /// Everything that version 2 has.
    const RICH: Header = Header {
        version: 2,
        parent: Some(PageFileId(0x1234_5678_9abc)),
        hash_seed: Some(7),
        stands_for: Some(PageFileId(99)),
        ..Header::PLAIN
    };

    #[test]
    fn it_comes_back() {
        for header in [Header::PLAIN, RICH] {
            assert_eq!(decode(&header.encode()).unwrap(), header);
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for good in [Header::PLAIN.encode(), RICH.encode()] {
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
    }

    #[test]
    fn a_newer_version_kind_or_flag_is_refused_in_words() {
        let version = decode(&sealed(|p| p[8] = 3)).unwrap_err();
        assert!(version.to_string().contains("newer snapify"), "{version}");
        for change in [
            (|p: &mut [u8; PAGE]| p[20] = 1) as fn(&mut [u8; PAGE]),
            |p| (p[8], p[20]) = (2, 2),
            |p| (p[8], p[32]) = (2, 4),
        ] {
            let error = decode(&sealed(change)).unwrap_err();
            assert!(matches!(error, StoreError::Newer { .. }), "{error}");
        }
    }

    #[test]
    fn impossible_values_are_refused_even_with_a_good_checksum() {
        for version in [1, 2] {
            for (at, value) in [
                (8, 0u32),
                (12, 8192),
                (16, 0),
                (16, 4097),
                (16, 32 << 20),
                (24, 1),
                (36, 1),
                (40, 1),
                (48, 1),
            ] {
                let page = sealed(|p| {
                    p[8] = version;
                    p[at..at + 4].copy_from_slice(&value.to_le_bytes());
                });
                assert!(
                    matches!(decode(&page), Err(StoreError::Damaged { .. })),
                    "{value} at {at} in version {version}"
                );
            }
        }
    }
}
