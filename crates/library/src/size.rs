//! Sizes in messages.

use std::fmt;

/// Bytes as people read them.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.iter().find(|(_, bits)| self.0 >> bits > 0) {
            Some((unit, bits)) => write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << bits) as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}
