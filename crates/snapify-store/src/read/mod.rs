//! Reading a page file, and those that it builds on.

mod alike;
mod blocks;
pub(crate) mod compare;
mod cover;
mod fill;
mod layer;
mod sample;
pub(crate) mod source;

use crate::format::index::{Block, Run, RunKind};
use crate::write::ranges::runs;
use crate::{
    Codec, Compression, PageFileId, PageFileSummary, PageRange, PageSink, Progress, SpaceId,
    StoreError,
};
use cover::Cover;
use layer::Layer;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A page file that is open, and whose header, index and trailer have been verified.
///
/// An incremental one needs those that it builds on before its pages can be read: [`PageFile::with_parents`]
/// joins them to one. [`Member::pages`](crate::Member::pages) does so for the files of a snapshot.
pub struct PageFile {
    /// From the newest to the oldest; at least one. An older one lists only what no newer one speaks of.
    layers: Vec<Layer>,
}

impl PageFile {
    /// Opens the page file `file`, a regular file open for reading; `name` is what errors call it.
    ///
    /// Reads and verifies everything but the blocks: their contents are verified as they are read.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the file is not sound, [`StoreError::Newer`] if it is of a version or has
    /// features not known here, [`StoreError::Io`] and [`StoreError::IoAt`] if it cannot be read.
    pub fn open(file: File, name: PathBuf) -> Result<Self, StoreError> {
        Ok(Self {
            layers: vec![Layer::open(file, name)?],
        })
    }

    /// Opens a page file with those that it builds on: `files`, from the newest to a full one. All are called `name` in errors.
    ///
    /// # Errors
    /// As [`PageFile::open`] and [`PageFile::with_parents`]; [`StoreError::Missing`] if there are no files.
    pub fn open_chain(files: Vec<File>, name: &Path) -> Result<Self, StoreError> {
        let mut files = files
            .into_iter()
            .map(|file| Self::open(file, name.to_owned()));
        let newest = files.next().ok_or_else(|| StoreError::Missing {
            path: name.to_owned(),
        })??;
        newest.with_parents(files.collect::<Result<_, _>>()?)
    }

    /// Puts this incremental file on those that it builds on: `parents`, the one that it names first, down to a
    /// full one. Without parents nothing changes. Of every page the newest version counts; nothing else of
    /// the older files is read any more.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if one of them is not the file that the one before it names, or is more than it
    /// builds on.
    pub fn with_parents(mut self, parents: Vec<Self>) -> Result<Self, StoreError> {
        let mut cover = Cover::default();
        for layer in &self.layers {
            cover.add(&layer.index.runs);
        }
        for mut layer in parents.into_iter().flat_map(|parent| parent.layers) {
            if self.needs().is_none_or(|id| layer.summary.id() != id) {
                return Err(StoreError::damaged(
                    layer.path(),
                    0,
                    format!(
                        "it is not the page file that {} builds on",
                        self.last().path().display()
                    ),
                ));
            }
            let mut left = cover.uncovered(&layer.index.runs);
            cover.add(&layer.index.runs);
            left.retain(|run| run.place().is_some());
            layer.keep(left);
            self.layers.push(layer);
        }
        Ok(self)
    }

    /// The file that is still missing below the last one: `None` once everything is there.
    #[must_use]
    pub fn needs(&self) -> Option<PageFileId> {
        self.last().header.parent
    }

    /// The figures of the file itself.
    #[must_use]
    pub fn summary(&self) -> &PageFileSummary {
        &self.newest().summary
    }

