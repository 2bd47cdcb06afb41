//! Writing a page file: read, leave out what needs no room, checksum and write, in one pass over the memory.

mod auto;
mod block;
mod job;
pub(crate) mod options;
mod output;
pub(crate) mod ranges;
mod ring;
pub(crate) mod same;
mod sequence;
mod share;
mod slices;
mod stages;
mod tail;

use crate::aligned::AlignedBuf;
use crate::format::header::Header;
use crate::format::index::{self, RunKind};
use crate::read::compare::Hashes;
use crate::types::{PAGE, PAGE_SIZE};
use crate::{PageFile, PageFileId, PageFileSummary, PageRange, PageSource, Progress, StoreError};
use block::Rules;
use job::Job;
use options::WriteOptions;
use output::{Output, Room};
use same::SamePages;
use sequence::Sequence;
use share::Shared;
use slices::Slices;
use stages::Stages;
use std::fs::File;
use std::path::Path;
use tail::tail;

/// Writes the pages of `ranges` to `out` as a full page file, and waits until it is on stable storage: as
/// [`PageWrite::full`] does.
///
/// # Errors
/// As [`PageWrite::write`].
pub fn write_pages(
    out: File,
    name: &str,
    ranges: &[PageRange],
    source: &dyn PageSource,
    progress: &dyn Progress,
) -> Result<PageFileSummary, StoreError> {
    PageWrite::full(ranges).write(out, name, source, progress)
}

/// A page file to be written: what it holds, and what it builds on.
///
/// A *full* file stands alone: what is not in it is zero. An *incremental* one builds on another (the newest
/// snapshot's, usually) and tells only what has become different since: a page that it does not mention is that
/// of the other file. So whoever writes one mentions every page that
///
/// - has changed, or of which it is not known whether it has ([`PageWrite::changes`]: to be read and stored);
/// - is zero now, as far as that is known without reading ([`PageWrite::zero`]);
/// - was saved and is not to be any more, because it has been unmapped, say ([`PageWrite::gone`]).
///   [`PageFile::outside`] finds these from what there is now.
///
/// ```
/// # use snapify_store::*;
/// # use std::{fs::File, io, path::PathBuf};
/// # struct Memory;
/// # impl PageSource for Memory {
/// #     fn read(&self, _: SpaceId, _: u64, buf: &mut [u8]) -> io::Result<()> { buf.fill(1); Ok(()) }
/// # }
/// # let dir = tempfile::tempdir()?;
/// # let path = |name: &str| dir.path().join(name);
/// # let create = |name: &str| File::create_new(path(name));
/// # let range = |start, bytes| PageRange { space: SpaceId(0), start, bytes };
/// // Memory consists of four pages.
/// let full = write_pages(create("a")?, "a", &[range(0x1000, 0x4000)], &Memory, &())?;
/// // Later the second of them has changed, and the fourth is unmapped.
/// let before = PageFile::open(File::open(path("a"))?, path("a"))?;
/// let gone = before.outside(&[range(0x1000, 0x3000)]);
/// assert_eq!(gone, [range(0x4000, 0x1000)]);
/// let changed = [range(0x2000, 0x1000)];
/// let incremental = PageWrite::changes(full.id(), &changed).gone(&gone);
/// incremental.write(create("b")?, "b", &Memory, &())?;
/// // Both together are the memory as it was then.
/// let newest = PageFile::open(File::open(path("b"))?, path("b"))?;
/// assert_eq!(newest.with_parents(vec![before])?.pages(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct PageWrite<'a> {
    save: &'a [PageRange],
    parent: Option<PageFileId>,
    zero: &'a [PageRange],
    gone: &'a [PageRange],
    same: &'a [SamePages],
    before: Option<&'a PageFile>,
    hash_seed: Option<u64>,
    stands_for: Option<PageFileId>,
    options: WriteOptions,
}

impl<'a> PageWrite<'a> {
    /// A full file of the pages in `ranges`.
    pub fn full(ranges: &'a [PageRange]) -> Self {
        Self {
            save: ranges,
            parent: None,
            zero: &[],
            gone: &[],
            same: &[],
            before: None,
            hash_seed: None,
            stands_for: None,
            options: WriteOptions::default(),
        }
    }

    /// An incremental file on `parent`, with the pages in `ranges`: those that have changed since `parent` was
    /// written, and those of which nobody knows.
    pub fn changes(parent: PageFileId, ranges: &'a [PageRange]) -> Self {
        Self {
            parent: Some(parent),
            ..Self::full(ranges)
        }
    }

    /// An incremental file on `parent`, of which the pages in `ranges` are read and compared with what `parent`
    /// has, by hashes: only those that differ are stored. That takes no knowledge of what has changed, but a
    /// look at all of it; and `parent` must have been written with [`PageWrite::hashes`], or all pages count as
    /// different.
    ///
    /// `parent` comes with those that it builds on ([`PageFile::with_parents`]).
    pub fn compared(parent: &'a PageFile, ranges: &'a [PageRange]) -> Self {
        Self {
            before: Some(parent),
            hash_seed: parent.hash_seed(),
            ..Self::changes(parent.summary().id(), ranges)
        }
    }

    /// Tells that the pages in `ranges` are zero now. They are not read. Of no use in a full file.
    pub fn zero(mut self, ranges: &'a [PageRange]) -> Self {
        self.zero = ranges;
        self
    }

    /// Tells that the pages in `ranges` do not exist any more. Of no use in a full file.
    pub fn gone(mut self, ranges: &'a [PageRange]) -> Self {
        self.gone = ranges;
        self
    }

