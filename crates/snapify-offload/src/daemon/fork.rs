//! Forked copies of the daemon that do what takes long.
#![allow(unsafe_code)]

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal, waitpid,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A forked copy at work.
#[derive(Debug)]
pub struct Worker {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Forks the daemon; the copy does `work`, ends with the status that it returns, and dies with the daemon.
///
/// # Errors
/// If the kernel refuses another process.
pub fn spawn(work: impl FnOnce() -> u8) -> io::Result<Worker> {
    let daemon = getpid();
    // SAFETY: the daemon has one thread, so the copy may do whatever the daemon may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let alone = set_parent_process_death_signal(Some(Signal::KILL)).is_err()
                || getppid() != Some(daemon);
            let status = if alone { 1 } else { work() };
            // SAFETY: ends the copy without touching what it shares with the daemon.
            unsafe { libc::_exit(i32::from(status)) }
        }
        child => {
            let pid =
                Pid::from_raw(child).ok_or_else(|| io::Error::other("fork returned no child"))?;
            // The child is not reaped yet, so the id is still its own.
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            Ok(Worker { pid, pidfd })
        }
    }
}

impl Worker {
    /// Reaps it and says with what status it ended (nothing if a signal killed it). Waits if it still works.
    pub fn wait(self) -> Option<u8> {
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return exit_status(status),
                Err(rustix::io::Errno::INTR) | Ok(None) => {}
                Err(_) => return None,
            }
        }
    }

    /// Ends it. It still has to be waited for.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

impl AsFd for Worker {
    /// Readable when it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn exit_status(status: WaitStatus) -> Option<u8> {
    status
        .exit_status()
        .and_then(|code| u8::try_from(code).ok())
}
