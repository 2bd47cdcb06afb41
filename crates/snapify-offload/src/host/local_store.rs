//! Which parts of a local store are buffers. The host library decides alone: making a buffer costs no message.
//!
//! Small buffers come from slabs of one size each; larger ones are whole pages, the first place that fits.
//! Memory of the card is set aside before a buffer is handed out. A freed buffer keeps it for the next one, up
//! to a limit; a pause and a full card give back what no buffer uses, so that snapshots do not hold it.

use super::ranges::RangeSet;
use crate::layout::{BUFFERS, STORE_BYTES};
use snapify_fabric::{SharedFile, WindowError};
use std::collections::{BTreeMap, HashMap};

const PAGE: u64 = 4096;

/// Sizes of small buffers. All are multiples of a cache line, which is what buffers are aligned to.
const CLASSES: [u64; 9] = [64, 128, 192, 256, 384, 512, 1024, 2048, 3072];

/// Small buffers are cut from pieces of this size.
const SLAB: u64 = 64 << 10;

/// Why there is no buffer.
#[derive(Debug)]
pub enum StoreError {
    /// The card is full.
    Full,
    /// No buffer starts there.
    NoBuffer,
    /// The file system failed.
    Window(WindowError),
}

impl From<WindowError> for StoreError {
    fn from(error: WindowError) -> Self {
        match error {
            WindowError::NoSpace { .. } => Self::Full,
            other => Self::Window(other),
        }
    }
}

/// The buffers of a local store, by offset.
#[derive(Debug)]
pub struct LocalStore {
    /// Free ranges: start and end, neighbours merged.
    free: RangeSet,
    /// Buffers by start.
    buffers: HashMap<u64, Buffer>,
    /// Pieces in use by start (large buffers and slabs), to check ranges: start and end.
    pieces: BTreeMap<u64, u64>,
    /// Free places of each class.
    slots: [Vec<u64>; CLASSES.len()],
    /// What has memory set aside.
    backed: RangeSet,
    /// Bytes in `backed` that no piece uses.
    idle: u64,
    /// How many of them are kept for the next buffer.
    keep_idle: u64,
}

#[derive(Clone, Copy, Debug)]
enum Buffer {
    /// A slot of a slab of this class.
    Small(usize),
    /// A piece of its own with so many bytes.
    Large(u64),
}

impl LocalStore {
    /// An empty store on a card with so much memory.
    pub fn new(memory: u64) -> Self {
        let mut free = RangeSet::default();
        free.insert(BUFFERS, STORE_BYTES);
        Self {
            free,
            buffers: HashMap::new(),
            pieces: BTreeMap::new(),
            slots: Default::default(),
            backed: RangeSet::default(),
            idle: 0,
            keep_idle: memory / 4,
        }
    }

    /// Makes a buffer and returns its offset.
    pub fn allocate(&mut self, file: &SharedFile, bytes: u64) -> Result<u64, StoreError> {
        if let Some(class) = CLASSES.iter().position(|&size| bytes <= size) {
            return self.allocate_small(file, class);
        }
        let bytes = bytes
            .checked_next_multiple_of(PAGE)
            .ok_or(StoreError::Full)?;
        let offset = self.take_piece(file, bytes)?;
        self.buffers.insert(offset, Buffer::Large(bytes));
        Ok(offset)
    }

    fn allocate_small(&mut self, file: &SharedFile, class: usize) -> Result<u64, StoreError> {
        if self.slots[class].is_empty() {
            let slab = self.take_piece(file, SLAB)?;
            let size = CLASSES[class];
            // Backwards, so that the lowest is handed out first.
            self.slots[class].extend((0..SLAB / size).rev().map(|slot| slab + slot * size));
        }
        let offset = self.slots[class].pop().ok_or(StoreError::Full)?;
        self.buffers.insert(offset, Buffer::Small(class));
        Ok(offset)
    }

