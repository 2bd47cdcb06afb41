//! A point while it is written, and the moment in which it comes into being.

use super::files;
use super::links::Links;
use super::lock::ChainLock;
use super::manifest::{FileEntry, FileKind, MANIFEST_FILE, Manifest, MemberEntry, PointHeader};
use super::{Contents, ProgramIdentity, STAGING_PREFIX, point_name, read_program, write_program};
use crate::checksum::Xxh3;
use crate::{PageFile, PageFileSummary, StoreError};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A point that has been committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its number in the chain.
    pub number: u32,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
}

/// A point that is being written. Dropping it removes everything that was written.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    folder: PathBuf,
    program: ProgramIdentity,
    members: Arc<Members>,
    /// The point that this one builds on.
    parent: Option<Arc<Links>>,
    /// Held until the point is committed, or nothing is left of it.
    lock: Option<ChainLock>,
    committed: bool,
    /// The point's number is greater than this.
    after: u32,
    /// A process forked meanwhile has a copy of this, but nothing in it to remove.
    owner: u32,
}

/// What has joined so far. Shared, since members write side by side.
#[derive(Debug, Default)]
struct Members(Mutex<Vec<Joined>>);

#[derive(Debug)]
struct Joined {
    name: String,
    files: Vec<Draft>,
}

/// A file that was created; its entry follows once it is complete.
#[derive(Debug)]
struct Draft {
    name: String,
    entry: Option<FileEntry>,
}

impl Members {
    fn lock(&self) -> MutexGuard<'_, Vec<Joined>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Staging {
    /// A fresh staging directory in `dir`, whose lock is held.
    pub(super) fn new(
        dir: PathBuf,
        program: ProgramIdentity,
        lock: ChainLock,
        parent: Option<Links>,
    ) -> Result<Self, StoreError> {
        // The lock keeps other writers out, and what dead ones left is gone: the name is free.
        let folder = dir.join(format!("{STAGING_PREFIX}{}", std::process::id()));
        if let Err(error) = files::create_dir(&folder) {
            lock.abandon();
            return Err(files::write_error(&folder, 0, error));
        }
        Ok(Self {
            dir,
            folder,
            program,
            members: Arc::default(),
            parent: parent.map(Arc::new),
            lock: Some(lock),
            committed: false,
            after: 0,
            owner: std::process::id(),
        })
    }

