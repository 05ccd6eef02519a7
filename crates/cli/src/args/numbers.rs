//! Numbers of the command line, each with the range in which it means something.
//!
//! A number is checked where it enters, so that nothing behind it has to doubt it, and the message
//! names option, value and range.

use std::fmt::Display;
use std::ops::RangeInclusive;

use longview_engine::MAX_CONTEXT;

use crate::units;

/// The longest context that can be asked for.
pub const MOST_TOKENS: usize = MAX_CONTEXT;

/// A parser for counts in `range`.
pub fn count(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let parsed = text.parse::<usize>().ok().filter(|n| range.contains(n));
        parsed.ok_or_else(|| {
            let [low, high] = [*range.start(), *range.end()].map(units::count);
            format!("must be a whole number from {low} to {high}")
        })
    }
}

/// A parser for whole numbers in `range`, which may begin below 0.
pub fn whole(
    range: RangeInclusive<i64>,
) -> impl Fn(&str) -> Result<i64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let parsed = text.parse::<i64>().ok().filter(|n| range.contains(n));
        parsed.ok_or_else(|| {
            let high = units::count(u64::try_from(*range.end()).unwrap_or_default());
            format!("must be a whole number from {} to {high}", range.start())
        })
    }
}

/// A parser for tokens: 1 up to the longest context.
pub fn tokens(text: &str) -> Result<usize, String> {
    count(1..=MOST_TOKENS)(text)
}

/// A parser for the tokens of a context; 0 leaves the choice to the program.
pub fn context(text: &str) -> Result<usize, String> {
    count(0..=MOST_TOKENS)(text)
}

/// A parser for numbers that `is_right` accepts, described as `range`.
pub fn number(
    range: impl Display + Clone + Send + Sync + 'static,
    is_right: fn(f32) -> bool,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let parsed = text.parse::<f32>().ok().filter(|x| x.is_finite() && is_right(*x));
        parsed.ok_or_else(|| format!("must be a number {range}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_hears_the_range() {
        let threads = count(0..=1024);
        assert_eq!(threads("8"), Ok(8));
        for wrong in ["-1", "1025", "x", "", "1.5", "99999999999999999999"] {
            let message = threads(wrong).unwrap_err();
            assert_eq!(message, "must be a whole number from 0 to 1,024", "{wrong}");
        }
        let answer = whole(-1..=1 << 30);
        assert_eq!(answer("-1"), Ok(-1));
        for wrong in ["-2", "99999999999999999999", "x", ""] {
            let message = answer(wrong).unwrap_err();
            assert_eq!(message, "must be a whole number from -1 to 1,073,741,824", "{wrong}");
        }
        assert_eq!(context("0"), Ok(0));
        assert!(tokens("0").is_err());
        let share = number("above 0, at most 1", |p| p > 0.0 && p <= 1.0);
        assert_eq!(share("0.5"), Ok(0.5));
        for wrong in ["0", "nan", "inf", "2", "half"] {
            assert_eq!(share(wrong).unwrap_err(), "must be a number above 0, at most 1");
        }
    }
}
