//! One writer at a time: flock(2) on a file in the chain's directory.
//!
//! The kernel lets go of the lock when its holder dies, however it dies. It is a file of its own, open for
//! writing, since some network file systems lock no directories and nothing that is open only for reading.

use super::files;
use crate::StoreError;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file that is locked. It stays; being there means nothing.
pub(crate) const LOCK_FILE: &str = ".lock";

/// The file that is locked by whoever cleans.
pub(crate) const CLEANER_FILE: &str = ".cleaner";

/// The right to write into a chain's directory.
#[derive(Debug)]
pub(crate) struct ChainLock {
    _file: File,
    path: PathBuf,
    /// Directories that were created for this writer, outermost first.
    created: Vec<PathBuf>,
}

impl ChainLock {
    /// Takes the right to write into `dir`, which exists; `created` are the directories that were created
    /// for that, and that go again if nothing comes of it. While somebody cleans the chain, it waits: cleaners
    /// have this right for moments only.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another writer has it, [`StoreError::Io`].
    pub(crate) fn acquire(dir: &Path, created: Vec<PathBuf>) -> Result<Self, StoreError> {
        let at_once = FlockOperation::NonBlockingLockExclusive;
        match Self::lock(dir, &created, at_once) {
            Err(StoreError::Busy { .. }) if CleanerLock::is_held(dir) => {
                Self::lock(dir, &created, FlockOperation::LockExclusive)
            }
            result => result,
        }
    }

    /// Waits for the right to write into `dir`.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn wait(dir: &Path) -> Result<Self, StoreError> {
        Self::lock(dir, &[], FlockOperation::LockExclusive)
    }

    fn lock(dir: &Path, created: &[PathBuf], how: FlockOperation) -> Result<Self, StoreError> {
        let path = dir.join(LOCK_FILE);
        Ok(Self {
            _file: lock(dir, &path, how)?,
            path,
            created: created.to_vec(),
        })
    }

    /// The directories that were created for this writer, outermost first.
    pub(crate) fn created(&self) -> &[PathBuf] {
        &self.created
    }

    /// Gives up the lock for a writer of which nothing remains: what was created for it goes too.
    pub(crate) fn abandon(self) {
        if !self.created.is_empty() {
            let _ = fs::remove_file(&self.path);
            files::remove_dirs(&self.created);
        }
    }
}

/// The right to clean a chain: one cleaner at a time, whoever writes meanwhile.
#[derive(Debug)]
pub(crate) struct CleanerLock {
    _file: File,
}

impl CleanerLock {
    /// Takes the right to clean the chain in `dir`.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if somebody else has it, [`StoreError::Io`].
    pub(crate) fn acquire(dir: &Path) -> Result<Self, StoreError> {
        let at_once = FlockOperation::NonBlockingLockExclusive;
        let file = lock(dir, &dir.join(CLEANER_FILE), at_once)?;
        Ok(Self { _file: file })
    }

    /// Whether somebody has it.
    fn is_held(dir: &Path) -> bool {
        let path = dir.join(CLEANER_FILE);
        let at_once = FlockOperation::NonBlockingLockShared;
        path.exists() && matches!(lock(dir, &path, at_once), Err(StoreError::Busy { .. }))
    }
}

/// Opens the file `path` in `dir`, creates it if need be, and locks it.
fn lock(dir: &Path, path: &Path, how: FlockOperation) -> Result<File, StoreError> {
    loop {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(StoreError::io("open", path))?;
        match flock(&file, how) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(StoreError::Busy {
                    dir: dir.to_owned(),
                });
            }
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(StoreError::io("lock", path)(errno)),
        }
        // Somebody may have removed the file between our opening and locking it, and then the lock keeps
        // nobody out.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Whether `path` still leads to `file`.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(theirs)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_writer_is_refused_until_the_first_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let first = ChainLock::acquire(dir.path(), Vec::new()).unwrap();
        let second = ChainLock::acquire(dir.path(), Vec::new());
        assert!(matches!(second, Err(StoreError::Busy { .. })));
        drop(first);
        ChainLock::acquire(dir.path(), Vec::new()).unwrap();
    }

    #[test]
    fn abandoning_takes_back_what_was_created() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/b");
        let created = files::create_dirs(&dir).unwrap();
        ChainLock::acquire(&dir, created).unwrap().abandon();
        assert!(!top.path().join("a").exists());
        assert!(top.path().exists());
    }

    #[test]
    fn writers_wait_for_cleaners_and_not_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let cleaner = CleanerLock::acquire(dir.path()).unwrap();
        assert!(CleanerLock::is_held(dir.path()));
        assert!(matches!(
            CleanerLock::acquire(dir.path()),
            Err(StoreError::Busy { .. })
        ));
        let exchanging = ChainLock::wait(dir.path()).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| ChainLock::acquire(dir.path(), Vec::new()));
            drop(exchanging);
            writer.join().unwrap().unwrap();
        });
        drop(cleaner);
        assert!(!CleanerLock::is_held(dir.path()));
        let _first = ChainLock::acquire(dir.path(), Vec::new()).unwrap();
        let second = ChainLock::acquire(dir.path(), Vec::new());
        assert!(matches!(second, Err(StoreError::Busy { .. })));
    }
}
