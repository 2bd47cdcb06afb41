//! The directory in which running applications are found by their user's other commands.
//!
//! One folder an application, `apps/<supervisor's pid>-<start time>`, with two sockets: `control` for the
//! command line and `agent` for the host library of the program. In `tracked` are the sockets of those who keep account of
//! what programs write to their memory; in `cards`, those of the daemons of shared cards.

use crate::error::JobError;
use crate::swap::Registry;
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The user's directory of running applications.
#[derive(Clone, Debug)]
pub struct RuntimeDir {
    path: PathBuf,
}

/// One application's folder; removed when dropped.
#[derive(Debug)]
pub struct ApplicationDir {
    path: PathBuf,
    /// Under which names it is found, too.
    links: Vec<PathBuf>,
}

impl RuntimeDir {
    /// Opens the directory, which must belong to the user and be closed to others: what lies there can
    /// checkpoint and end programs. It is `$SNAPIFY_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/snapify` or
    /// `/tmp/snapify-<uid>`, and is created if missing.
    ///
    /// # Errors
    /// Where it cannot be created or belongs to someone else.
    pub fn open() -> Result<Self, JobError> {
        let uid = geteuid().as_raw();
        let path = if let Some(path) = std::env::var_os("SNAPIFY_RUNTIME_DIR") {
            PathBuf::from(path)
        } else if let Some(path) = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| std::fs::metadata(path).is_ok_and(|found| found.uid() == uid))
        {
            path.join("snapify")
        } else {
            PathBuf::from(format!("/tmp/snapify-{uid}"))
        };
        create_private(&path)?;
        let found = std::fs::symlink_metadata(&path).map_err(failed("look at", &path))?;
        if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
            return Err(JobError::NotPrivate { path });
        }
        create_private(&path.join("apps"))?;
        Ok(Self { path })
    }

    /// The directory of those who keep account of programs' memory, made if missing.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub(crate) fn tracked(&self) -> Result<PathBuf, JobError> {
        let path = self.path.join("tracked");
        create_private(&path)?;
        Ok(path)
    }

    /// The directory with the sockets of cards that applications share, made if missing.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub(crate) fn cards(&self) -> Result<PathBuf, JobError> {
        let path = self.path.join("cards");
        create_private(&path)?;
        Ok(path)
    }

    /// Makes the folder of a new application, supervised by this process.
    ///
    /// # Errors
    /// Where it cannot be created.
    pub fn new_application(&self) -> Result<ApplicationDir, JobError> {
        let mut random = [0u8; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| failed("get random bytes for", &self.path)(errno.into()))?;
        let name = format!("{}-{:08x}", std::process::id(), u32::from_ne_bytes(random));
        let path = self.path.join("apps").join(name);
        create_private(&path)?;
        Ok(ApplicationDir {
            path,
            links: Vec::new(),
        })
    }

    /// The folders of all applications, running or left by one that was killed.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn applications(&self) -> Result<Vec<PathBuf>, JobError> {
        let apps = self.path.join("apps");
        let entries = std::fs::read_dir(&apps).map_err(failed("read", &apps))?;
        let entries = entries.flatten().map(|entry| entry.path());
        let mut found: Vec<_> = entries.filter(|path| !path.is_symlink()).collect();
        found.sort();
        Ok(found)
    }
}

impl ApplicationDir {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the command line connects.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        control_socket(&self.path)
    }

    /// Makes the application be found under another folder's name, too, which must not exist; until it ends.
    ///
    /// # Errors
    /// Where the link cannot be made.
    pub(crate) fn answer_to(&mut self, other: &Path) -> Result<(), JobError> {
        // On another machine, or in another login session, there may be no such runtime directory.
        if let Some(folder) = other.parent() {
            create_private(folder)?;
        }
        std::os::unix::fs::symlink(&self.path, other).map_err(failed("link", other))?;
        self.links.push(other.to_owned());
        Ok(())
    }

    /// Where the host library connects.
    #[must_use]
    pub fn agent_socket(&self) -> PathBuf {
        self.path.join("agent")
    }
}

impl Drop for ApplicationDir {
    fn drop(&mut self) {
        // Links of former incarnations, too.
        let siblings = self
            .path
            .parent()
            .and_then(|apps| std::fs::read_dir(apps).ok());
        for sibling in siblings
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .chain(self.links.iter().cloned())
        {
            if std::fs::read_link(&sibling).is_ok_and(|target| target == self.path) {
                let _ = std::fs::remove_file(&sibling);
            }
        }
        Registry::of(&self.path).clean();
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Where the command line connects to the application of `folder`.
#[must_use]
pub fn control_socket(folder: &Path) -> PathBuf {
    folder.join("control")
}

/// Whether there is a process with the id of the supervisor that made a folder: between making a socket and listening at it, it
/// refuses connections like one that was killed.
pub(crate) fn may_be_supervised(folder: &Path) -> bool {
    supervisor_pid(folder)
        .and_then(rustix::process::Pid::from_raw)
        .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// The supervisor that made a folder, by its name.
pub(crate) fn supervisor_pid(folder: &Path) -> Option<i32> {
    let name = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    name.file_name()?.to_str()?.split('-').next()?.parse().ok()
}

/// Removes the folder of an application whose supervisor is gone.
pub fn remove_stale(folder: &Path) {
    if folder.is_symlink() {
        let _ = std::fs::remove_file(folder);
    } else {
        Registry::of(folder).clean();
        let _ = std::fs::remove_dir_all(folder);
    }
}

fn create_private(path: &Path) -> Result<(), JobError> {
    match std::fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(path)
    {
        Ok(()) => {}
        Err(source) => return Err(failed("create", path)(source)),
    }
    // Opening it proves that it can be used, whatever its mode says.
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map(drop)
        .map_err(|errno| failed("open", path)(errno.into()))
}

/// What an operation on a file or directory could not do.
pub(crate) fn failed(operation: &'static str, path: &Path) -> impl Fn(std::io::Error) -> JobError {
    let path = path.to_path_buf();
    move |source| JobError::File {
        operation,
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_processes_that_live_are_left_alone() {
        let apps = tempfile::tempdir().unwrap();
        let folder = |pid: u32| {
            let path = apps.path().join(format!("{pid}-0123abcd"));
            std::fs::create_dir(&path).unwrap();
            path
        };
        assert!(may_be_supervised(&folder(std::process::id())));
        // The highest id that a kernel can give is one less.
        assert!(!may_be_supervised(&folder(4_194_304)));
        let link = apps.path().join("7-89");
        std::os::unix::fs::symlink(folder(4_194_303), &link).unwrap();
        assert!(!may_be_supervised(&link));
    }
}
