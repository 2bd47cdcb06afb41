//! Which pages of a tree of processes have changed since an earlier snapshot.
//!
//! The kernel keeps account of that (Linux 6.7): memory that is registered with a userfaultfd in asynchronous write-protect
//! mode is *armed* by write-protecting its pages; the first write to one lifts its protection, silently, whether the
//! program writes or the kernel for it. `PAGEMAP_SCAN` tells which pages are still protected. A page counts as unchanged
//! only if it is, and if its mapping is registered with our own userfaultfd. So whatever the kernel takes out of the account
//! counts as changed: new mappings, those that were moved (mremap), put in the place of others, or made by exec(2), memory of
//! children, pages that were given back (madvise) and made anew.
//!
//! Only private memory is tracked. Shared memory can be written by those whom nobody sees: by write(2) to its file, by a
//! child that has come and gone since.
//!
//! Arming forgets what was written before. A [`Tracking`] remembers that for several points, its *bases*, so that a program
//! can have snapshots in several places; and all is lost together with the userfaultfds, which it owns: should it be dropped at
//! any moment, then everything counts as changed. Nothing of it is in the program: neither a descriptor nor memory.

mod arm;
mod spans;
mod state;

pub(crate) use arm::{Watch, arm, arm_built};
pub(crate) use spans::Spans;

use crate::error::ProcError;
use crate::ids::Pid;
use crate::memory::Ranges;
use crate::procfs::ProcDir;
use snapify_store::{PageRange, SpaceId};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// So many points are remembered, and those that were used last.
const MOST_BASES: usize = 4;

/// A point is forgotten when what has changed since is in so many pieces that it is not worth the memory.
const MOST_SPANS: usize = 1 << 20;

/// What is known of the memory of a tree of processes since earlier points.
#[derive(Debug, Default)]
pub struct Tracking {
    memories: Vec<TrackedMemory>,
    /// The page space that the next process gets. None is given twice: pages of a space are always of one process.
    next_space: u32,
    /// The last one was used last.
    bases: Vec<Base>,
    /// Page spaces of files without a name, so that later they are compared with themselves.
    objects: BTreeMap<(u64, u64), SpaceId>,
}

/// The memory of one process.
#[derive(Debug)]
struct TrackedMemory {
    /// As we see it.
    pid: Pid,
    /// Start time of the process in clock ticks since boot, which tells it from a later one with the same id.
    started: u64,
    space: SpaceId,
    /// None if it is not tracked.
    uffd: Option<OwnedFd>,
}

/// A point that was saved.
#[derive(Debug)]
struct Base {
    /// What identifies it.
    point: String,
    /// What has changed between it and the last arming.
    changed: Changed,
}

/// Where memory has changed, there now being pages or not.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    by_space: BTreeMap<SpaceId, Spans>,
}

/// Which pages of private memory have changed since a point. Those of objects are not among them.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Pages that may have changed, in order of spaces and addresses.
    pub pages: Vec<PageRange>,
    /// The other ones: all that are neither here nor there are zero, or gone.
    pub unchanged: Vec<PageRange>,
}

impl Changes {
    /// Bytes of those that may have changed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages.iter().map(|range| range.bytes).sum()
    }

    /// Adds the pages of a process.
    pub(crate) fn add(&mut self, space: SpaceId, ranges: &Ranges, changed: &Changed) {
        let present = ranges.present();
        let nothing = Spans::default();
        let changed = changed.by_space.get(&space).unwrap_or(&nothing);
        let range = |(start, end)| PageRange {
            space,
            start,
            bytes: end - start,
        };
        let pages = present.intersection(changed);
        self.unchanged
            .extend(present.difference(&pages).iter().map(range));
        self.pages.extend(pages.iter().map(range));
    }

    pub(crate) fn sort(&mut self) {
        self.pages.sort_unstable();
        self.unchanged.sort_unstable();
    }
}

