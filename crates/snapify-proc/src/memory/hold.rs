//! Pages that are read while the processes stand still, and kept here until they are written.

use crate::error::ProcError;
use snapify_store::{PageRange, PageSource, SpaceId};
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that one reading thread takes at a time.
const PIECE: u64 = 16 << 20;

/// Pages by where they belong; nothing by default.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pieces: BTreeMap<(SpaceId, u64), Vec<u8>>,
    /// What of the objects is to be written, if they are among these pages.
    objects: Option<Vec<PageRange>>,
}

impl Held {
    /// Reads `wanted`, in several threads.
    ///
    /// # Errors
    /// If a page cannot be read.
    pub(super) fn read(
        wanted: &[PageRange],
        objects: Vec<PageRange>,
        source: &dyn PageSource,
    ) -> Result<Self, ProcError> {
        let none = Self {
            pieces: BTreeMap::new(),
            objects: Some(objects),
        };
        none.read_more(wanted, source)
    }

    /// Reads `wanted`, which is not here yet, as well.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn read_more(
        mut self,
        wanted: &[PageRange],
        source: &dyn PageSource,
    ) -> Result<Self, ProcError> {
        let mut tasks = Vec::new();
        for range in wanted {
            let mut at = 0;
            while at < range.bytes {
                let bytes = (range.bytes - at).min(PIECE);
                tasks.push((range.space, range.start + at, bytes));
                at += bytes;
            }
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new(BTreeMap::new());
        let work = || -> io::Result<()> {
            while let Some(&(space, start, bytes)) = tasks.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let mut piece = vec![0; bytes as usize];
                source.read(space, start, &mut piece)?;
                let mut done = done.lock().unwrap_or_else(|e| e.into_inner());
                done.insert((space, start), piece);
            }
            Ok(())
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let result = match tasks.len().min(processors) {
            0 | 1 => work(),
            threads => std::thread::scope(|scope| {
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                let panicked = || io::Error::other("a reading thread panicked");
                threads
                    .into_iter()
                    .try_for_each(|thread| thread.join().map_err(|_| panicked())?)
            }),
        };
        result.map_err(ProcError::system("read memory that a fork does not copy"))?;
        let done: BTreeMap<_, _> = done.into_inner().unwrap_or_else(|e| e.into_inner());
        self.pieces.extend(done);
        Ok(self)
    }

    /// What of the objects is to be written, if they are among these pages.
    pub(super) fn objects(&self) -> Option<&[PageRange]> {
        self.objects.as_deref()
    }

    /// Fills `buf` with pages from here or, where they are not here, from `source`.
    pub(super) fn read_or(
        &self,
        space: SpaceId,
        start: u64,
        buf: &mut [u8],
        source: &dyn PageSource,
    ) -> io::Result<()> {
        let end = start + buf.len() as u64;
        let mut at = start;
        while at < end {
            let before = self.pieces.range(..=(space, at)).next_back();
            let rest = &mut buf[(at - start) as usize..];
            let here =
                before.filter(|((of, from), piece)| *of == space && at < from + piece.len() as u64);
            if let Some(((_, from), piece)) = here {
                let piece = &piece[(at - from) as usize..];
                let bytes = piece.len().min(rest.len());
                rest[..bytes].copy_from_slice(&piece[..bytes]);
                at += bytes as u64;
                continue;
            }
            let next = self.pieces.range((space, at)..=(space, end)).next();
            let until = next.map_or(end, |((_, from), _)| *from).min(end);
            let bytes = (until - at) as usize;
            source.read(space, at, &mut rest[..bytes])?;
            at = until;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte tells its space and page, plus what is added.
    struct Pattern(u8);

    impl PageSource for Pattern {
        fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
            for (byte, at) in buf.iter_mut().zip(start..) {
                *byte = (at / 4096) as u8 + space.0 as u8 * 16 + self.0;
            }
            Ok(())
        }
    }

    #[test]
    fn what_is_held_stays_and_the_rest_is_read_later() {
        let range = |space, page: u64, pages: u64| PageRange {
            space: SpaceId(space),
            start: page * 4096,
            bytes: pages * 4096,
        };
        let held = Held::read(
            &[range(0, 2, 2), range(0, 5, 1), range(1, 0, 1)],
            vec![range(1, 0, 1)],
            &Pattern(0),
        )
        .unwrap();
        let mut buf = vec![0; 8 * 4096];
        held.read_or(SpaceId(0), 0, &mut buf, &Pattern(100))
            .unwrap();
        let pages: Vec<u8> = buf.iter().step_by(4096).copied().collect();
        assert_eq!(pages, [100, 101, 2, 3, 104, 5, 106, 107]);
        held.read_or(SpaceId(1), 0, &mut buf[..8192], &Pattern(100))
            .unwrap();
        assert_eq!((buf[0], buf[4096]), (16, 117));
        held.read_or(SpaceId(0), 3 * 4096, &mut buf[..4096], &Pattern(100))
            .unwrap();
        assert_eq!(buf[0], 3);
    }
}
