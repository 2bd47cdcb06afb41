//! Cleaning: room that superseded versions of pages take is given back, while the program runs and its chain grows.
//!
//! Wang et al. (section 2.3) keep pages in segments as a log-structured file system does, and leave their cleaning to
//! later work. Here a point's page file is a segment. The oldest points that are to stay are made to stand alone: what
//! is live in the segments below them is written anew, as one. What lies below is then needed by nobody, and removed.
//!
//! ```text
//! before:  1 full <- 2 <- 3 <- 4 <- 5            clean, keeping 3 points:
//! after:                  3 full <- 4 <- 5
//! ```
//!
//! The new files of point 3 *stand for* the old ones: those that build on them need not be changed. They are written
//! into a draft, beside the point, and put in its place by one exchange of names; at any moment the point is
//! whole, the old one or the new one. While the draft is written, points can be added; only for the exchange, and to
//! remove what is left over, the writer's lock is held.

use super::copy::files_of;
use super::in_use::InUse;
use super::links::Links;
use super::lock::{ChainLock, CleanerLock};
use super::manifest::{FileEntry, MANIFEST_FILE, Manifest, MemberEntry};
use super::{CLEANING_PREFIX, Contents, files, point_name, retain};
use crate::read::source::Merged;
use crate::{PageWrite, Progress, StoreError, WriteOptions};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// What cleaning a chain would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanPlan {
    /// Numbers of the points that would be made to stand alone.
    pub rewritten: Vec<u32>,
    /// Numbers of the points that would be removed.
    pub removed: Vec<u32>,
    /// Bytes that would be written for that, at most.
    pub bytes_to_write: u64,
    /// Bytes that would be given back, not counting those that are written.
    pub bytes_freed: u64,
}

/// What cleaning a chain has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanReport {
    /// Numbers of the points that were made to stand alone.
    pub rewritten: Vec<u32>,
    /// Numbers of the points that were removed.
    pub removed: Vec<u32>,
    /// Numbers of the points that could not be touched, as they are being read.
    pub in_use: Vec<u32>,
    /// Bytes of all points before.
    pub bytes_before: u64,
    /// Bytes of all points afterwards.
    pub bytes_after: u64,
}

impl CleanPlan {
    /// Whether cleaning is worth its while: it gives back, beyond what it writes, at least half as much as it writes. Whoever
    /// cleans whenever this is so never writes more than twice what is freed, and his chain never takes more than
    /// one and a half times the memory, beside what has changed between the points that he keeps.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let gain = self.bytes_freed.saturating_sub(self.bytes_to_write);
        !(self.removed.is_empty() && self.rewritten.is_empty()) && gain >= self.bytes_to_write / 2
    }
}

/// What [`clean`] would do with the chain in `dir`.
///
/// # Errors
/// As [`clean`].
pub fn clean_plan(dir: &Path, keep: u32) -> Result<CleanPlan, StoreError> {
    let kept = kept(dir, keep)?;
    let mut plan = CleanPlan::default();
    for links in kept.iter().filter(|links| needs_rewriting(links, &kept)) {
        plan.rewritten.push(links.number());
        for (member, entry) in files_of(&links.newest().manifest) {
            if is_incremental(entry) {
                let pages = links.pages(member, &entry.name)?;
                plan.bytes_to_write += pages.pages() * crate::PAGE_SIZE;
                plan.bytes_freed += entry.bytes;
            }
        }
    }
    plan.rewritten.sort_unstable();
    if let Some(oldest) = kept.iter().map(Links::number).min() {
        let points = Contents::of(dir)?.points;
        plan.removed = points.into_iter().filter(|n| *n < oldest).collect();
        for number in &plan.removed {
            plan.bytes_freed += bytes_of_point(dir, *number);
        }
    }
    Ok(plan)
}

