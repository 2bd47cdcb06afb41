//! What a program has made for itself in places for temporary files: it vanishes when the program ends, and a restart of an
//! earlier state needs it again. Of such a place the directories come back, with the files, named pipes and sockets in
//! them that the program has open or mapped.
//!
//! What was there before the program, or has others use it, is no business of a snapshot.

use crate::capture::{CaptureContext, Gathered};
use crate::files::Object;
use crate::files::regular::NamedType;
use crate::image::{Existing, TreeImage};
use crate::memory::image::MappingKind;
use crate::path::ImagePath;
use crate::procfs::ProcDir;
use crate::procfs::status::Status;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Places for temporary files, besides that which the program's `TMPDIR` names.
const PLACES: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run/user"];

/// Bytes of a file that is open but not mapped, at most: a lock, an address, a topology. Files of data are the user's.
const SMALL: u64 = 1 << 20;
/// Bytes of a file that is mapped, at most.
const MAPPED: u64 = 256 << 20;

/// A directory that the program has made for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScratchDirectory {
    /// Absolute path.
    pub path: ImagePath,
    /// Permission bits.
    pub mode: u32,
}

/// What tells such directories and files from others.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    places: Vec<PathBuf>,
    /// What is older than the program was not made by it: nanoseconds since 1970. Of a restored program it is not known
    /// when it began.
    since: i128,
}

impl Scratch {
    /// Of a program whose first process is this one.
    pub(crate) fn of(proc: &ProcDir, status: &Status) -> Self {
        let mut places: Vec<PathBuf> = PLACES.iter().map(PathBuf::from).collect();
        let environment = proc.read("environ").unwrap_or_default();
        let own = environment
            .split(|&byte| byte == 0)
            .find_map(|variable| variable.strip_prefix(b"TMPDIR="));
        let own = own.map(|path| PathBuf::from(OsStr::from_bytes(path)));
        places.extend(own.filter(|path| path.is_absolute() && path.parent().is_some()));
        let is_restored = status.inner_tgid() != status.tgid;
        let since = match proc.stat() {
            _ if is_restored => 0,
            Ok(stat) => began(stat.start_time),
            Err(_) => i128::MAX,
        };
        Self { places, since }
    }

    /// Whether a path is that of something that the program has made in such a place.
    fn has_made(&self, path: &Path) -> bool {
        self.places.iter().any(|place| is_below(path, place)) && self.is_young(path)
    }

    fn is_young(&self, path: &Path) -> bool {
        let wanted = StatxFlags::BTIME | StatxFlags::UID;
        let Ok(now) = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted) else {
            return false;
        };
        let known = StatxFlags::from_bits_retain(now.stx_mask).contains(wanted);
        let born =
            i128::from(now.stx_btime.tv_sec) * 1_000_000_000 + i128::from(now.stx_btime.tv_nsec);
        known && now.stx_uid == rustix::process::geteuid().as_raw() && born > self.since
    }

    /// The directories above a path that the program has made, outermost first.
    fn directories(&self, path: &Path) -> Vec<ScratchDirectory> {
        let made = |directory: &&Path| self.has_made(directory);
        // What is in one that the program has made, it has made as well.
        let above = path.ancestors().skip(1).take_while(made);
        let mode = |directory: &Path| {
            let stat = rustix::fs::lstat(directory).ok()?;
            let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
            is_directory.then_some(stat.st_mode & 0o7777)
        };
        let mut found: Vec<ScratchDirectory> = above
            .map_while(|directory| {
                Some(ScratchDirectory {
                    path: directory.into(),
                    mode: mode(directory)?,
                })
            })
            .collect();
        found.reverse();
        found
    }

    /// Adds the content of a file that the process has mapped, and that the program has made: it is memory that processes
    /// share.
    pub(crate) fn add_mapped(&self, path: &ImagePath, key: (u64, u64), ctx: &CaptureContext<'_>) {
        if !self.has_made(path) {
            return;
        }
        let existing = Existing::Same {
            device: key.0,
            inode: key.1,
        };
        // What we may not write could not be filled again.
        add(path, key, (OFlags::RDWR, MAPPED), existing, ctx.gathered);
    }

    /// Adds the directories that the program has made and needs, and small files in them that it has open.
    pub(crate) fn capture(&self, image: &mut TreeImage, gathered: &Gathered) {
        let mut found = BTreeMap::new();
        let mut note = |path: &Path| {
            let above = self.directories(path);
            let is_inside = !above.is_empty();
            found.extend(above.into_iter().map(|d| (d.path.clone(), d)));
            is_inside
        };
        for description in &image.files.descriptions {
            let Object::Named(file) = &description.object else {
                continue;
            };
            let identity = &file.identity;
            match file.file_type {
                NamedType::Directory => {
                    note(&identity.path.join("inside"));
                }
                NamedType::Regular if note(&identity.path) => {
                    let key = (identity.device, identity.inode);
                    let limits = (OFlags::RDONLY, SMALL);
                    add(&identity.path, key, limits, Existing::Keep, gathered);
                }
                _ => {}
            }
        }
        let pipes = image.files.pipes.iter().filter_map(|p| p.name.as_ref());
        for pipe in pipes.filter(|pipe| !pipe.removed) {
            note(&pipe.path);
        }
        let sockets = image.files.unix.iter().filter_map(|s| s.name.as_ref());
        for path in sockets.filter_map(|name| name.path()) {
            note(&path);
        }
        for process in &image.processes {
            if !process.context.directory_removed {
                note(&process.context.directory.join("inside"));
            }
            for mapping in &process.memory.mappings {
                if let MappingKind::SharedFile { file, .. } = mapping.kind {
                    note(&process.memory.files[file].identity.path);
                }
            }
        }
        image.scratch = found.into_values().collect();
    }
}