    /// The number of the point that this one builds on; `None` for a full one.
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        self.parent.as_ref().map(|links| links.number())
    }

    /// Gives the point a number greater than `number`, and than that of every point in the chain: where copies of the
    /// chain's points have gone, there may be newer ones than here.
    pub fn number_after(&mut self, number: u32) {
        self.after = number;
    }

    /// Adds the member `name`.
    ///
    /// # Errors
    /// [`StoreError::Name`] if the name is not plain (letters, digits, `.`, `_`, `-`) or is taken,
    /// [`StoreError::Io`].
    pub fn member(&self, name: &str) -> Result<MemberDir, StoreError> {
        let mut members = self.members.lock();
        check_name(&self.folder, name, members.iter().any(|m| m.name == name))?;
        let folder = self.folder.join(name);
        files::create_dir(&folder).map_err(|error| files::write_error(&folder, 0, error))?;
        members.push(Joined {
            name: name.into(),
            files: Vec::new(),
        });
        Ok(MemberDir {
            name: name.into(),
            folder,
            members: Arc::clone(&self.members),
            parent: self.parent.clone(),
        })
    }

    /// Makes the point part of the chain: once this returns it survives a crash of the machine, and until
    /// then no reader sees any of it.
    ///
    /// Page files are opened once more and compared with what was recorded, since others may have written
    /// them.
    ///
    /// # Errors
    /// [`StoreError::Unrecorded`] for a file that was created and never recorded, [`StoreError::Damaged`] for
    /// one that is not what was recorded or builds on another than the parent's file of its name, [`StoreError::DiskFull`], [`StoreError::Io`]. Nothing remains of
    /// the point then.
    pub fn commit(mut self, header: PointHeader) -> Result<Point, StoreError> {
        let members = self.complete()?;
        let parent = self.check_parents(&members)?;
        for member in &members {
            let folder = self.folder.join(&member.name);
            for entry in &member.files {
                let path = folder.join(&entry.name);
                let file = files::open(&path)?;
                check_length(&file, entry, &path)?;
                files::sync(&file, &path)?;
                if let Some(summary) = entry.pages {
                    check_pages(file, &path, summary)?;
                }
            }
            files::sync_dir(&folder)?;
        }
        let last = Contents::of(&self.dir)?.points.last().copied().unwrap_or(0);
        let number = last.max(self.after) + 1;
        let point = self.dir.join(point_name(number));
        let manifest = Manifest::new(number, parent, header, members);
        let text = manifest.text(&point.join(MANIFEST_FILE))?;
        files::write_new(&self.folder.join(MANIFEST_FILE), &text)?;
        files::sync_dir(&self.folder)?;
        if read_program(&self.dir)?.is_none_or(|program| program.id != self.program.id) {
            write_program(&self.dir, &self.program)?;
        }
        let created = self.lock.as_ref().map_or(&[][..], ChainLock::created);
        put_into_place(&self.dir, &self.folder, number, created)?;
        self.committed = true;
        let files = manifest.members.iter().flat_map(|member| &member.files);
        let bytes = text.len() as u64 + files.map(|file| file.bytes).sum::<u64>();
        Ok(Point {
            number,
            path: point,
            bytes,
        })
    }

    /// The number of the point that page files of this one build on, if any does. Each has to build on the file of
    /// its own name there.
    fn check_parents(&self, members: &[MemberEntry]) -> Result<Option<u32>, StoreError> {
        let mut used = None;
        for member in members {
            for entry in &member.files {
                let Some(id) = entry.pages.and_then(|pages| pages.parent) else {
                    continue;
                };
                let links = self.parent.as_ref().filter(|links| {
                    let below = links.newest().manifest.file(&member.name, &entry.name);
                    below.is_some_and(|below| below.pages.is_some_and(|pages| pages.id() == id))
                });
                let Some(links) = links else {
                    let path = self.folder.join(&member.name).join(&entry.name);
                    let what = "it builds on another page file than its parent point has";
                    return Err(StoreError::damaged(&path, 24, what));
                };
                used = Some(links.number());
            }
        }
        Ok(used)
    }

    /// The entries of all files, if all are complete.
    fn complete(&self) -> Result<Vec<MemberEntry>, StoreError> {
        self.members
            .lock()
            .iter()
            .map(|member| {
                let files = member.files.iter().map(|draft| {
                    draft.entry.clone().ok_or_else(|| StoreError::Unrecorded {
                        path: self.folder.join(&member.name).join(&draft.name),
                    })
                });
                Ok(MemberEntry {
                    name: member.name.clone(),
                    files: files.collect::<Result<_, _>>()?,
                })
            })
            .collect()
    }
}

/// Makes `folder`, which is complete and on stable storage, point `number` of the chain in `dir`; `created` are the
/// directories that were created for it. The caller holds the lock. Once this returns, the point survives a crash of
/// the machine; after an error there is none.
pub(super) fn put_into_place(
    dir: &Path,
    folder: &Path,
    number: u32,
    created: &[PathBuf],
) -> Result<(), StoreError> {
    let point = dir.join(point_name(number));
    renameat_with(CWD, folder, CWD, &point, RenameFlags::NOREPLACE)
        .or_else(|errno| match errno {
            // Not every file system knows the flag. The lock keeps the name free all the same.
            rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS if !point.exists() => {
                rustix::fs::rename(folder, &point)
            }
            errno => Err(errno),
        })
        .map_err(StoreError::io("put into place", &point))?;
    settle(dir, created).or_else(|error| {
        // Whether it would survive a crash is unknown, so it must not be seen either.
        std::fs::rename(&point, folder).map_err(StoreError::io("take back", &point))?;
        Err(error)
    })
}

