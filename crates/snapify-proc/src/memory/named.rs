//! POSIX shared memory (shm_overview(7)): files below `/dev/shm` that processes have mapped. They have a name, but are gone with
//! the next start of the system, and often with the program that made them; so their content is saved, and they are
//! made anew, or filled again, unless others use them.

use super::classify::{Class, classify};
use crate::capture::CaptureContext;
use crate::ids::Pid;
use crate::image::{Existing, ObjectImage, TreeImage};
use crate::path::ImagePath;
use crate::procfs::{ProcDir, text};
use crate::scratch;
use rustix::fs::{FsWord, Mode, OFlags};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Where shm_open(3) makes files.
const DIRECTORY: &str = "/dev/shm";

/// Type of a file system in memory (linux/magic.h).
const TMPFS: FsWord = 0x0102_1994;

/// Whether a path leads to a place below [`DIRECTORY`], if nothing on the way is a link.
pub(crate) fn is_name(path: &Path) -> bool {
    let plain = |part: Component<'_>| !matches!(part, Component::ParentDir | Component::CurDir);
    let inside = path.strip_prefix(DIRECTORY);
    inside.is_ok_and(|rest| rest.file_name().is_some()) && path.components().all(plain)
}

/// Adds the content of all such files that the process has mapped. What we may not write stays a file like others.
pub(super) fn capture(ctx: &CaptureContext<'_>) {
    for mapping in ctx.maps.iter().filter(|m| m.shared && m.is_file()) {
        if classify(mapping, ctx) != Class::SharedFile {
            continue;
        }
        let path = ImagePath::from_bytes(mapping.name.as_slice());
        let (major, minor) = mapping.device;
        let key = (rustix::fs::makedev(major, minor), mapping.inode);
        if !is_name(&path) {
            ctx.gathered.scratch().add_mapped(&path, key, ctx);
            continue;
        }
        match open(&path, key) {
            Ok(Some(file)) => {
                if let Err(error) = ctx
                    .objects_mut()
                    .add_named(path.clone(), file, Existing::Fill)
                {
                    tracing::debug!("{path}: {error}");
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!("{path}: its content is not saved: {error}"),
        }
    }
}

/// Opens the file that is mapped, if it is one in memory and still has this name.
fn open(path: &Path, key: (u64, u64)) -> io::Result<Option<OwnedFd>> {
    // What we may not write could not be filled again: it is somebody else's.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::ACCESS) => return Ok(None),
        file => file?,
    };
    let stat = rustix::fs::fstat(&file)?;
    let fine = (stat.st_dev, stat.st_ino) == key && rustix::fs::fstatfs(&file)?.f_type == TMPFS;
    Ok(fine.then_some(file))
}

/// What of the image will be made or filled: of the files with a name and a content those that are gone, and those that nobody
/// uses and that need it; and what is gone with directories that the program had made for itself.
pub(crate) fn restorable(image: &TreeImage) -> HashSet<&Path> {
    let missing = scratch::missing(image);
    let mut used = used(image);
    used.retain(|path| !missing.contains(path));
    let fillable = image.objects.iter().filter_map(|object| {
        let path = object.named.as_deref()?;
        (is_due(object, path) && !used.contains(path)).then_some(path)
    });
    fillable
        .collect::<HashSet<_>>()
        .union(&missing)
        .copied()
        .collect()
}

/// Whether a file is to be made, or filled if nobody uses it.
fn is_due(object: &ObjectImage, path: &Path) -> bool {
    let now = match rustix::fs::lstat(path) {
        Ok(now) => now,
        Err(_) => return true,
    };
    match object.existing {
        Existing::Fill => true,
        Existing::Same { device, inode } => (now.st_dev, now.st_ino) == (device, inode),
        Existing::Keep => false,
    }
}

/// Leaves files alone that others use, or that are not to be filled.
pub(crate) fn spare_used(image: &mut TreeImage) {
    let restorable: HashSet<_> = restorable(image).into_iter().map(Path::to_owned).collect();
    for object in &mut image.objects {
        let spared = |path: &mut ImagePath| !restorable.contains(path.as_path());
        if let Some(path) = object.named.take_if(spared)
            && object.existing != Existing::Keep
        {
            tracing::warn!(
                "{path}: others use it, or it is another file by now; the program goes on with what is in it"
            );
        }
    }
}

/// Files of the image that some process has mapped or open, as far as we may look.
fn used(image: &TreeImage) -> HashSet<&Path> {
    let named = image.objects.iter().filter_map(|o| o.named.as_deref());
    let paths: HashSet<&Path> = named.filter(|path| path.exists()).collect();
    let mut unused = paths.clone();
    if !unused.is_empty() {
        remove_used(&mut unused);
    }
    paths.difference(&unused).copied().collect()
}

/// Takes out what some process that we may look at has mapped or open.
fn remove_used(paths: &mut HashSet<&Path>) {
    let Ok(directory) = std::fs::read_dir("/proc") else {
        return;
    };
    let names = directory.flatten().map(|entry| entry.file_name());
    for pid in names.filter_map(|name| text::id(name.as_encoded_bytes())) {
        let Ok(proc) = ProcDir::open(Pid(pid)) else {
            continue;
        };
        for mapping in proc.maps().unwrap_or_default() {
            paths.remove(Path::new(std::ffi::OsStr::from_bytes(&mapping.name)));
        }
        for fd in proc.fds().unwrap_or_default() {
            if let Ok(link) = proc.link(&format!("fd/{fd}")) {
                paths.remove(link.as_path());
            }
        }
    }
}

/// Makes or empties such a file.
///
/// # Errors
/// Those of open(2) and ftruncate(2).
pub(crate) fn make(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mode = Mode::from_raw_mode(mode & 0o7777);
    let file = match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(file) => {
            // Whatever the umask.
            rustix::fs::fchmod(&file, mode)?;
            file
        }
        Err(rustix::io::Errno::EXIST) => rustix::fs::open(path, flags, Mode::empty())?,
        Err(error) => return Err(error.into()),
    };
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    // What is zero in the snapshot is not written.
    file.set_len(0)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shared_memory() {
        for name in ["/dev/shm/a", "/dev/shm/sem.x", "/dev/shm/deeper/b"] {
            assert!(is_name(Path::new(name)), "{name}");
        }
        for other in [
            "/dev/shm",
            "/dev/shm/..",
            "/dev/shm/../../etc/passwd",
            "/dev/shmem/a",
            "dev/shm/a",
            "/tmp/a",
        ] {
            assert!(!is_name(Path::new(other)), "{other}");
        }
    }
}
