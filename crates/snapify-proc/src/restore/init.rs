//! What runs as pid 1 of the new namespaces: builds a tree of processes or launches one, then waits for the end.

use super::launch::{self, LaunchSpec};
use super::namespace::Inside;
use super::protocol::{FromInit, ToInit, receive, send};
use super::{Orphans, RestorePlan, build, terminal, track};
use crate::error::ProcError;
use snapify_store::Progress;
use snapify_sys::process;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes after which progress is reported.
const REPORT_EVERY: u64 = 16 << 20;

struct Report<'a> {
    socket: &'a OwnedFd,
    unreported: AtomicU64,
}

impl Progress for Report<'_> {
    fn advance(&self, bytes: u64) {
        if self.unreported.fetch_add(bytes, Ordering::Relaxed) + bytes >= REPORT_EVERY {
            self.flush();
        }
    }
}

impl Report<'_> {
    fn flush(&self) {
        let bytes = self.unreported.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            // If nobody listens any more, this process is about to be killed.
            let _ = send(self.socket, &FromInit::Progress(bytes), None);
        }
    }
}

/// Restores the processes of `plan` and stays with them until the first ends.
pub(super) fn restore_processes(inside: Inside, plan: RestorePlan<'_>) {
    let Inside {
        socket,
        mut warnings,
    } = inside;
    let report = Report {
        socket: &socket,
        unreported: AtomicU64::new(0),
    };
    let built = match build::build(&plan, &report) {
        Ok(built) => built,
        Err(e) => return fail(&socket, &e),
    };
    report.flush();
    let pid = plan.image.root().pid();
    let stopped: Vec<i32> = plan
        .image
        .processes
        .iter()
        .filter(|process| process.stopped && !process.stops_silently())
        .map(crate::image::ProcessImage::pid)
        .collect();
    let orphans = plan.orphans;
    let outer = plan.image.files.outer_terminal.clone();
    drop(plan);
    if track::hand_over(built.tracked, &socket).is_err() {
        return;
    }
    close_all_but(&[2, socket.as_raw_fd(), built.pidfd.as_raw_fd()]);
    warnings.extend(built.warnings);
    if send(
        &socket,
        &FromInit::Ready { warnings },
        Some(built.pidfd.as_fd()),
    )
    .is_err()
    {
        return;
    }
    let Some(foreground) = told_to_start(&socket) else {
        return;
    };
    if let Some(outer) = outer.filter(|_| foreground) {
        terminal::enter(&outer);
    }
    for pid in stopped {
        // Acts as soon as the first thread goes on; all then stop again.
        let _ = process::kill(pid, libc::SIGSTOP);
    }
    for thread in built.processes.into_iter().flatten() {
        match thread.detach() {
            Ok(()) => {}
            // One that goes on already has killed it: whoever waits for it is told.
            Err((_, ProcError::Ptrace { source, .. }))
                if source.raw_os_error() == Some(libc::ESRCH) => {}
            Err((_, e)) => return fail(&socket, &e),
        }
    }
    if send(&socket, &FromInit::Started, None).is_ok() {
        attend(&socket, pid, orphans);
    }
}

/// Launches a program and stays with it until it ends.
pub(super) fn launch_program(inside: Inside, spec: &LaunchSpec) {
    let Inside { socket, warnings } = inside;
    let waiting = match launch::fork(spec) {
        Ok(waiting) => waiting,
        Err(e) => return fail(&socket, &e),
    };
    close_all_but(&[
        2,
        socket.as_raw_fd(),
        waiting.pidfd.as_raw_fd(),
        waiting.go.as_raw_fd(),
        waiting.failure.as_raw_fd(),
    ]);
    let ready = FromInit::Ready { warnings };
    if send(&socket, &ready, Some(waiting.pidfd.as_fd())).is_err()
        || told_to_start(&socket).is_none()
    {
        return;
    }
    let pid = waiting.pid;
    if let Err(e) = waiting.start(&spec.program) {
        return fail(&socket, &e);
    }
    if send(&socket, &FromInit::Started, None).is_ok() {
        attend(&socket, pid, Orphans::End);
    }
}

fn fail(socket: &OwnedFd, error: &ProcError) {
    let _ = send(socket, &FromInit::failed(error), None);
}

/// Waits for the order to start; tells whether the program gets the foreground of the terminal.
fn told_to_start(socket: &OwnedFd) -> Option<bool> {
    match receive::<ToInit>(socket) {
        Ok(Some((ToInit::Start { foreground }, _))) => Some(foreground),
        _ => None,
    }
}

/// Reaps all that ends, until process `pid` does, and reports its wait status. What is left of its descendants dies with this
/// init, or goes on with it.
fn attend(socket: &OwnedFd, pid: i32, orphans: Orphans) {
    let mut waited_for = Some(pid);
    loop {
        match process::wait_for_change() {
            Ok((stopped, status)) if status.stop_signal().is_some() => {
                if Some(stopped) == waited_for {
                    let _ = send(socket, &FromInit::Stopped, None);
                }
            }
            Ok((ended, status)) if Some(ended) == waited_for => {
                waited_for = None;
                let survive = orphans == Orphans::Survive && has_children();
                if survive {
                    // The creator may end now.
                    let _ = process::set_parent_death_signal(0);
                }
                let ended = FromInit::Ended {
                    status: status.0,
                    survive,
                };
                let _ = send(socket, &ended, None);
                if !survive {
                    return;
                }
                // Nobody is to wait for a message from here any more.
                close_all_but(&[]);
            }
            Ok(_) => {}
            // No children are left.
            Err(_) => return,
        }
    }
}

/// Whether there are children, running or not.
fn has_children() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).is_ok()
}

/// Closes what this process has inherited or made and does not need any more: the caller's connections must not be kept
/// open by it.
#[allow(unsafe_code)]
fn close_all_but(keep: &[i32]) {
    let mut keep: Vec<u32> = keep
        .iter()
        .filter_map(|&fd| u32::try_from(fd).ok())
        .collect();
    keep.sort_unstable();
    let mut at = 0;
    for fd in keep {
        if fd > at {
            // SAFETY: nothing here uses a descriptor that is not in `keep` any more; the copies of the caller's variables
            // are never dropped in this process.
            let _ = unsafe { process::close_range(at, fd - 1) };
        }
        at = fd + 1;
    }
    // SAFETY: as above.
    let _ = unsafe { process::close_range(at, u32::MAX) };
}
