//! Snapshot directories: the page-file format, the chain of committed points, verification and inspection.
//!
//! The crate knows nothing of processes. Memory enters through a [`PageSource`] and leaves through a
//! [`PageSink`]; everything else is files. The layers, from the bottom:
//!
//! - [`PageWrite`] and [`PageFile`]: one *page file* holds the pages of any number of address spaces and
//!   memory objects, in checksummed blocks with an index at the end; an incremental one only those that have
//!   changed since another was written.
//! - [`Chain`] and [`Staging`]: a directory of numbered *points*; a point is staged, and becomes visible by
//!   one rename once everything in it is on stable storage. It is full or builds on an earlier one.
//! - [`Snapshot`]: one committed point, opened for reading.
//! - [`copy`] brings points to another chain, [`retain`] removes old ones, and [`clean`] those too that newer ones build
//!   on.
//! - [`verify`] and [`inspect`]: reading everything, and reading only what describes it.
//!
//! The exact format is written down in `docs/format.md`.
#![deny(unsafe_code)]

mod aligned;
mod cached;
mod chain;
mod checksum;
mod codec;
mod cpu_time;
mod error;
mod format;
mod read;
mod storage;
mod types;
mod write;

pub use chain::clean::{CleanPlan, CleanReport, clean, clean_plan};
pub use chain::copy::{CopyReport, copy, copy_size, newest};
pub use chain::inspect::{FileReport, InspectReport, MemberReport, PointReport, inspect};
pub use chain::manifest::{FileEntry, FileKind, Manifest, MemberEntry, PointHeader, PointKind};
pub use chain::retain::{Retained, retain};
pub use chain::snapshot::{Member, Snapshot};
pub use chain::staging::{MemberDir, Point, Staging};
pub use chain::verify::{PointVerdict, Problem, VerifyReport, verify};
pub use chain::{Chain, ProgramIdentity};
pub use codec::trial::Trial;
pub use codec::{Codec, Compression};
pub use error::StoreError;
pub use format::index::{Block, Run, RunKind};
pub use format::summary::{PageFileId, PageFileSummary};
pub use read::PageFile;
pub use types::{PAGE_SIZE, PageRange, PageSink, PageSource, Progress, SpaceId};
pub use write::options::WriteOptions;
pub use write::same::SamePages;
pub use write::{PageWrite, write_pages};
