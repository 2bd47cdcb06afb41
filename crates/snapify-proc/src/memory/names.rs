//! Names of mapped files that were removed while the file has others.
//!
//! The kernel shows the name that a file was opened by, even if only that one was removed. Named semaphores (sem_open(3))
//! come into being this way: glibc makes a file by a temporary name, links it to the right one and removes the first. Whoever
//! made the semaphore and whoever opened it later must find the same file after a restart.

use crate::procfs::maps::Mapping;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;

const REMOVED: &[u8] = b" (deleted)";

/// Directories with more entries than this are not searched.
const MOST_ENTRIES: usize = 100_000;

/// Gives mappings of files whose name was removed another name that the file has in the same directory, if it has one.
pub(crate) fn find(maps: &mut [Mapping]) {
    let mut known: HashMap<(u32, u32, u64), Option<Vec<u8>>> = HashMap::new();
    for mapping in maps {
        if !mapping.is_file() || !mapping.marked_deleted() || mapping.name.first() != Some(&b'/') {
            continue;
        }
        let (major, minor) = mapping.device;
        let name = known
            .entry((major, minor, mapping.inode))
            .or_insert_with(|| other_name(mapping));
        if let Some(name) = name {
            mapping.name.clone_from(name);
        }
    }
}

fn other_name(mapping: &Mapping) -> Option<Vec<u8>> {
    let removed = mapping.name.strip_suffix(REMOVED)?;
    let directory = Path::new(OsStr::from_bytes(removed)).parent()?;
    let (major, minor) = mapping.device;
    let device = rustix::fs::makedev(major, minor);
    let entries = std::fs::read_dir(directory).ok()?.take(MOST_ENTRIES);
    let is_it = |path: &Path| {
        std::fs::symlink_metadata(path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (device, mapping.inode))
    };
    entries
        .flatten()
        .filter(|entry| entry.ino() == mapping.inode)
        .map(|entry| entry.path())
        .find(|path| is_it(path))
        .map(|path| path.into_os_string().into_vec())
}
