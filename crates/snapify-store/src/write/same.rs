//! Pages that have the content of others that are stored: the index leads both to one place.

use crate::format::index::Run;
use crate::{PageRange, SpaceId, StoreError};
use std::path::Path;

/// Pages that follow each other, and have the same content as others that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamePages {
    /// These pages.
    pub pages: PageRange,
    /// The space of the others, and where in it they begin.
    pub original: (SpaceId, u64),
}

/// Checks pages that are to be mentioned in the file `path`, which is full or not: the others must be pages in memory. That
/// they are stored cannot be known before.
pub(super) fn check(same: &[SamePages], full: bool, path: &Path) -> Result<(), StoreError> {
    for SamePages { pages, original } in same {
        let others = PageRange {
            space: original.0,
            start: original.1,
            bytes: pages.bytes,
        };
        super::ranges::check(std::iter::once(&others), path)?;
        if !full {
            return Err(StoreError::Range {
                path: path.to_owned(),
                space: pages.space,
                start: pages.start,
                bytes: pages.bytes,
                reason: "pages can be the same as others in a full file only",
            });
        }
    }
    Ok(())
}

/// The runs of pages that are the same as others, of which `runs` tell; these ascend and do not overlap. Where the others are not
/// stored, they are zero, and so are these.
pub(super) fn runs(same: &[SamePages], runs: &[Run]) -> Vec<Run> {
    let mut found = Vec::new();
    for &SamePages { pages, original } in same {
        let (space, begin) = original;
        let end = begin + pages.bytes;
        let first = runs.partition_point(|run| (run.space, run.end()) <= (space, begin));
        let others = runs[first..].iter();
        for run in others.take_while(|run| (run.space, run.start) < (space, end)) {
            if run.place().is_none() {
                continue;
            }
            let part = run.part(run.start.max(begin), run.end().min(end));
            found.push(Run {
                space: pages.space,
                start: pages.start + (part.start - begin),
                ..part
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::index::RunKind;

    fn run(space: u32, page: u64, pages: u32, block: u32, first_page: u32) -> Run {
        let kind = RunKind::Data { block, first_page };
        let (space, start) = (SpaceId(space), page * 4096);
        Run {
            space,
            start,
            pages,
            kind,
        }
    }

    fn same(space: u32, page: u64, pages: u64, original: (u32, u64)) -> SamePages {
        SamePages {
            pages: PageRange {
                space: SpaceId(space),
                start: page * 4096,
                bytes: pages * 4096,
            },
            original: (SpaceId(original.0), original.1 * 4096),
        }
    }

    #[test]
    fn pages_are_found_where_the_others_are() {
        let stored = [
            run(0, 10, 4, 0, 0),
            run(0, 14, 2, 1, 6),
            run(0, 20, 5, 1, 8),
            run(1, 10, 9, 2, 0),
        ];
        // Over two blocks and a hole of zeros.
        let found = runs(&[same(2, 112, 10, (0, 12))], &stored);
        let expected = [
            run(2, 112, 2, 0, 2),
            run(2, 114, 2, 1, 6),
            run(2, 120, 2, 1, 8),
        ];
        assert_eq!(found, expected);
        assert_eq!(runs(&[same(2, 0, 4, (0, 16))], &stored), []);
        assert_eq!(runs(&[same(2, 0, 4, (3, 10))], &stored), []);
    }

    #[test]
    fn impossible_pages_are_refused() {
        let path = Path::new("p");
        assert!(check(&[same(2, 0, 4, (0, 16))], true, path).is_ok());
        assert!(check(&[same(2, 0, 4, (0, 16))], false, path).is_err());
        let mut wrong = same(2, 0, 4, (0, 16));
        wrong.original.1 += 1;
        assert!(check(&[wrong], true, path).is_err());
        wrong.original.1 = u64::MAX - 4095;
        assert!(check(&[wrong], true, path).is_err());
    }
}
