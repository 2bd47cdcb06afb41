//! File locks (flock(2), fcntl(2)) held through an open file description.

use super::{Descriptor, FilesImage, can_write, input_signals};
use crate::error::{Obstacle, ProcError};
use crate::ids::{Pid, RemoteFd};
use crate::procfs::fdinfo::{Breaking, Lock, LockKind};
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
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
    /// `F_SETLEASE`: it belongs to the description, and who takes it is told when somebody else opens the file.
    Lease,
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
    /// A lease that is being taken back, because somebody opens the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaking: Option<Breaking>,
    /// The process that it belongs to, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<i32>,
}

impl LockImage {
    /// Takes over what fdinfo of a descriptor of process `holder` shows.
    pub(crate) fn new(seen: &Lock, holder: Pid) -> Self {
        Self {
            owner: match seen.kind {
                LockKind::Flock => LockOwner::Flock,
                LockKind::Posix => LockOwner::Posix,
                LockKind::Ofd => LockOwner::Ofd,
                LockKind::Lease => LockOwner::Lease,
            },
            breaking: seen.breaking,
            process: (seen.kind == LockKind::Posix).then_some(holder.0),
            exclusive: seen.exclusive,
            start: seen.start,
            bytes: seen
                .last
                .map_or(0, |last| last.saturating_sub(seen.start).saturating_add(1)),
        }
    }
}

/// Takes the locks again that belong to a process, and those of descriptions that it is the first to have (`first` tells). Called
/// when all its descriptors are in place and all others closed, because
/// closing any descriptor of a file drops the process's POSIX locks on it.
///
/// # Errors
/// [`ProcError::Unsupported`] if another process holds a lock by now; otherwise those of the remote
/// calls.
pub(crate) fn restore(
    tracee: &mut Tracee<'_>,
    image: &FilesImage,
    table: &[Descriptor],
    first: impl Fn(usize) -> bool,
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    let mut done = HashSet::new();
    for descriptor in table {
        let index = descriptor.description;
        if !done.insert(index) {
            continue;
        }
        let description = &image.descriptions[index];
        for lock in &description.locks {
            let ours = match lock.process {
                Some(process) => process == tracee.pid().0,
                None => first(index),
            };
            if !ours {
                continue;
            }
            match take(tracee, descriptor.fd, description.flags, *lock) {
                Err(ProcError::RemoteSyscall { source, .. }) if is_held(&source) => {
                    let obstacle = Obstacle::new(
                        format!("descriptor {} ({})", descriptor.fd, description.object),
                        "another process holds the lock that it had on the file",
                    );
                    return Err(ProcError::Unsupported {
                        pid: tracee.pid(),
                        obstacles: vec![obstacle],
                    });
                }
                other => other?,
            }
            if let Some(breaking) = lock.breaking {
                take_back(tracee, descriptor.fd, breaking, ctx)?;
                input_signals::restore(tracee, descriptor.fd, description, ctx)?;
            }
        }
    }
    Ok(())
}

/// Has the kernel take a lease back, by opening the file as somebody else has done. The time that the holder is given begins
/// anew. He has been told, and is not told again: meanwhile nobody is to be.
fn take_back(
    tracee: &mut Tracee<'_>,
    fd: RemoteFd,
    breaking: Breaking,
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    let nobody = [fd.0 as u64, libc::F_SETOWN as u64, 0, 0, 0, 0];
    tracee.syscall("fcntl", libc::SYS_fcntl, nobody)?;
    let path = format!("/proc/{}/fd/{fd}", tracee.pid());
    let access = match breaking {
        Breaking::Shared => OFlags::RDONLY,
        Breaking::Nothing => OFlags::WRONLY,
    };
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Err(Errno::WOULDBLOCK) => {}
        other => ctx.warn(format!(
            "the lease of descriptor {fd} was being taken back, and is not any more ({})",
            other.map_or_else(|errno| errno.to_string(), |_| "nobody holds it".into())
        )),
    }
    Ok(())
}

fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn take(
    tracee: &mut Tracee<'_>,
    fd: RemoteFd,
    flags: u32,
    lock: LockImage,
) -> Result<(), ProcError> {
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
        LockOwner::Lease => {
            // What can be left of one that is being taken back is less than it was. A shared one is for who cannot write.
            let exclusive = match lock.breaking {
                None => lock.exclusive,
                Some(Breaking::Shared) => true,
                Some(Breaking::Nothing) => can_write(flags),
            };
            let how = if exclusive {
                libc::F_WRLCK
            } else {
                libc::F_RDLCK
            };
            let args = [fd.0 as u64, libc::F_SETLEASE as u64, how as u64, 0, 0, 0];
            return tracee.syscall("fcntl", libc::SYS_fcntl, args).map(drop);
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
            breaking: None,
        };
        assert_eq!(LockImage::new(&seen, Pid(7)).bytes, 10);
        assert_eq!(
            LockImage::new(&Lock { last: None, ..seen }, Pid(7)).bytes,
            0
        );
        assert_eq!(
            LockImage::new(
                &Lock {
                    last: Some(u64::MAX),
                    start: 0,
                    ..seen
                },
                Pid(7)
            )
            .bytes,
            u64::MAX
        );
        let lease = Lock {
            kind: LockKind::Lease,
            ..seen
        };
        assert_eq!(LockImage::new(&lease, Pid(7)).owner, LockOwner::Lease);
    }
}
