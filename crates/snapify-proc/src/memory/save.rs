//! Reading the pages of frozen processes while they are written to a page file.

use super::capture::{Ranges, object_range};
use super::common;
use super::hold::Held;
use crate::capture::{ObjectSource, Objects};
use crate::error::ProcError;
use crate::ids::Pid;
use crate::procfs::ProcDir;
use crate::tracking::{Changed, Changes};
use snapify_store::{
    PAGE_SIZE, PageFile, PageFileSummary, PageRange, PageSource, PageWrite, Progress, SpaceId,
    WriteOptions,
};
use snapify_sys::vm;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes that one process_vm_readv asks for: the best rate, and it stays in the cache for what follows.
const PIECE: usize = 256 * 1024;

/// The memory of a frozen process, to be read.
pub(crate) struct SavedMemory<'a> {
    pub(crate) pid: Pid,
    pub(crate) proc: &'a ProcDir,
    /// Its space in the page file.
    pub(crate) space: SpaceId,
    pub(crate) ranges: &'a Ranges,
    /// Whether it may have pages in common with another process since a fork.
    pub(crate) forked: bool,
}

/// What of memory a page file holds.
#[derive(Clone, Copy, Default)]
pub enum Form<'a> {
    /// All of it.
    #[default]
    Full,
    /// All of it, with hashes (of this seed, see [`PageWrite::hashes`]), so that a later file may hold only what
    /// differs from this.
    Hashed(u64),
    /// Private memory as far as it has changed since `parent` was written; objects as far as they differ from what
    /// `parent` has or, where that has no hashes, all of them.
    Changed {
        /// What the file builds on.
        parent: &'a PageFile,
        /// What has changed since.
        changed: &'a Changed,
    },
    /// What differs from what `parent` has. It should have hashes.
    Different {
        /// What the file builds on.
        parent: &'a PageFile,
    },
}

