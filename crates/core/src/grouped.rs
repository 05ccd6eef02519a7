//! Counts as people read them.

use std::fmt;

/// A count with a comma between thousands: `32,768`. Numbers that somebody is to type are written
/// without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouped(pub u64);

impl From<usize> for Grouped {
    fn from(count: usize) -> Self {
        Self(count as u64)
    }
}

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (32_768, "32,768"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(Grouped(count).to_string(), text);
        }
        assert_eq!(format!("{:>7}|{:<7}|", Grouped(1000), Grouped(1)), "  1,000|1      |");
    }
}