impl Tracking {
    /// What is known of processes that have just been built from `point`: their ids, page spaces, and what has tracked them
    /// since.
    ///
    /// # Errors
    /// If one of them ends.
    pub(crate) fn begun(
        point: String,
        processes: Vec<(Pid, SpaceId, OwnedFd)>,
    ) -> Result<Self, ProcError> {
        let mut tracking = Self::default();
        for (pid, space, uffd) in processes {
            tracking.next_space = tracking.next_space.max(space.0.saturating_add(1));
            tracking.memories.push(TrackedMemory {
                pid,
                started: ProcDir::open(pid)?.stat()?.start_time,
                space,
                uffd: Some(uffd),
            });
        }
        tracking.saved_as(point, None);
        Ok(tracking)
    }

    /// Keeps what is known of `processes`, whose memory is their own, forgets others, and gives each that is new a page space.
    ///
    /// # Errors
    /// If one of them ends.
    pub(crate) fn settle(&mut self, processes: &[Pid]) -> Result<(), ProcError> {
        let before = std::mem::take(&mut self.memories);
        let mut before: BTreeMap<(i32, u64), TrackedMemory> = before
            .into_iter()
            .map(|memory| ((memory.pid.0, memory.started), memory))
            .collect();
        for &pid in processes {
            let started = ProcDir::open(pid)?.stat()?.start_time;
            let memory = before.remove(&(pid.0, started));
            let memory = memory.unwrap_or_else(|| {
                let space = SpaceId(self.next_space);
                self.next_space += 1;
                TrackedMemory {
                    pid,
                    started,
                    space,
                    uffd: None,
                }
            });
            self.memories.push(memory);
        }
        // Closing the userfaultfds of the others frees what memory they may share with these for a new one.
        Ok(())
    }

    fn memory(&self, pid: Pid) -> Option<&TrackedMemory> {
        self.memories.iter().find(|memory| memory.pid == pid)
    }

    /// The page space of a process, if its memory is its own.
    pub(crate) fn space(&self, pid: Pid) -> Option<SpaceId> {
        Some(self.memory(pid)?.space)
    }

