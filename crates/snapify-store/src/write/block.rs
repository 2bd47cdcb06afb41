//! A block while it is filled: pages packed together; those that need no room are left out.

use crate::aligned::AlignedBuf;
use crate::checksum::Xxh3;
use crate::format::BLOCK_BYTES;
use crate::read::compare::{Before, Hashes, page_hash};
use crate::types::PAGE;
use crate::{PageRange, PageSource, SpaceId};
use std::io;

/// Which pages need no room, and what is to be noted of the others.
#[derive(Default)]
pub(super) struct Rules<'a> {
    /// Whether zero pages are to be noted: in an incremental file those that are not mentioned are older ones.
    pub(super) note_zeros: bool,
    /// The seed for hashes of pages, if they are wanted.
    pub(super) hash_seed: Option<u64>,
    /// Whether checksums of blocks are left to whoever stores them.
    pub(super) no_checksum: bool,
    /// What was there before; a page that is still the same is left out.
    pub(super) before: Option<Hashes<'a>>,
}

/// Pages that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Because they are zero.
    pub(super) zero: u64,
    /// Because they are what they were before.
    pub(super) same: u64,
}

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
    hashes: Vec<u128>,
    zeros: Vec<PageRange>,
}

impl Filling {
    /// An empty block, with room for [`BLOCK_BYTES`].
    pub(super) fn new() -> Self {
        Self {
            buf: AlignedBuf::new(BLOCK_BYTES),
            used: 0,
            hash: Xxh3::new(),
            streaks: Vec::new(),
            hashes: Vec::new(),
            zeros: Vec::new(),
        }
    }