    /// What the file itself says of pages, in the order of spaces and addresses.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.newest().index.runs
    }

    /// The blocks of the file itself, in the order of the file.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.newest().index.blocks
    }

    /// What errors call the file.
    #[must_use]
    pub fn name(&self) -> &Path {
        self.newest().path()
    }

    /// Number of files that pages come from: 1 for a full one.
    #[must_use]
    pub fn files(&self) -> usize {
        self.layers.len()
    }

    /// Bytes of pages of `space` that [`PageFile::fill`] puts into place.
    #[must_use]
    pub fn bytes(&self, space: SpaceId) -> u64 {
        self.layers.iter().map(|layer| layer.bytes(space)).sum()
    }

    /// Pages that [`PageFile::fill`] puts into place.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.layers.iter().map(Layer::pages).sum()
    }

    /// The seed of the page hashes in the file itself, if it has any.
    #[must_use]
    pub fn hash_seed(&self) -> Option<u64> {
        self.newest().header.hash_seed
    }

    /// What [`PageFile::fill`] puts into place outside of `ranges`, which do not overlap: if they are all there is
    /// now, these pages are gone.
    #[must_use]
    pub fn outside(&self, ranges: &[PageRange]) -> Vec<PageRange> {
        let mut now: Vec<Run> = ranges
            .iter()
            .flat_map(|range| runs(range, RunKind::Zero))
            .collect();
        now.sort_unstable_by_key(|run| (run.space, run.start));
        let mut cover = Cover::default();
        cover.add(&now);
        let mut outside: Vec<Run> = Vec::new();
        for layer in &self.layers {
            let left = cover.uncovered(&layer.index.runs);
            outside.extend(left.into_iter().filter(|run| run.place().is_some()));
        }
        outside.sort_unstable_by_key(|run| (run.space, run.start));
        let mut joined: Vec<PageRange> = Vec::new();
        for run in outside {
            match joined.last_mut() {
                Some(last) if (last.space, last.start + last.bytes) == (run.space, run.start) => {
                    last.bytes += run.bytes();
                }
                _ => joined.push(PageRange {
                    space: run.space,
                    start: run.start,
                    bytes: run.bytes(),
                }),
            }
        }
        joined
    }

    /// Puts every page into its place in `sink`, each once. Pages that are not stored are zero, and `sink` is
    /// not told of them: it begins as fresh memory does. A block reaches `sink` only after its checksum has
    /// been verified. Several threads call `sink` and `progress`.
    ///
    /// # Errors
    /// [`StoreError::Incomplete`] for an incremental file without those that it builds on. The first of
    /// [`StoreError::Damaged`] (naming the block's place), [`StoreError::Sink`], [`StoreError::IoAt`] and
    /// [`StoreError::Cancelled`]; all threads have stopped by then.
    pub fn fill(&self, sink: &dyn PageSink, progress: &dyn Progress) -> Result<(), StoreError> {
        self.fill_spaces(&|_| true, sink, progress)
    }

    /// As [`PageFile::fill`], for the pages of the spaces that `wanted` picks. Blocks that hold none of
    /// those are not read.
    ///
    /// # Errors
    /// As [`PageFile::fill`].
    pub fn fill_spaces(
        &self,
        wanted: &(dyn Fn(SpaceId) -> bool + Sync),
        sink: &dyn PageSink,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        self.fill_runs(&|run| wanted(run.space), sink, progress)
    }

    /// As [`PageFile::fill`], for the runs that `wanted` picks. Blocks that hold none of those are not read.
    ///
    /// # Errors
    /// As [`PageFile::fill`].
    pub fn fill_runs(
        &self,
        wanted: &(dyn Fn(&Run) -> bool + Sync),
        sink: &dyn PageSink,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        if let Some(parent) = self.needs() {
            return Err(StoreError::Incomplete {
                path: self.last().path().to_owned(),
                parent,
            });
        }
        fill::fill(&self.layers, wanted, Some(sink), progress)
    }

    /// Reads every block of the file itself and verifies its checksum; those that it builds on are not looked
    /// at.
    ///
    /// # Errors
    /// As [`PageFile::fill`].
    pub fn verify(&self, progress: &dyn Progress) -> Result<(), StoreError> {
        fill::fill(&self.layers[..1], &|_| true, None, progress)
    }

    /// What most blocks of the oldest and largest file were compressed with. Levels are not recorded.
    pub(crate) fn compression(&self) -> Compression {
        let blocks = &self.last().index.blocks;
        let of = |codec| blocks.iter().filter(|block| block.codec == codec).count();
        let all = [
            (Codec::None, Compression::None),
            (Codec::Lz4, Compression::Lz4),
            (Codec::Zstd, Compression::Zstd { level: 1 }),
            (Codec::Deflate, Compression::Deflate { level: 6 }),
        ];
        let most = all.into_iter().max_by_key(|(codec, _)| of(*codec));
        most.map_or(Compression::None, |(_, compression)| compression)
    }

    fn newest(&self) -> &Layer {
        &self.layers[0]
    }

    fn last(&self) -> &Layer {
        &self.layers[self.layers.len() - 1]
    }
}

impl fmt::Debug for PageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageFile")
            .field("name", &self.name())
            .field("summary", &self.summary())
            .field("files", &self.files())
            .finish_non_exhaustive()
    }
}

/// Fills `buf` from `offset`. A file that ends before is damaged.
fn read_at(file: &File, buf: &mut [u8], offset: u64, path: &Path) -> Result<(), StoreError> {
    file.read_exact_at(buf, offset).map_err(|source| {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            return StoreError::damaged(path, offset, "the file ends before it should");
        }
        StoreError::IoAt {
            operation: "read",
            path: path.to_owned(),
            offset,
            source,
        }
    })
}
