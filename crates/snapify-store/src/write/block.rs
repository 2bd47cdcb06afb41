//! A block while it is filled: pages packed together, zero pages left out.

use crate::aligned::AlignedBuf;
use crate::checksum::Xxh3;
use crate::format::BLOCK_BYTES;
use crate::types::PAGE;
use crate::{PageRange, PageSource, SpaceId};
use std::io;

/// Pages that follow each other in their space and in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Streak {
    pub(super) space: SpaceId,
    pub(super) start: u64,
    pub(super) pages: u32,
    pub(super) first_page: u32,
}

/// The contents of one block to be.
pub(super) struct Filling {
    buf: AlignedBuf,
    used: usize,
    hash: Xxh3,
    streaks: Vec<Streak>,
}

impl Filling {
    /// An empty block, with room for [`BLOCK_BYTES`].
    pub(super) fn new() -> Self {
        Self {
            buf: AlignedBuf::new(BLOCK_BYTES),
            used: 0,
            hash: Xxh3::new(),
            streaks: Vec::new(),
        }
    }

    /// Empties the block; its memory stays.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.hash.reset();
        self.streaks.clear();
    }

    /// The pages in it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[..self.used]
    }

    /// Where they belong.
    pub(super) fn streaks(&self) -> &[Streak] {
        &self.streaks
    }

    /// The checksum of [`Filling::bytes`].
    pub(super) fn checksum(&self) -> u64 {
        self.hash.digest()
    }

    /// Whether the pages of `other` fit in as well.
    pub(super) fn has_room_for(&self, other: &Self) -> bool {
        self.used + other.used <= BLOCK_BYTES
    }

    /// Reads `piece` from `source`, and keeps the pages of it that are not zero. The caller hands out no
    /// more pieces than fit. Returns the number of zero pages.
    pub(super) fn read(&mut self, piece: &PageRange, source: &dyn PageSource) -> io::Result<u64> {
        let begin = self.used;
        let end = begin + piece.bytes as usize;
        source.read(piece.space, piece.start, &mut self.buf[begin..end])?;
        // Still in the cache: find what is zero, close the gaps, and take what is left into the checksum.
        let pages = (end - begin) / PAGE;
        let mut page = 0;
        while page < pages {
            let at = begin + page * PAGE;
            if is_zero(&self.buf[at..at + PAGE]) {
                page += 1;
                continue;
            }
            let streak_begin = at;
            let first = page;
            while page < pages {
                let at = begin + page * PAGE;
                if is_zero(&self.buf[at..at + PAGE]) {
                    break;
                }
                page += 1;
            }
            let streak_end = begin + page * PAGE;
            if streak_begin != self.used {
                self.buf.copy_within(streak_begin..streak_end, self.used);
            }
            let start = piece.start + (first * PAGE) as u64;
            self.note(piece.space, start, (page - first) as u32);
        }
        self.hash.update(&self.buf[begin..self.used]);
        let kept = (self.used - begin) / PAGE;
        Ok((pages - kept) as u64)
    }

    /// Adds the pages of `other`, which fit.
    pub(super) fn append(&mut self, other: &Self) {
        let begin = self.used;
        self.buf[begin..begin + other.used].copy_from_slice(other.bytes());
        for streak in &other.streaks {
            self.note(streak.space, streak.start, streak.pages);
        }
        self.hash.update(other.bytes());
    }

    /// Notes that the `pages` pages behind what is used belong at `start`.
    fn note(&mut self, space: SpaceId, start: u64, pages: u32) {
        let first_page = (self.used / PAGE) as u32;
        self.used += pages as usize * PAGE;
        if let Some(last) = self.streaks.last_mut()
            && last.space == space
            && last.start + u64::from(last.pages) * PAGE as u64 == start
        {
            last.pages += pages;
            return;
        }
        self.streaks.push(Streak {
            space,
            start,
            pages,
            first_page,
        });
    }
}

/// Whether a page holds only zeros. Most pages that do not are found out by their first bytes.
fn is_zero(page: &[u8]) -> bool {
    let zero = |part: &[u8]| part.iter().fold(0, |seen, &byte| seen | byte) == 0;
    let (head, rest) = page.split_at(64);
    // Parts long enough for wide registers, short enough to stop early.
    zero(head) && rest.chunks(512).all(zero)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::xxh3_64;

    /// Page `n` is filled with the byte `self.0[n]`.
    struct Pages(Vec<u8>);

    impl PageSource for Pages {
        fn read(&self, _: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
            for (n, page) in buf.chunks_mut(PAGE).enumerate() {
                page.fill(self.0[start as usize / PAGE + n]);
            }
            Ok(())
        }
    }

    fn piece(first: u64, pages: u64) -> PageRange {
        PageRange {
            space: SpaceId(3),
            start: first * PAGE as u64,
            bytes: pages * PAGE as u64,
        }
    }

    fn layout(block: &Filling) -> Vec<(u64, u32, u32)> {
        block
            .streaks()
            .iter()
            .map(|s| (s.start / PAGE as u64, s.pages, s.first_page))
            .collect()
    }

    #[test]
    fn a_single_byte_anywhere_makes_a_page_not_zero() {
        let mut page = vec![0u8; PAGE];
        assert!(is_zero(&page));
        for at in 0..PAGE {
            page[at] = 1;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }

    #[test]
    fn zero_pages_are_left_out_and_neighbours_joined() {
        let source = Pages(vec![0, 1, 2, 0, 0, 3, 4, 5, 0]);
        let mut block = Filling::new();
        assert_eq!(block.read(&piece(0, 6), &source).unwrap(), 3);
        assert_eq!(block.read(&piece(6, 3), &source).unwrap(), 1);
        assert_eq!(layout(&block), [(1, 2, 0), (5, 3, 2)]);
        let kept: Vec<u8> = block.bytes().chunks(PAGE).map(|p| p[0]).collect();
        assert_eq!(kept, [1, 2, 3, 4, 5]);
        assert_eq!(block.checksum(), xxh3_64(block.bytes()));
    }

    #[test]
    fn appending_moves_the_places() {
        let source = Pages(vec![7, 0, 8, 9]);
        let mut block = Filling::new();
        let mut other = Filling::new();
        block.read(&piece(0, 2), &source).unwrap();
        other.read(&piece(2, 2), &source).unwrap();
        assert!(block.has_room_for(&other));
        block.append(&other);
        assert_eq!(layout(&block), [(0, 1, 0), (2, 2, 1)]);
        assert_eq!(block.checksum(), xxh3_64(block.bytes()));
        block.clear();
        assert!(block.bytes().is_empty() && block.streaks().is_empty());
        assert_eq!(block.checksum(), xxh3_64(&[]));
    }
}
