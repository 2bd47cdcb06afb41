//! Names of sockets: whether they can be had again, and where they are.

use super::image::{Name, UnixSocket, owns_name};
use super::maker::{Maker, PASSING, Place, failed, make_way};
use crate::error::{Obstacle, ProcError};
use crate::files::holders;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid};
use snapify_sys::unix_diag::{self, UnixSocketInfo};
use snapify_sys::unix_socket;
use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often is looked again whether a name is free whose holder cannot be found: processes that have been
/// killed close their sockets a moment later, and nobody is told.
const PATIENCE: u32 = 100;
const MOMENT: Duration = Duration::from_millis(10);

impl Name {
    /// Where its address is resolved. `earlier` sockets had the same one and have lost its file likewise.
    pub(super) fn place(&self, earlier: usize) -> Place<'_> {
        match &self.file {
            _ if self.is_abstract() => Place::Here,
            None => Place::Nowhere(PASSING + 1 + earlier),
            Some(file) => match &file.directory {
                Some(directory) => Place::Directory(directory),
                None => Place::Here,
            },
        }
    }

    /// Its file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let file = self.file.as_ref().filter(|_| !self.is_abstract())?;
        let base = file.directory.as_deref().unwrap_or(Path::new("/"));
        Some(base.join(&*self.address))
    }
}

/// What is in the way of binding sockets to their names again, in directories that are there or will be (`restorable`).
pub(crate) fn preflight(sockets: &[UnixSocket], restorable: &HashSet<&Path>) -> Vec<Obstacle> {
    let owners = (0..sockets.len()).filter(|&index| owns_name(sockets, index));
    let names: Vec<&Name> = owners
        .filter_map(|index| sockets[index].name.as_ref())
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let mut obstacles = Vec::new();
    for attempt in 0..PATIENCE {
        let all = match unix_diag::all() {
            Ok(all) => all,
            Err(error) => {
                let why = format!("the kernel does not list them: {error}");
                return vec![Obstacle::new("UNIX sockets", why)];
            }
        };
        let found: Vec<(Obstacle, bool)> = names
            .iter()
            .filter_map(|name| taken(name, &all, restorable))
            .collect();
        let is_passing = found.iter().any(|(_, may_pass)| *may_pass);
        obstacles = found.into_iter().map(|(obstacle, _)| obstacle).collect();
        if !is_passing || attempt + 1 == PATIENCE {
            break;
        }
        std::thread::sleep(MOMENT);
    }
    obstacles
}

/// Why a name cannot be had, and whether that may soon be over.
fn taken(
    name: &Name,
    all: &[UnixSocketInfo],
    restorable: &HashSet<&Path>,
) -> Option<(Obstacle, bool)> {
    let refuse = |why: String, may_pass| {
        let text = String::from_utf8_lossy(name.address.as_bytes()).replace('\0', "@");
        Some((Obstacle::new(format!("UNIX socket {text}"), why), may_pass))
    };
    let by = |info: &UnixSocketInfo| match holders::of_socket(info.inode) {
        Some((holder, ends)) => refuse(format!("{holder} has this address"), ends),
        None => refuse("another process has this address".into(), true),
    };
    if name.is_abstract() {
        let holder = all
            .iter()
            .find(|info| info.name == name.address.as_bytes() && !is_accepted(info));
        return holder.and_then(by);
    }
    let path = name.path()?;
    let stat = match rustix::fs::lstat(&path) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => {
            let directory = path.parent().unwrap_or(Path::new("/"));
            return match rustix::fs::stat(directory) {
                Ok(_) => None,
                Err(_) if restorable.contains(directory) => None,
                Err(errno) => refuse(
                    format!("{}: {}", directory.display(), io::Error::from(errno)),
                    false,
                ),
            };
        }
        Err(errno) => return refuse(io::Error::from(errno).to_string(), false),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return refuse("this file is no socket any more".into(), false);
    }
    let holder = all.iter().find(|info| {
        info.file
            .is_some_and(|(_, inode)| inode == stat.st_ino as u32)
            && info.name == name.address.as_bytes()
            && !is_accepted(info)
    });
    holder.and_then(by)
}

/// Whether a socket has most likely inherited its name from the one that accepted it. Its peer is gone soon if its
/// process was killed; the name is free.
fn is_accepted(info: &UnixSocketInfo) -> bool {
    info.state == super::set::ESTABLISHED && i32::from(info.kind) != libc::SOCK_DGRAM
}

/// Binds a socket to its own name, in place of the file that the one before it has left.
///
/// # Errors
/// If the name is taken, or the file cannot be made.
pub(super) fn bind(
    socket: BorrowedFd<'_>,
    name: &Name,
    place: Place<'_>,
    maker: &Maker,
    warn: &dyn Fn(String),
) -> Result<(), ProcError> {
    if let Place::Nowhere(_) = place {
        return bind_at(place, socket, name.address.as_bytes(), maker);
    }
    let path = name.path();
    if let Some(path) = &path {
        let is_socket = rustix::fs::lstat(path)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        if is_socket {
            rustix::fs::unlinkat(CWD, path, AtFlags::empty())
                .map_err(ProcError::file("replace", path))?;
        }
    }
    let bound = maker.run(None, place, || {
        unix_socket::bind(socket, name.address.as_bytes())
    });
    let text = || String::from_utf8_lossy(name.address.as_bytes()).replace('\0', "@");
    bound.map_err(ProcError::system(format!(
        "binding a UNIX socket to {}",
        text()
    )))?;
    let (Some(path), Some(file)) = (path, &name.file) else {
        return Ok(());
    };
    let mode = Mode::from_raw_mode(file.mode & 0o7777);
    rustix::fs::chmodat(CWD, &path, mode, AtFlags::empty())
        .map_err(ProcError::file("set the mode of", &path))?;
    let is_same = rustix::fs::lstat(&path)
        .is_ok_and(|stat| (stat.st_uid, stat.st_gid) == (file.uid, file.gid));
    if !is_same {
        let (uid, gid) = (Uid::from_raw(file.uid), Gid::from_raw(file.gid));
        let changed = rustix::fs::chownat(CWD, &path, Some(uid), Some(gid), AtFlags::empty());
        if let Err(errno) = changed {
            warn(format!(
                "{} belonged to user {} and group {}, and does not any more: {errno}",
                path.display(),
                file.uid,
                file.gid
            ));
        }
    }
    Ok(())
}

/// Binds a socket to an address that nobody else can find, unless it is an abstract one.
///
/// # Errors
/// Those of bind(2).
pub(super) fn bind_nowhere(
    socket: BorrowedFd<'_>,
    address: &[u8],
    maker: &Maker,
) -> Result<(), ProcError> {
    bind_at(nowhere(address), socket, address, maker)
}

fn bind_at(
    place: Place<'_>,
    socket: BorrowedFd<'_>,
    address: &[u8],
    maker: &Maker,
) -> Result<(), ProcError> {
    maker
        .run(None, place, || {
            if matches!(place, Place::Nowhere(_)) {
                make_way(Path::new(std::ffi::OsStr::from_bytes(address)))?;
            }
            unix_socket::bind(socket, address)
        })
        .map_err(failed("naming"))
}

/// The place of an address that nobody else shall find. Abstract ones are the same everywhere.
pub(super) fn nowhere(address: &[u8]) -> Place<'static> {
    if address.first() == Some(&0) {
        Place::Here
    } else {
        Place::Nowhere(PASSING)
    }
}
