//! Free places in an address space.

use super::image::USER_END;

/// The lowest address that an ordinary user may map (vm.mmap_min_addr is at most this on all systems in use).
const LOWEST: u64 = 0x10000;

/// Ranges of addresses that are in use.
#[derive(Debug, Default, Clone)]
pub(crate) struct Used(Vec<(u64, u64)>);

impl Used {
    /// Collects ranges (start, end) in any order; they may overlap.
    pub(crate) fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut all: Vec<(u64, u64)> = ranges.into_iter().collect();
        all.sort_unstable();
        Self(all)
    }

    /// These ranges and another one.
    pub(crate) fn and(&self, start: u64, end: u64) -> Self {
        Self::new(self.0.iter().copied().chain([(start, end)]))
    }

    /// Free places of at least `bytes`, lowest first.
    pub(crate) fn gaps(&self, bytes: u64) -> impl Iterator<Item = u64> {
        let mut at = LOWEST;
        self.0
            .iter()
            .copied()
            .chain([(USER_END, USER_END)])
            .filter_map(move |(start, end)| {
                let gap = (start > at && start - at >= bytes).then_some(at);
                at = at.max(end);
                gap
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_free_and_large_enough() {
        let used = Used::new([
            (0x30000, 0x40000),
            (0x20000, 0x28000),
            (0x22000, 0x24000),
            (0x0, 0x1000),
        ]);
        let gaps: Vec<u64> = used.gaps(0x8000).collect();
        assert_eq!(gaps, [0x10000, 0x28000, 0x40000]);
        assert_eq!(used.gaps(0x9000).collect::<Vec<_>>(), [0x10000, 0x40000]);
        assert_eq!(Used::default().gaps(1).next(), Some(LOWEST));
        assert_eq!(Used::new([(0, USER_END)]).gaps(1).next(), None);
    }
}
