//! One page file of a chain, open and with its index verified.

use super::blocks::BlockReader;
use super::read_at;
use crate::checksum::Xxh3;
use crate::format::header::Header;
use crate::format::index::{Decoder, ENTRY, HASH, Index, Run};
use crate::format::trailer::{self, Trailer};
use crate::types::{PAGE, PAGE_SIZE};
use crate::{PageFileSummary, SpaceId, StoreError};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Bytes of the index that are read at a time.
const CHUNK: usize = 1 << 20;

/// A page file. Once it is part of a chain, its index lists only what no newer file speaks of.
pub(super) struct Layer {
    pub(super) reader: BlockReader,
    pub(super) header: Header,
    pub(super) summary: PageFileSummary,
    pub(super) index: Index,
    hashes_at: u64,
}

impl Layer {
    /// Reads and verifies everything but the blocks.
    pub(super) fn open(file: File, name: PathBuf) -> Result<Self, StoreError> {
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
        let miscounted = |what| {
            let at = bytes - trailer::BYTES as u64;
            Err(StoreError::damaged(path, at, what))
        };
        let stored: u64 = (index.blocks.iter())
            .map(|block| u64::from(block.raw_bytes) / PAGE_SIZE)
            .sum();
        // Neither sum can overflow: there are fewer than 2^32 runs of fewer than 2^32 pages.
        if stored != summary.pages_stored
            || Some(data_pages(&index.runs)) != stored.checked_add(summary.pages_shared)
        {
            return miscounted("the page count does not match the index");
        }
        let entries = (summary.blocks + summary.runs) * ENTRY as u64;
        Ok(Self {
            reader: BlockReader::new(file, name),
            header,
            summary,
            index,
            hashes_at: trailer.index_offset + entries,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.reader.path()
    }

    /// Bytes of pages of `space` that are to be had from here.
    pub(super) fn bytes(&self, space: SpaceId) -> u64 {
        let runs = &self.index.runs;
        let begin = runs.partition_point(|run| run.space < space);
        runs[begin..]
            .iter()
            .take_while(|run| run.space == space)
            .filter(|run| run.place().is_some())
            .map(Run::bytes)
            .sum()
    }

    /// Pages that are to be had from here.
    pub(super) fn pages(&self) -> u64 {
        data_pages(&self.index.runs)
    }

    /// Keeps only `runs`, which are parts of those in the index.
    pub(super) fn keep(&mut self, runs: Vec<Run>) {
        let blocks = std::mem::take(&mut self.index.blocks);
        self.index = Index::new(blocks, runs);
    }

    /// The hashes of all stored pages, in the order of blocks; none if the file has none.
    pub(super) fn hashes(&self) -> Result<Vec<u128>, StoreError> {
        let mut hashes = Vec::new();
        if self.header.hash_seed.is_none() {
            return Ok(hashes);
        }
        // The trailer was checked: the file is as long as that.
        let end = self.hashes_at + self.summary.pages_stored * HASH as u64;
        let file = self.reader.file();
        each_chunk(file, self.path(), self.hashes_at, end, |chunk, _| {
            hashes.extend(
                chunk
                    .as_chunks::<HASH>()
                    .0
                    .iter()
                    .map(|h| u128::from_le_bytes(*h)),
            );
            Ok(())
        })?;
        Ok(hashes)
    }
}

fn data_pages(runs: &[Run]) -> u64 {
    let data = runs.iter().filter(|run| run.place().is_some());
    data.map(|run| u64::from(run.pages)).sum()
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
    let hashes = begin + (blocks + runs) * ENTRY as u64;
    let count = header.hash_seed.map_or(0, |_| trailer.summary.pages_stored);
    let padding = hashes + count * HASH as u64;
    each_chunk(file, path, begin, hashes, |chunk, offset| {
        let entries = chunk.as_chunks::<ENTRY>().0.iter();
        for (entry, at) in entries.zip((offset..).step_by(ENTRY)) {
            decoder.entry(entry, at)?;
        }
        Ok(())
    })?;
    each_chunk(file, path, padding, end, |chunk, at| {
        if chunk.iter().any(|&b| b != 0) {
            return Err(StoreError::damaged(path, at, "the padding is in use"));
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
    let mut buf = vec![0; (end - begin).min(CHUNK as u64) as usize];
    let mut at = begin;
    while at < end {
        let part = (end - at).min(buf.len() as u64) as usize;
        read_at(file, &mut buf[..part], at, path)?;
        take(&buf[..part], at)?;
        at += part as u64;
    }
    Ok(())
}
