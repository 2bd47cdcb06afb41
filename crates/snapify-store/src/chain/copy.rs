//! Copying points from one chain to another, as they are: from storage that dies with its node to storage that does
//! not.
//!
//! ```text
//! TO/.staging-copy-000007/        the copy of point 7 while it is made
//!     source.json                 the manifest that it was begun with; renamed to manifest.json at the end
//!     host/pages.snap             grows from front to back
//! ```
//!
//! The copy becomes a point by the same rename as any other, after everything in it has been read back and compared with
//! its checksums, and is on stable storage. What an interrupted copy leaves is gone on with by the next one: how much
//! of it had reached the disk need not be known, since nothing unverified becomes a point.

use super::in_use::InUse;
use super::lock::ChainLock;
use super::manifest::{FileEntry, MANIFEST_FILE, Manifest};
use super::verify::{VerifyReport, verify_member};
use super::{
    Chain, Contents, STAGING_PREFIX, files, point_name, read_program, staging, write_program,
};
use crate::{Progress, Snapshot, StoreError};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The manifest of the source, for as long as the copy is not complete.
const SOURCE_FILE: &str = "source.json";

/// So many bytes are copied at a time.
const CHUNK: usize = 1 << 20;

/// So many bytes may wait for the disk: more would make the final flush long, and writes of others slow.
const UNSYNCED: u64 = 32 << 20;

/// What a copy did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// The points that were copied, in this order.
    pub copied: Vec<u32>,
    /// Bytes of their files.
    pub bytes: u64,
    /// Of these, bytes that were there already, from a copy that was interrupted.
    pub resumed: u64,
}

