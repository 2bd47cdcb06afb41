//! Threads: registers, extended state, signal mask and what else the kernel keeps for each.

pub(crate) mod capture;
pub mod image;
mod messages;
pub mod numa;
pub mod restart;
pub(crate) mod restore;
pub mod rseq;
mod slots;
pub(crate) mod transfer;
pub(crate) mod vfork;

pub use image::ThreadImage;

use crate::ids::Tid;
use std::io;

/// The nice value of a thread. sched_getattr(2) does not tell it for the real-time policies, where it waits for the thread's
/// return to an ordinary one.
fn nice(tid: Tid) -> io::Result<i32> {
    Ok(rustix::process::getpriority_process(known(tid)?)?)
}

/// Sets the nice value of a thread: sched_setattr(2) does it for the ordinary policies only, not for SCHED_IDLE.
fn set_nice(tid: Tid, nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(known(tid)?, nice)?)
}

fn known(tid: Tid) -> io::Result<Option<rustix::process::Pid>> {
    let known = rustix::process::Pid::from_raw(tid.0);
    known
        .map(Some)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}
