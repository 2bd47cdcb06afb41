//! Sets of watched descriptors (epoll(7)).
//!
//! A registration belongs to a pair of open file description and descriptor *number*. The number
//! may have been closed or given to another file since, while the description lives on under
//! another number; the registration is then still in force.

use super::Object;
use super::survey::{Found, Recognized, Seen, View};
use crate::error::{Obstacle, ProcError};
use crate::ids::RemoteFd;
use crate::procfs::fdinfo::EpollEntry;
use crate::remote::Tracee;
use rustix::event::epoll::CreateFlags;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::os::fd::OwnedFd;

/// An epoll instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoll {
    /// The process whose descriptor numbers the registrations are told by.
    pub process: i32,
    /// Its registrations.
    pub watched: Vec<Watched>,
}

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// The number that it was registered under.
    pub fd: RemoteFd,
    /// The number that its file has now, if that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<RemoteFd>,
    /// Event mask.
    pub events: u32,
    /// The program's own data.
    pub data: u64,
}

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    if seen.link.as_bytes() != b"anon_inode:[eventpoll]" {
        return None;
    }
    let mut of_number = std::collections::HashMap::new();
    let watched: Result<Vec<Watched>, Obstacle> = seen
        .info
        .epoll
        .iter()
        .map(|entry| {
            let earlier: &mut u32 = of_number.entry(entry.fd).or_default();
            let nth = *earlier;
            *earlier += 1;
            watched(seen, entry, nth, view)
        })
        .collect();
    Some(watched.map(|watched| {
        let process = view.owner(seen).inner_pid.0;
        Found::Whole(Object::Epoll(Epoll { process, watched }))
    }))
}

/// Finds the descriptor through which the watched file can be reached. `nth` counts registrations
/// under the same number.
fn watched(
    seen: &Seen,
    entry: &EpollEntry,
    nth: u32,
    view: &View<'_>,
) -> Result<Watched, Obstacle> {
    // The kernel shows its own encoding of device numbers: 12 bits major, 20 bits minor.
    let device = rustix::fs::makedev(entry.device >> 20, entry.device & 0xf_ffff);
    let candidates: Vec<RemoteFd> = view
        .leading_to((device, entry.inode))
        .iter()
        .filter(|place| place.process == seen.process)
        .map(|place| place.fd)
        .collect();
    let registered = RemoteFd(entry.fd);
    let watched = |now| Watched {
        fd: registered,
        now,
        events: entry.events,
        data: entry.data,
    };
    // Nearly always the number still leads to an object of its own, and that is it. Eventfds and
    // epolls share one inode, and several candidates may be several descriptions: there the kernel
    // has to be asked (it walks the set for every question).
    if candidates == [registered] && nth == 0 && !is_shared_inode(seen, view, registered) {
        return Ok(watched(None));
    }
    let is_it = |fd: &RemoteFd| is_watched(view, seen, entry.fd, nth, *fd);
    if candidates.contains(&registered) && is_it(&registered) {
        return Ok(watched(None));
    }
    match candidates.iter().find(|fd| is_it(fd)) {
        Some(&now) => Ok(watched(Some(now))),
        None => Err(seen.obstacle(format!(
            "it watches what was descriptor {registered}, which this process has not open any more, but another may"
        ))),
    }
}

fn is_shared_inode(seen: &Seen, view: &View<'_>, fd: RemoteFd) -> bool {
    view.owner(seen)
        .proc
        .link(&format!("fd/{fd}"))
        .map_or(true, |link| link.as_bytes().starts_with(b"anon_inode:"))
}

fn is_watched(view: &View<'_>, epoll: &Seen, number: i32, nth: u32, fd: RemoteFd) -> bool {
    let pid = view.owner(epoll).proc.pid().0;
    let slot = snapify_sys::kcmp::EpollSlot {
        epoll: epoll.fd.0.cast_unsigned(),
        target: number.cast_unsigned(),
        nth,
    };
    snapify_sys::kcmp::kcmp_epoll(pid, fd.0.cast_unsigned().into(), pid, slot)
        .is_ok_and(Ordering::is_eq)
}