/// The number of the newest point in `dir` that can be restarted from; `None` if there is none, or no directory.
///
/// # Errors
/// [`StoreError::Io`] and [`StoreError::NotAChain`] if the directory cannot be read or holds something else.
pub fn newest(dir: &Path) -> Result<Option<u32>, StoreError> {
    match Contents::of(dir) {
        Ok(contents) => Ok(contents
            .points
            .into_iter()
            .rev()
            .find(|number| Snapshot::open(dir, Some(*number)).is_ok())),
        Err(StoreError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes that [`copy`] still has to bring to `to` for the newest point of `from`; 0 if that is there.
///
/// # Errors
/// As [`copy`].
pub fn copy_size(from: &Path, to: &Path) -> Result<u64, StoreError> {
    let mut bytes = 0;
    for manifest in wanted(from, to)? {
        let draft = to.join(draft_name(manifest.point));
        for (member, entry) in files_of(&manifest) {
            let there = fs::symlink_metadata(draft.join(member).join(&entry.name));
            let there = there.map_or(0, |found| found.len());
            bytes += entry.bytes - there.min(entry.bytes);
        }
    }
    Ok(bytes)
}

/// Copies the newest point of the chain in `from` that can be restarted from to the chain in `to`, with those that it builds
/// on, under the same numbers. What is there already is not copied again.
///
/// `progress` is told of every piece before the next one is read, and may take its time: that is how a copy is slowed
/// down.
///
/// # Errors
/// [`StoreError::NoSnapshot`] if there is none to copy; [`StoreError::Conflict`] if `to` has gone on from another
/// point; [`StoreError::OtherProgram`] and [`StoreError::NotAChain`] if it holds something else;
/// [`StoreError::Busy`]; [`StoreError::Damaged`] and [`StoreError::Missing`] if the source is not what it should
/// be; [`StoreError::DiskFull`]; [`StoreError::Cancelled`]; [`StoreError::Io`]. In `to` everything is as it was then, but
/// for a part of a copy that the next call goes on with.
pub fn copy(from: &Path, to: &Path, progress: &dyn Progress) -> Result<CopyReport, StoreError> {
    let mut report = CopyReport::default();
    let snapshot = source(from)?;
    if wanted(from, to)?.is_empty() {
        return Ok(report);
    }
    let created = files::create_dirs(to)?;
    let lock = ChainLock::acquire(to, created)?;
    // Once more: another copy may have been quicker.
    let wanted = wanted(from, to)?;
    let drafts: Vec<String> = wanted
        .iter()
        .map(|manifest| draft_name(manifest.point))
        .collect();
    for name in Contents::of(to)?.staging {
        if !drafts.contains(&name) {
            files::remove(&to.join(name))?;
        }
    }
    for manifest in &wanted {
        let folder = from.join(point_name(manifest.point));
        let _in_use = InUse::read(&folder)?;
        let mut copy = Draft::begin(&folder, to, manifest)?;
        let copied = copy.fill(progress).and_then(|()| copy.verify(progress));
        if let Err(error) = copied {
            if !matches!(error, StoreError::Damaged { .. }) || copy.resumed == 0 {
                return Err(error);
            }
            // What the interrupted copy left had never reached the disk whole.
            files::remove(&copy.path)?;
            copy = Draft::begin(&folder, to, manifest)?;
            copy.fill(progress)?;
            copy.verify(progress)?;
        }
        if read_program(to)?.is_none_or(|program| program.id != snapshot.program().id) {
            write_program(to, snapshot.program())?;
        }
        copy.commit(to, &lock)?;
        report.copied.push(manifest.point);
        report.bytes += files_of(manifest).map(|(_, file)| file.bytes).sum::<u64>();
        report.resumed += copy.resumed;
    }
    Ok(report)
}

/// The newest point of `from` that can be restarted from.
fn source(from: &Path) -> Result<Snapshot, StoreError> {
    let number = newest(from)?.ok_or_else(|| StoreError::NoSnapshot {
        dir: from.to_owned(),
    })?;
    Snapshot::open(from, Some(number))
}

/// The points of `from` that `to` lacks to have the newest of them, oldest first.
fn wanted(from: &Path, to: &Path) -> Result<Vec<Manifest>, StoreError> {
    let snapshot = source(from)?;
    Chain::open_or_create(to, snapshot.program())?;
    let there = match Contents::of(to) {
        Ok(contents) => contents.points,
        Err(StoreError::Missing { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut wanted = Vec::new();
    let mut next = Some(snapshot.number());
    while let Some(number) = next {
        let manifest = Manifest::read(&from.join(point_name(number)), number)?.0;
        if there.contains(&number) {
            let theirs = Manifest::read(&to.join(point_name(number)), number)?.0;
            // A point can only build on the very files that it was made for.
            let builds_on = number != snapshot.number();
            if theirs.header != manifest.header || (builds_on && !same_files(&theirs, &manifest)) {
                return Err(conflict(to, number));
            }
            break;
        }
        next = manifest.parent.filter(|parent| *parent < number);
        wanted.push(manifest);
    }
    // Numbers ascend: what is in front of a point was there before it.
    if let (Some(first), Some(last)) = (wanted.last(), there.last())
        && first.point < *last
    {
        return Err(conflict(to, *last));
    }
    wanted.reverse();
    Ok(wanted)
}

/// Whether two manifests list the same files. A page file that was cleaned is the same to whoever builds on it.
fn same_files(one: &Manifest, other: &Manifest) -> bool {
    let same = |a: &FileEntry, b: &FileEntry| {
        a.name == b.name
            && match (&a.pages, &b.pages) {
                (Some(a), Some(b)) => a.id() == b.id(),
                _ => a == b,
            }
    };
    let (mut ours, mut theirs) = (files_of(one), files_of(other));
    loop {
        match (ours.next(), theirs.next()) {
            (None, None) => return true,
            (Some((a, ours)), Some((b, theirs))) if a == b && same(ours, theirs) => {}
            _ => return false,
        }
    }
}

fn conflict(dir: &Path, number: u32) -> StoreError {
    StoreError::Conflict {
        dir: dir.to_owned(),
        number,
    }
}

fn draft_name(number: u32) -> String {
    format!("{STAGING_PREFIX}copy-{}", point_name(number))
}

/// All files of a point, with the names of their members.
pub(super) fn files_of(manifest: &Manifest) -> impl Iterator<Item = (&str, &FileEntry)> {
    let members = manifest.members.iter();
    members.flat_map(|member| member.files.iter().map(|file| (member.name.as_str(), file)))
}

/// A copy of a point while it is made.
struct Draft<'a> {
    source: &'a Path,
    manifest: &'a Manifest,
    path: PathBuf,
    /// Bytes that were there before.
    resumed: u64,
}

impl<'a> Draft<'a> {
    /// Begins a copy, or goes on with one of the very same point.
    fn begin(source: &'a Path, to: &Path, manifest: &'a Manifest) -> Result<Self, StoreError> {
        let path = to.join(draft_name(manifest.point));
        let text = fs::read(source.join(MANIFEST_FILE)).map_err(StoreError::io_or_missing(
            "read",
            &source.join(MANIFEST_FILE),
        ))?;
        // One that was interrupted in its last moment has its manifest under the final name.
        let manifest_file = path.join(MANIFEST_FILE);
        if fs::read(&manifest_file).is_ok_and(|theirs| theirs == text) {
            fs::rename(&manifest_file, path.join(SOURCE_FILE))
                .map_err(StoreError::io("put aside", &manifest_file))?;
        }
        let same = fs::read(path.join(SOURCE_FILE)).is_ok_and(|theirs| theirs == text);
        if !same {
            if fs::symlink_metadata(&path).is_ok() {
                files::remove(&path)?;
            }
            files::create_dir(&path).map_err(|error| files::write_error(&path, 0, error))?;
            // With it the copy is one that can be gone on with.
            files::write_new(&path.join(SOURCE_FILE), &text)?;
        }
        for member in &manifest.members {
            let folder = path.join(&member.name);
            match files::create_dir(&folder) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(files::write_error(&folder, 0, error));
                }
                _ => {}
            }
        }
        Ok(Self {
            source,
            manifest,
            path,
            resumed: 0,
        })
    }

    /// Copies what is not there yet.
    fn fill(&mut self, progress: &dyn Progress) -> Result<(), StoreError> {
        let mut buffer = vec![0; CHUNK];
        for (member, entry) in files_of(self.manifest) {
            let from = self.source.join(member).join(&entry.name);
            let to = self.path.join(member).join(&entry.name);
            let input = files::open(&from)?;
            staging::check_length(&input, entry, &from)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let output = rustix::fs::open(&to, flags, Mode::RUSR | Mode::WUSR)
                .map(File::from)
                .map_err(StoreError::io("create", &to))?;
            let there = output
                .metadata()
                .map_err(StoreError::io("look at", &to))?
                .len();
            let there = if there > entry.bytes { 0 } else { there };
            self.resumed += there;
            let mut at = there;
            let mut synced = at;
            while at < entry.bytes {
                if progress.cancelled() {
                    return Err(StoreError::Cancelled { path: to });
                }
                let piece = buffer
                    .len()
                    .min(usize::try_from(entry.bytes - at).unwrap_or(CHUNK));
                let piece = &mut buffer[..piece];
                input
                    .read_exact_at(piece, at)
                    .map_err(|source| StoreError::IoAt {
                        operation: "read",
                        path: from.clone(),
                        offset: at,
                        source,
                    })?;
                output
                    .write_all_at(piece, at)
                    .map_err(|source| files::write_error(&to, entry.bytes, source))?;
                at += piece.len() as u64;
                if at - synced >= UNSYNCED {
                    files::sync(&output, &to)?;
                    synced = at;
                }
                progress.advance(piece.len() as u64);
            }
            output
                .set_len(entry.bytes)
                .map_err(StoreError::io("set the length of", &to))?;
            files::sync(&output, &to)?;
        }
        Ok(())
    }

    /// Reads everything back and compares it with its checksums.
    fn verify(&self, progress: &dyn Progress) -> Result<(), StoreError> {
        let mut report = VerifyReport::of(&self.path);
        for member in &self.manifest.members {
            let quiet = Quiet(progress);
            verify_member(&mut report, self.manifest.point, &self.path, member, &quiet)?;
        }
        match report.problems.into_iter().next() {
            None => Ok(()),
            Some(problem) => Err(StoreError::damaged(
                &problem.path,
                problem.offset.unwrap_or(0),
                format!("the copy is not what it was to be: {}", problem.what),
            )),
        }
    }

    /// Makes the copy a point of the chain in `to`.
    fn commit(&self, to: &Path, lock: &ChainLock) -> Result<(), StoreError> {
        for member in &self.manifest.members {
            files::sync_dir(&self.path.join(&member.name))?;
        }
        let manifest = self.path.join(MANIFEST_FILE);
        fs::rename(self.path.join(SOURCE_FILE), &manifest)
            .map_err(StoreError::io("put into place", &manifest))?;
        files::sync_dir(&self.path)?;
        staging::put_into_place(to, &self.path, self.manifest.point, lock.created()).map(drop)
    }
}

/// Progress that is not told: what is read back was counted when it was copied.
struct Quiet<'a>(&'a dyn Progress);

impl Progress for Quiet<'_> {
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}
