//! What the kinds of kernel objects share while a frozen tree of processes is described.

use crate::error::Obstacle;
use crate::external::External;
use crate::ids::{Pid, RemoteFd, Tid};
use crate::image::{Backing, Existing, ObjectImage};
use crate::path::ImagePath;
use crate::procfs::ProcDir;
use crate::procfs::maps::Mapping;
use crate::procfs::status::Status;
use crate::scratch::Scratch;
use snapify_store::SpaceId;
use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;

/// The frozen process as /proc showed it before the first remote call, and what the kinds add to its image.
#[derive(Debug)]
pub struct CaptureContext<'a> {
    /// The process as we see it.
    pub pid: Pid,
    /// Its /proc directory.
    pub proc: &'a ProcDir,
    /// Its status.
    pub status: &'a Status,
    /// Its mappings with flags. The scratch memory of remote calls is not among them.
    pub maps: &'a [Mapping],
    /// Its threads as we see them, and the ids that they see themselves; the leader first.
    pub threads: &'a [(Tid, Tid)],
    /// What agents have declared of what it has.
    pub externals: &'a [External],
    /// What is gathered for all processes.
    pub(crate) gathered: &'a Gathered,
}

/// The page space of the first object. Those before are for the memory of processes, which have theirs for as long as they
/// live.
const FIRST_OBJECT: u32 = 1 << 24;

/// What is gathered while the processes of a tree are looked at one after the other.
#[derive(Debug)]
pub struct Gathered {
    /// Contents saved beside the memory.
    objects: RefCell<Objects>,
    /// What was met that cannot be saved.
    obstacles: RefCell<Vec<Obstacle>>,
    /// The ids that the processes have for themselves, by those that we see.
    inner: HashMap<Pid, Pid>,
    /// What the program has made for itself.
    scratch: Scratch,
}

impl Gathered {
    /// For these processes, and objects that have had these page spaces before.
    pub(crate) fn new(
        processes: impl IntoIterator<Item = (Pid, Pid)>,
        known: &BTreeMap<(u64, u64), SpaceId>,
    ) -> Self {
        Self {
            objects: RefCell::new(Objects::knowing(known)),
            obstacles: RefCell::default(),
            inner: processes.into_iter().collect(),
            scratch: Scratch::default(),
        }
    }

    /// The same for a program that has made such files and directories for itself.
    pub(crate) fn with_scratch(self, scratch: Scratch) -> Self {
        Self { scratch, ..self }
    }

    /// What the program has made for itself.
    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// The id that a process of the tree, as we see it, has for itself.
    #[must_use]
    pub fn inner_pid(&self, outer: Pid) -> Option<Pid> {
        self.inner.get(&outer).copied()
    }

    /// Notes something that cannot be saved. Capturing goes on, so that the user is told of everything at once,
    /// and is refused at the end.
    pub fn refuse(&self, obstacle: Obstacle) {
        self.obstacles.borrow_mut().push(obstacle);
    }

    /// Whether something was met that cannot be saved.
    pub(crate) fn is_refused(&self) -> bool {
        !self.obstacles.borrow().is_empty()
    }

    /// The objects added so far.
    pub fn objects(&self) -> Ref<'_, Objects> {
        self.objects.borrow()
    }

    /// The objects, to add one.
    pub fn objects_mut(&self) -> RefMut<'_, Objects> {
        self.objects.borrow_mut()
    }

    pub(crate) fn finish(self) -> (Objects, Vec<Obstacle>) {
        (self.objects.into_inner(), self.obstacles.into_inner())
    }
}

