//! Which of the tokens before it a token of a prompt attends.

use std::fmt;
use std::str::FromStr;

/// How a prompt is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PrefillMode {
    /// Every token attends to every token before it.
    #[default]
    Exact,
    /// A tile of queries attends to the blocks of the past that have a share of its attention, and
    /// to the means of all others: FlashPrefill's rule (arXiv 2603.06199) with the correction by
    /// means of its second version (arXiv 2608.19758).
    Sparse {
        /// Blocks whose estimated share is at least this part of the largest are attended. Above 0,
        /// at most 1; the smaller, the more is attended.
        threshold: f32,
    },
}

impl PrefillMode {
    /// What `sparse` without a number means.
    pub const THRESHOLD: f32 = 0.1;

    /// Whether every token attends to every token before it.
    pub fn is_exact(self) -> bool {
        self == Self::Exact
    }

    /// The mode in words, where it is not exact.
    pub fn inexact(self) -> Option<String> {
        (!self.is_exact()).then(|| self.to_string())
    }

    /// Of two parts of one prompt: how both together were read, which is the less exact way.
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Exact, other) | (other, Self::Exact) => other,
            (Self::Sparse { threshold: a }, Self::Sparse { threshold: b }) => {
                Self::Sparse { threshold: a.max(b) }
            }
        }
    }

    /// Sparse prefill with this threshold.
    ///
    /// # Errors
    /// If it is no number above 0 and at most 1: says so.
    pub fn sparse(threshold: f32) -> Result<Self, String> {
        if threshold > 0.0 && threshold <= 1.0 {
            return Ok(Self::Sparse { threshold });
        }
        Err(format!("the threshold of sparse prefill is {threshold}: above 0, at most 1"))
    }
}

impl fmt::Display for PrefillMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Sparse { threshold } => write!(f, "sparse:{threshold}"),
        }
    }
}

impl FromStr for PrefillMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "exact" => Ok(Self::Exact),
            None if text == "sparse" => Self::sparse(Self::THRESHOLD),
            Some(("sparse", number)) => {
                let threshold = number.parse();
                Self::sparse(threshold.map_err(|_| format!("'{number}' is not a number"))?)
            }
            _ => Err(format!("unknown way to read '{text}': exact, sparse or sparse:THRESHOLD")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_said_and_read_alike() {
        for text in ["exact", "sparse:0.02", "sparse:1"] {
            assert_eq!(text.parse::<PrefillMode>().unwrap().to_string(), text);
        }
        assert_eq!("sparse".parse(), PrefillMode::sparse(PrefillMode::THRESHOLD));
        for wrong in [
            "",
            "Exact",
            "sparse:",
            "sparse:x",
            "sparse:0",
            "sparse:-1",
            "sparse:2",
            "sparse:nan",
            "exact:1",
            "bounded",
        ] {
            assert!(wrong.parse::<PrefillMode>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn two_parts_are_as_exact_as_the_less_exact_one() {
        let sparse = |threshold| PrefillMode::Sparse { threshold };
        assert_eq!(PrefillMode::Exact.with(PrefillMode::Exact), PrefillMode::Exact);
        assert_eq!(PrefillMode::Exact.with(sparse(0.1)), sparse(0.1));
        assert_eq!(sparse(0.1).with(PrefillMode::Exact), sparse(0.1));
        assert_eq!(sparse(0.1).with(sparse(0.2)), sparse(0.2));
    }
}