/// Cleans the chain in `dir`: of the points that can be restarted from, the `keep` newest (at least one) stay, and what
/// only older ones needed is given back. The oldest that stay are made to stand alone for that. Other points can be
/// written and restarted from meanwhile; what is being restarted from is left as it is.
///
/// For the time being it takes as much room again as the oldest point that stays.
///
/// # Errors
/// [`StoreError::Busy`] if somebody else cleans the chain; [`StoreError::Unsupported`] if the file system cannot exchange two
/// names; [`StoreError::NoSnapshot`] and [`StoreError::NotAChain`] if there is nothing to be cleaned; [`StoreError::DiskFull`],
/// [`StoreError::Source`] (a damaged block, by the place whose pages it holds), [`StoreError::Cancelled`], [`StoreError::Io`].
/// Every point is as it was then, or has been dealt with completely.
pub fn clean(dir: &Path, keep: u32, progress: &dyn Progress) -> Result<CleanReport, StoreError> {
    let cleaner = CleanerLock::acquire(dir)?;
    remove_leftovers(dir)?;
    let mut report = CleanReport {
        bytes_before: bytes_of(dir)?,
        ..CleanReport::default()
    };
    let numbers: Vec<u32> = {
        let kept = kept(dir, keep)?;
        let bases = kept.iter().filter(|links| needs_rewriting(links, &kept));
        bases.map(Links::number).collect()
    };
    for number in numbers.into_iter().rev() {
        // Not to write for nothing.
        if InUse::remove(&dir.join(point_name(number)))?.is_none() {
            report.in_use.push(number);
            continue;
        }
        // What it builds on is held until the draft is complete.
        let links = Links::read(dir, number)?;
        let draft = Draft::write(dir, &links, progress)?;
        drop(links);
        if draft.put_into_place(dir)? {
            report.rewritten.push(number);
        } else {
            report.in_use.push(number);
        }
    }
    let retained = retain::remove_old(dir, keep, ChainLock::wait(dir)?)?;
    report.removed = retained.removed;
    report.in_use.extend(retained.in_use);
    report.in_use.sort_unstable();
    report.bytes_after = bytes_of(dir)?;
    drop(cleaner);
    Ok(report)
}

/// Removes what a cleaner that died has left in `dir`. The caller has the right to clean.
pub(super) fn remove_leftovers(dir: &Path) -> Result<(), StoreError> {
    for name in Contents::of(dir)?.cleaning {
        files::remove(&dir.join(name))?;
    }
    Ok(())
}

/// The newest points that can be restarted from, newest first.
fn kept(dir: &Path, keep: u32) -> Result<Vec<Links>, StoreError> {
    let (_, points) = super::snapshot::chain_in(dir)?;
    let mut kept = Vec::new();
    for number in points.into_iter().rev() {
        if kept.len() >= keep.max(1) as usize {
            break;
        }
        if let Ok(links) = Links::try_read(dir, number) {
            kept.push(links);
        }
    }
    Ok(kept)
}

/// Whether the point builds on one that does not stay.
fn needs_rewriting(links: &Links, kept: &[Links]) -> bool {
    let parent = links.newest().manifest.parent;
    parent.is_some_and(|parent| kept.iter().all(|other| other.number() != parent))
}

fn is_incremental(entry: &FileEntry) -> bool {
    entry.pages.is_some_and(|pages| pages.parent.is_some())
}

fn bytes_of(dir: &Path) -> Result<u64, StoreError> {
    let points = Contents::of(dir)?.points;
    Ok(points.iter().map(|n| bytes_of_point(dir, *n)).sum())
}

/// Bytes of the files of a point, as far as its manifest can be read.
fn bytes_of_point(dir: &Path, number: u32) -> u64 {
    Manifest::read(&dir.join(point_name(number)), number).map_or(0, |(manifest, own)| {
        own + files_of(&manifest).map(|(_, file)| file.bytes).sum::<u64>()
    })
}

/// A point as it is to be, in a folder beside it. Dropping it removes the folder.
struct Draft {
    number: u32,
    folder: PathBuf,
    /// The manifest that the point has.
    old: Vec<u8>,
}