impl CaptureContext<'_> {
    /// The external that descriptor `fd` belongs to.
    #[must_use]
    pub fn external_of_fd(&self, fd: RemoteFd) -> Option<&External> {
        self.externals.iter().find(|e| e.fds.contains(&fd))
    }

    /// The id that one of the process's threads, as we see it, has for itself.
    #[must_use]
    pub fn inner_tid(&self, outer: Tid) -> Option<Tid> {
        self.threads
            .iter()
            .find(|(tid, _)| *tid == outer)
            .map(|&(_, inner)| inner)
    }

    /// Notes something that cannot be saved. Capturing goes on, so that the user is told of everything at once,
    /// and is refused at the end.
    pub fn refuse(&self, obstacle: Obstacle) {
        self.gathered.refuse(obstacle);
    }

    /// The objects added so far.
    pub fn objects(&self) -> Ref<'_, Objects> {
        self.gathered.objects()
    }

    /// The objects, to add one.
    pub fn objects_mut(&self) -> RefMut<'_, Objects> {
        self.gathered.objects_mut()
    }
}

/// Where the content of an object is read from when the pages are written.
#[derive(Debug)]
pub(crate) enum ObjectSource {
    /// An open file, by positioned reads.
    File(OwnedFd),
    /// Bytes in our memory.
    Bytes(Vec<u8>),
    /// Mapped memory of the processes, by offset in the object.
    Memory(Vec<MemoryPart>),
}

/// A part of an object that is read from where a process has it mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemoryPart {
    /// Offset in the object.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The process that has it mapped, as we see it.
    pub(crate) pid: i32,
    /// Where.
    pub(crate) address: u64,
}

/// Contents that are saved as page spaces of their own.
#[derive(Debug)]
pub struct Objects {
    pub(crate) images: Vec<ObjectImage>,
    pub(crate) sources: Vec<ObjectSource>,
    /// Where in both lists the object of a space is.
    places: HashMap<SpaceId, usize>,
    by_inode: BTreeMap<(u64, u64), SpaceId>,
    /// Spaces that files have had before, by device and inode number.
    known: BTreeMap<(u64, u64), SpaceId>,
    /// The space of the next one that is not known.
    next: u32,
}

impl Objects {
    fn knowing(known: &BTreeMap<(u64, u64), SpaceId>) -> Self {
        let last = known.values().map(|space| space.0).max();
        Self {
            images: Vec::new(),
            sources: Vec::new(),
            places: HashMap::new(),
            by_inode: BTreeMap::new(),
            known: known.clone(),
            next: last.map_or(FIRST_OBJECT, |last| last + 1),
        }
    }

    /// Where the content of an object is read from.
    pub(crate) fn source(&self, space: SpaceId) -> Option<&ObjectSource> {
        self.sources.get(*self.places.get(&space)?)
    }

    /// The spaces of those that are files, by device and inode number.
    pub(crate) fn keyed(&self) -> BTreeMap<(u64, u64), SpaceId> {
        self.by_inode.clone()
    }

    /// Adds bytes, as the content of a pipe.
    pub fn add_bytes(&mut self, what: impl Into<String>, bytes: Vec<u8>) -> SpaceId {
        self.add_bytes_of(what, bytes, None)
    }

    fn add_bytes_of(
        &mut self,
        what: impl Into<String>,
        bytes: Vec<u8>,
        key: Option<(u64, u64)>,
    ) -> SpaceId {
        let image = ObjectImage {
            space: SpaceId(0),
            bytes: bytes.len() as u64,
            what: what.into(),
            directory: None,
            named: None,
            existing: Existing::Fill,
            mode: 0o600,
            backing: Backing::File,
        };
        self.push(image, ObjectSource::Bytes(bytes), key)
    }

    /// Adds shared memory whose content has been read already, of the file with this device and inode number.
    pub(crate) fn add_held(
        &mut self,
        what: impl Into<String>,
        content: Vec<u8>,
        key: Option<(u64, u64)>,
        backing: Backing,
    ) -> SpaceId {
        let space = self.add_bytes_of(what, content, key);
        if let Some(image) = self.images.last_mut() {
            image.backing = backing;
            image.mode = 0o777;
        }
        space
    }

