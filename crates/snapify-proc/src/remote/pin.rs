//! Tracer and tracee on one CPU: a step then takes a tenth of the time that it takes across two.

use crate::ids::Tid;
use snapify_sys::process;
use std::cell::RefCell;

thread_local! {
    /// Where this thread may run when it is not pinned, while it is.
    static UNPINNED: RefCell<Option<Vec<u64>>> = const { RefCell::new(None) };
}

/// Where this thread might run if it were not pinned, as the kernel's bit mask; nothing if it is not.
pub(crate) fn unpinned() -> Option<Vec<u64>> {
    UNPINNED.with_borrow(Clone::clone)
}

/// Pins this thread to a CPU until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(super) mask: Vec<u64>,
    ours: Vec<u64>,
    /// Whether this thread was not pinned before.
    first: bool,
}

impl Pin {
    /// Pins this thread to a CPU that `leader` may use too; `None` if there is none.
    pub(crate) fn choose(leader: Tid) -> Option<Self> {
        let ours = process::affinity(0).ok()?;
        let theirs = process::affinity(leader.0).ok()?;
        let common: Vec<u64> = ours.iter().zip(&theirs).map(|(a, b)| a & b).collect();
        let allowed = |cpu: usize| {
            common
                .get(cpu / 64)
                .is_some_and(|word| word >> (cpu % 64) & 1 == 1)
        };
        let here = process::current_cpu();
        let cpu = if allowed(here) {
            here
        } else {
            (0..common.len() * 64).find(|&cpu| allowed(cpu))?
        };
        let mut mask = vec![0; common.len()];
        mask[cpu / 64] = 1 << (cpu % 64);
        process::set_affinity(0, &mask).ok()?;
        let first = UNPINNED.with_borrow_mut(|unpinned| {
            let first = unpinned.is_none();
            unpinned.get_or_insert_with(|| ours.clone());
            first
        });
        Some(Self { mask, ours, first })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = process::set_affinity(0, &self.ours);
        if self.first {
            UNPINNED.set(None);
        }
    }
}
