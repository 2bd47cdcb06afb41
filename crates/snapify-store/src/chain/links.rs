//! What a point builds on: the points before it, down to a full one.

use super::files;
use super::in_use::InUse;
use super::manifest::{FileEntry, MANIFEST_FILE, Manifest};
use super::staging::{check_length, check_pages};
use super::{Contents, point_name};
use crate::{PageFile, StoreError};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Most points that another one builds on. Each one keeps files open during a restart, and takes time then; a
/// full point in between costs less.
pub(crate) const MOST_PARENTS: usize = 64;

/// A point, and what it builds on.
#[derive(Debug)]
pub(crate) struct Links {
    dir: PathBuf,
    /// From the newest to a full one; at least one.
    links: Vec<Link>,
    /// Keeps all of them from being removed.
    _in_use: Vec<InUse>,
}

/// A committed point.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Manifest,
}

/// What is wrong with a point, and the number of the point that it is wrong with: itself, or one that it
/// builds on.
type Fault = (u32, StoreError);

impl Links {
    /// Reads the manifests of point `number` in `dir` and of those that it builds on, and sees to it that all files
    /// that it consists of are there in their full length. For as long as this is there, they are not removed.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if any of that is not as it should be and that concerns another point or there is one to
    /// turn to; else the fault itself.
    pub(crate) fn read(dir: &Path, number: u32) -> Result<Self, StoreError> {
        Self::look(dir, number, true).map_err(|fault| broken(dir, number, fault))
    }

    /// As [`Links::read`], but without looking for others, and without keeping the points from being removed.
    pub(crate) fn try_read(dir: &Path, number: u32) -> Result<Self, Fault> {
        Self::look(dir, number, false)
    }

    fn look(dir: &Path, number: u32, hold: bool) -> Result<Self, Fault> {
        let mut links: Vec<Link> = Vec::new();
        let mut in_use = Vec::new();
        let mut next = Some(number);
        while let Some(number) = next {
            let folder = dir.join(point_name(number));
            if hold {
                in_use.push(InUse::read(&folder).map_err(|error| (number, error))?);
            }
            // Numbers decrease from link to link (the manifest was checked for that), so this comes to an end.
            let (manifest, _) = Manifest::read(&folder, number).map_err(|error| (number, error))?;
            next = manifest.parent;
            links.push(Link { folder, manifest });
        }
        let links = Self {
            dir: dir.to_owned(),
            links,
            _in_use: in_use,
        };
        for member in &links.newest().manifest.members {
            for entry in &member.files {
                links.open(&member.name, entry)?;
            }
        }
        Ok(links)
    }

    /// The point itself.
    pub(crate) fn newest(&self) -> &Link {
        &self.links[0]
    }

    /// The point's number.
    pub(crate) fn number(&self) -> u32 {
        self.newest().manifest.point
    }

    /// The numbers of the point and of those that it builds on.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.links.iter().map(|link| link.manifest.point)
    }

    /// Opens the page file `name` of `member`, one of the point's, with those that it builds on.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if the point has no such page file; as [`Links::read`].
    pub(crate) fn pages(&self, member: &str, name: &str) -> Result<PageFile, StoreError> {
        let entry = self.page_entry(member, name)?;
        let open = || {
            let mut files = Vec::new();
            for part in self.open(member, entry)? {
                if let Some(summary) = part.entry.pages {
                    let pages = check_pages(part.file, &part.path, summary);
                    files.push(pages.map_err(|error| (part.point, error))?);
                }
            }
            let parents = files.split_off(1);
            let newest = files.remove(0);
            newest
                .with_parents(parents)
                .map_err(|error| (self.number(), error))
        };
        open().map_err(|fault| broken(&self.dir, self.number(), fault))
    }

    /// The page file `name` of `member` and those that it builds on, from the newest to a full one: for another process, which
    /// makes of them what [`Links::pages`] gives.
    ///
    /// # Errors
    /// As [`Links::pages`].
    pub(crate) fn page_files(&self, member: &str, name: &str) -> Result<Vec<File>, StoreError> {
        let entry = self.page_entry(member, name)?;
        let parts = self.open(member, entry);
        let parts = parts.map_err(|fault| broken(&self.dir, self.number(), fault))?;
        Ok(parts.into_iter().map(|part| part.file).collect())
    }

    fn page_entry(&self, member: &str, name: &str) -> Result<&FileEntry, StoreError> {
        (self.newest().manifest.file(member, name))
            .filter(|entry| entry.pages.is_some())
            .ok_or_else(|| StoreError::Missing {
                path: self.newest().folder.join(member).join(name),
            })
    }

    /// Opens the file `entry` of `member` of the point, and those that it builds on, from the newest to the oldest.
    /// They have the lengths that their manifests say.
    fn open<'a>(&'a self, member: &str, entry: &'a FileEntry) -> Result<Vec<Part<'a>>, Fault> {
        let mut parts = Vec::new();
        let mut entry = entry;
        for link in &self.links {
            let point = link.manifest.point;
            let path = link.folder.join(member).join(&entry.name);
            let file = files::open(&path)
                .and_then(|file| check_length(&file, entry, &path).map(|()| file))
                .map_err(|error| (point, error))?;
            parts.push(Part {
                point,
                path,
                file,
                entry,
            });
            let Some(parent) = entry.pages.and_then(|pages| pages.parent) else {
                break;
            };
            // A full point's files build on none, so there is one more.
            let Some(below) = self.links.get(parts.len()) else {
                break;
            };
            entry = (below.manifest.file(member, &entry.name))
                .filter(|entry| entry.pages.is_some_and(|pages| pages.id() == parent))
                .ok_or_else(|| {
                    let name = &entry.name;
                    let what = format!("it has no file {member}/{name} with checksum {parent}, on which the next point builds");
                    let manifest = below.folder.join(MANIFEST_FILE);
                    (below.manifest.point, StoreError::damaged(&manifest, 0, what))
                })?;
        }
        Ok(parts)
    }
}

/// One file of those that make up a page file.
struct Part<'a> {
    point: u32,
    path: PathBuf,
    file: File,
    entry: &'a FileEntry,
}

/// The error for point `number` of the chain in `dir`, with another point to turn to.
fn broken(dir: &Path, number: u32, (link, source): Fault) -> StoreError {
    let whole = newest_whole(dir, link);
    if whole.is_none() && link == number {
        return source;
    }
    StoreError::Broken {
        dir: dir.to_owned(),
        point: number,
        link,
        whole,
        source: Box::new(source),
    }
}

/// The newest point that is whole, as far as that shows without reading pages, and that has nothing to do with
/// point `without`.
fn newest_whole(dir: &Path, without: u32) -> Option<u32> {
    let points = Contents::of(dir).ok()?.points;
    points.into_iter().rev().find(|&point| {
        Links::try_read(dir, point).is_ok_and(|links| links.numbers().all(|n| n != without))
    })
}
