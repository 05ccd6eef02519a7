//! The third axis: where the tokens are that a step does not attend.

use longview_ops::PoolKind;

use super::options::{PoolOrder, Positions};

/// Where the tokens that a step does not attend are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residency {
    /// All KV rows stay on the device.
    Resident,
    /// They are not attended again; the device keeps the others alone.
    Evict(Eviction),
    /// In host memory, recalled when they are selected; the device keeps those of the last
    /// `cache_steps` steps, and with 0 fetches them in every step.
    Recall {
        /// R.
        cache_steps: usize,
    },
    /// In host memory, attended there by the host when they are selected.
    AttendOnHost {
        /// `None` for as many as the machine runs at once.
        threads: Option<usize>,
    },
}

/// Which tokens an evicting policy keeps beside the recent ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Eviction {
    /// The first ones (StreamingLLM).
    FirstTokens {
        /// Where they are attended once others are gone.
        positions: Positions,
    },
    /// Those that received most attention.
    ByAttention(KeptConfig),
}

/// How tokens are kept for the attention that they received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptConfig {
    /// Whose attention counts.
    pub statistic: Statistic,
    /// Tokens between one choice and the next in decode.
    pub window: usize,
    /// Neighbours whose attention is pooled; 1 for none.
    pub kernel: usize,
    /// Their mean or their maximum.
    pub pool: PoolKind,
    /// Whether heads of a group become one before neighbours are pooled, or after.
    pub order: PoolOrder,
}

/// Whose attention says what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// That of the last queries of the prompt, and then of those since the last choice.
    LastQueries(usize),
    /// That of all queries so far.
    AllQueries,
}

impl Residency {
    /// Whether tokens are selected from host memory, by an index.
    pub fn recalls(&self) -> bool {
        matches!(self, Self::Recall { .. } | Self::AttendOnHost { .. })
    }

    /// Whether tokens are let go of for good, so that cutting a sequence back does not bring back
    /// what later tokens displaced.
    pub fn forgets(&self) -> bool {
        matches!(self, Self::Evict(_))
    }

    /// Whether the host attends to what was selected, and so must see the selection.
    pub fn attends_on_host(&self) -> bool {
        matches!(self, Self::AttendOnHost { .. })
    }

    /// How rows are kept for the attention that they received, where they are.
    pub fn kept(&self) -> Option<KeptConfig> {
        match self {
            Self::Evict(Eviction::ByAttention(kept)) => Some(*kept),
            _ => None,
        }
    }

    /// Positions of first tokens once tokens behind them are gone.
    pub fn first_positions(&self) -> Positions {
        match self {
            Self::Evict(Eviction::FirstTokens { positions }) => *positions,
            _ => Positions::Text,
        }
    }

    /// Whether prefill must record the attention that every row receives from every query.
    pub fn records_all_attention(&self) -> bool {
        self.kept().is_some_and(|kept| kept.statistic == Statistic::AllQueries)
    }
}
