//! Sections of arrays of up to three dimensions.

use crate::abi::Section;
use crate::error::{Code, Result};

/// A run of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Offset from the array's base.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Most runs that a section may have: more would take too much memory to list.
const MOST: u64 = 1 << 24;

/// The runs of bytes of a section, in order; neighbouring elements of the last dimension are one run.
///
/// Index i of a dimension lies (i - lindex) * size bytes from its start, and the section has the indices lower, lower +
/// stride and so on, up to upper. The size of the last dimension is that of an element.
///
/// # Errors
/// `OutOfRange` if the numbers make no sense, or bytes lie before the base.
pub fn runs(section: &Section) -> Result<Vec<Run>> {
    let bad = || Code::OutOfRange;
    let rank = usize::try_from(section.rank).map_err(|_| bad())?;
    let dimensions = section.dimensions.get(..rank).filter(|d| !d.is_empty());
    let dimensions = dimensions.ok_or_else(bad)?;
    let mut offsets: Vec<i64> = vec![0];
    let mut element = 0;
    for dimension in dimensions {
        let known =
            dimension.size > 0 && dimension.stride > 0 && dimension.upper >= dimension.lower;
        let span = dimension.upper.checked_sub(dimension.lower);
        let count = span.filter(|_| known).ok_or_else(bad)? / dimension.stride + 1;
        let total = (offsets.len() as u64).checked_mul(count.unsigned_abs());
        if total.is_none_or(|total| total > MOST) {
            return Err(bad().into());
        }
        let mut next = Vec::with_capacity(offsets.len() * count.unsigned_abs() as usize);
        for offset in offsets {
            for index in 0..count {
                let into = dimension
                    .lower
                    .checked_sub(dimension.first)
                    .and_then(|from| from.checked_add(index * dimension.stride))
                    .and_then(|from| from.checked_mul(dimension.size))
                    .and_then(|from| from.checked_add(offset));
                next.push(into.ok_or_else(bad)?);
            }
        }
        offsets = next;
        element = dimension.size.unsigned_abs();
    }
    let mut runs: Vec<Run> = Vec::new();
    for offset in offsets {
        let offset = u64::try_from(offset).map_err(|_| bad())?;
        match runs.last_mut() {
            Some(last) if last.offset + last.bytes == offset => last.bytes += element,
            _ => runs.push(Run {
                offset,
                bytes: element,
            }),
        }
    }
    Ok(runs)
}

/// Pairs the runs of two sections of the same number of bytes: pieces that lie in one run of each.
///
/// # Errors
/// `SizeMismatch` if they are not of the same number of bytes.
pub fn pairs(target: &[Run], source: &[Run]) -> Result<Vec<(Run, Run)>> {
    let total = |runs: &[Run]| runs.iter().map(|run| run.bytes).sum::<u64>();
    if total(target) != total(source) {
        return Err(Code::SizeMismatch.into());
    }
    let mut pairs = Vec::new();
    let (mut targets, mut sources) = (target.iter().copied(), source.iter().copied());
    let (mut to, mut from) = (targets.next(), sources.next());
    while let (Some(t), Some(s)) = (&mut to, &mut from) {
        let bytes = t.bytes.min(s.bytes);
        let cut = |run: &mut Run| {
            let piece = Run {
                offset: run.offset,
                bytes,
            };
            run.offset += bytes;
            run.bytes -= bytes;
            piece
        };
        pairs.push((cut(t), cut(s)));
        if t.bytes == 0 {
            to = targets.next();
        }
        if s.bytes == 0 {
            from = sources.next();
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Dimension;

    fn dimension(size: i64, lower: i64, upper: i64, stride: i64) -> Dimension {
        Dimension {
            size,
            first: 0,
            lower,
            upper,
            stride,
        }
    }

    fn section(dimensions: &[Dimension]) -> Section {
        let mut section = Section {
            base: 0,
            rank: dimensions.len() as i64,
            dimensions: Default::default(),
        };
        section.dimensions[..dimensions.len()].copy_from_slice(dimensions);
        section
    }

    #[test]
    fn runs_are_those_of_the_loops_that_a_programmer_would_write() {
        // double a[5][6]: rows 1 to 3 in steps of 2, columns 2 to 4.
        let a = section(&[dimension(48, 1, 3, 2), dimension(8, 2, 4, 1)]);
        let expected = [
            Run {
                offset: 64,
                bytes: 24,
            },
            Run {
                offset: 160,
                bytes: 24,
            },
        ];
        assert_eq!(runs(&a).unwrap(), expected);
        let strided = section(&[dimension(4, 0, 6, 3)]);
        let offsets: Vec<_> = runs(&strided).unwrap().iter().map(|r| r.offset).collect();
        assert_eq!(offsets, [0, 12, 24]);
        let whole = section(&[dimension(12, 0, 1, 1), dimension(4, 0, 2, 1)]);
        let expected = [Run {
            offset: 0,
            bytes: 24,
        }];
        assert_eq!(runs(&whole).unwrap(), expected);
    }

    #[test]
    fn nonsense_is_refused() {
        let bad = [
            dimension(0, 0, 1, 1),
            dimension(4, 0, 1, 0),
            dimension(4, 2, 1, 1),
            dimension(4, i64::MIN, i64::MAX, 1),
            dimension(i64::MAX, 0, 3, 1),
            dimension(4, -1, 0, 1),
            dimension(1, 0, i64::MAX - 1, 1),
        ];
        for dimension in bad {
            assert!(runs(&section(&[dimension])).is_err(), "{dimension:?}");
        }
        for rank in [0, 4, -1] {
            let mut none = section(&[dimension(4, 0, 1, 1)]);
            none.rank = rank;
            assert!(runs(&none).is_err(), "{rank}");
        }
    }

    #[test]
    fn pairs_cover_both_in_order() {
        let run = |offset, bytes| Run { offset, bytes };
        let paired = pairs(&[run(0, 10), run(20, 2)], &[run(5, 4), run(100, 8)]).unwrap();
        let expected = [
            (run(0, 4), run(5, 4)),
            (run(4, 6), run(100, 6)),
            (run(20, 2), run(106, 2)),
        ];
        assert_eq!(paired, expected);
        assert!(pairs(&[run(0, 1)], &[run(0, 2)]).is_err());
    }
}