    /// Empties the block; its memory stays.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.hash.reset();
        self.streaks.clear();
        self.hashes.clear();
        self.zeros.clear();
    }

    /// The pages in it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[..self.used]
    }

    /// Where they belong.
    pub(super) fn streaks(&self) -> &[Streak] {
        &self.streaks
    }

    /// The hashes of the pages in it, if they are wanted.
    pub(super) fn hashes(&self) -> &[u128] {
        &self.hashes
    }

    /// Takes out the pages for which `keep` is false. It is given the hash of each, its content, and its place.
    /// The checksum is not kept up.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u128, &[u8; PAGE], SpaceId, u64) -> bool) {
        let streaks = std::mem::take(&mut self.streaks);
        let hashes = std::mem::take(&mut self.hashes);
        self.used = 0;
        let mut page = 0;
        for streak in streaks {
            for n in 0..u64::from(streak.pages) {
                let begin = page * PAGE;
                let start = streak.start + n * PAGE as u64;
                let hash = hashes.get(page).copied().unwrap_or_default();
                page += 1;
                let Some(content) = self.buf[begin..].first_chunk::<PAGE>() else {
                    continue;
                };
                if keep(hash, content, streak.space, start) {
                    if begin != self.used {
                        self.buf.copy_within(begin..begin + PAGE, self.used);
                    }
                    self.hashes.push(hash);
                    self.note(streak.space, start, 1);
                }
            }
        }
    }

    /// Hands over the ranges that are zero and to be noted.
    pub(super) fn take_zeros(&mut self) -> impl Iterator<Item = PageRange> + '_ {
        self.zeros.drain(..)
    }

    /// The checksum of [`Filling::bytes`].
    pub(super) fn checksum(&self) -> u64 {
        self.hash.digest()
    }

    /// Whether the pages of `other` fit in as well.
    pub(super) fn has_room_for(&self, other: &Self) -> bool {
        self.used + other.used <= BLOCK_BYTES
    }

    /// Reads `piece` from `source`, and keeps the pages of it that need room. The caller hands out no more
    /// pieces than fit.
    pub(super) fn read(
        &mut self,
        piece: &PageRange,
        source: &dyn PageSource,
        rules: &Rules<'_>,
    ) -> io::Result<LeftOut> {
        let begin = self.used;
        let end = begin + piece.bytes as usize;
        source.read(piece.space, piece.start, &mut self.buf[begin..end])?;
        // Still in the cache: find what needs no room, close the gaps, and take what is left into the checksum.
        let pages = (end - begin) / PAGE;
        let mut left_out = LeftOut::default();
        let mut kept = 0;
        for page in 0..=pages {
            let keep = page < pages && {
                let place = piece.start + (page * PAGE) as u64;
                self.keeps(
                    begin + page * PAGE,
                    piece.space,
                    place,
                    rules,
                    &mut left_out,
                )
            };
            if keep {
                kept += 1;
            } else if kept > 0 {
                let first = page - kept;
                let streak = begin + first * PAGE..begin + page * PAGE;
                if streak.start != self.used {
                    self.buf.copy_within(streak, self.used);
                }
                let start = piece.start + (first * PAGE) as u64;
                self.note(piece.space, start, kept as u32);
                kept = 0;
            }
        }
        if !rules.no_checksum {
            self.hash.update(&self.buf[begin..self.used]);
        }
        Ok(left_out)
    }

    /// Whether the page at `at` of the buffer, which belongs at `start` of `space`, needs room.
    fn keeps(
        &mut self,
        at: usize,
        space: SpaceId,
        start: u64,
        rules: &Rules<'_>,
        left_out: &mut LeftOut,
    ) -> bool {
        let page = &self.buf[at..at + PAGE];
        let before = || rules.before.as_ref().map(|before| before.at(space, start));
        if is_zero(page) {
            left_out.zero += 1;
            if rules.note_zeros && before() != Some(Before::Zero) {
                self.note_zero(space, start);
            }
            return false;
        }
        let Some(seed) = rules.hash_seed else {
            return true;
        };
        let hash = page_hash(page, seed);
        if before() == Some(Before::Page(hash)) {
            left_out.same += 1;
            return false;
        }
        self.hashes.push(hash);
        true
    }

    fn note_zero(&mut self, space: SpaceId, start: u64) {
        if let Some(last) = self.zeros.last_mut()
            && last.space == space
            && last.start + last.bytes == start
        {
            last.bytes += PAGE as u64;
            return;
        }
        self.zeros.push(PageRange {
            space,
            start,
            bytes: PAGE as u64,
        });
    }

    /// Adds the pages of `other`, which fit.
    pub(super) fn append(&mut self, other: &Self, no_checksum: bool) {
        let begin = self.used;
        self.buf[begin..begin + other.used].copy_from_slice(other.bytes());
        for streak in &other.streaks {
            self.note(streak.space, streak.start, streak.pages);
        }
        if !no_checksum {
            self.hash.update(other.bytes());
        }
        self.hashes.extend_from_slice(&other.hashes);
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
        let rules = Rules::default();
        assert_eq!(block.read(&piece(0, 6), &source, &rules).unwrap().zero, 3);
        assert_eq!(block.read(&piece(6, 3), &source, &rules).unwrap().zero, 1);
        assert_eq!(layout(&block), [(1, 2, 0), (5, 3, 2)]);
        let kept: Vec<u8> = block.bytes().chunks(PAGE).map(|p| p[0]).collect();
        assert_eq!(kept, [1, 2, 3, 4, 5]);
        assert_eq!(block.checksum(), xxh3_64(block.bytes()));
    }

    #[test]
    fn appending_moves_the_places() {
        let source = Pages(vec![7, 0, 8, 9]);
        let rules = Rules {
            hash_seed: Some(1),
            ..Rules::default()
        };
        let mut block = Filling::new();
        let mut other = Filling::new();
        block.read(&piece(0, 2), &source, &rules).unwrap();
        other.read(&piece(2, 2), &source, &rules).unwrap();
        assert!(block.has_room_for(&other));
        block.append(&other, false);
        assert_eq!(layout(&block), [(0, 1, 0), (2, 2, 1)]);
        assert_eq!(block.checksum(), xxh3_64(block.bytes()));
        let hashes: Vec<u128> = block
            .bytes()
            .chunks(PAGE)
            .map(|p| page_hash(p, 1))
            .collect();
        assert_eq!(block.hashes(), hashes);
        block.clear();
        assert!(block.bytes().is_empty() && block.streaks().is_empty());
        assert_eq!(block.checksum(), xxh3_64(&[]));
    }

    #[test]
    fn zero_pages_are_noted_where_older_ones_could_show() {
        let source = Pages(vec![0, 0, 1, 0]);
        let rules = Rules {
            note_zeros: true,
            ..Rules::default()
        };
        let mut block = Filling::new();
        assert_eq!(block.read(&piece(0, 4), &source, &rules).unwrap().zero, 3);
        assert_eq!(
            block.take_zeros().collect::<Vec<_>>(),
            [piece(0, 2), piece(3, 1)]
        );
        assert_eq!(layout(&block), [(2, 1, 0)]);
    }
}
