//! What is wrong with options of a policy, and what would be right.

use super::advice::PolicyAdvice;
use super::preset::Preset;
use super::range::ValueRange;
use super::small_budget::SmallBudget;

/// The most characters of a value that a message repeats.
const MAX_QUOTED: usize = 60;

/// Options that cannot work together.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum PolicyError {
    /// No such preset.
    #[error("unknown policy '{0}': one of {names}", names = preset_names())]
    UnknownPreset(String),
    /// No such option.
    #[error("unknown option '{0}' of a policy; `longview policies` lists them")]
    UnknownOption(String),
    /// A value that is none.
    #[error("--{option}: {reason}")]
    Value {
        /// The option.
        option: String,
        /// What is wrong.
        reason: String,
    },
    /// An option that is there twice, perhaps under its old name.
    #[error("--{0} is given twice")]
    Twice(&'static str),
    /// A budget of nothing.
    #[error("--budget 0: a KV head must attend to at least one token; try --budget auto")]
    ZeroBudget,
    /// The always-attended tokens alone exceed the budget.
    #[error("{0}")]
    BudgetTooSmall(Box<SmallBudget>),
    /// A number that is not in its range.
    #[error("--{option} {value}: must be {range}")]
    Range {
        /// The option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        range: ValueRange,
        /// The value of the range that is nearest; `None` if there is none.
        nearest: Option<String>,
    },
    /// A value that means nothing beside those of other options.
    #[error("--{option}: {reason}; {advice}")]
    Conflict {
        /// The option.
        option: &'static str,
        /// Why.
        reason: &'static str,
        /// What would be right.
        advice: PolicyAdvice,
    },
    /// More clusters than tokens.
    #[error(
        "--window-clusters {clusters} of a --window of {window} tokens: at most one cluster per \
         token; use --window-clusters {window}"
    )]
    WindowClusters {
        /// Clusters that a full window becomes, C+.
        clusters: usize,
        /// Decoded tokens that are clustered together, m.
        window: usize,
    },
    /// A segment that a cluster does not fit.
    #[error(
        "--cluster-segment {segment} is shorter than --cluster-tokens {tokens}; use 0 for the \
         whole prompt"
    )]
    Segment {
        /// Tokens of a segment.
        segment: usize,
        /// Tokens per cluster.
        tokens: usize,
    },
    /// An option that the preset has no use for.
    #[error("--{option} has no meaning for --policy {preset}; leave it out")]
    NotForPreset {
        /// The option.
        option: &'static str,
        /// The preset.
        preset: Preset,
    },
}

impl PolicyError {
    /// A change of one option that makes the others a policy, or brings out what is wrong with
    /// another one.
    pub fn advice(&self) -> Option<PolicyAdvice> {
        let use_value = |option, value: String| Some(PolicyAdvice::Use { option, value });
        match self {
            Self::UnknownPreset(_) | Self::UnknownOption(_) | Self::Value { .. } => None,
            Self::Twice(_) => None,
            Self::ZeroBudget => use_value("budget", "auto".into()),
            Self::BudgetTooSmall(small) => small.advice(),
            Self::Range { option, nearest: Some(nearest), .. } => {
                use_value(option, nearest.clone())
            }
            Self::Range { option, nearest: None, .. } => Some(PolicyAdvice::Omit { option }),
            Self::Conflict { advice, .. } => Some(advice.clone()),
            Self::WindowClusters { window, .. } => use_value("window-clusters", window.to_string()),
            Self::Segment { .. } => use_value("cluster-segment", "0".into()),
            Self::NotForPreset { option, .. } => Some(PolicyAdvice::Omit { option }),
        }
    }

    /// `option` is to be left out, because of `reason`.
    pub(super) fn conflict(option: &'static str, reason: &'static str) -> Self {
        Self::Conflict { option, reason, advice: PolicyAdvice::Omit { option } }
    }
}

/// `text` as a message repeats it.
pub(super) fn quoted(text: &str) -> String {
    longview_core::quoted(text, MAX_QUOTED)
}

fn preset_names() -> String {
    Preset::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

impl std::str::FromStr for Preset {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let found = Preset::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(preset, _)| *preset).ok_or_else(|| PolicyError::UnknownPreset(quoted(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_repeats_little_of_a_value_and_nothing_that_a_terminal_acts_on() {
        assert_eq!(quoted("quest"), "quest");
        assert_eq!(quoted("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb ");
        let long = quoted(&"x".repeat(1 << 20));
        assert_eq!(long, format!("{}...", "x".repeat(MAX_QUOTED)));
        assert_eq!(quoted(&"é".repeat(MAX_QUOTED)), "é".repeat(MAX_QUOTED));
    }
}
