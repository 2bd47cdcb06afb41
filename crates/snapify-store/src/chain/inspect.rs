//! What a chain holds, told from its metadata alone.

use super::manifest::{FileEntry, FileKind, Manifest, MemberEntry, PointHeader, PointKind};
use super::snapshot::chain_in;
use super::{Contents, ProgramIdentity, point_name};
use crate::{PageFileSummary, StoreError};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What a chain holds.
#[derive(Clone, Debug, Serialize)]
pub struct InspectReport {
    /// Its directory.
    pub dir: PathBuf,
    /// The program it belongs to.
    pub program: ProgramIdentity,
    /// Its points, oldest first.
    pub points: Vec<PointReport>,
    /// Names of points that are being written or cleaned, or that a writer which died has left behind.
    pub unfinished: Vec<String>,
    /// Bytes of all files of all points.
    pub bytes: u64,
}

/// What a point holds.
#[derive(Clone, Debug, Serialize)]
pub struct PointReport {
    /// Its number.
    pub number: u32,
    /// Its folder.
    pub path: PathBuf,
    /// Whether it stands alone; unknown if the manifest cannot be read.
    pub kind: Option<PointKind>,
    /// The number of the point that it builds on.
    pub parent: Option<u32>,
    /// What its writer said about it.
    pub header: Option<PointHeader>,
    /// Its members.
    pub members: Vec<MemberReport>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Why its manifest cannot be read, if it cannot.
    pub problem: Option<String>,
}

/// What a member holds.
#[derive(Clone, Debug, Serialize)]
pub struct MemberReport {
    /// Its name.
    pub name: String,
    /// Its files.
    pub files: Vec<FileReport>,
    /// Bytes of all its files.
    pub bytes: u64,
}

/// What a file holds.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its name.
    pub name: String,
    /// What kind of file it is.
    pub kind: FileKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// The figures of a page file.
    pub pages: Option<PageFileSummary>,
}

/// Tells what the chain in `dir` holds. Reads its metadata only, and no page file.
///
/// # Errors
/// [`StoreError::NoSnapshot`] and [`StoreError::NotAChain`] if there is none, [`StoreError::Damaged`],
/// [`StoreError::Newer`] and [`StoreError::Io`] if its chain file cannot be read. A point whose manifest cannot
/// be read is reported as such.
pub fn inspect(dir: &Path) -> Result<InspectReport, StoreError> {
    let (program, numbers) = chain_in(dir)?;
    let points: Vec<PointReport> = numbers.iter().map(|&number| point(dir, number)).collect();
    Ok(InspectReport {
        dir: dir.to_owned(),
        program,
        bytes: points.iter().map(|point| point.bytes).sum(),
        points,
        unfinished: {
            let mut contents = Contents::of(dir)?;
            contents.staging.append(&mut contents.cleaning);
            contents.staging
        },
    })
}

fn point(dir: &Path, number: u32) -> PointReport {
    let path = dir.join(point_name(number));
    match Manifest::read(&path, number) {
        Ok((manifest, own_bytes)) => {
            let members: Vec<MemberReport> = manifest.members.iter().map(member).collect();
            PointReport {
                number,
                path,
                kind: Some(manifest.kind),
                parent: manifest.parent,
                bytes: own_bytes + members.iter().map(|member| member.bytes).sum::<u64>(),
                members,
                header: Some(manifest.header),
                problem: None,
            }
        }
        Err(error) => PointReport {
            number,
            path,
            kind: None,
            parent: None,
            header: None,
            members: Vec::new(),
            bytes: 0,
            problem: Some(error.in_full()),
        },
    }
}

fn member(entry: &MemberEntry) -> MemberReport {
    MemberReport {
        name: entry.name.clone(),
        files: entry.files.iter().map(file).collect(),
        bytes: entry.files.iter().map(|file| file.bytes).sum(),
    }
}

fn file(entry: &FileEntry) -> FileReport {
    FileReport {
        name: entry.name.clone(),
        kind: entry.kind,
        bytes: entry.bytes,
        pages: entry.pages,
    }
}