/// Waits until the rename is on stable storage, and the directories that were created for it.
fn settle(dir: &Path, created: &[PathBuf]) -> Result<(), StoreError> {
    files::sync_dir(dir)?;
    for above in created.iter().filter_map(|dir| dir.parent()) {
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        files::sync_dir(above)?;
    }
    Ok(())
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.committed || self.owner != std::process::id() {
            return;
        }
        if let Err(error) = files::remove(&self.folder) {
            // The next writer removes it; until then it is only in the way.
            tracing::warn!(%error, "an unfinished snapshot is left behind");
        }
        if let Some(lock) = self.lock.take() {
            lock.abandon();
        }
    }
}

/// The folder of one member of a point that is being written.
#[derive(Debug)]
pub struct MemberDir {
    name: String,
    folder: PathBuf,
    members: Arc<Members>,
    parent: Option<Arc<Links>>,
}

impl MemberDir {
    /// The member's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The page file `name` of the same member in the point that this one builds on, with those that it builds on
    /// in turn: what an incremental page file of that name is written on ([`PageWrite::changes`]). `None` if this is a
    /// full point, or the other one has no such file: then only a full page file will do.
    ///
    /// [`PageWrite::changes`]: crate::PageWrite::changes
    ///
    /// # Errors
    /// As [`Member::pages`](crate::Member::pages).
    pub fn parent_pages(&self, name: &str) -> Result<Option<PageFile>, StoreError> {
        let Some(links) = &self.parent else {
            return Ok(None);
        };
        let entry = links.newest().manifest.file(&self.name, name);
        match entry.filter(|entry| entry.pages.is_some()) {
            Some(_) => links.pages(&self.name, name).map(Some),
            None => Ok(None),
        }
    }

    /// The files that [`MemberDir::parent_pages`] opens, from the newest to a full one, for another process to open as
    /// [`PageFile::open_chain`] does; none where that gives `None`.
    ///
    /// # Errors
    /// As [`MemberDir::parent_pages`].
    pub fn parent_files(&self, name: &str) -> Result<Vec<File>, StoreError> {
        let Some(links) = &self.parent else {
            return Ok(Vec::new());
        };
        let entry = links.newest().manifest.file(&self.name, name);
        match entry.filter(|entry| entry.pages.is_some()) {
            Some(_) => links.page_files(&self.name, name),
            None => Ok(Vec::new()),
        }
    }

    /// Where the file `name` of the member is for now, for messages.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes `value` as the file `name`; nothing needs to be recorded afterwards.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::Json`], [`StoreError::DiskFull`], [`StoreError::Io`].
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), StoreError> {
        let mut file = self.create(name)?;
        let path = self.folder.join(name);
        let mut text = serde_json::to_vec_pretty(value).map_err(|source| StoreError::Json {
            path: path.clone(),
            source,
        })?;
        text.push(b'\n');
        io::Write::write_all(&mut file, &text)
            .map_err(|source| files::write_error(&path, text.len() as u64, source))?;
        self.enter(FileEntry {
            name: name.into(),
            kind: FileKind::Json,
            bytes: text.len() as u64,
            checksum: crate::checksum::xxh3_64(&text),
            pages: None,
        })
    }

    /// Creates the file `name`, for reading and writing. It must be recorded once it is complete, whoever
    /// has written it: with [`MemberDir::record_pages`] or [`MemberDir::record_file`].
    ///
    /// # Errors
    /// [`StoreError::Name`] if the name is not plain or is taken, [`StoreError::Io`].
    pub fn create(&self, name: &str) -> Result<File, StoreError> {
        let mut members = self.members.lock();
        let drafts = &mut joined(&mut members, &self.name).files;
        check_name(&self.folder, name, drafts.iter().any(|d| d.name == name))?;
        let file = files::create(&self.folder.join(name))?;
        drafts.push(Draft {
            name: name.into(),
            entry: None,
        });
        Ok(file)
    }

    /// Records that the file `name` is a complete page file.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if it was not created here. Whether it really is what `summary` says is found
    /// out by [`Staging::commit`].
    pub fn record_pages(&self, name: &str, summary: PageFileSummary) -> Result<(), StoreError> {
        self.enter(FileEntry {
            name: name.into(),
            kind: FileKind::Pages,
            bytes: summary.file_bytes,
            checksum: summary.index_checksum,
            pages: Some(summary),
        })
    }

    /// Records that the file `name` is complete, whoever has written it. It is read for that. A name ending
    /// in `.json` is metadata, and has to be well-formed.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if it was not created here, [`StoreError::Json`], [`StoreError::Io`].
    pub fn record_file(&self, name: &str) -> Result<(), StoreError> {
        let path = self.folder.join(name);
        let file = files::open(&path)?;
        let kind = if name.ends_with(".json") {
            let text = io::BufReader::new(&file);
            serde_json::from_reader::<_, serde::de::IgnoredAny>(text).map_err(|source| {
                StoreError::Json {
                    path: path.clone(),
                    source,
                }
            })?;
            io::Seek::rewind(&mut &file).map_err(StoreError::io("read", &path))?;
            FileKind::Json
        } else {
            FileKind::Raw
        };
        let (bytes, checksum) = digest(&file, &path)?;
        self.enter(FileEntry {
            name: name.into(),
            kind,
            bytes,
            checksum,
            pages: None,
        })
    }

    fn enter(&self, entry: FileEntry) -> Result<(), StoreError> {
        let mut members = self.members.lock();
        let drafts = &mut joined(&mut members, &self.name).files;
        match drafts.iter_mut().find(|draft| draft.name == entry.name) {
            Some(draft) => {
                draft.entry = Some(entry);
                Ok(())
            }
            None => Err(StoreError::Missing {
                path: self.folder.join(&entry.name),
            }),
        }
    }
}

