//! A budget that what is always attended uses up, and what would do.

use std::fmt;

use super::advice::PolicyAdvice;
use super::preset::Preset;

/// Options that say how much is always attended, those that matter most first, and whether less of
/// them leaves more to choose.
pub(super) const ALWAYS: [(&str, bool); 5] = [
    ("heavy-ratio", false),
    ("recent", true),
    ("window", true),
    ("block-size", true),
    ("sinks", true),
];

/// A budget that what is always attended uses up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallBudget {
    /// The preset.
    pub preset: Preset,
    /// Tokens that a KV head may attend in a step, B.
    pub budget: usize,
    /// What uses it up.
    pub always: AlwaysAttended,
    /// The least budget from which on every one does; `None` if none does.
    pub least: Option<usize>,
    /// Options that were given and would leave more with another value.
    pub given: Vec<&'static str>,
    /// Whether B follows from the context.
    pub is_auto: bool,
}

/// Tokens that every step attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlwaysAttended {
    /// First tokens.
    pub sinks: usize,
    /// Last tokens.
    pub recent: usize,
    /// Decoded tokens that are indexed or chosen from together, m.
    pub window: usize,
    /// More that may wait behind a full window.
    pub waiting: usize,
    /// What they leave no room for.
    pub leaves_no: &'static str,
}

impl SmallBudget {
    /// What would do.
    pub fn advice(&self) -> Option<PolicyAdvice> {
        match (self.least, self.given.first()) {
            (Some(least), _) => Some(PolicyAdvice::Raise { option: "budget", least }),
            (None, Some(option)) => Some(PolicyAdvice::Omit { option }),
            (None, None) => None,
        }
    }
}

impl fmt::Display for SmallBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AlwaysAttended { sinks, recent, window, waiting, leaves_no } = self.always;
        write!(f, "--policy {} --budget {}", self.preset, self.budget)?;
        f.write_str(if self.is_auto { " (auto): " } else { ": " })?;
        if sinks > 0 {
            write!(f, "{sinks} first tokens, ")?;
        }
        write!(f, "{recent} last tokens")?;
        if window > 0 {
            write!(f, " and a window of {window} tokens")?;
        }
        if waiting > 0 {
            write!(f, " with {waiting} waiting behind it")?;
        }
        write!(f, " leave no room for {leaves_no}")?;
        match self.advice() {
            Some(advice) => write!(f, "; {advice}")?,
            None => return Ok(()),
        }
        if self.least.is_none() {
            return f.write_str(": no budget is enough for it");
        }
        let verb = |name| if ALWAYS.contains(&(name, true)) { "lower" } else { "raise" };
        self.given.iter().try_for_each(|name| write!(f, ", or {} --{name}", verb(name)))
    }
}
