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
        /// Past steps whose recalled rows stay on the device, R.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_by(statistic: Statistic) -> Residency {
        let (pool, order) = (PoolKind::Average, PoolOrder::GroupFirst);
        let kept = KeptConfig { statistic, window: 8, kernel: 1, pool, order };
        Residency::Evict(Eviction::ByAttention(kept))
    }

    fn first(positions: Positions) -> Residency {
        Residency::Evict(Eviction::FirstTokens { positions })
    }

    #[test]
    fn a_residency_recalls_or_forgets_or_does_neither() {
        let recall = Residency::Recall { cache_steps: 0 };
        let on_host = Residency::AttendOnHost { threads: None };
        for (residency, recalls, forgets, attends_on_host) in [
            (Residency::Resident, false, false, false),
            (first(Positions::Text), false, true, false),
            (kept_by(Statistic::AllQueries), false, true, false),
            (recall, true, false, false),
            (on_host, true, false, true),
        ] {
            let answers = (residency.recalls(), residency.forgets(), residency.attends_on_host());
            assert_eq!(answers, (recalls, forgets, attends_on_host), "{residency:?}");
        }
    }

    #[test]
    fn only_eviction_by_attention_keeps_rows_for_it() {
        let last = Statistic::LastQueries(32);
        assert_eq!(kept_by(last).kept().map(|kept| kept.statistic), Some(last));
        assert_eq!(first(Positions::Cache).kept(), None);
        assert_eq!(Residency::Recall { cache_steps: 2 }.kept(), None);
        assert!(kept_by(Statistic::AllQueries).records_all_attention());
        assert!(!kept_by(last).records_all_attention(), "the last queries are recorded anyway");
        assert!(!first(Positions::Cache).records_all_attention());
    }

    #[test]
    fn first_tokens_are_where_they_were_unless_the_cache_places_them() {
        assert_eq!(first(Positions::Cache).first_positions(), Positions::Cache);
        assert_eq!(first(Positions::Text).first_positions(), Positions::Text);
        assert_eq!(kept_by(Statistic::AllQueries).first_positions(), Positions::Text);
        assert_eq!(Residency::Resident.first_positions(), Positions::Text);
    }
}
