//! What is wrong with options of a policy.

use super::preset::Preset;

/// Options that cannot work together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
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
    /// A budget of nothing.
    #[error("--budget 0: a KV head must attend to at least one token; try --budget auto")]
    ZeroBudget,
    /// The always-attended tokens alone exceed the budget.
    #[error(
        "--policy {preset} --budget {budget}: {sinks} sinks, {recent} recent and a window of \
         {window} tokens leave nothing to recall; raise --budget above {needed} or lower --recent \
         or --window"
    )]
    BudgetTooSmall {
        /// The preset.
        preset: Preset,
        /// Tokens that a KV head may attend in a step, B.
        budget: usize,
        /// First tokens.
        sinks: usize,
        /// Last tokens.
        recent: usize,
        /// Decoded tokens that are clustered together, m.
        window: usize,
        /// Their sum.
        needed: usize,
    },
    /// An option that must not be zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A number that is not in its range.
    #[error("--{option} {value}: must be {range}")]
    Range {
        /// The option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        range: &'static str,
    },
    /// More clusters than tokens.
    #[error(
        "--window-clusters {clusters} of a --window of {window} tokens: at most one cluster per \
         token"
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
    #[error("--{option} has no meaning for --policy {preset}")]
    NotForPreset {
        /// The option.
        option: &'static str,
        /// The preset.
        preset: Preset,
    },
}

fn preset_names() -> String {
    Preset::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

impl std::str::FromStr for Preset {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let found = Preset::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(preset, _)| *preset).ok_or_else(|| PolicyError::UnknownPreset(text.to_owned()))
    }
}
