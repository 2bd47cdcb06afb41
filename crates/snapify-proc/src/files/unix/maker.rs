//! Doing something to sockets as another process, or in another place.
//!
//! The kernel notes the process that makes a pair, listens or connects, and shows it to the other side (`SO_PEERCRED`);
//! and it resolves the addresses of sockets where their caller works. So such calls are made by a child that
//! shares our descriptors, has the wanted process id (which is free: the program's processes do not exist yet, or
//! it is one that had ended), and works in the wanted directory.

use crate::error::ProcError;
use rustix::fs::{AtFlags, CWD, Mode};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use snapify_sys::clone::{Fork, fork};
use snapify_sys::process;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::rc::Rc;

/// Where addresses are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place<'a> {
    /// Where we work.
    Here,
    /// In this directory.
    Directory(&'a Path),
    /// In a file system of its own, which nobody else sees, with this number: [`PASSING`] for names that are needed for a moment, others for
    /// files that had been removed while sockets kept their names. Several may have had the same.
    Nowhere(usize),
}

/// The number of the place nowhere for names that are needed for a moment.
pub(super) const PASSING: usize = 0;

/// Where and as whom calls are made.
#[derive(Debug, Default)]
pub(super) struct Maker {
    nowhere: RefCell<HashMap<usize, Rc<OwnedFd>>>,
}

impl Maker {
    /// Does `work` as process `pid` at a place. It must not close descriptors that it has not made itself, and what
    /// it changes in memory is lost if another process did it.
    ///
    /// # Errors
    /// Those of `work`, and of making a process for it.
    pub fn run(
        &self,
        pid: Option<i32>,
        place: Place<'_>,
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let us = std::process::id().cast_signed();
        let pid = pid.filter(|&pid| pid > 1 && pid != us);
        if pid.is_none() && place == Place::Here {
            return work();
        }
        let nowhere = match place {
            Place::Nowhere(number) => Some(self.nowhere(number)?),
            _ => None,
        };
        as_child(pid, || {
            match place {
                Place::Here => {}
                Place::Directory(directory) => rustix::process::chdir(directory)?,
                Place::Nowhere(_) => {
                    if let Some(root) = &nowhere {
                        rustix::process::fchdir(root)?;
                        rustix::process::chroot(".")?;
                    }
                }
            }
            work()
        })
    }

    /// The root of a file system in memory that is mounted nowhere.
    fn nowhere(&self, number: usize) -> io::Result<Rc<OwnedFd>> {
        if let Some(root) = self.nowhere.borrow().get(&number) {
            return Ok(Rc::clone(root));
        }
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let root = fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )?;
        let root = Rc::new(root);
        self.nowhere.borrow_mut().insert(number, Rc::clone(&root));
        Ok(root)
    }
}

/// Makes the directories that a path nowhere needs, and removes a file that is there.
pub(super) fn make_way(path: &Path) -> io::Result<()> {
    let mut so_far = std::path::PathBuf::new();
    for component in path.parent().into_iter().flat_map(Path::components) {
        so_far.push(component);
        if matches!(component, Component::Normal(_)) {
            match rustix::fs::mkdirat(CWD, &so_far, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    match rustix::fs::unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Does `work` in a child that shares our descriptors.
#[allow(unsafe_code)]
fn as_child(pid: Option<i32>, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    const SHARED: u64 = libc::CLONE_FILES as u64;
    // SAFETY: whoever restores has one thread only at this time.
    let forked = match unsafe { fork(SHARED, pid) } {
        // The id is taken, or may not be chosen: then it is another process that is noted.
        Err(error) if pid.is_some() => {
            tracing::debug!("making a process with id {pid:?}: {error}");
            // SAFETY: as above.
            unsafe { fork(SHARED, None) }?
        }
        other => other?,
    };
    match forked {
        Fork::Child => {
            // Nothing may be dropped here: descriptors are closed for both. A panic ends the child only.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let code = match result {
                Ok(Ok(())) => 0,
                Ok(Err(error)) => error.raw_os_error().unwrap_or(libc::EIO),
                Err(_) => libc::EIO,
            };
            process::exit_now(code)
        }
        Fork::Parent { pid, .. } => match process::wait(pid, true)? {
            Some((_, status)) => match status.exit_code() {
                Some(0) => Ok(()),
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::Error::other(
                    "the process that makes sockets was killed",
                )),
            },
            None => Err(io::Error::other("the process that makes sockets is lost")),
        },
    }
}

/// A closure that names what was tried with a socket, for `map_err`.
pub(super) fn failed<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> ProcError + use<E> {
    ProcError::system(format!("{what} a UNIX socket"))
}
