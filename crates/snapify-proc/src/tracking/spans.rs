//! Sets of addresses.

use serde::{Deserialize, Serialize};

/// A set of addresses as stretches that ascend and do not touch: first address, and first address behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Adds a stretch that begins no earlier than the last one.
    pub(crate) fn push(&mut self, start: u64, end: u64) {
        match self.0.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ if start < end => self.0.push((start, end)),
            _ => {}
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// Number of stretches.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Number of addresses.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether all from `start` to before `end` is in it.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        let behind = self.0.partition_point(|span| span.0 <= start);
        behind.checked_sub(1).is_some_and(|n| end <= self.0[n].1)
    }

    /// What of it is in `start..end`.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.0.partition_point(|span| span.1 <= start);
        let spans = self.0[first..].iter().take_while(move |span| span.0 < end);
        spans.map(move |span| (span.0.max(start), span.1.min(end)))
    }

    /// What is in one of them.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = Self::default();
        let (mut ours, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        loop {
            let next = match (ours.peek(), theirs.peek()) {
                (Some(a), Some(b)) if a <= b => ours.next(),
                (_, Some(_)) => theirs.next(),
                (_, None) => ours.next(),
            };
            let Some((start, end)) = next else {
                return all;
            };
            all.push(start, end);
        }
    }

    /// What is in both.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::default();
        let (mut ours, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        while let (Some(&(from, to)), Some(&(start, end))) = (ours.peek(), theirs.peek()) {
            both.push(from.max(start), to.min(end));
            if to <= end {
                ours.next();
            } else {
                theirs.next();
            }
        }
        both
    }

    /// What is not in `other`.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let mut left = Self::default();
        let mut theirs = other.iter().peekable();
        for (mut at, to) in self.iter() {
            while let Some(&(start, end)) = theirs.peek() {
                if start >= to {
                    break;
                }
                if start > at {
                    left.push(at, start);
                }
                at = at.max(end);
                if end > to {
                    break;
                }
                theirs.next();
            }
            if at < to {
                left.push(at, to);
            }
        }
        left
    }

    /// Whether it is what [`Self::push`] makes: what was read from elsewhere may be anything.
    pub(crate) fn is_sound(&self) -> bool {
        let ascends = |pair: &[(u64, u64)]| pair[0].1 < pair[1].0;
        self.0.iter().all(|(start, end)| start < end) && self.0.windows(2).all(ascends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn set(spans: &Spans) -> BTreeSet<u64> {
        spans.iter().flat_map(|(start, end)| start..end).collect()
    }

    #[test]
    fn they_agree_with_sets_of_numbers() {
        let mut seed = 3_u64;
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % end
        };
        let mut random = || {
            let mut spans = Spans::default();
            let mut at = 0;
            for _ in 0..below(12) {
                at += below(5);
                let end = at + below(6);
                spans.push(at, end);
                at = end;
            }
            spans
        };
        for _ in 0..2000 {
            let (a, b) = (random(), random());
            let (union, both) = (a.union(&b), a.intersection(&b));
            assert_eq!(set(&union), &set(&a) | &set(&b));
            assert_eq!(set(&both), &set(&a) & &set(&b), "{a:?} {b:?}");
            assert_eq!(set(&a.difference(&b)), &set(&a) - &set(&b), "{a:?} {b:?}");
            assert_eq!(a.bytes(), set(&a).len() as u64);
            let within: BTreeSet<u64> = a.within(7, 23).flat_map(|(from, to)| from..to).collect();
            assert_eq!(within, &set(&a) & &(7..23).collect(), "{a:?}");
            assert!(
                a.is_sound() && union.is_sound() && both.is_sound(),
                "{both:?}"
            );
        }
    }

    #[test]
    fn what_is_covered_lies_in_one_stretch() {
        let spans = Spans(vec![(4, 8), (10, 12)]);
        assert!(spans.covers(4, 8) && spans.covers(5, 6) && spans.covers(10, 12));
        assert!(!spans.covers(3, 5) && !spans.covers(7, 11) && !spans.covers(12, 13));
        assert_eq!(spans.bytes(), 6);
    }

    #[test]
    fn what_cannot_be_is_recognized() {
        for wrong in [
            vec![(4, 4)],
            vec![(5, 3)],
            vec![(0, 2), (2, 3)],
            vec![(4, 5), (0, 1)],
        ] {
            assert!(!Spans(wrong).is_sound());
        }
    }
}
