//! Which pages newer page files of a chain speak of, so that those of older ones are neither read nor written.
//!
//! This is the restart of Wang et al., "Hybrid Full/Incremental Checkpoint/Restart" (section 2.5, figure 5): the
//! chain is gone through from its newest file to its oldest, and of every page only the last version is
//! taken. Files keep their runs in order, so that a chain takes one merge per file.

use crate::SpaceId;
use crate::format::index::Run;

/// Pages that follow each other: the space, the first byte, and what follows the last.
type Stretch = (SpaceId, u64, u64);

/// A set of pages, as stretches that ascend and do not touch each other.
#[derive(Default)]
pub(super) struct Cover(Vec<Stretch>);

impl Cover {
    /// The parts of `runs` that are not covered. `runs` ascend and do not overlap.
    pub(super) fn uncovered(&self, runs: &[Run]) -> Vec<Run> {
        let mut left = Vec::new();
        let mut first = 0;
        for run in runs {
            let ends_before = |&&(space, _, end): &&Stretch| (space, end) <= (run.space, run.start);
            first += self.0[first..].iter().take_while(ends_before).count();
            let mut at = run.start;
            for &(space, start, end) in &self.0[first..] {
                if (space, start) >= (run.space, run.end()) {
                    break;
                }
                if start > at {
                    left.push(run.part(at, start));
                }
                at = end;
            }
            if at < run.end() {
                left.push(run.part(at, run.end()));
            }
        }
        left
    }

    /// Covers `runs` as well, which ascend and do not overlap.
    pub(super) fn add(&mut self, runs: &[Run]) {
        let mut all = Vec::with_capacity(self.0.len() + runs.len());
        let mut old = std::mem::take(&mut self.0).into_iter().peekable();
        let mut new = runs
            .iter()
            .map(|run| (run.space, run.start, run.end()))
            .peekable();
        loop {
            let next = match (old.peek(), new.peek()) {
                (Some(a), Some(b)) if a <= b => old.next(),
                (_, Some(_)) => new.next(),
                (_, None) => old.next(),
            };
            let Some(next) = next else { break };
            push(&mut all, next);
        }
        self.0 = all;
    }
}

/// Adds a stretch that begins no earlier than the last one.
fn push(all: &mut Vec<Stretch>, next: Stretch) {
    match all.last_mut() {
        Some(last) if last.0 == next.0 && last.2 >= next.1 => last.2 = last.2.max(next.2),
        _ => all.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::index::RunKind;

    fn run(space: u32, page: u64, pages: u32) -> Run {
        Run {
            space: SpaceId(space),
            start: page * 4096,
            pages,
            kind: RunKind::Data {
                block: 0,
                first_page: page as u32,
            },
        }
    }

    #[test]
    fn what_is_covered_is_cut_out() {
        let mut cover = Cover::default();
        cover.add(&[run(0, 2, 2), run(0, 8, 1), run(1, 0, 4)]);
        cover.add(&[run(0, 4, 1), run(0, 6, 1)]);
        let whole = [run(0, 0, 5), run(0, 6, 4), run(1, 1, 2), run(2, 0, 1)];
        let left = cover.uncovered(&whole);
        assert_eq!(
            left,
            [run(0, 0, 2), run(0, 7, 1), run(0, 9, 1), run(2, 0, 1)]
        );
        assert_eq!(Cover::default().uncovered(&whole), whole);
    }

    #[test]
    fn it_agrees_with_a_set_of_pages() {
        let mut seed = 7u64;
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % end
        };
        for _ in 0..300 {
            let mut cover = Cover::default();
            let mut covered = std::collections::BTreeSet::new();
            for _ in 0..below(5) {
                let mut runs = Vec::new();
                let mut at = 0;
                while at < 40 {
                    at += below(8);
                    let pages = 1 + below(6);
                    runs.push(run((at / 20) as u32, at, pages as u32));
                    at += pages;
                }
                let left: Vec<(SpaceId, u64)> = (cover.uncovered(&runs).iter())
                    .flat_map(|r| (0..u64::from(r.pages)).map(|p| (r.space, r.start / 4096 + p)))
                    .collect();
                let all = runs.iter();
                let all = all
                    .flat_map(|r| (0..u64::from(r.pages)).map(|p| (r.space, r.start / 4096 + p)));
                let expected: Vec<_> = all.clone().filter(|p| !covered.contains(p)).collect();
                assert_eq!(left, expected);
                cover.add(&runs);
                covered.extend(all);
            }
        }
    }
}
