//! Sets of ranges.

use std::collections::BTreeMap;

/// A set of disjoint ranges of offsets; neighbours are merged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeSet {
    /// Start and end of each range.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a range.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        // All ranges that overlap or touch it become one with it.
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back()
            && to >= start
        {
            start = start.min(from);
            end = end.max(to);
            self.ranges.remove(&from);
        }
        self.ranges.insert(start, end);
    }

    /// Takes a range out.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((&from, &to)) = self.ranges.range(..end).next_back()
            && to > start
        {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, start);
            }
            if to > end {
                self.ranges.insert(end, to);
            }
        }
    }

    /// Whether all of a range is in the set.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end
            || self
                .ranges
                .range(..=start)
                .next_back()
                .is_some_and(|(_, &to)| to >= end)
    }

    /// The parts of a range that are in the set.
    pub fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self
            .ranges
            .range(..=start)
            .next_back()
            .map_or(start, |(&from, _)| from);
        let overlapping = self.ranges.range(first..end).filter(|&(_, &to)| to > start);
        overlapping
            .map(|(&from, &to)| (from.max(start), to.min(end)))
            .collect()
    }

    /// The parts of a range that are not in the set.
    pub fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        for (from, to) in self.within(start, end) {
            if at < from {
                gaps.push((at, from));
            }
            at = to;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_bitmap() {
        let mut set = RangeSet::default();
        let mut bits = [false; 64];
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, b) = ((seed >> 40) % 65, (seed >> 50) % 65);
            let (start, end) = (a.min(b), a.max(b));
            let span = start as usize..end as usize;
            match seed >> 62 {
                0 | 1 => {
                    set.insert(start, end);
                    bits[span].fill(true);
                }
                2 => {
                    set.remove(start, end);
                    bits[span].fill(false);
                }
                _ => {
                    assert_eq!(
                        set.contains(start, end),
                        bits[span.clone()].iter().all(|bit| *bit)
                    );
                    let inside: u64 = set
                        .within(start, end)
                        .iter()
                        .map(|(from, to)| to - from)
                        .sum();
                    let outside: u64 = set
                        .missing(start, end)
                        .iter()
                        .map(|(from, to)| to - from)
                        .sum();
                    assert_eq!(inside, bits[span].iter().filter(|bit| **bit).count() as u64);
                    assert_eq!(inside + outside, end - start);
                }
            }
            let mut previous = None;
            for (from, to) in set.iter() {
                assert!(from < to && previous.is_none_or(|previous| previous < from));
                previous = Some(to);
            }
        }
    }
}
