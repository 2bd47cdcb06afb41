//! Processes and threads as descriptors (pidfd_open(2)): those that are saved too, and those that have ended.

use super::Object;
use super::survey::{Found, Recognized, Seen, View};
use crate::error::ProcError;
use crate::ids::Pid;
use crate::procfs::ProcDir;
use crate::remote::Tracee;
use rustix::process::{PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use snapify_sys::clone::{Fork, fork};
use snapify_sys::process;
use std::os::fd::OwnedFd;

/// A descriptor of a process; `O_EXCL` among its flags makes it one of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PidFd {
    /// The process or thread; `None` for one that has ended and that its parent has waited for.
    pub process: Option<i32>,
}

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    let link = seen.link.as_bytes();
    if link != b"anon_inode:[pidfd]" && !link.starts_with(b"pidfd:") {
        return None;
    }
    let found = match seen.info.pidfd? {
        -1 => Ok(PidFd { process: None }),
        0 => Err(seen.obstacle("its process cannot be seen from here, and is not saved with it")),
        pid => inner(Pid(pid), view)
            .map(|inner| PidFd {
                process: Some(inner.0),
            })
            .ok_or_else(|| {
                seen.obstacle(format!(
                    "it stands for process {pid}, which is not saved with it"
                ))
            }),
    };
    Some(found.map(|pidfd| Found::Whole(Object::PidFd(pidfd))))
}

/// The id that a saved process, or a thread of one, has for itself.
pub(super) fn inner(outer: Pid, view: &View<'_>) -> Option<Pid> {
    view.members.get(&outer).copied().or_else(|| {
        let status = ProcDir::open(outer).and_then(|proc| proc.status()).ok()?;
        let is_ours = view.members.contains_key(&status.tgid);
        is_ours.then(|| Pid(status.inner_tid().0))
    })
}

/// A descriptor of a process, or of one of its threads that stands for it.
///
/// # Errors
/// Those of pidfd_open(2).
pub(crate) fn open(pid: Pid) -> rustix::io::Result<OwnedFd> {
    /// `PIDFD_THREAD` (Linux 6.9).
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
    let process = rustix::process::Pid::from_raw(pid.0).ok_or(rustix::io::Errno::SRCH)?;
    match pidfd_open(process, PidfdFlags::empty()) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => pidfd_open(process, THREAD),
        other => other,
    }
}

impl PidFd {
    /// A descriptor of a process that has ended.
    ///
    /// # Errors
    /// If no process can be made.
    #[allow(unsafe_code)]
    pub(crate) fn make_ended() -> Result<OwnedFd, ProcError> {
        let what = "making a process that ends at once";
        // SAFETY: this process has one thread.
        match unsafe { fork(0, None) }.map_err(ProcError::system(what))? {
            Fork::Child => process::exit_now(0),
            Fork::Parent { pid, pidfd } => {
                process::wait(pid, true).map_err(ProcError::system(what))?;
                Ok(pidfd)
            }
        }
    }

    /// Has a process under construction open it, at any number. All processes and threads must exist.
    ///
    /// # Errors
    /// Those of pidfd_open(2).
    pub(crate) fn open(&self, tracee: &mut Tracee<'_>, flags: u32) -> Result<u64, ProcError> {
        let known = (libc::O_NONBLOCK | libc::O_EXCL).cast_unsigned();
        let process = self.process.unwrap_or(0) as u64;
        let args = [process, u64::from(flags & known), 0, 0, 0, 0];
        tracee.syscall("pidfd_open", libc::SYS_pidfd_open, args)
    }
}
