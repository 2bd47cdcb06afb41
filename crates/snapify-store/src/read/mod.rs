//! Reading a page file.

mod blocks;
mod fill;

use crate::checksum::Xxh3;
use crate::format::header::Header;
use crate::format::index::{Block, Decoder, ENTRY, Index, Run};
use crate::format::trailer::{self, Trailer};
use crate::types::{PAGE, PAGE_SIZE};
use crate::{PageFileSummary, PageSink, Progress, SpaceId, StoreError};
use blocks::BlockReader;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of the index that are read at a time.
const CHUNK: usize = 1 << 20;

/// A page file that is open, and whose header, index and trailer have been verified.
pub struct PageFile {
    reader: BlockReader,
    summary: PageFileSummary,
    index: Index,
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
        let path = name.as_path();
        let meta = file.metadata().map_err(StoreError::io("look at", path))?;
        if !meta.is_file() {
            return Err(StoreError::damaged(path, 0, "it is not a regular file"));
        }
        let bytes = meta.len();
        if bytes < PAGE_SIZE + trailer::BYTES as u64 {
            return Err(StoreError::damaged(
                path,
                bytes,
                "it is too short for a page file: cut off, or never completed",
            ));
        }
        let mut first = [0; PAGE];
        read_at(&file, &mut first, 0, path)?;
        let header = Header::decode(&first, path)?;
        let mut last = [0; trailer::BYTES];
        read_at(&file, &mut last, bytes - trailer::BYTES as u64, path)?;
        let trailer = Trailer::decode(&last, bytes, header, path)?;
        let index = read_index(&file, path, &first, header, &trailer)?;
        let summary = trailer.summary;
        let stored: u64 = index.runs.iter().map(|run| u64::from(run.pages)).sum();
        if stored != summary.pages_stored {
            return Err(StoreError::damaged(
                path,
                bytes - trailer::BYTES as u64,
                "the page count does not match the index",
            ));
        }
        Ok(Self {
            reader: BlockReader::new(file, name),
            summary,
            index,
        })
    }

    /// The figures of the file.
    #[must_use]
    pub fn summary(&self) -> &PageFileSummary {
        &self.summary
    }

    /// What is stored, in the order of spaces and addresses.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.index.runs
    }

    /// The blocks, in the order of the file.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.index.blocks
    }

    /// What errors call the file.
    #[must_use]
    pub fn name(&self) -> &Path {
        self.reader.path()
    }

    /// Bytes of pages that are stored of `space`.
    #[must_use]
    pub fn bytes(&self, space: SpaceId) -> u64 {
        let runs = &self.index.runs;
        let begin = runs.partition_point(|run| run.space < space);
        runs[begin..]
            .iter()
            .take_while(|run| run.space == space)
            .map(Run::bytes)
            .sum()
    }

    /// Puts every page into its place in `sink`. Pages that are not stored are zero, and `sink` is not told
    /// of them: it begins as fresh memory does. A block reaches `sink` only after its checksum has been
    /// verified. Several threads call `sink` and `progress`.
    ///
    /// # Errors
    /// The first of [`StoreError::Damaged`] (naming the block's place), [`StoreError::Sink`],
    /// [`StoreError::IoAt`] and [`StoreError::Cancelled`]; all threads have stopped by then.
    pub fn fill(&self, sink: &dyn PageSink, progress: &dyn Progress) -> Result<(), StoreError> {
        fill::fill(&self.reader, &self.index, &|_| true, Some(sink), progress)
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
        fill::fill(&self.reader, &self.index, wanted, Some(sink), progress)
    }

    /// Reads every block and verifies its checksum.
    ///
    /// # Errors
    /// As [`PageFile::fill`].
    pub fn verify(&self, progress: &dyn Progress) -> Result<(), StoreError> {
        fill::fill(&self.reader, &self.index, &|_| true, None, progress)
    }
}

impl fmt::Debug for PageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageFile")
            .field("name", &self.name())
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

/// Reads the index. Its checksum is verified before any of it is decoded, and it is decoded as it is read,
/// so that the memory it takes is bounded by sound entries really found in the file.
fn read_index(
    file: &File,
    path: &Path,
    first: &[u8; PAGE],
    header: Header,
    trailer: &Trailer,
) -> Result<Index, StoreError> {
    let begin = trailer.index_offset;
    let end = trailer.summary.file_bytes - trailer::BYTES as u64;
    let mut hash = Xxh3::new();
    hash.update(first);
    each_chunk(file, path, begin, end, |chunk, _| {
        hash.update(chunk);
        Ok(())
    })?;
    if hash.digest() != trailer.summary.index_checksum {
        return Err(StoreError::damaged(
            path,
            begin,
            "the index's checksum does not match",
        ));
    }
    let (blocks, runs) = (trailer.summary.blocks, trailer.summary.runs);
    let mut decoder = Decoder::new(path, header, begin, blocks);
    let padding = begin + (blocks + runs) * ENTRY as u64;
    each_chunk(file, path, begin, end, |chunk, offset| {
        for (entry, at) in chunk
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .zip((offset..).step_by(ENTRY))
        {
            if at < padding {
                decoder.entry(entry, at)?;
            } else if entry.iter().any(|&b| b != 0) {
                return Err(StoreError::damaged(path, at, "the padding is in use"));
            }
        }
        Ok(())
    })?;
    decoder.finish()
}

/// Reads the file from `begin` to `end`, in chunks of whole entries.
fn each_chunk(
    file: &File,
    path: &Path,
    begin: u64,
    end: u64,
    mut take: impl FnMut(&[u8], u64) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut buf = vec![0; CHUNK.min((end - begin) as usize)];
    let mut at = begin;
    while at < end {
        let part = buf.len().min((end - at) as usize);
        read_at(file, &mut buf[..part], at, path)?;
        take(&buf[..part], at)?;
        at += part as u64;
    }
    Ok(())
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
