//! Registering memory with a userfaultfd, and write-protecting it.

use crate::error::ProcError;
use crate::freeze::FrozenProcess;
use crate::ids::Pid;
use crate::memory::{self, Ranges};
use crate::parts;
use crate::procfs::ProcDir;
use crate::remote::Tracee;
use crate::tracking::Spans;
use snapify_store::PAGE_SIZE;
use snapify_sys::pagemap::{Categories, Filter, Region, protect, protect_every};
use snapify_sys::uffd;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Regions that one PAGEMAP_SCAN returns at most.
const REGIONS: usize = 4096;

/// Pages are protected stretch by stretch if stretches have so many bytes on average.
const LONG: u64 = 256 << 10;

/// Mappings to be tracked.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// In the order of addresses.
    mappings: Vec<Watched>,
    /// Whether the kernel knows guard regions.
    guards_known: bool,
}

/// A private mapping, or several next to each other.
#[derive(Clone, Copy, Debug)]
struct Watched {
    start: u64,
    end: u64,
    of_file: bool,
}

impl Watch {
    pub(crate) fn push(&mut self, start: u64, end: u64, of_file: bool) {
        self.mappings.push(Watched {
            start,
            end,
            of_file,
        });
    }

    pub(crate) fn set_guards_known(&mut self, known: bool) {
        self.guards_known = known;
    }

    /// Whether this is one of them.
    fn has(&self, start: u64, end: u64) -> bool {
        let found = self.mappings.binary_search_by_key(&start, |one| one.start);
        found.is_ok_and(|at| self.mappings[at].end == end)
    }

    /// Mappings next to each other, in one.
    fn joined(&self) -> impl Iterator<Item = &[Watched]> {
        (self.mappings).chunk_by(|a, b| a.end == b.start && a.of_file == b.of_file)
    }
}

/// What tracks the memory of a process.
#[derive(Debug)]
pub(crate) struct Armed {
    pub(crate) uffd: OwnedFd,
    /// How many bytes of its mappings are not tracked.
    pub(crate) untracked: u64,
    /// Whether somebody else watches one of them.
    watched: bool,
}

impl Armed {
    /// Whether nobody else watches any of the mappings of the process at `spans`, among which are those that are tracked: the kernel
    /// takes no second one to watch a mapping. Of the others nothing is tracked afterwards either.
    pub(crate) fn is_alone(&self, watch: &Watch, spans: impl Iterator<Item = (u64, u64)>) -> bool {
        let mut others = spans.filter(|&(start, end)| !watch.has(start, end));
        let is_free = |(start, end)| match uffd::register(&self.uffd, start, end) {
            Ok(()) => uffd::unregister(&self.uffd, start, end).is_ok(),
            Err(e) => e.raw_os_error() != Some(libc::EBUSY),
        };
        !self.watched && others.all(is_free)
    }
}

/// Arms the memory of a frozen process: pages that are written from now on can be told from the others. `uffd` is what has tracked it
/// so far.
///
/// # Errors
/// If it cannot be tracked; then nothing of it is.
pub(crate) fn arm(
    process: &mut FrozenProcess,
    ranges: &Ranges,
    uffd: Option<OwnedFd>,
) -> Result<Armed, ProcError> {
    if let Some(uffd) = uffd {
        match protect_all(&process.proc, ranges, uffd.as_fd()) {
            Ok((untracked, watched)) => {
                return Ok(Armed {
                    uffd,
                    untracked,
                    watched,
                });
            }
            // It belongs to an address space that the process had before an exec(2).
            Err(error) => tracing::debug!(pid = process.pid.0, "tracking anew: {error}"),
        }
    }
    let at = memory::syscall_instruction(process.pid, &process.proc.maps()?)?;
    let uffd = process.with_bare_tracee(at, create)?;
    let (untracked, watched) = protect_all(&process.proc, ranges, uffd.as_fd())?;
    Ok(Armed {
        uffd,
        untracked,
        watched,
    })
}

/// The same, for a process that is being built, and whose content is complete.
///
/// # Errors
/// As [`arm`].
pub(crate) fn arm_built(
    tracee: &mut Tracee<'_>,
    proc: &ProcDir,
    ranges: &Ranges,
) -> Result<OwnedFd, ProcError> {
    let uffd = create(tracee)?;
    protect_all(proc, ranges, uffd.as_fd())?;
    Ok(uffd)
}

