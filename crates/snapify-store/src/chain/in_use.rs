//! Points that somebody reads are not removed or exchanged meanwhile: flock(2) on their folders.
//!
//! Readers hold the lock shared, and whoever wants to remove the point asks for it exclusively, for the moment in
//! which it loses its name. A file system that locks
//! no directories gives no protection; a reader there finds files missing, and says so.

use crate::StoreError;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A point's folder, locked until this is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    folder: Option<OwnedFd>,
}

impl InUse {
    /// Keeps the point in `folder` from being removed or exchanged. Waits while that is just being done.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if it is gone.
    pub(crate) fn read(folder: &Path) -> Result<Self, StoreError> {
        loop {
            let held = Self::lock(folder, FlockOperation::LockShared)?;
            // Between opening and locking, the folder may have lost its name, perhaps to another one.
            match held {
                Some(held) if held.is_at(folder) => return Ok(held),
                _ => {}
            }
        }
    }

    /// Whether `folder` is what is locked.
    fn is_at(&self, folder: &Path) -> bool {
        let Some(ours) = &self.folder else {
            return true;
        };
        match (rustix::fs::fstat(ours), rustix::fs::lstat(folder)) {
            (Ok(ours), Ok(theirs)) => (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino),
            _ => false,
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
                Ok(()) => return Ok(Some(Self { folder: Some(fd) })),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(_) => return Ok(Some(Self { folder: None })),
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
        let point = dir.path().join("point");
        std::fs::create_dir(&point).unwrap();
        let removing = InUse::remove(&point).unwrap();
        assert!(removing.is_some());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| InUse::read(&point));
            std::fs::remove_dir(&point).unwrap();
            drop(removing);
            assert!(matches!(
                reader.join().unwrap(),
                Err(StoreError::Missing { .. })
            ));
        });
        let gone = dir.path().join("gone");
        assert!(matches!(
            InUse::read(&gone),
            Err(StoreError::Missing { .. })
        ));
    }
}