    /// What tracks the memory of a process.
    pub(crate) fn uffd(&self, pid: Pid) -> Option<BorrowedFd<'_>> {
        Some(self.memory(pid)?.uffd.as_ref()?.as_fd())
    }

    /// Takes over what tracks a process from now on.
    pub(crate) fn set_uffd(&mut self, pid: Pid, uffd: Option<OwnedFd>) {
        if let Some(memory) = self.memories.iter_mut().find(|memory| memory.pid == pid) {
            memory.uffd = uffd;
        }
    }

    /// Takes away what tracks a process, to work with it.
    pub(crate) fn take_uffd(&mut self, pid: Pid) -> Option<OwnedFd> {
        let mut memories = self.memories.iter_mut();
        memories.find(|memory| memory.pid == pid)?.uffd.take()
    }

    /// Notes what was written to a memory since it was last armed, before it is armed again.
    pub(crate) fn remember(&mut self, space: SpaceId, written: &Spans) {
        for base in &mut self.bases {
            let changed = base.changed.by_space.entry(space).or_default();
            *changed = changed.union(written);
        }
        let pieces = |base: &Base| {
            base.changed
                .by_space
                .values()
                .map(Spans::len)
                .sum::<usize>()
        };
        self.bases.retain(|base| pieces(base) <= MOST_SPANS);
    }

    /// The page spaces of shared files, by device and inode number.
    pub(crate) fn objects(&self) -> &BTreeMap<(u64, u64), SpaceId> {
        &self.objects
    }

    pub(crate) fn set_objects(&mut self, objects: BTreeMap<(u64, u64), SpaceId>) {
        self.objects = objects;
    }

    /// What has changed between `point` and the last time that was [taken note of](crate::Frozen::track), if that is known.
    #[must_use]
    pub fn changed_since(&self, point: &str) -> Option<Changed> {
        let base = self.bases.iter().find(|base| base.point == point)?;
        Some(base.changed.clone())
    }

    /// The memory that was armed last has been saved as `point`, which may build on `parent`.
    pub fn saved_as(&mut self, point: String, parent: Option<&str>) {
        self.bases
            .retain(|base| base.point != point && Some(base.point.as_str()) != parent);
        if self.bases.len() == MOST_BASES {
            self.bases.remove(0);
        }
        self.bases.push(Base {
            point,
            changed: Changed::default(),
        });
    }

    /// Whether there is anything worth keeping.
    #[must_use]
    pub fn is_useful(&self) -> bool {
        !self.bases.is_empty() && self.memories.iter().any(|memory| memory.uffd.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(list: &[(u64, u64)]) -> Spans {
        let mut spans = Spans::default();
        list.iter().for_each(|&(start, end)| spans.push(start, end));
        spans
    }

    #[allow(clippy::field_reassign_with_default)]
    fn ranges(present: &[(u64, u64)], written: &[(u64, u64)]) -> Ranges {
        let range = |&(start, end): &(u64, u64)| PageRange {
            space: SpaceId(0),
            start,
            bytes: end - start,
        };
        let mut ranges = Ranges::default();
        ranges.ranges = present.iter().map(range).collect();
        ranges.written = written.iter().map(range).collect();
        ranges
    }

    fn changed(tracking: &Tracking, point: &str, now: &Ranges) -> Option<Vec<(u64, u64)>> {
        let changed = tracking.changed_since(point)?;
        let mut changes = Changes::default();
        changes.add(SpaceId(0), now, &changed);
        let ends = |pages: &[PageRange]| {
            let pages = pages.iter();
            pages
                .map(|page| (page.start, page.start + page.bytes))
                .collect::<Vec<_>>()
        };
        let all = spans(&ends(&changes.pages)).union(&spans(&ends(&changes.unchanged)));
        assert_eq!(all, now.present());
        Some(ends(&changes.pages))
    }

    #[test]
    fn each_base_has_its_own_changes() {
        let mut tracking = Tracking::default();
        let arm = |tracking: &mut Tracking, present: &[_], written: &[_]| {
            let now = ranges(present, written);
            tracking.remember(SpaceId(0), &now.written());
            now
        };
        let all = [(0, 100)];
        let now = arm(&mut tracking, &all, &all);
        assert_eq!(changed(&tracking, "a1", &now), None);
        tracking.saved_as("a1".into(), None);
        // A point elsewhere: what was written before belongs to the first one's changes too.
        let now = arm(&mut tracking, &all, &[(10, 20)]);
        assert_eq!(changed(&tracking, "b1", &now), None);
        assert_eq!(changed(&tracking, "a1", &now), Some(vec![(10, 20)]));
        tracking.saved_as("b1".into(), None);
        // Another that failed: armed, and not saved.
        arm(&mut tracking, &all, &[(30, 40)]);
        // Part of it is gone.
        let now = arm(&mut tracking, &[(0, 15), (35, 100)], &[(90, 91)]);
        assert_eq!(
            changed(&tracking, "a1", &now),
            Some(vec![(10, 15), (35, 40), (90, 91)])
        );
        assert_eq!(
            changed(&tracking, "b1", &now),
            Some(vec![(35, 40), (90, 91)])
        );
        tracking.saved_as("a2".into(), Some("a1"));
        let now = arm(&mut tracking, &all, &[]);
        assert_eq!(changed(&tracking, "a1", &now), None);
        assert_eq!(changed(&tracking, "a2", &now), Some(vec![]));
        assert_eq!(
            changed(&tracking, "b1", &now),
            Some(vec![(30, 40), (90, 91)])
        );
    }

    #[test]
    fn only_so_much_is_remembered() {
        let mut tracking = Tracking::default();
        for point in 0..10 {
            tracking.saved_as(point.to_string(), None);
        }
        let now = ranges(&[], &[]);
        assert_eq!(changed(&tracking, "5", &now), None);
        assert_eq!(changed(&tracking, "6", &now), Some(vec![]));
        let mut many = Spans::default();
        (0..MOST_SPANS as u64 + 1).for_each(|page| many.push(page * 2, page * 2 + 1));
        tracking.remember(SpaceId(0), &many);
        assert_eq!(changed(&tracking, "9", &now), None);
    }
}