    /// Tells of pages that they have the content of others, which are among those that are stored (or zero). They are not
    /// read, and stored only once. Such can be in a full file only. Memory that is shared since a fork is told so.
    pub fn same(mut self, pages: &'a [SamePages]) -> Self {
        self.same = pages;
        self
    }

    /// Stores a hash of each page as well, so that later files can be made by [`PageWrite::compared`]. They take
    /// 16 bytes a page. All files of a chain need the same `seed`, chosen at random with the first; one that
    /// was compared has the seed of its parent already.
    pub fn hashes(mut self, seed: u64) -> Self {
        self.hash_seed.get_or_insert(seed);
        self
    }

    /// Compresses, and whatever else there is to choose.
    pub fn options(mut self, options: &WriteOptions) -> Self {
        self.options = *options;
        self
    }

    /// Makes the file take the place of `other`: those that build on that one build on this one.
    pub(crate) fn stands_for(mut self, other: PageFileId) -> Self {
        self.stands_for = Some(other);
        self
    }

    /// Writes the file to `out`, and waits until it is on stable storage.
    ///
    /// `out` is a regular file (written from its beginning; what it held is lost) or anything that takes bytes
    /// in order: a pipe, a socket. `name` is what errors call it. Ranges are page aligned and do not overlap,
    /// whatever list they are in; their order does not matter to the reader. Pages that hold only zeros are
    /// not stored. The same ranges with the same contents give the same bytes, however many workers there are;
    /// but not with [`Compression::Auto`](crate::Compression::Auto), which goes by the clock. Several threads call
    /// `source` and `progress`; `source` may be asked for the same page twice, and has to give the same then.
    ///
    /// # Errors
    /// [`StoreError::Range`] before anything is written; [`StoreError::Source`], [`StoreError::DiskFull`],
    /// [`StoreError::FileSizeLimit`], [`StoreError::IoAt`] and [`StoreError::Cancelled`] leave an incomplete file
    /// that no reader takes for a page file. [`StoreError::IoAt`] and [`StoreError::Damaged`] if hashes to
    /// compare with cannot be read.
    pub fn write(
        &self,
        out: File,
        name: &str,
        source: &dyn PageSource,
        progress: &dyn Progress,
    ) -> Result<PageFileSummary, StoreError> {
        let path = Path::new(name);
        let (zero, gone) = match self.parent {
            Some(_) => (self.zero, self.gone),
            None => (&[][..], &[][..]),
        };
        let slices = Slices::new(self.save, path)?;
        let same = self.same.iter().map(|same| &same.pages);
        ranges::check(self.save.iter().chain(zero).chain(gone).chain(same), path)?;
        same::check(self.same, self.parent.is_none(), path)?;
        let header = self.header();
        let rules = Rules {
            note_zeros: self.parent.is_some(),
            hash_seed: match self.hash_seed {
                // Any will do: what has the same hash is compared.
                None if self.options.shares() => Some(0),
                seed => seed,
            },
            no_checksum: self.options.staged(),
            before: match (self.before, self.hash_seed) {
                (Some(before), Some(seed)) => Some(Hashes::of(before, seed)?),
                _ => None,
            },
        };
        let output = Output::new(out, path)?;
        let room = Room::new(&output, self.most_bytes(&slices))?;
        let first = header.encode();
        if output.in_order() {
            output.write(&first, 0)?;
        }
        let staged = self.options.staged();
        let stages = staged.then(|| Stages::new(&self.options));
        let shared = self.options.shares().then(|| Shared::new(source));
        let sequence = Sequence::new(&output, room, shared, staged);
        let job = Job::new(
            path,
            &slices,
            source,
            &rules,
            progress,
            stages.as_ref(),
            sequence,
        );
        let mut sequence = job.run()?;
        for (list, kind) in [(zero, RunKind::Zero), (gone, RunKind::Gone)] {
            sequence
                .runs
                .extend(list.iter().flat_map(|range| ranges::runs(range, kind)));
        }
        let read = slices.total_bytes() / PAGE_SIZE;
        let (tail, summary) = tail(&mut sequence, header, read, self.same);
        progress.advance(self.same.iter().map(|same| same.pages.bytes).sum());
        sequence.reserve(summary.file_bytes)?;
        if !output.in_order() {
            let mut page = AlignedBuf::new(PAGE);
            page.copy_from_slice(&first);
            output.write(&page, 0)?;
        }
        output.finish(&tail, sequence.offset)?;
        Ok(summary)
    }

    fn header(&self) -> Header {
        let plain = self.parent.is_none()
            && self.hash_seed.is_none()
            && self.stands_for.is_none()
            && self.same.is_empty()
            && !self.options.staged();
        Header {
            version: if plain { 1 } else { 2 },
            parent: self.parent,
            stands_for: self.stands_for,
            hash_seed: self.hash_seed,
            ..Header::PLAIN
        }
    }

    /// The size of the file if every page is stored and no range joins with another.
    fn most_bytes(&self, slices: &Slices<'_>) -> u64 {
        let blocks = slices.count();
        let pages = slices.total_bytes() / PAGE_SIZE;
        let hashes = self.hash_seed.map_or(0, |_| pages);
        let ranges = self.save.len() + self.zero.len() + self.gone.len() + self.same.len();
        let index = index::region_bytes(blocks, ranges as u64 + blocks, hashes);
        PAGE_SIZE
            .saturating_add(slices.total_bytes())
            .saturating_add(index.unwrap_or(u64::MAX))
    }
}
