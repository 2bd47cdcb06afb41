//! What lies behind an open file, and ways past the page cache.

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, fstatfs, fstatvfs};
use std::fs::File;
use std::os::fd::AsRawFd;

/// `f_type` of tmpfs and of ramfs (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// Whether the file lies in memory. Its file system takes O_DIRECT as well (tmpfs since Linux 6.6), and
/// copies all the same.
pub(crate) fn in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|fs| matches!(fs.f_type, TMPFS_MAGIC | RAMFS_MAGIC))
}

/// Bytes that are free for us on the file system of a regular file.
pub(crate) fn free_bytes(file: &File) -> Option<u64> {
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let fs = fstatvfs(file).ok()?;
    fs.f_bavail.checked_mul(fs.f_frsize)
}

/// Switches O_DIRECT; `false` if the file system refuses.
pub(crate) fn set_direct(file: &File, on: bool) -> bool {
    let Ok(mut flags) = fcntl_getfl(file) else {
        return false;
    };
    flags.set(OFlags::DIRECT, on);
    fcntl_setfl(file, flags).is_ok()
}

/// Opens the file a second time, to read past the page cache. A flag on the file itself would concern all who
/// hold it. Files in memory have no use for it.
pub(crate) fn reopen_direct(file: &File) -> Option<File> {
    if in_memory(file) {
        return None;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .ok()
        .map(File::from)
}