/// Makes a userfaultfd in the process, and takes it away from it.
fn create(tracee: &mut Tracee<'_>) -> Result<OwnedFd, ProcError> {
    let pid = tracee.pid();
    let flags = uffd::USER_MODE_ONLY | (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let args = [flags, 0, 0, 0, 0, 0];
    let number = tracee.syscall("userfaultfd", libc::SYS_userfaultfd, args)?;
    let ours = fetch(pid, number as i32);
    tracee.syscall("close", libc::SYS_close, [number, 0, 0, 0, 0, 0])?;
    let uffd = ours?;
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

/// Registers and protects what can be. Returns the bytes of what cannot, and whether that is because of somebody else who watches it.
fn protect_all(
    proc: &ProcDir,
    ranges: &Ranges,
    uffd: BorrowedFd<'_>,
) -> Result<(u64, bool), ProcError> {
    let failed = || ProcError::system(format!("track the memory of process {}", proc.pid()));
    let mut tracked = Vec::new();
    let (mut untracked, mut watched) = (0, false);
    for group in ranges.watch.joined() {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let all = Watched {
            end: last.end,
            ..*first
        };
        match uffd::register(uffd, all.start, all.end) {
            Ok(()) => tracked.push(all),
            Err(e) if is_refusal(&e) => {
                for one in group {
                    match uffd::register(uffd, one.start, one.end) {
                        Ok(()) => tracked.push(*one),
                        Err(e) if is_refusal(&e) => {
                            untracked += one.end - one.start;
                            watched |= e.raw_os_error() == Some(libc::EBUSY);
                        }
                        Err(e) => return Err(failed()(e)),
                    }
                }
            }
            Err(e) => return Err(failed()(e)),
        }
    }
    let pagemap = proc.open_file("pagemap")?;
    let orders = orders(&tracked, &ranges.present());
    let bytes = orders.iter().map(Order::bytes).sum();
    let not_pages = match ranges.watch.guards_known {
        true => Categories::GUARD,
        false => Categories::NONE,
    };
    parts::each(&orders, bytes, |order| order.carry_out(&pagemap, not_pages)).map_err(failed())?;
    Ok((untracked, watched))
}

/// Whether it is about a mapping: somebody else watches it, or it is of a kind that cannot be tracked.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINVAL))
}

/// Pages to be protected.
enum Order {
    /// All of them.
    Every(u64, u64),
    /// Among these, those that are there and not protected yet.
    Some(Watched),
}

/// What is to be done about mappings, whose pages are `present`.
fn orders(tracked: &[Watched], present: &Spans) -> Vec<Order> {
    let mut orders = Vec::new();
    for area in tracked {
        let (mut pieces, mut bytes) = (0, 0);
        for (start, end) in present.within(area.start, area.end) {
            pieces += 1;
            bytes += end - start;
        }
        if pieces * LONG <= bytes {
            let spans = present.within(area.start, area.end);
            let parts = spans.flat_map(|(start, end)| parts::cut(start, end));
            orders.extend(parts.map(|(start, end)| Order::Every(start, end)));
        } else {
            let parts = parts::cut(area.start, area.end);
            orders.extend(parts.map(|(start, end)| {
                Order::Some(Watched {
                    start,
                    end,
                    ..*area
                })
            }));
        }
    }
    orders
}

impl Order {
    fn bytes(&self) -> u64 {
        match self {
            Self::Every(start, end) => end - start,
            Self::Some(area) => area.end - area.start,
        }
    }

    fn carry_out(&self, pagemap: &File, not_pages: Categories) -> io::Result<()> {
        let area = match *self {
            Self::Every(start, end) => return protect_every(pagemap, start, end),
            Self::Some(area) => area,
        };
        // Pages of files stay as they are: what the kernel would leave behind in the place of one looks like a page of the
        // process's own. To tell those it looks up each page, which takes it longer than all the rest. And places without
        // a page must not get page tables for that.
        let not = match area.of_file {
            true => Categories::FILE | not_pages,
            false => not_pages,
        };
        let filter = Filter {
            inverted: not,
            all: Categories::WRITTEN | not,
            any: Categories::PRESENT | Categories::SWAPPED,
            report: Categories::NONE,
        };
        let most = REGIONS.min(((area.end - area.start) / PAGE_SIZE) as usize + 1);
        let mut regions = vec![Region::default(); most];
        protect(pagemap, area.start, area.end, filter, &mut regions)
    }
}
