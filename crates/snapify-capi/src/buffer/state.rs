//! Which copies of which bytes of a buffer are valid.

use snapify_offload::host::RangeSet;

/// A copy of a buffer: 0 is the one on the host, the others are those in its processes, in order.
pub type Place = usize;

/// The copy on the host.
pub const HOST: Place = 0;

/// A piece of a buffer and the place to take it from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub place: Place,
    pub start: u64,
    pub end: u64,
}

/// The valid bytes of each copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validity(Vec<RangeSet>);

impl Validity {
    /// A buffer that is valid in one place only.
    pub fn new(places: usize, valid: Place, size: u64) -> Self {
        let mut sets = vec![RangeSet::default(); places];
        sets[valid].insert(0, size);
        Self(sets)
    }

    /// Where to take the bytes of a range from: the host's copy if it is valid, else the first process's that is. Bytes that
    /// are valid nowhere have no value; the host's are as good as any.
    pub fn sources(&self, start: u64, end: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut missing = vec![(start, end)];
        for (place, set) in self.0.iter().enumerate() {
            let mut rest = Vec::new();
            for (start, end) in missing {
                let found = set.within(start, end).into_iter();
                pieces.extend(found.map(|(start, end)| Piece { place, start, end }));
                rest.extend(set.missing(start, end));
            }
            missing = rest;
        }
        let nowhere = missing.into_iter().filter(|(start, end)| start < end);
        pieces.extend(nowhere.map(|(start, end)| Piece {
            place: HOST,
            start,
            end,
        }));
        pieces.sort_by_key(|piece| piece.start);
        pieces
    }

    /// What must be brought to a place so that a range is valid there: each piece with the place where it is.
    pub fn missing(&self, place: Place, start: u64, end: u64) -> Vec<Piece> {
        let gaps = self.0[place].missing(start, end).into_iter();
        gaps.flat_map(|(start, end)| self.sources(start, end))
            .filter(|piece| piece.place != place)
            .collect()
    }

    /// A range is valid in a place, too.
    pub fn add(&mut self, place: Place, start: u64, end: u64) {
        self.0[place].insert(start, end);
    }

    /// A range is valid in a place, and nowhere else.
    pub fn write(&mut self, place: Place, start: u64, end: u64) {
        for (other, set) in self.0.iter_mut().enumerate() {
            if other == place {
                set.insert(start, end);
            } else {
                set.remove(start, end);
            }
        }
    }

    /// A range is not valid in a place.
    pub fn drop_from(&mut self, place: Place, start: u64, end: u64) {
        self.0[place].remove(start, end);
    }

    /// Whether anything is valid in a place.
    pub fn is_in(&self, place: Place) -> bool {
        self.0[place].iter().next().is_some()
    }

    /// Whether something of a range is valid elsewhere than in a place.
    pub fn is_elsewhere(&self, place: Place, start: u64, end: u64) -> bool {
        let others = self
            .0
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != place);
        let mut held = others.map(|(_, set)| set.within(start, end));
        held.any(|ranges| !ranges.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(place: Place, start: u64, end: u64) -> Piece {
        Piece { place, start, end }
    }

    #[test]
    fn what_is_written_is_valid_there_and_nowhere_else() {
        let mut state = Validity::new(3, HOST, 100);
        assert_eq!(state.sources(10, 90), [piece(0, 10, 90)]);
        state.write(2, 20, 40);
        assert_eq!(
            state.sources(10, 90),
            [piece(0, 10, 20), piece(2, 20, 40), piece(0, 40, 90)]
        );
        assert_eq!(
            state.missing(1, 0, 100),
            [piece(0, 0, 20), piece(2, 20, 40), piece(0, 40, 100)]
        );
        assert_eq!(state.missing(HOST, 0, 100), [piece(2, 20, 40)]);
        state.add(HOST, 20, 40);
        assert_eq!(state.sources(0, 100), [piece(0, 0, 100)]);
        assert_eq!(state.missing(2, 0, 50), [piece(0, 0, 20), piece(0, 40, 50)]);
    }

    #[test]
    fn bytes_that_are_valid_nowhere_come_from_the_host() {
        let mut state = Validity::new(2, 1, 10);
        state.drop_from(1, 3, 5);
        assert_eq!(
            state.sources(0, 10),
            [piece(1, 0, 3), piece(0, 3, 5), piece(1, 5, 10)]
        );
        assert!(!state.is_elsewhere(1, 0, 10));
        assert!(state.is_elsewhere(0, 0, 10));
        assert!(state.is_in(1) && !state.is_in(0));
        assert_eq!(state.missing(1, 0, 10), [piece(0, 3, 5)]);
        assert_eq!(state.sources(4, 4), []);
    }
}
