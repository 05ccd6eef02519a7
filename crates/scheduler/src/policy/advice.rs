//! What a refused policy needs to be one: a change of a single option.

use std::fmt;

/// A change of one option that leaves the others as they are. An error prints it, and what reads
/// errors can follow it: [`crate::PolicyOptions::follow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyAdvice {
    /// Give the option this value, or any that is larger.
    Raise {
        /// The option.
        option: &'static str,
        /// The smallest value that does.
        least: usize,
    },
    /// Give the option this value.
    Use {
        /// The option.
        option: &'static str,
        /// The value.
        value: String,
    },
    /// Leave the option out.
    Omit {
        /// The option.
        option: &'static str,
    },
}

impl PolicyAdvice {
    /// The option that is to change.
    pub fn option(&self) -> &'static str {
        match self {
            Self::Raise { option, .. } | Self::Use { option, .. } | Self::Omit { option } => option,
        }
    }
}

impl fmt::Display for PolicyAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raise { option, least } => write!(f, "raise --{option} to {least} or more"),
            Self::Use { option, value } => write!(f, "use --{option} {value}"),
            Self::Omit { option } => write!(f, "leave --{option} out"),
        }
    }
}