/// Makes an empty instance.
///
/// # Errors
/// Those of epoll_create1(2).
pub(crate) fn make() -> Result<OwnedFd, ProcError> {
    rustix::event::epoll::create(CreateFlags::CLOEXEC)
        .map_err(ProcError::system("making an epoll instance"))
}

const ADD: u64 = 1;

impl Epoll {
    /// Registers everything again. All descriptors of the process must be in place. `is_stdio`
    /// tells the standard streams of the restart, which may be files now: those cannot be watched.
    ///
    /// # Errors
    /// Those of the remote calls.
    pub(crate) fn restore(
        &self,
        tracee: &mut Tracee<'_>,
        epoll: RemoteFd,
        is_stdio: impl Fn(RemoteFd) -> bool,
        warn: impl Fn(String),
    ) -> Result<(), ProcError> {
        for watched in &self.watched {
            let added = match watched.now {
                None => watched.add(tracee, epoll),
                Some(now) => watched.add_through(tracee, epoll, now),
            };
            match added {
                Err(ProcError::RemoteSyscall { source, .. })
                    if source.raw_os_error() == Some(libc::EPERM)
                        && is_stdio(watched.now.unwrap_or(watched.fd)) =>
                {
                    warn(format!(
                        "standard stream {} is now one that cannot be waited for by epoll",
                        watched.fd
                    ));
                }
                other => other?,
            }
        }
        Ok(())
    }
}

impl Watched {
    fn add(&self, tracee: &mut Tracee<'_>, epoll: RemoteFd) -> Result<(), ProcError> {
        // struct epoll_event is packed: the data follow the events at once.
        let [low, high] = [self.data as u32, (self.data >> 32) as u32];
        let at = tracee.scratch().addr;
        tracee.put(at, &[self.events, low, high])?;
        let args = [epoll.0 as u64, ADD, self.fd.0 as u64, at.0, 0, 0];
        tracee
            .syscall("epoll_ctl", libc::SYS_epoll_ctl, args)
            .map(drop)
    }

    /// Registers a file under a number that is not its own: it gets that number for a moment.
    fn add_through(
        &self,
        tracee: &mut Tracee<'_>,
        epoll: RemoteFd,
        now: RemoteFd,
    ) -> Result<(), ProcError> {
        let number = self.fd.0 as u64;
        let keep = [number, libc::F_DUPFD_CLOEXEC as u64, 0, 0, 0, 0];
        let owner = match tracee.syscall("fcntl", libc::SYS_fcntl, keep) {
            Ok(owner) => Some(owner),
            Err(ProcError::RemoteSyscall { source, .. })
                if source.raw_os_error() == Some(libc::EBADF) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        let owner_flags = match owner {
            Some(_) => tracee.syscall(
                "fcntl",
                libc::SYS_fcntl,
                [number, libc::F_GETFD as u64, 0, 0, 0, 0],
            )?,
            None => 0,
        };
        tracee.syscall(
            "dup3",
            libc::SYS_dup3,
            [now.0 as u64, number, libc::O_CLOEXEC as u64, 0, 0, 0],
        )?;
        self.add(tracee, epoll)?;
        match owner {
            Some(owner) => {
                let flags = if owner_flags & libc::FD_CLOEXEC as u64 == 0 {
                    0
                } else {
                    libc::O_CLOEXEC as u64
                };
                tracee.syscall("dup3", libc::SYS_dup3, [owner, number, flags, 0, 0, 0])?;
                tracee.syscall("close", libc::SYS_close, [owner, 0, 0, 0, 0, 0])?;
            }
            None => {
                tracee.syscall("close", libc::SYS_close, [number, 0, 0, 0, 0, 0])?;
            }
        }
        Ok(())
    }
}
