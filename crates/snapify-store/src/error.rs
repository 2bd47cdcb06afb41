//! What can go wrong with a snapshot directory or a page file.

use crate::{PageFileId, SpaceId};
use std::io;
use std::path::{Path, PathBuf};

/// An operation of the store that failed, with what was tried and on what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The kernel refused an operation on a file or directory.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried, as it completes "cannot ...".
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A read or write at a known place of a file failed.
    #[error("cannot {operation} {} at offset {offset}", path.display())]
    IoAt {
        /// What was tried, as it completes "cannot ...".
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Byte offset in it.
        offset: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// There is no room left (or the quota is used up) where the file is written.
    #[error("the disk is full: {} needs to grow to {needed} bytes, {} bytes are free there",
            path.display(), available.map_or_else(|| "an unknown number of".into(), |b| b.to_string()))]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Size in bytes it was to have at least.
        needed: u64,
        /// Bytes that were still free on that file system, where it says so.
        available: Option<u64>,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The process's own limit on file sizes is too low.
    #[error("{} would grow to {needed} bytes, over this process's file size limit of {limit} bytes", path.display())]
    FileSizeLimit {
        /// The file.
        path: PathBuf,
        /// Size in bytes it was to have at least.
        needed: u64,
        /// RLIMIT_FSIZE in bytes.
        limit: u64,
    },
    /// The memory to be saved could not be read.
    #[error("cannot read {bytes} bytes at {start:#x} of memory {space} for {}", path.display())]
    Source {
        /// The page file being written.
        path: PathBuf,
        /// The space read from.
        space: SpaceId,
        /// Address or offset in it.
        start: u64,
        /// Length in bytes.
        bytes: u64,
        /// The source's reason.
        source: io::Error,
    },
    /// Pages of a page file could not be put into place.
    #[error("cannot put {bytes} bytes at {start:#x} of memory {space}, from block {block} of {} at offset {offset}", path.display())]
    Sink {
        /// The page file being read.
        path: PathBuf,
        /// The block that holds the pages.
        block: usize,
        /// Byte offset of that block in the file.
        offset: u64,
        /// The space written to.
        space: SpaceId,
        /// Address or offset in it.
        start: u64,
        /// Length in bytes.
        bytes: u64,
        /// The sink's reason.
        source: io::Error,
    },
    /// A range handed to the writer is not page aligned, wraps around or overlaps another.
    #[error("cannot save {bytes} bytes at {start:#x} of memory {space} in {}: {reason}", path.display())]
    Range {
        /// The page file to be written.
        path: PathBuf,
        /// The range's space.
        space: SpaceId,
        /// Its start.
        start: u64,
        /// Its length in bytes.
        bytes: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file does not hold what it must: flipped bits, a cut, bytes that do not belong there.
    #[error("{} is damaged at offset {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Byte offset of the damage, or of the smallest unit known to hold it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The file is of a version, or uses a feature, that this program does not know.
    #[error("{} was written by a newer snapify: it has {found}, this one reads {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// What it has ("page file version 3").
        found: String,
        /// What is known here ("versions up to 1").
        known: String,
    },
    /// An incremental page file was to be read without one that it builds on.
    #[error("{} is incremental, and the page file {parent} that it builds on is not at hand", path.display())]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The one that is missing.
        parent: PageFileId,
    },
    /// A point cannot be used, or one that it builds on.
    #[error("snapshot {point} in {} cannot be used{}; {}", dir.display(),
            if link == point { String::new() } else { format!(", for it builds on {link}, which cannot") },
            match whole {
                Some(whole) => format!("the newest one that is whole is {whole} (restart --at {whole})"),
                None => "none in it is whole".into(),
            })]
    Broken {
        /// The chain's directory.
        dir: PathBuf,
        /// Number of the point that was asked for.
        point: u32,
        /// Number of the point that is not as it should be.
        link: u32,
        /// The newest point that is whole, as far as that shows without reading pages.
        whole: Option<u32>,
        /// What is wrong with it.
        source: Box<StoreError>,
    },
    /// A file that the manifest lists is not there.
    #[error("{} is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The directory holds something, but no chain.
    #[error("{} is no snapshot directory: it holds {found:?}", dir.display())]
    NotAChain {
        /// The directory.
        dir: PathBuf,
        /// The name of one thing found in it.
        found: String,
    },
    /// The file system lacks something that is needed.
    #[error("the file system of {} cannot {operation}", path.display())]
    Unsupported {
        /// What it cannot do, as it completes "cannot ...".
        operation: &'static str,
        /// A file or directory on it.
        path: PathBuf,
    },
    /// There is nothing at all in the directory.
    #[error("{} holds no snapshot", dir.display())]
    NoSnapshot {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds the chain of another program.
    #[error("{} holds snapshots of another program: {theirs}", dir.display())]
    OtherProgram {
        /// The directory.
        dir: PathBuf,
        /// The command line of that other program.
        theirs: String,
    },
    /// Another checkpoint into the same directory is being written.
    #[error("another checkpoint into {}, or its cleaning, is under way", dir.display())]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
    /// A chain that is to take copies of another's points has one that the other has not.
    #[error("{} has snapshot number {number}, which is not a copy of what is to be copied there", dir.display())]
    Conflict {
        /// The directory.
        dir: PathBuf,
        /// The number of that point.
        number: u32,
    },
    /// The chain has no such point.
    #[error("{} holds no snapshot number {at}; it holds {have}", dir.display())]
    NoPoint {
        /// The directory.
        dir: PathBuf,
        /// The number asked for.
        at: u32,
        /// The numbers there are.
        have: String,
    },
    /// The point has no such member.
    #[error("{} has no member {name:?}", point.display())]
    NoMember {
        /// Directory of the point.
        point: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// A name for a member or a file cannot be used, or is used twice.
    #[error("the name {name:?} cannot be used in {}: {reason}", within.display())]
    Name {
        /// The directory it was meant for.
        within: PathBuf,
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// A file was created in a staging directory but never recorded, so that nothing vouches for it.
    #[error("{} was never completed", path.display())]
    Unrecorded {
        /// The file.
        path: PathBuf,
    },
    /// Metadata could not be turned into JSON, or is not what the reader expects.
    #[error("{} is not what it should be", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The operation's [`Progress`](crate::Progress) asked to stop.
    #[error("cancelled while working on {}", path.display())]
    Cancelled {
        /// The file being worked on.
        path: PathBuf,
    },
}

impl StoreError {
    /// For `map_err`: a kernel error of `operation` on `path`.
    pub(crate) fn io<E: Into<io::Error>>(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source: source.into(),
        }
    }

    /// For `map_err`: as [`StoreError::io`], where absence means that something listed is gone.
    pub(crate) fn io_or_missing<E: Into<io::Error>>(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| {
            let source = source.into();
            if source.kind() == io::ErrorKind::NotFound {
                Self::Missing { path }
            } else {
                Self::Io {
                    operation,
                    path,
                    source,
                }
            }
        }
    }

    /// The message with those of its causes.
    pub(crate) fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// The file it is about, and the offset in it, as far as there is one.
    pub(crate) fn place(&self) -> (Option<&Path>, Option<u64>) {
        match self {
            Self::Broken { source, .. } => source.place(),
            Self::IoAt { path, offset, .. }
            | Self::Sink { path, offset, .. }
            | Self::Damaged { path, offset, .. } => (Some(path), Some(*offset)),
            Self::Io { path, .. }
            | Self::DiskFull { path, .. }
            | Self::FileSizeLimit { path, .. }
            | Self::Source { path, .. }
            | Self::Range { path, .. }
            | Self::Newer { path, .. }
            | Self::Incomplete { path, .. }
            | Self::Missing { path }
            | Self::Unsupported { path, .. }
            | Self::Unrecorded { path }
            | Self::Json { path, .. }
            | Self::Cancelled { path } => (Some(path), None),
            Self::NotAChain { dir, .. }
            | Self::NoSnapshot { dir }
            | Self::OtherProgram { dir, .. }
            | Self::Busy { dir }
            | Self::Conflict { dir, .. }
            | Self::NoPoint { dir, .. } => (Some(dir), None),
            Self::NoMember { point, .. } => (Some(point), None),
            Self::Name { within, .. } => (Some(within), None),
        }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            offset,
            what: what.into(),
        }
    }
}

/// Whether the kernel says that there is no room.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
