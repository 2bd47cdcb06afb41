//! Reading everything there is, and telling all that is wrong with it.

use super::files;
use super::in_use::InUse;
use super::links::Links;
use super::manifest::{FileEntry, FileKind, MANIFEST_FILE, Manifest, MemberEntry};
use super::snapshot::chain_in;
use super::staging::{check_length, check_pages, digest};
use super::{Contents, point_name};
use crate::{Progress, StoreError};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What came out of verifying a chain.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// The chain's directory.
    pub dir: PathBuf,
    /// The points that were looked at.
    pub points: Vec<PointVerdict>,
    /// Everything that is wrong, in all of them.
    pub problems: Vec<Problem>,
    /// The newest point among them with which nothing is wrong.
    pub newest_sound: Option<u32>,
}

/// What came out of verifying one point.
#[derive(Clone, Debug, Serialize)]
pub struct PointVerdict {
    /// Its number.
    pub number: u32,
    /// Members that its manifest lists.
    pub members: usize,
    /// Bytes that its files should have.
    pub bytes: u64,
    /// The number of the point that it builds on.
    pub parent: Option<u32>,
    /// Whether nothing is wrong with it, nor with any that it builds on.
    pub sound: bool,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// The number of the point it belongs to, unless it concerns the chain.
    pub point: Option<u32>,
    /// The file.
    pub path: PathBuf,
    /// Where in the file, if that is known, in bytes.
    pub offset: Option<u64>,
    /// All of it in words.
    pub what: String,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads every byte of point `at` of the chain in `dir` and of those that it builds on, or of all points, and
/// compares it with its checksums. Goes on after finding something wrong, so that the report tells all of it.
///
/// # Errors
/// [`StoreError::NoSnapshot`], [`StoreError::NotAChain`] and [`StoreError::NoPoint`] if there is nothing to
/// verify; [`StoreError::Cancelled`]. Whatever is wrong with the snapshots themselves is in the report.
pub fn verify(
    dir: &Path,
    at: Option<u32>,
    progress: &dyn Progress,
) -> Result<VerifyReport, StoreError> {
    let mut report = VerifyReport::of(dir);
    let contents = Contents::of(dir)?;
    match chain_in(dir) {
        Ok(_) => {}
        Err(error @ (StoreError::NotAChain { .. } | StoreError::NoSnapshot { .. })) => {
            return Err(error);
        }
        Err(error) => report.note(None, &error),
    }
    if contents.points.is_empty() {
        return Err(StoreError::NoSnapshot {
            dir: dir.to_owned(),
        });
    }
    for name in &contents.odd_points {
        report.note(
            None,
            &StoreError::damaged(&dir.join(name), 0, "it is not a folder"),
        );
    }
    let numbers = match at {
        Some(at) if !contents.points.contains(&at) => {
            return Err(StoreError::NoPoint {
                dir: dir.to_owned(),
                at,
                have: super::snapshot::join(&contents.points),
            });
        }
        Some(at) => chain_of(dir, at),
        None => contents.points,
    };
    for number in numbers {
        verify_point(&mut report, dir, number, progress)?;
    }
    let sound = report.points.iter().rev().find(|point| point.sound);
    report.newest_sound = sound.map(|point| point.number);
    Ok(report)
}

/// Point `number` and those that it builds on, as far as they are known, in ascending order.
fn chain_of(dir: &Path, number: u32) -> Vec<u32> {
    let mut numbers = vec![number];
    let mut at = number;
    // Numbers decrease, or the manifest is damaged.
    while let Ok((
        Manifest {
            parent: Some(parent),
            ..
        },
        _,
    )) = Manifest::read(&dir.join(point_name(at)), at)
    {
        numbers.push(parent);
        at = parent;
    }
    numbers.reverse();
    numbers
}

fn verify_point(
    report: &mut VerifyReport,
    dir: &Path,
    number: u32,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let before = report.problems.len();
    let folder = dir.join(point_name(number));
    let mut verdict = PointVerdict {
        number,
        members: 0,
        bytes: 0,
        parent: None,
        sound: false,
    };
    // Not to be cleaned away meanwhile.
    let held = InUse::read(&folder);
    match held.and_then(|held| Ok((Manifest::read(&folder, number)?, held))) {
        Err(error) => report.note(Some(number), &error),
        Ok(((manifest, bytes), _held)) => {
            verdict.members = manifest.members.len();
            verdict.bytes = bytes;
            verdict.parent = manifest.parent;
            if let Some(parent) = manifest.parent {
                verify_link(report, dir, number, parent);
            }
            strangers(report, number, &folder, |name, is_dir| {
                (name == MANIFEST_FILE && !is_dir)
                    || (is_dir && manifest.members.iter().any(|m| m.name == name))
            });
            for member in &manifest.members {
                verdict.bytes += member.files.iter().map(|file| file.bytes).sum::<u64>();
                verify_member(report, number, &folder, member, progress)?;
            }
        }
    }
    verdict.sound = report.problems.len() == before;
    report.points.push(verdict);
    Ok(())
}

/// Sees to it that what point `number` builds on, point `parent`, is sound and the right one. Points are verified in
/// ascending order, so `parent` has been looked at.
fn verify_link(report: &mut VerifyReport, dir: &Path, number: u32, parent: u32) {
    let known = report.points.iter().find(|point| point.number == parent);
    if known.is_some_and(|point| point.sound) {
        match Links::try_read(dir, number) {
            // Its own files are looked at one by one, and faults of others noted with these.
            Err((link, error)) if link != number => report.note(Some(number), &error),
            _ => {}
        }
        return;
    }
    report.problems.push(Problem {
        point: Some(number),
        path: dir.join(point_name(parent)),
        offset: None,
        what: format!("point {number} builds on point {parent}, which is damaged or missing"),
    });
}

/// Verifies the files of a member, whose folder is in `folder`.
pub(super) fn verify_member(
    report: &mut VerifyReport,
    number: u32,
    folder: &Path,
    member: &MemberEntry,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let folder = folder.join(&member.name);
    strangers(report, number, &folder, |name, is_dir| {
        !is_dir && member.files.iter().any(|file| file.name == name)
    });
    for entry in &member.files {
        let path = folder.join(&entry.name);
        if progress.cancelled() {
            return Err(StoreError::Cancelled { path });
        }
        match verify_file(entry, &path, progress) {
            Ok(()) => {}
            Err(error @ StoreError::Cancelled { .. }) => return Err(error),
            Err(error) => report.note(Some(number), &error),
        }
    }
    Ok(())
}

fn verify_file(entry: &FileEntry, path: &Path, progress: &dyn Progress) -> Result<(), StoreError> {
    let file = files::open(path)?;
    check_length(&file, entry, path)?;
    if let (FileKind::Pages, Some(summary)) = (entry.kind, entry.pages) {
        return check_pages(file, path, summary)?.verify(progress);
    }
    let (bytes, checksum) = digest(&file, path)?;
    if checksum != entry.checksum {
        return Err(StoreError::damaged(
            path,
            0,
            format!("the checksum of its {bytes} bytes does not match"),
        ));
    }
    progress.advance(bytes);
    Ok(())
}

/// Notes what is in `folder` and does not belong there, or that it is not there.
fn strangers(
    report: &mut VerifyReport,
    number: u32,
    folder: &Path,
    belongs: impl Fn(&str, bool) -> bool,
) {
    match files::list(folder) {
        Err(error) => report.note(Some(number), &error),
        Ok(mut found) => {
            found.sort_by(|a, b| a.0.cmp(&b.0));
            for (name, kind) in found {
                if !belongs(&name, kind.is_dir()) {
                    report.problems.push(Problem {
                        point: Some(number),
                        path: folder.join(&name),
                        offset: None,
                        what: format!(
                            "{} does not belong to the snapshot",
                            folder.join(&name).display()
                        ),
                    });
                }
            }
        }
    }
}

impl VerifyReport {
    /// A report on `dir` with nothing in it yet.
    pub(super) fn of(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            points: Vec::new(),
            problems: Vec::new(),
            newest_sound: None,
        }
    }

    fn note(&mut self, point: Option<u32>, error: &StoreError) {
        let (path, offset) = error.place();
        self.problems.push(Problem {
            point,
            path: path.unwrap_or(&self.dir).to_owned(),
            offset,
            what: error.in_full(),
        });
    }
}