/// Which pages of private memory have changed.
pub(crate) fn changes(memories: &[SavedMemory<'_>], changed: &Changed) -> Changes {
    let mut changes = Changes::default();
    for memory in memories {
        changes.add(memory.space, memory.ranges, changed);
    }
    changes.sort();
    changes
}

/// Writes private memory and objects to `out`, as they are now, or as they were kept in `held`.
///
/// # Errors
/// [`ProcError::Store`].
pub(crate) fn save(
    memories: &[SavedMemory<'_>],
    objects: &Objects,
    held: &Held,
    (form, options): (Form<'_>, &WriteOptions),
    (out, name): (File, &str),
    progress: &dyn Progress,
) -> Result<PageFileSummary, ProcError> {
    let of_objects = match held.objects() {
        Some(ranges) => ranges.to_vec(),
        None => objects_ranges(objects)?,
    };
    let source = Source::new(memories, objects)?;
    let source = Keeping { held, source };
    let mut all: Vec<PageRange> = of_objects.clone();
    let mut same = Vec::new();
    match form {
        Form::Full | Form::Hashed(_) => {
            let (private, common) = common::split(memories, &source)?;
            all.extend(private);
            same = common;
        }
        // What has not changed is not in the file: nothing can be the same as that.
        Form::Changed { .. } | Form::Different { .. } => {
            let ranges = memories.iter().flat_map(|memory| &memory.ranges.ranges);
            all.extend(ranges);
        }
    }
    let gone = match form {
        Form::Full | Form::Hashed(_) => Vec::new(),
        Form::Changed { parent, .. } | Form::Different { parent } => parent.outside(&all),
    };
    if let Form::Changed { changed, .. } = form {
        all = changes(memories, changed).pages;
        all.extend(of_objects);
    }
    let write = match form {
        Form::Full => PageWrite::full(&all).same(&same),
        Form::Hashed(seed) => PageWrite::full(&all).same(&same).hashes(seed),
        Form::Changed { parent, .. } if parent.hash_seed().is_none() => {
            PageWrite::changes(parent.summary().id(), &all)
        }
        Form::Changed { parent, .. } | Form::Different { parent } => {
            PageWrite::compared(parent, &all)
        }
    };
    let write = write.gone(&gone).options(options);
    Ok(write.write(out, name, &source, progress)?)
}

/// Reads what a copy of the processes by fork would not have: objects, and parts of the private memory.
///
/// # Errors
/// If something cannot be read.
pub(crate) fn hold(memories: &[SavedMemory<'_>], objects: &Objects) -> Result<Held, ProcError> {
    let of_objects = objects_ranges(objects)?;
    let wanted = to_hold(memories, objects, &of_objects);
    let source = Source::new(memories, objects)?;
    Held::read(&wanted, of_objects, &source)
}

/// Keeps `wanted`, pages of `memories`, beside what is `held` already.
///
/// # Errors
/// If something cannot be read.
pub(crate) fn hold_more(
    held: Held,
    wanted: &[PageRange],
    memories: &[SavedMemory<'_>],
    objects: &Objects,
) -> Result<Held, ProcError> {
    let source = Source::new(memories, objects)?;
    held.read_more(wanted, &source)
}

/// The private memory that a copy by fork would not have, as far as that is known.
pub(crate) fn not_copied(memories: &[SavedMemory<'_>]) -> Vec<PageRange> {
    let all = memories
        .iter()
        .flat_map(|memory| memory.ranges.not_copied());
    all.collect()
}

/// How many bytes [`hold`] would keep.
///
/// # Errors
/// If a file cannot be looked at.
pub(crate) fn held_bytes(
    memories: &[SavedMemory<'_>],
    objects: &Objects,
) -> Result<u64, ProcError> {
    let of_objects = objects_ranges(objects)?;
    let wanted = to_hold(memories, objects, &of_objects);
    Ok(wanted.iter().map(|range| range.bytes).sum())
}

fn to_hold(
    memories: &[SavedMemory<'_>],
    objects: &Objects,
    of_objects: &[PageRange],
) -> Vec<PageRange> {
    let is_ours = |range: &&PageRange| {
        let source = objects.source(range.space);
        matches!(source, Some(ObjectSource::Bytes(_)))
    };
    let mut wanted: Vec<PageRange> = of_objects.iter().filter(|r| !is_ours(r)).copied().collect();
    wanted.extend(not_copied(memories));
    wanted
}

/// The parts of all objects that hold data.
fn objects_ranges(objects: &Objects) -> Result<Vec<PageRange>, ProcError> {
    let mut all = Vec::new();
    for (image, source) in objects.images.iter().zip(&objects.sources) {
        object_ranges(image.space, image.bytes, source, &mut all).map_err(ProcError::system(
            format!("looking for the data of {}", image.what),
        ))?;
    }
    Ok(all)
}

/// Memory that is kept, and all other where it is.
struct Keeping<'a> {
    held: &'a Held,
    source: Source<'a>,
}

impl PageSource for Keeping<'_> {
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        self.held.read_or(space, start, buf, &self.source)
    }
}

/// The parts of an object that hold data.
fn object_ranges(
    space: SpaceId,
    bytes: u64,
    source: &ObjectSource,
    all: &mut Vec<PageRange>,
) -> io::Result<()> {
    match source {
        ObjectSource::Bytes(_) if bytes == 0 => {}
        ObjectSource::Bytes(_) => all.push(object_range(space, 0, bytes)),
        ObjectSource::Memory(parts) => all.extend(parts.iter().map(|part| PageRange {
            space,
            start: part.offset,
            bytes: part.bytes,
        })),
        ObjectSource::File(file) => {
            for (start, end) in data(file, bytes)? {
                let next = object_range(space, start, end);
                match all.last_mut() {
                    // Extents need not be page aligned.
                    Some(last) if last.space == space && last.start + last.bytes >= next.start => {
                        last.bytes = last.bytes.max(next.start + next.bytes - last.start);
                    }
                    _ => all.push(next),
                }
            }
        }
    }
    Ok(())
}

/// The extents of a file that hold data (SEEK_DATA, SEEK_HOLE). The descriptor must not share its offset with anyone.
fn data(file: &OwnedFd, bytes: u64) -> io::Result<Vec<(u64, u64)>> {
    use rustix::fs::{SeekFrom, seek};
    let mut extents = Vec::new();
    let mut at = 0;
    while at < bytes {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            // No such call on this file system: all of it is data.
            Err(_) => return Ok(vec![(0, bytes)]),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(bytes);
        if end <= start {
            break;
        }
        extents.push((start, end));
        at = end;
    }
    Ok(extents)
}

struct Source<'a> {
    /// By process id.
    readers: HashMap<i32, Reader<'a>>,
    /// Whose private memory a space is.
    spaces: HashMap<SpaceId, i32>,
    objects: &'a Objects,
}

impl PageSource for Source<'_> {
    fn read(&self, space: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        if let Some(pid) = self.spaces.get(&space) {
            return self.reader(*pid)?.private(start, buf);
        }
        let none = || io::Error::other(format!("there is no object {space}"));
        match self.objects.source(space).ok_or_else(none)? {
            ObjectSource::Bytes(bytes) => {
                let from = (start as usize).min(bytes.len());
                let n = (bytes.len() - from).min(buf.len());
                buf[..n].copy_from_slice(&bytes[from..from + n]);
                buf[n..].fill(0);
                Ok(())
            }
            ObjectSource::File(file) => read_file(file, start, buf),
            ObjectSource::Memory(parts) => {
                // A request lies within the ranges, but may span several.
                let mut done = 0;
                while done < buf.len() {
                    let offset = start + done as u64;
                    let after = parts.partition_point(|part| part.offset <= offset);
                    let part = parts.get(after.wrapping_sub(1)).ok_or_else(none)?;
                    let within = offset - part.offset;
                    if within >= part.bytes {
                        return Err(none());
                    }
                    let n = (part.bytes - within).min((buf.len() - done) as u64) as usize;
                    let reader = self.reader(part.pid)?;
                    reader.read(part.address + within, &mut buf[done..done + n], true)?;
                    done += n;
                }
                Ok(())
            }
        }
    }
}

impl<'a> Source<'a> {
    fn new(memories: &[SavedMemory<'a>], objects: &'a Objects) -> Result<Self, ProcError> {
        let mut readers = HashMap::new();
        let mut spaces = HashMap::new();
        for memory in memories {
            readers.insert(memory.pid.0, Reader::new(memory)?);
            spaces.insert(memory.space, memory.pid.0);
        }
        Ok(Self {
            readers,
            spaces,
            objects,
        })
    }

    fn reader(&self, pid: i32) -> io::Result<&Reader<'a>> {
        let none = || io::Error::other(format!("the memory of process {pid} is not open"));
        self.readers.get(&pid).ok_or_else(none)
    }
}

/// Reads a file; what is behind its end is zero.
fn read_file(file: &OwnedFd, start: u64, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(file.as_fd(), &mut buf[done..], start + done as u64) {
            Ok(0) => {
                buf[done..].fill(0);
                break;
            }
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Reads the memory of one process.
struct Reader<'a> {
    pid: Pid,
    memory: File,
    lenient: &'a [(u64, u64)],
    /// Whether process_vm_readv(2) may be used, which is faster than /proc/PID/mem. It pins pages, and of a page that
    /// processes share since fork the kernel makes a copy for each first: the program would need more memory for being saved.
    may_pin: bool,
}

impl<'a> Reader<'a> {
    fn new(memory: &SavedMemory<'a>) -> Result<Self, ProcError> {
        Ok(Self {
            pid: memory.pid,
            memory: memory.proc.open_file("mem")?,
            lenient: &memory.ranges.lenient,
            may_pin: !memory.forked,
        })
    }

    fn private(&self, start: u64, buf: &mut [u8]) -> io::Result<()> {
        let after = self.lenient.partition_point(|range| range.1 <= start);
        let lenient = self
            .lenient
            .get(after)
            .is_some_and(|range| range.0 < start + buf.len() as u64);
        self.read(start, buf, lenient)
    }

    fn read(&self, start: u64, buf: &mut [u8], lenient: bool) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let end = buf.len().min(done + PIECE);
            let at = start + done as u64;
            let read = match self.may_pin {
                true => vm::read(self.pid.0, at, &mut buf[done..end]),
                false => Ok(0),
            };
            match read {
                Ok(n) if n > 0 => done += n,
                Err(e) if e.raw_os_error() != Some(libc::EFAULT) => return Err(e),
                // Memory that the process itself may not read: mostly all of the piece is.
                Ok(_) | Err(_) => match self.memory.read_exact_at(&mut buf[done..end], at) {
                    Ok(()) => done = end,
                    Err(_) => {
                        let page = (PAGE_SIZE - at % PAGE_SIZE) as usize;
                        let end = (done + page).min(buf.len());
                        self.protected(at, &mut buf[done..end], lenient)?;
                        done = end;
                    }
                },
            }
        }
        Ok(())
    }

    /// Reads (a part of) one page through /proc/PID/mem, which overrides protection.
    fn protected(&self, at: u64, page: &mut [u8], lenient: bool) -> io::Result<()> {
        match self.memory.read_exact_at(page, at) {
            Ok(()) => Ok(()),
            // Behind the end of its file a mapping has no pages.
            Err(e) if lenient && e.raw_os_error() == Some(libc::EIO) => {
                page.fill(0);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}