/// Adds the content of the file at `path`, if it is the one meant, in plain sight, and not too large.
fn add(
    path: &ImagePath,
    key: (u64, u64),
    (access, most): (OFlags, u64),
    existing: Existing,
    gathered: &Gathered,
) {
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let result = rustix::fs::open(path.as_path(), flags, Mode::empty()).and_then(|file| {
        let stat = rustix::fs::fstat(&file)?;
        Ok((file, stat))
    });
    match result {
        Ok((file, stat)) => {
            let is_it = (stat.st_dev, stat.st_ino) == key
                && FileType::from_raw_mode(stat.st_mode).is_file();
            let fits = u64::try_from(stat.st_size).is_ok_and(|bytes| bytes <= most);
            if !is_it || !fits {
                return;
            }
            let mut objects = gathered.objects_mut();
            if let Err(error) = objects.add_named(path.clone(), file, existing) {
                tracing::debug!("{path}: {error}");
            }
        }
        Err(errno) => tracing::debug!("{path}: its content is not saved: {errno}"),
    }
}

/// Whether a path lies below a directory, told by its text alone.
fn is_below(path: &Path, place: &Path) -> bool {
    let plain = |part: Component<'_>| !matches!(part, Component::ParentDir | Component::CurDir);
    path.strip_prefix(place)
        .is_ok_and(|rest| rest.components().next().is_some())
        && path.components().all(plain)
}

/// When what has begun `ticks` after the system was started certainly was there, in nanoseconds since 1970.
fn began(ticks: u64) -> i128 {
    let now = |clock| {
        let time = rustix::time::clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    let booted = now(rustix::time::ClockId::Realtime) - now(rustix::time::ClockId::Boottime);
    let tick = 1_000_000_000 / i128::from(rustix::param::clock_ticks_per_second().max(1));
    booted + (i128::from(ticks) + 1) * tick
}

/// Directories of the image that are gone, and with them what the program had in them.
pub(crate) fn missing(image: &TreeImage) -> HashSet<&Path> {
    let directories = image.scratch.iter().map(|directory| &*directory.path);
    let mut missing: HashSet<&Path> = directories.map(Path::new).filter(|p| is_gone(p)).collect();
    let pipes = image.files.pipes.iter().filter_map(|p| p.name.as_ref());
    let pipes = pipes
        .map(|pipe| pipe.path.as_path())
        .filter(|path| path.parent().is_some_and(|parent| missing.contains(parent)));
    let pipes: Vec<&Path> = pipes.collect();
    missing.extend(pipes);
    missing
}

/// Whether nothing has this name.
fn is_gone(path: &Path) -> bool {
    matches!(rustix::fs::lstat(path), Err(rustix::io::Errno::NOENT))
}

/// Makes directories that are gone, and named pipes in them.
///
/// # Errors
/// Those of mkdir(2) and mknod(2), with the path.
pub(crate) fn make(image: &TreeImage) -> Result<(), (PathBuf, io::Error)> {
    let missing: HashSet<PathBuf> = missing(image).into_iter().map(Path::to_owned).collect();
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |errno: rustix::io::Errno| (path, io::Error::from(errno))
    };
    for directory in &image.scratch {
        let path = directory.path.as_path();
        if missing.contains(path) {
            // Things are going to be made in it.
            let mode = Mode::from_raw_mode(directory.mode & 0o7777) | Mode::RWXU;
            rustix::fs::mkdir(path, mode)
                .and_then(|()| rustix::fs::chmod(path, mode))
                .map_err(failed(path))?;
        }
    }
    for pipe in image.files.pipes.iter().filter_map(|p| p.name.as_ref()) {
        let path = pipe.path.as_path();
        if missing.contains(path) && !pipe.removed && is_gone(path) {
            let mode = Mode::from_raw_mode(pipe.mode & 0o7777);
            rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0)
                .and_then(|()| rustix::fs::chmod(path, mode))
                .map_err(failed(path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_place() {
        let below = |path: &str| is_below(Path::new(path), Path::new("/tmp"));
        assert!(below("/tmp/a") && below("/tmp/a/b"));
        for other in ["/tmp", "/tmp/", "/tmpa", "/tmp/../etc", "tmp/a", "/"] {
            assert!(!below(other), "{other}");
        }
    }

    #[test]
    fn what_was_there_before_was_not_made() {
        let place = tempfile::tempdir().unwrap();
        let old = place.path().join("old");
        std::fs::create_dir(&old).unwrap();
        let born = |path: &Path| {
            let flags = AtFlags::empty();
            let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::BTIME).unwrap();
            i128::from(stat.stx_btime.tv_sec) * 1_000_000_000 + i128::from(stat.stx_btime.tv_nsec)
        };
        let since = born(&old);
        // The file system's clock goes in steps.
        let mut number = 0;
        let young = loop {
            number += 1;
            let young = place.path().join(number.to_string());
            std::fs::create_dir(&young).unwrap();
            if born(&young) > since {
                break young;
            }
        };
        let scratch = Scratch {
            places: vec![place.path().to_owned()],
            since,
        };
        assert!(!scratch.has_made(&old) && scratch.has_made(&young));
        let inner = young.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let found = scratch.directories(&inner.join("file"));
        let paths: Vec<&Path> = found.iter().map(|d| d.path.as_path()).collect();
        assert_eq!(paths, [&*young, &*young.join("a"), &*inner]);
        assert!(scratch.directories(&old.join("file")).is_empty());
    }
}