    /// Frees a buffer by its start.
    pub fn free(&mut self, file: &SharedFile, offset: u64) -> Result<(), StoreError> {
        match self.buffers.remove(&offset).ok_or(StoreError::NoBuffer)? {
            Buffer::Small(class) => self.slots[class].push(offset),
            Buffer::Large(bytes) => {
                self.pieces.remove(&offset);
                self.free.insert(offset, offset + bytes);
                self.idle += bytes;
                if self.idle > self.keep_idle {
                    self.give_back(file, offset, offset + bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a range lies within one buffer, or within buffers of one slab.
    pub fn covers(&self, offset: u64, bytes: u64) -> bool {
        let end = offset.checked_add(bytes);
        let piece = self.pieces.range(..=offset).next_back();
        piece.is_some_and(|(_, &to)| end.is_some_and(|end| end <= to))
    }

    /// Bytes that buffers take.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.pieces.iter().map(|(start, end)| end - start).sum()
    }

    /// Gives back all memory that no buffer uses.
    pub fn trim(&mut self, file: &SharedFile) -> Result<(), StoreError> {
        let free: Vec<_> = self.free.iter().collect();
        free.into_iter()
            .try_for_each(|(start, end)| self.give_back(file, start, end))
    }

    /// Sets memory aside again for all buffers, in a file that came from a snapshot: parts of them that were
    /// never written are holes there.
    pub fn restore(&mut self, file: &SharedFile) -> Result<(), StoreError> {
        for (&start, &end) in &self.pieces {
            file.reserve(start, end - start)?;
        }
        Ok(())
    }

    fn take_piece(&mut self, file: &SharedFile, bytes: u64) -> Result<u64, StoreError> {
        let fits = |&(start, end): &(u64, u64)| end - start >= bytes;
        // A place that has its memory already is better than one that has not.
        let backed = self
            .free
            .iter()
            .filter(fits)
            .find(|&(start, _)| self.backed.contains(start, start + bytes));
        let (start, _) = backed
            .or_else(|| self.free.iter().find(fits))
            .ok_or(StoreError::Full)?;
        let end = start + bytes;
        match self.back(file, start, end) {
            Err(StoreError::Full) => {
                // What was set aside for nobody may be enough.
                self.trim(file)?;
                self.back(file, start, end)?;
            }
            other => other?,
        }
        self.free.remove(start, end);
        self.pieces.insert(start, end);
        self.idle -= bytes;
        Ok(start)
    }

    /// Sets memory aside for a free range, all or nothing.
    fn back(&mut self, file: &SharedFile, start: u64, end: u64) -> Result<(), StoreError> {
        for (from, to) in self.backed.missing(start, end) {
            if let Err(error) = file.reserve(from, to - from) {
                // Part of it may be there.
                file.discard(from, to - from)?;
                return Err(error.into());
            }
            self.backed.insert(from, to);
            self.idle += to - from;
        }
        Ok(())
    }

    /// Gives back the memory of a free range.
    fn give_back(&mut self, file: &SharedFile, start: u64, end: u64) -> Result<(), StoreError> {
        for (from, to) in self.backed.within(start, end) {
            file.discard(from, to - from)?;
            self.backed.remove(from, to);
            self.idle -= to - from;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn file() -> SharedFile {
        SharedFile::create_in(Path::new("/dev/shm"), STORE_BYTES).unwrap()
    }

    #[test]
    fn buffers_are_aligned_disjoint_and_backed() {
        let file = file();
        let mut store = LocalStore::new(64 << 20);
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if live.len() > 60 || (seed >> 62 == 0 && !live.is_empty()) {
                let (&offset, _) = live
                    .range((seed >> 20) % (8 << 20)..)
                    .next()
                    .or(live.iter().next())
                    .unwrap();
                live.remove(&offset);
                store.free(&file, offset).unwrap();
                assert!(matches!(
                    store.free(&file, offset),
                    Err(StoreError::NoBuffer)
                ));
                continue;
            }
            let bytes = match seed >> 62 {
                1 => (seed >> 30) % 5000,
                2 => (seed >> 30) % 100_000,
                _ => (seed >> 30) % 100,
            };
            let offset = store.allocate(&file, bytes).unwrap();
            assert!(offset >= BUFFERS);
            assert_eq!(offset % if bytes > 3072 { 4096 } else { 64 }, 0);
            let end = offset + bytes.max(1);
            assert!(
                live.range(..end)
                    .next_back()
                    .is_none_or(|(_, &to)| to <= offset)
            );
            live.insert(offset, end);
            assert!(store.covers(offset, bytes));
            assert!(store.backed.contains(offset, end));
            assert!(!store.covers(offset, 1 << 30) && !store.covers(offset, u64::MAX));
        }
        for offset in live.keys() {
            store.free(&file, *offset).unwrap();
        }
        store.trim(&file).unwrap();
        assert_eq!(store.idle, 0);
        assert_eq!(file.allocated().unwrap(), store.used());
        assert_eq!(store.pieces.len() as u64 * SLAB, store.used());
    }

    #[test]
    fn memory_is_kept_for_the_next_buffer_up_to_a_limit() {
        let file = file();
        let mut store = LocalStore::new(64 << 20);
        let small = store.allocate(&file, 8 << 20).unwrap();
        let large = store.allocate(&file, 32 << 20).unwrap();
        store.free(&file, small).unwrap();
        assert_eq!(file.allocated().unwrap(), 40 << 20);
        assert_eq!(store.allocate(&file, 4 << 20).unwrap(), small);
        assert_eq!(file.allocated().unwrap(), 40 << 20);
        store.free(&file, large).unwrap();
        assert_eq!(file.allocated().unwrap(), 8 << 20);
        store.trim(&file).unwrap();
        assert_eq!(file.allocated().unwrap(), 4 << 20);
    }
}