    /// Adds the content of an open file (which must be readable by pread), as of a deleted one. A file that was added before,
    /// by whatever descriptor or mapping, is the same object.
    ///
    /// `directory` is where a new file with this content is best made.
    ///
    /// # Errors
    /// If the file cannot be examined.
    pub fn add_file(
        &mut self,
        what: impl Into<String>,
        file: OwnedFd,
        directory: Option<ImagePath>,
    ) -> io::Result<SpaceId> {
        let stat = rustix::fs::fstat(&file)?;
        let key = (stat.st_dev, stat.st_ino);
        if let Some(&space) = self.by_inode.get(&key) {
            return Ok(space);
        }
        let image = ObjectImage {
            space: SpaceId(0),
            bytes: stat.st_size as u64,
            what: what.into(),
            directory,
            named: None,
            existing: Existing::Fill,
            mode: stat.st_mode & 0o7777,
            backing: Backing::of(&file)?,
        };
        Ok(self.push(image, ObjectSource::File(file), Some(key)))
    }

    /// As [`Self::add_file`], of a file that is to be found under its name again. The first name counts.
    ///
    /// # Errors
    /// If the file cannot be examined.
    pub(crate) fn add_named(
        &mut self,
        path: ImagePath,
        file: OwnedFd,
        existing: Existing,
    ) -> io::Result<()> {
        let count = self.images.len();
        self.add_file(path.to_string(), file, None)?;
        if let Some(new) = self.images.get_mut(count) {
            new.named = Some(path);
            new.existing = existing;
        }
        Ok(())
    }

    /// The object with this device and inode number (as stat(2) shows them), if it was added.
    #[must_use]
    pub fn of_inode(&self, device: u64, inode: u64) -> Option<SpaceId> {
        self.by_inode.get(&(device, inode)).copied()
    }

    /// Adds what a process has mapped of an object that cannot be opened, by offset and each part once.
    pub(crate) fn add_memory(
        &mut self,
        what: impl Into<String>,
        bytes: u64,
        key: (u64, u64),
        parts: Vec<MemoryPart>,
        backing: Backing,
    ) -> SpaceId {
        let image = ObjectImage {
            space: SpaceId(0),
            bytes,
            what: what.into(),
            directory: None,
            named: None,
            existing: Existing::Fill,
            mode: 0o777,
            backing,
        };
        self.push(image, ObjectSource::Memory(parts), Some(key))
    }

    fn push(
        &mut self,
        mut image: ObjectImage,
        source: ObjectSource,
        key: Option<(u64, u64)>,
    ) -> SpaceId {
        let known = key.and_then(|key| self.known.remove(&key));
        let space = known.unwrap_or_else(|| {
            self.next += 1;
            SpaceId(self.next - 1)
        });
        if let Some(key) = key {
            self.by_inode.insert(key, space);
        }
        image.space = space;
        self.places.insert(space, self.images.len());
        self.images.push(image);
        self.sources.push(source);
        space
    }
}

/// Mappings of the same pages at several places: one is enough.
pub(crate) fn distinct(mut parts: Vec<MemoryPart>) -> Vec<MemoryPart> {
    parts.sort_unstable();
    let mut distinct: Vec<MemoryPart> = Vec::with_capacity(parts.len());
    for part in parts {
        let covered = distinct.last().map_or(0, |last| last.offset + last.bytes);
        let skip = covered.saturating_sub(part.offset).min(part.bytes);
        if skip < part.bytes {
            distinct.push(MemoryPart {
                offset: part.offset + skip,
                address: part.address + skip,
                bytes: part.bytes - skip,
                ..part
            });
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_overlap_are_read_once() {
        let part = |offset, bytes, pid| MemoryPart {
            offset,
            bytes,
            pid,
            address: 0x10000 + offset,
        };
        assert_eq!(
            distinct(vec![
                part(8, 8, 2),
                part(0, 10, 1),
                part(2, 4, 3),
                part(20, 4, 1)
            ]),
            vec![part(0, 10, 1), part(10, 6, 2), part(20, 4, 1)]
        );
    }
}
