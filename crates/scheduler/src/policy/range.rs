//! Which values of an option mean something.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use longview_core::Grouped;

/// Which values of an option mean something. A value outside is refused where it enters, so that
/// nothing behind it has to doubt it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRange {
    /// All that can be read: names, switches, seeds.
    Any,
    /// Whole numbers.
    Whole {
        /// The smallest.
        least: usize,
        /// The largest.
        most: usize,
    },
    /// Odd whole numbers from 1 up, which have one in the middle.
    Odd {
        /// The largest.
        most: usize,
    },
    /// Numbers; none of them is NaN.
    Between(Bound<f32>, Bound<f32>),
}

impl ValueRange {
    /// Whole numbers from `least` up to `most`.
    pub(super) const fn whole(least: usize, most: usize) -> Self {
        Self::Whole { least, most }
    }

    pub(super) fn has_whole(&self, value: usize) -> bool {
        match *self {
            Self::Any => true,
            Self::Whole { least, most } => (least..=most).contains(&value),
            Self::Odd { most } => value % 2 == 1 && value <= most,
            Self::Between(..) => false,
        }
    }

    pub(super) fn has_number(&self, value: f32) -> bool {
        match *self {
            Self::Any => true,
            Self::Between(low, high) => (low, high).contains(&value),
            Self::Whole { .. } | Self::Odd { .. } => false,
        }
    }

    /// The whole number of the range that is nearest to `value`, or below it among two.
    pub(super) fn nearest_whole(&self, value: usize) -> usize {
        match *self {
            Self::Whole { least, most } => value.clamp(least, most),
            Self::Odd { most } => value.saturating_sub(1).clamp(1, most),
            Self::Any | Self::Between(..) => value,
        }
    }

    /// A bound of the range that `value` is beyond, if it belongs to the range.
    pub(super) fn nearest_number(&self, value: f32) -> Option<f32> {
        let Self::Between(low, high) = *self else { return None };
        match (low, high) {
            (Bound::Included(low), _) if value < low => Some(low),
            (_, Bound::Included(high)) if value > high => Some(high),
            _ => None,
        }
    }

    /// Whether it leaves anything out, or says what a value is.
    pub fn is_any(&self) -> bool {
        *self == Self::Any
    }
}

impl fmt::Display for ValueRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Any => f.write_str("any value"),
            Self::Whole { least, most } => {
                write!(f, "a whole number from {} to {}", Grouped::from(least), Grouped::from(most))
            }
            Self::Odd { most } => {
                write!(f, "an odd whole number from 1 to {}", Grouped::from(most))
            }
            Self::Between(Bound::Included(low), Bound::Included(high)) => {
                write!(f, "a number from {low} to {high}")
            }
            Self::Between(low, high) => {
                f.write_str("a number ")?;
                match low {
                    Bound::Included(low) => write!(f, "from {low}")?,
                    Bound::Excluded(low) => write!(f, "above {low}")?,
                    Bound::Unbounded => f.write_str("-inf or above")?,
                }
                match high {
                    Bound::Included(high) => write!(f, ", at most {high}"),
                    Bound::Excluded(high) => write!(f, ", below {high}"),
                    Bound::Unbounded => f.write_str(", or inf"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_its_bounds_and_says_them() {
        let whole = ValueRange::whole(1, 1_048_576);
        assert_eq!(
            [0, 1, 1_048_576, 1_048_577].map(|n| whole.has_whole(n)),
            [false, true, true, false]
        );
        assert_eq!(whole.to_string(), "a whole number from 1 to 1,048,576");
        let odd = ValueRange::Odd { most: 1023 };
        assert_eq!(
            [0, 1, 2, 1023, 1025].map(|n| odd.has_whole(n)),
            [false, true, false, true, false]
        );
        assert_eq!(odd.to_string(), "an odd whole number from 1 to 1,023");
        assert_eq!([0, 4, usize::MAX].map(|n| odd.nearest_whole(n)), [1, 3, 1023]);
        assert_eq!([0, 4, usize::MAX].map(|n| whole.nearest_whole(n)), [1, 4, 1_048_576]);
    }

    #[test]
    fn numbers_are_no_nan_and_may_be_infinite_where_that_is_said() {
        let share = ValueRange::Between(Bound::Included(0.0), Bound::Included(1.0));
        let has = |range: ValueRange, values: [f32; 5]| values.map(|x| range.has_number(x));
        let values = [f32::NAN, -0.5, 0.0, 1.0, f32::INFINITY];
        assert_eq!(has(share, values), [false, false, true, true, false]);
        let open = ValueRange::Between(Bound::Excluded(0.0), Bound::Excluded(1.0));
        assert_eq!(has(open, values), [false; 5]);
        assert!(open.has_number(0.5));
        let distance = ValueRange::Between(Bound::Excluded(0.0), Bound::Unbounded);
        assert_eq!(has(distance, values), [false, false, false, true, true]);
        assert_eq!(share.to_string(), "a number from 0 to 1");
        assert_eq!(open.to_string(), "a number above 0, below 1");
        assert_eq!(distance.to_string(), "a number above 0, or inf");
        let nearest = [-1.0, 2.0, f32::NAN].map(|x| share.nearest_number(x));
        assert_eq!(nearest, [Some(0.0), Some(1.0), None]);
        assert_eq!(open.nearest_number(2.0), None, "there is no nearest one");
    }
}
