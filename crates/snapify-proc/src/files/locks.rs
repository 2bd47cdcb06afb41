//! File locks (flock(2), fcntl(2)) held through an open file description.

use super::FilesImage;
use crate::error::{Obstacle, ProcError};
use crate::ids::RemoteFd;
use crate::procfs::fdinfo::{Lock, LockKind};
use crate::remote::Tracee;
use serde::{Deserialize, Serialize};
use std::io;

/// Which call made a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockOwner {
    /// flock(2): it belongs to the description and covers the file.
    Flock,
    /// `F_SETLK`: it belongs to the process.
    Posix,
    /// `F_OFD_SETLK`: it belongs to the description.
    Ofd,
}

/// One lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockImage {
    /// Which call made it.
    pub owner: LockOwner,
    /// Exclusive or shared.
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Number of bytes; 0 reaches to the end of the file.
    pub bytes: u64,
}

impl LockImage {
    /// Takes over what fdinfo shows; `None` for a lease, with which a descriptor is refused.
    pub(crate) fn new(seen: &Lock) -> Option<Self> {
        Some(Self {
            owner: match seen.kind {
                LockKind::Flock => LockOwner::Flock,
                LockKind::Posix => LockOwner::Posix,
                LockKind::Ofd => LockOwner::Ofd,
                LockKind::Lease => return None,
            },
            exclusive: seen.exclusive,
            start: seen.start,
            bytes: seen
                .last
                .map_or(0, |last| last.saturating_sub(seen.start).saturating_add(1)),
        })
    }
}

/// Takes all locks again. Called when all descriptors are in place and all others closed, because
/// closing any descriptor of a file drops the process's POSIX locks on it.
///
/// # Errors
/// [`ProcError::Unsupported`] if another process holds a lock by now; otherwise those of the remote
/// calls.
pub(crate) fn restore(tracee: &mut Tracee<'_>, image: &FilesImage) -> Result<(), ProcError> {
    for (index, description) in image.descriptions.iter().enumerate() {
        if description.locks.is_empty() {
            continue;
        }
        let fd = image
            .descriptors
            .iter()
            .find(|d| d.description == index)
            .map_or(RemoteFd(-1), |d| d.fd);
        for lock in &description.locks {
            match take(tracee, fd, *lock) {
                Err(ProcError::RemoteSyscall { source, .. }) if is_held(&source) => {
                    let obstacle = Obstacle::new(
                        format!("descriptor {fd} ({})", description.object),
                        "another process holds the lock that it had on the file",
                    );
                    return Err(ProcError::Unsupported {
                        pid: tracee.pid(),
                        obstacles: vec![obstacle],
                    });
                }
                other => other?,
            }
        }
    }
    Ok(())
}

fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn take(tracee: &mut Tracee<'_>, fd: RemoteFd, lock: LockImage) -> Result<(), ProcError> {
    let command = match lock.owner {
        LockOwner::Flock => {
            let how = if lock.exclusive {
                libc::LOCK_EX
            } else {
                libc::LOCK_SH
            };
            let args = [fd.0 as u64, (how | libc::LOCK_NB) as u64, 0, 0, 0, 0];
            return tracee.syscall("flock", libc::SYS_flock, args).map(drop);
        }
        LockOwner::Posix => libc::F_SETLK,
        LockOwner::Ofd => libc::F_OFD_SETLK,
    };
    // struct flock: type and whence (16 bits each), padding, start, length, pid (0, as OFD locks
    // demand).
    let kind = if lock.exclusive {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    let whence = libc::SEEK_SET;
    let at = tracee.scratch().addr;
    tracee.put(
        at,
        &[
            kind as u64 | (whence as u64) << 16,
            lock.start,
            lock.bytes,
            0,
        ],
    )?;
    tracee
        .syscall(
            "fcntl",
            libc::SYS_fcntl,
            [fd.0 as u64, command as u64, at.0, 0, 0, 0],
        )
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted_in_bytes() {
        let seen = Lock {
            kind: LockKind::Posix,
            exclusive: false,
            start: 10,
            last: Some(19),
        };
        assert_eq!(LockImage::new(&seen).unwrap().bytes, 10);
        assert_eq!(
            LockImage::new(&Lock { last: None, ..seen }).unwrap().bytes,
            0
        );
        assert_eq!(
            LockImage::new(&Lock {
                last: Some(u64::MAX),
                start: 0,
                ..seen
            })
            .unwrap()
            .bytes,
            u64::MAX
        );
        assert!(
            LockImage::new(&Lock {
                kind: LockKind::Lease,
                ..seen
            })
            .is_none()
        );
    }
}
