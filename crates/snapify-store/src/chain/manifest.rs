//! `manifest.json`: what a point consists of, down to the checksum of each file.

use super::files::is_plain_name;
use super::sealed;
use crate::{PageFileSummary, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::Path;

/// The manifest's file in the point's folder.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";

const FORMAT: &str = "snapify-snapshot";

/// The newest version that is read. A full point is written as version 1, which knows no other.
const VERSION: u32 = 2;

/// What the writer of a point says about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointHeader {
    /// When the snapshot was taken, in milliseconds since 1970 (UTC).
    pub created_unix_ms: u64,
    /// Anything the writer wants to find again. The store only keeps it.
    pub details: serde_json::Value,
}

/// Whether a point stands alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PointKind {
    /// It does: nothing else is needed to restart from it.
    Full,
    /// It does not: its page files hold what has changed since another point, which is needed as well.
    Incremental,
}

/// A point, as its manifest describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// The point's number in its chain.
    pub point: u32,
    /// Whether it stands alone.
    pub kind: PointKind,
    /// The number of the point that it builds on; `None` for a full one.
    pub parent: Option<u32>,
    /// What its writer says about it.
    pub header: PointHeader,
    /// Its members, in the order in which they joined.
    pub members: Vec<MemberEntry>,
}

/// One member of a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEntry {
    /// Its name, which is also that of its folder.
    pub name: String,
    /// Its files.
    pub files: Vec<FileEntry>,
}

/// One file of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the member's folder.
    pub name: String,
    /// What it holds.
    pub kind: FileKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// XXH3-64 over the whole file; for page files the checksum of header and index, which in turn hold
    /// those of the blocks.
    #[serde(with = "crate::checksum::hex")]
    pub checksum: u64,
    /// The figures of a page file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<PageFileSummary>,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// Metadata, as JSON.
    Json,
    /// Pages.
    Pages,
    /// Anything else.
    Raw,
}

impl Manifest {
    /// Of a point that builds on `parent`, if it does.
    pub(crate) fn new(
        point: u32,
        parent: Option<u32>,
        header: PointHeader,
        members: Vec<MemberEntry>,
    ) -> Self {
        let (version, kind) = match parent {
            None => (1, PointKind::Full),
            Some(_) => (2, PointKind::Incremental),
        };
        Self {
            format: FORMAT.into(),
            version,
            point,
            kind,
            parent,
            header,
            members,
        }
    }

    /// Its text, as it is written.
    pub(crate) fn text(&self, path: &Path) -> Result<Vec<u8>, StoreError> {
        sealed::seal(self, path)
    }

    /// Reads the manifest of point `number`, whose folder is `folder`. Names in it are plain, and none comes
    /// twice.
    pub(crate) fn read(folder: &Path, number: u32) -> Result<(Self, u64), StoreError> {
        let path = folder.join(MANIFEST_FILE);
        let (manifest, text) = sealed::read::<Self>(&path, FORMAT, VERSION)?;
        let damaged = |what: String| Err(StoreError::damaged(&path, 0, what));
        if manifest.point != number {
            return damaged(format!("it belongs to point {}", manifest.point));
        }
        match (manifest.kind, manifest.parent) {
            (PointKind::Full, None) => {}
            (PointKind::Full, Some(_)) => {
                return damaged("a full point that builds on another".into());
            }
            // Points build on earlier ones only: so no chain goes round in circles.
            (PointKind::Incremental, Some(parent)) if (1..number).contains(&parent) => {}
            (PointKind::Incremental, parent) => {
                return damaged(format!(
                    "an incremental point that builds on {}",
                    parent.map_or("none".into(), |parent| format!("point {parent}"))
                ));
            }
        }
        let mut members = HashSet::new();
        for member in &manifest.members {
            if !is_plain_name(&member.name) || !members.insert(&member.name) {
                return damaged(format!("the member name {:?} cannot be", member.name));
            }
            let mut files = HashSet::new();
            for file in &member.files {
                if !is_plain_name(&file.name) || !files.insert(&file.name) {
                    return damaged(format!("the file name {:?} cannot be", file.name));
                }
                if manifest.parent.is_none()
                    && file.pages.is_some_and(|pages| pages.parent.is_some())
                {
                    return damaged(format!("{:?} builds on a file of no point", file.name));
                }
                let consistent = match (file.kind, &file.pages) {
                    (FileKind::Pages, Some(pages)) => {
                        pages.file_bytes == file.bytes && pages.index_checksum == file.checksum
                    }
                    (FileKind::Json | FileKind::Raw, None) => true,
                    _ => false,
                };
                if !consistent {
                    return damaged(format!("the entry of {:?} contradicts itself", file.name));
                }
            }
        }
        Ok((manifest, text.len() as u64))
    }

    /// The entry of the file `name` of `member`.
    pub(crate) fn file(&self, member: &str, name: &str) -> Option<&FileEntry> {
        let member = self.members.iter().find(|m| m.name == member)?;
        member.files.iter().find(|file| file.name == name)
    }
}