impl Draft {
    /// Writes the point of `links` anew, so that it stands alone.
    fn write(dir: &Path, links: &Links, progress: &dyn Progress) -> Result<Self, StoreError> {
        let point = links.newest();
        let manifest_file = point.folder.join(MANIFEST_FILE);
        let draft = Self {
            number: links.number(),
            folder: dir.join(format!("{CLEANING_PREFIX}{}", point_name(links.number()))),
            old: fs::read(&manifest_file).map_err(StoreError::io("read", &manifest_file))?,
        };
        let create = |path: &Path| {
            files::create_dir(path).map_err(|error| files::write_error(path, 0, error))
        };
        create(&draft.folder)?;
        let mut members = Vec::new();
        for member in &point.manifest.members {
            let folder = draft.folder.join(&member.name);
            create(&folder)?;
            let mut entries = Vec::new();
            for entry in &member.files {
                entries.push(if is_incremental(entry) {
                    merge(links, &member.name, entry, &folder, progress)?
                } else {
                    let old = point.folder.join(&member.name).join(&entry.name);
                    take_over(&old, &folder.join(&entry.name))?;
                    entry.clone()
                });
            }
            files::sync_dir(&folder)?;
            members.push(MemberEntry {
                name: member.name.clone(),
                files: entries,
            });
        }
        let header = point.manifest.header.clone();
        let manifest = Manifest::new(draft.number, None, header, members);
        files::write_new(
            &draft.folder.join(MANIFEST_FILE),
            &manifest.text(&manifest_file)?,
        )?;
        files::sync_dir(&draft.folder)?;
        Ok(draft)
    }

    /// Puts the draft into the point's place. `false` if the point is being read, and left as it is.
    fn put_into_place(self, dir: &Path) -> Result<bool, StoreError> {
        let point = dir.join(point_name(self.number));
        let lock = ChainLock::wait(dir)?;
        let Some(claim) = InUse::remove(&point)? else {
            return Ok(false);
        };
        let manifest = point.join(MANIFEST_FILE);
        let now = fs::read(&manifest).map_err(StoreError::io_or_missing("read", &manifest))?;
        if now != self.old {
            return Ok(false);
        }
        exchange(&self.folder, &point)?;
        files::sync_dir(dir)?;
        drop(claim);
        drop(lock);
        // The draft's name is that of the old folder now, which goes with it.
        Ok(true)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Err(error) = files::remove(&self.folder) {
            tracing::warn!(%error, "something that is not needed is left behind");
        }
    }
}

/// Exchanges two folders.
fn exchange(one: &Path, other: &Path) -> Result<(), StoreError> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(|errno| match errno {
        rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS => StoreError::Unsupported {
            operation: "exchange folders",
            path: other.to_owned(),
        },
        errno => StoreError::io("exchange", other)(errno),
    })
}

/// Writes what the page file `entry` of `member` amounts to into `folder`, as a full one that stands for it.
fn merge(
    links: &Links,
    member: &str,
    entry: &FileEntry,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<FileEntry, StoreError> {
    let pages = links.pages(member, &entry.name)?;
    let (ranges, same) = pages.distinct();
    let path = folder.join(&entry.name);
    let options = WriteOptions {
        compression: pages.compression(),
        ..WriteOptions::default()
    };
    let mut write = PageWrite::full(&ranges)
        .same(&same)
        .options(&options)
        .stands_for(pages.summary().id());
    if let Some(seed) = pages.hash_seed() {
        write = write.hashes(seed);
    }
    let source = Merged::new(&pages);
    let name = path.to_string_lossy();
    let summary = write.write(files::create(&path)?, &name, &source, progress)?;
    let file = files::open(&path)?;
    files::sync(&file, &path)?;
    super::staging::check_pages(file, &path, summary)?;
    Ok(FileEntry {
        bytes: summary.file_bytes,
        checksum: summary.index_checksum,
        pages: Some(summary),
        ..entry.clone()
    })
}

/// Gives the file `old` another name, or copies it where a file has only one.
fn take_over(old: &Path, new: &Path) -> Result<(), StoreError> {
    if fs::hard_link(old, new).is_ok() {
        return Ok(());
    }
    let mut from = files::open(old)?;
    let mut to = files::create(new)?;
    std::io::copy(&mut from, &mut to).map_err(|error| files::write_error(new, 0, error))?;
    files::sync(&to, new)
}