/// The member `name`; adds it in the impossible case that it is not there.
fn joined<'a>(members: &'a mut Vec<Joined>, name: &str) -> &'a mut Joined {
    let at = members
        .iter()
        .position(|member| member.name == name)
        .unwrap_or_else(|| {
            members.push(Joined {
                name: name.into(),
                files: Vec::new(),
            });
            members.len() - 1
        });
    &mut members[at]
}

fn check_name(within: &Path, name: &str, taken: bool) -> Result<(), StoreError> {
    let refuse = |reason| {
        Err(StoreError::Name {
            within: within.to_owned(),
            name: name.into(),
            reason,
        })
    };
    if !files::is_plain_name(name) || name == MANIFEST_FILE {
        return refuse("it is not a plain name");
    }
    if taken {
        return refuse("there is one of that name already");
    }
    Ok(())
}

/// Length in bytes and checksum of a file, from its beginning.
pub(super) fn digest(mut file: &File, path: &Path) -> Result<(u64, u64), StoreError> {
    let mut buf = vec![0; 1 << 20];
    let mut hash = Xxh3::new();
    let mut bytes = 0;
    loop {
        match file.read(&mut buf) {
            Ok(0) => return Ok((bytes, hash.digest())),
            Ok(read) => {
                hash.update(&buf[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StoreError::io("read", path)(error)),
        }
    }
}

/// Whether the file has the length that its entry says.
pub(super) fn check_length(file: &File, entry: &FileEntry, path: &Path) -> Result<(), StoreError> {
    let found = file
        .metadata()
        .map_err(StoreError::io("look at", path))?
        .len();
    if found == entry.bytes {
        return Ok(());
    }
    let what = if found < entry.bytes {
        format!("it ends there and should have {} bytes", entry.bytes)
    } else {
        format!(
            "{} bytes follow that do not belong to it",
            found - entry.bytes
        )
    };
    Err(StoreError::damaged(path, found.min(entry.bytes), what))
}

/// Opens a page file, which must be the one that `summary` describes.
pub(super) fn check_pages(
    file: File,
    path: &Path,
    summary: PageFileSummary,
) -> Result<PageFile, StoreError> {
    let pages = PageFile::open(file, path.to_owned())?;
    if *pages.summary() != summary {
        return Err(StoreError::damaged(
            path,
            0,
            "it is not the page file that the manifest speaks of",
        ));
    }
    Ok(pages)
}
