//! Points that somebody reads are not removed meanwhile: flock(2) on their folders.
//!
//! Readers hold the lock shared, and whoever wants to remove the point asks for it exclusively. A file system that locks
//! no directories gives no protection; a reader there finds files missing, and says so.

use crate::StoreError;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A point's folder, locked until this is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    _folder: Option<OwnedFd>,
}

impl InUse {
    /// Keeps the point in `folder` from being removed.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if it is gone, or is just going.
    pub(crate) fn read(folder: &Path) -> Result<Self, StoreError> {
        let held = Self::lock(folder, FlockOperation::NonBlockingLockShared)?;
        // Between opening and locking, it may have lost its name.
        match held {
            Some(held) if folder.is_dir() => Ok(held),
            _ => Err(StoreError::Missing {
                path: folder.to_owned(),
            }),
        }
    }

    /// The right to remove the point in `folder`, if nobody reads it.
    pub(crate) fn remove(folder: &Path) -> Result<Option<Self>, StoreError> {
        Self::lock(folder, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(folder: &Path, how: FlockOperation) -> Result<Option<Self>, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(folder, flags, Mode::empty())
            .map_err(StoreError::io_or_missing("open", folder))?;
        loop {
            match flock(&fd, how) {
                Ok(()) => return Ok(Some(Self { _folder: Some(fd) })),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(_) => return Ok(Some(Self { _folder: None })),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_removers_out_and_not_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let one = InUse::read(dir.path()).unwrap();
        let other = InUse::read(dir.path()).unwrap();
        assert!(InUse::remove(dir.path()).unwrap().is_none());
        drop(one);
        assert!(InUse::remove(dir.path()).unwrap().is_none());
        drop(other);
        let removing = InUse::remove(dir.path()).unwrap();
        assert!(removing.is_some());
        assert!(matches!(
            InUse::read(dir.path()),
            Err(StoreError::Missing { .. })
        ));
        let gone = dir.path().join("gone");
        assert!(matches!(
            InUse::read(&gone),
            Err(StoreError::Missing { .. })
        ));
    }
}
