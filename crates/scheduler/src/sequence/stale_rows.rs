//! Rows whose copies on the device are not what the host store has.

use std::ops::Range;

/// Rows on the device that are not what the host store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stale {
    start: usize,
    end: usize,
}

impl Stale {
    /// Every row: the device's memory is fresh.
    pub const ALL: Self = Self { start: 0, end: usize::MAX };
    /// No row.
    pub const NONE: Self = Self { start: 0, end: 0 };

    /// Adds rows, and those that lie between.
    pub fn add(&mut self, rows: Range<usize>) {
        if *self == Self::NONE {
            *self = Self { start: rows.start, end: rows.end };
        } else if !rows.is_empty() {
            self.start = self.start.min(rows.start);
            self.end = self.end.max(rows.end);
        }
    }

    /// Those of the first `n` rows; later ones are written on the device before they are read.
    pub fn among(self, n: usize) -> Range<usize> {
        self.start.min(n)..self.end.min(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_rows_are_those_from_the_first_to_the_last() {
        let mut stale = Stale::ALL;
        assert_eq!(stale.among(7), 0..7);
        stale.add(3..5);
        assert_eq!(stale, Stale::ALL);
        stale = Stale::NONE;
        assert!(stale.among(7).is_empty());
        stale.add(3..5);
        assert_eq!((stale.among(7), stale.among(4), stale.among(2)), (3..5, 3..4, 2..2));
        stale.add(8..9);
        stale.add(1..1);
        assert_eq!(stale.among(20), 3..9);
    }
}
