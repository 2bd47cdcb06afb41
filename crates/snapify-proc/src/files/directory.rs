//! Directories that were removed while they were open, or somebody's working directory. Nothing can be in them, so a new one,
//! removed at once, is as good.

use crate::error::ProcError;
use crate::path::ImagePath;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A removed directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedDirectory {
    /// What it was called.
    pub was: ImagePath,
    /// Permission bits.
    pub mode: u32,
    /// Device and inode: several descriptors and working directories may be the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<(u64, u64)>,
}

/// What the kernel puts behind the names of removed files.
pub(crate) const DELETED: &[u8] = b" (deleted)";

impl RemovedDirectory {
    /// The one that a link of `/proc` leads to.
    pub(crate) fn new(link: &ImagePath, stat: &rustix::fs::Stat) -> Self {
        let path = link.as_bytes();
        Self {
            was: ImagePath::from_bytes(path.strip_suffix(DELETED).unwrap_or(path)),
            mode: stat.st_mode & 0o7777,
            identity: Some((stat.st_dev, stat.st_ino)),
        }
    }

    /// Makes one, opens it and removes it: under its old name if that is free, or in the directory for
    /// temporary files.
    ///
    /// # Errors
    /// Those of mkdir(2) and open(2).
    pub(crate) fn make(&self) -> Result<OwnedFd, ProcError> {
        let make = |path: &Path| {
            rustix::fs::mkdir(path, Mode::RWXU)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = rustix::fs::open(path, flags, Mode::empty());
            let changed = rustix::fs::chmod(path, Mode::from_raw_mode(self.mode & 0o7777));
            rustix::fs::rmdir(path)?;
            changed.and(opened)
        };
        if let Ok(made) = make(&self.was) {
            return Ok(made);
        }
        let path = temporary_name("directory");
        make(&path).map_err(ProcError::file("make a directory as", path))
    }
}

/// A name in the directory for temporary files that nobody else uses.
pub(crate) fn temporary_name(what: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Process ids are small here and the same in every namespace: the time tells restarts apart.
    std::env::temp_dir().join(format!(
        ".snapify-{what}-{}{:09}-{number}",
        time.tv_sec, time.tv_nsec
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone");
        let image = RemovedDirectory {
            was: path.as_path().into(),
            mode: 0o750,
            identity: None,
        };
        let made = image.make().unwrap();
        let stat = rustix::fs::fstat(&made).unwrap();
        assert_eq!((stat.st_nlink, stat.st_mode & 0o7777), (0, 0o750));
        assert!(!path.exists());
        // Somebody else's by now.
        std::fs::write(&path, "theirs").unwrap();
        let made = image.make().unwrap();
        assert_eq!(rustix::fs::fstat(&made).unwrap().st_nlink, 0);
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    }
}
