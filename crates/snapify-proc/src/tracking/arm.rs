//! Registering memory with a userfaultfd, and write-protecting it.

use crate::error::ProcError;
use crate::freeze::FrozenProcess;
use crate::ids::Pid;
use crate::memory::{self, Ranges};
use snapify_sys::pagemap::{Categories, Filter, Region, protect};
use snapify_sys::uffd;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Regions that one PAGEMAP_SCAN returns at most.
const REGIONS: usize = 4096;

/// Mappings to be tracked.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Begin and end of each, in order.
    mappings: Vec<(u64, u64)>,
    /// Whether the kernel knows guard regions.
    guards_known: bool,
}

impl Watch {
    pub(crate) fn push(&mut self, start: u64, end: u64) {
        self.mappings.push((start, end));
    }

    pub(crate) fn set_guards_known(&mut self, known: bool) {
        self.guards_known = known;
    }

    /// Mappings next to each other, in one.
    fn joined(&self) -> impl Iterator<Item = &[(u64, u64)]> {
        self.mappings.chunk_by(|a, b| a.1 == b.0)
    }
}

/// Arms the memory of a frozen process: pages that are written from now on can be told from the others. `uffd` is what has tracked it
/// so far. Returns what does now, and how many bytes of its mappings are not tracked.
///
/// # Errors
/// If it cannot be tracked; then nothing of it is.
pub(crate) fn arm(
    process: &mut FrozenProcess,
    ranges: &Ranges,
    uffd: Option<OwnedFd>,
) -> Result<(OwnedFd, u64), ProcError> {
    if let Some(uffd) = uffd {
        match protect_all(process, ranges, uffd.as_fd()) {
            Ok(untracked) => return Ok((uffd, untracked)),
            // It belongs to an address space that the process had before an exec(2).
            Err(error) => tracing::debug!(pid = process.pid.0, "tracking anew: {error}"),
        }
    }
    let uffd = create(process)?;
    let untracked = protect_all(process, ranges, uffd.as_fd())?;
    Ok((uffd, untracked))
}

/// Makes a userfaultfd in the process, and takes it away from it.
fn create(process: &mut FrozenProcess) -> Result<OwnedFd, ProcError> {
    let pid = process.pid;
    let at = memory::syscall_instruction(pid, &process.proc.maps()?)?;
    let uffd = process.with_bare_tracee(at, |tracee| {
        let flags = uffd::USER_MODE_ONLY | (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        let args = [flags, 0, 0, 0, 0, 0];
        let number = tracee.syscall("userfaultfd", libc::SYS_userfaultfd, args)?;
        let ours = fetch(pid, number as i32);
        tracee.syscall("close", libc::SYS_close, [number, 0, 0, 0, 0, 0])?;
        ours
    })?;
    let what = format!("track the memory of process {pid}");
    uffd::begin_tracking(&uffd).map_err(ProcError::system(what))?;
    Ok(uffd)
}

/// A copy of a descriptor of another process (pidfd_getfd(2)).
fn fetch(pid: Pid, number: i32) -> Result<OwnedFd, ProcError> {
    use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
    let fetch = || {
        let process = crate::files::pidfd::open(pid)?;
        pidfd_getfd(process, number, PidfdGetfdFlags::empty())
    };
    fetch().map_err(ProcError::system(format!(
        "fetch a descriptor of process {pid}"
    )))
}

/// Registers and protects what can be, and returns the bytes of what cannot.
fn protect_all(
    process: &FrozenProcess,
    ranges: &Ranges,
    uffd: BorrowedFd<'_>,
) -> Result<u64, ProcError> {
    let what = || format!("track the memory of process {}", process.pid);
    let pagemap = process.proc.open_file("pagemap")?;
    let mut buffer = vec![Region::default(); REGIONS];
    let mut untracked = 0;
    for group in ranges.watch.joined() {
        let &[(start, _), ..] = group else { continue };
        let end = group.last().map_or(start, |last| last.1);
        let mut protect = |start, end| protect_one(&pagemap, uffd, ranges, start, end, &mut buffer);
        match protect(start, end) {
            Ok(()) => {}
            Err(e) if is_refusal(&e) => {
                for &(start, end) in group {
                    match protect(start, end) {
                        Ok(()) => {}
                        Err(e) if is_refusal(&e) => untracked += end - start,
                        Err(e) => return Err(ProcError::system(what())(e)),
                    }
                }
            }
            Err(e) => return Err(ProcError::system(what())(e)),
        }
    }
    Ok(untracked)
}

/// Whether it is about a mapping: somebody else watches it, or it is of a kind that cannot be tracked.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINVAL))
}

fn protect_one(
    pagemap: &File,
    uffd: BorrowedFd<'_>,
    ranges: &Ranges,
    start: u64,
    end: u64,
    buffer: &mut [Region],
) -> io::Result<()> {
    uffd::register(uffd, start, end)?;
    // Pages of files stay as they are: what the kernel would leave behind in the place of one looks like a page of the
    // process's own. And places without a page must not get page tables for that.
    let guard = match ranges.watch.guards_known {
        true => Categories::GUARD,
        false => Categories::NONE,
    };
    let not = Categories::FILE | guard;
    let filter = Filter {
        inverted: not,
        all: Categories::WRITTEN | not,
        any: Categories::PRESENT | Categories::SWAPPED,
        report: Categories::NONE,
    };
    protect(pagemap, start, end, filter, buffer)
}
