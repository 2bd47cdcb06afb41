//! A committed point, open for reading.

use super::files;
use super::links::Links;
use super::manifest::{FileEntry, FileKind, Manifest, MemberEntry};
use super::staging::check_length;
use super::{Contents, ProgramIdentity, read_program};
use crate::checksum::xxh3_64;
use crate::{PageFile, StoreError};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A committed point, open for reading. Opening it has verified its manifest, and that every file is there in
/// its full length, in those points too that it builds on; contents are verified as they are read.
#[derive(Debug)]
pub struct Snapshot {
    program: ProgramIdentity,
    links: Links,
}

impl Snapshot {
    /// Opens point `at` of the chain in `dir`, or its last.
    ///
    /// # Errors
    /// [`StoreError::NoSnapshot`], [`StoreError::NotAChain`] and [`StoreError::NoPoint`] if there is no such
    /// thing; [`StoreError::Damaged`], [`StoreError::Missing`] and [`StoreError::Newer`] if it cannot be used, within a
    /// [`StoreError::Broken`] if there is another point that can, or if it is one that this one builds on that
    /// cannot; [`StoreError::Io`].
    pub fn open(dir: &Path, at: Option<u32>) -> Result<Self, StoreError> {
        let (program, points) = chain_in(dir)?;
        let number = match at {
            Some(at) if points.contains(&at) => at,
            Some(at) => {
                return Err(StoreError::NoPoint {
                    dir: dir.to_owned(),
                    at,
                    have: join(&points),
                });
            }
            None => *points.last().ok_or_else(|| StoreError::NoSnapshot {
                dir: dir.to_owned(),
            })?,
        };
        Ok(Self {
            program,
            links: Links::read(dir, number)?,
        })
    }

    /// The program that it is a snapshot of.
    #[must_use]
    pub fn program(&self) -> &ProgramIdentity {
        &self.program
    }

    /// Its number in the chain.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.links.number()
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.links.newest().folder
    }

    /// Its number and those of the points that it builds on, from the newest to a full one.
    #[must_use]
    pub fn chain(&self) -> Vec<u32> {
        self.links.numbers().collect()
    }

    /// What it consists of.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.links.newest().manifest
    }

    /// Its members, in the order in which they joined.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        self.manifest().members.iter().map(|entry| Member {
            folder: self.path().join(&entry.name),
            links: &self.links,
            entry,
        })
    }

    /// The member `name`.
    ///
    /// # Errors
    /// [`StoreError::NoMember`].
    pub fn member(&self, name: &str) -> Result<Member<'_>, StoreError> {
        self.members()
            .find(|member| member.name() == name)
            .ok_or_else(|| StoreError::NoMember {
                point: self.path().to_owned(),
                name: name.into(),
            })
    }
}

/// One member of a committed point.
#[derive(Debug)]
pub struct Member<'a> {
    folder: PathBuf,
    links: &'a Links,
    entry: &'a MemberEntry,
}

impl Member<'_> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// Its files.
    #[must_use]
    pub fn files(&self) -> &[FileEntry] {
        &self.entry.files
    }

    /// Reads the metadata in the file `name`, once its checksum has been verified.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::Json`], [`StoreError::Io`].
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, StoreError> {
        let text = self.bytes(name)?;
        serde_json::from_slice(&text).map_err(|source| StoreError::Json {
            path: self.folder.join(name),
            source,
        })
    }

    /// Reads the whole file `name`, which is no page file, and verifies its checksum.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let entry = self.find(name, |kind| kind != FileKind::Pages)?;
        let path = self.folder.join(name);
        let mut text = Vec::new();
        // Its length has been compared with the manifest's, so this is no more than is really there.
        self.open(entry)?
            .take(entry.bytes)
            .read_to_end(&mut text)
            .map_err(StoreError::io("read", &path))?;
        if xxh3_64(&text) != entry.checksum {
            return Err(StoreError::damaged(
                &path,
                0,
                format!("the checksum of its {} bytes does not match", entry.bytes),
            ));
        }
        Ok(text)
    }

    /// Opens the page file `name`, which must be the very one that the manifest speaks of, with those that it
    /// builds on.
    ///
    /// # Errors
    /// [`StoreError::Missing`], and those of [`PageFile::open`]; [`StoreError::Broken`] as for [`Snapshot::open`].
    pub fn pages(&self, name: &str) -> Result<PageFile, StoreError> {
        self.links.pages(&self.entry.name, name)
    }

    /// The page file `name` and those that it builds on, from the newest to a full one, for another process to open as
    /// [`PageFile::open_chain`] does.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Damaged`] if one has not its full length, [`StoreError::Io`];
    /// [`StoreError::Broken`] as for [`Snapshot::open`].
    pub fn page_files(&self, name: &str) -> Result<Vec<File>, StoreError> {
        self.links.page_files(&self.entry.name, name)
    }

    fn find(&self, name: &str, fits: impl Fn(FileKind) -> bool) -> Result<&FileEntry, StoreError> {
        self.entry
            .files
            .iter()
            .find(|file| file.name == name && fits(file.kind))
            .ok_or_else(|| StoreError::Missing {
                path: self.folder.join(name),
            })
    }

    /// Opens a file of full length.
    fn open(&self, entry: &FileEntry) -> Result<File, StoreError> {
        let path = self.folder.join(&entry.name);
        let file = files::open(&path)?;
        check_length(&file, entry, &path)?;
        Ok(file)
    }
}

/// The program whose chain is in `dir`, and the numbers of its points.
pub(super) fn chain_in(dir: &Path) -> Result<(ProgramIdentity, Vec<u32>), StoreError> {
    let contents = Contents::of(dir)?;
    if let Some(program) = read_program(dir)? {
        return Ok((program, contents.points));
    }
    if !contents.points.is_empty() {
        return Err(StoreError::Missing {
            path: dir.join(super::CHAIN_FILE),
        });
    }
    Err(match contents.strange {
        Some(found) => StoreError::NotAChain {
            dir: dir.to_owned(),
            found,
        },
        None => StoreError::NoSnapshot {
            dir: dir.to_owned(),
        },
    })
}

/// Numbers as people write them: "1, 2 and 5".
pub(super) fn join(numbers: &[u32]) -> String {
    match numbers {
        [] => "none".into(),
        [one] => one.to_string(),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(u32::to_string).collect();
            format!("{} and {last}", most.join(", "))
        }
    }
}
