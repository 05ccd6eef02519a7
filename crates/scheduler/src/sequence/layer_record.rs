//! One layer of a sequence as plain data.

use crate::eviction::KeptRecord;
use crate::index::{ClustersRecord, IndexRecord, LowRankRecord, ProjectionRecord, QueriesRecord};

/// Which token each row is, as far as rows are out of token order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlacesRecord {
    /// Rows below this may be out of token order.
    pub permuted_to: usize,
    /// `[Hkv]`: the tokens of these rows.
    pub positions: Vec<Vec<u32>>,
}

/// What prefill recorded for later policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordedRecord {
    /// `sum q q^T`, `[Hkv, Dh, Dh]`.
    pub gram_q: Vec<f32>,
    /// `sum k k^T`.
    pub gram_k: Vec<f32>,
    /// `[n, Hq, Dh]`.
    pub last_queries: Vec<f32>,
    /// Tokens of the sequence behind the last of these.
    pub last_end: usize,
    /// What rows received from all queries, `[Hq, mass_rows]`.
    pub mass: Vec<f32>,
    /// Rows of `mass`; 0 where it was not recorded.
    pub mass_rows: usize,
    /// Sums of queries over blocks of positions.
    pub queries: Option<QueriesRecord>,
}

/// What a layer has of its policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LayerStateRecord<'a> {
    /// Nothing: it attends everything, or a window.
    Plain,
    /// Clusters, blocks or tokens to recall.
    Recall(Box<RecallRecord<'a>>),
    /// Rows kept for their attention.
    Kept(KeptRecord),
}

/// The state of a layer that recalls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecallRecord<'a> {
    /// Rows below this are sinks or indexed.
    pub n_indexed: usize,
    /// Whether the window behind them is being indexed.
    pub is_submitted: bool,
    /// B of each head, where they differ.
    pub budgets: Option<Vec<u32>>,
    /// The space of tokens.
    pub projection: Option<ProjectionRecord>,
    /// Its bases, where every step moves them.
    pub low_rank: Option<LowRankRecord>,
    /// What is recalled.
    pub index: IndexRecord<'a>,
    /// Tokens inside of clusters.
    pub tokens: Option<IndexRecord<'a>>,
    /// The selection in force, where it outlives its step.
    pub selection: Option<SelectionRecord>,
}

/// The selection of one layer that was made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectionRecord {
    /// Tokens that the sequence had.
    pub n_tokens: usize,
    /// Rows that were indexed.
    pub n_indexed: usize,
    /// Unit and tokens taken, best first, of each head.
    pub heads: Vec<Vec<[u32; 2]>>,
}

/// One layer, but for its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerRecord<'a> {
    pub recorded: RecordedRecord,
    pub state: LayerStateRecord<'a>,
}

impl RecallRecord<'_> {
    /// Whether the layer's rows can be what its indexes say, when the first `sinks` rows are in
    /// none and at most `pending` are behind them.
    pub(super) fn is_sound(&self, sinks: usize, pending: usize, n_tokens: usize) -> bool {
        let ends = self.n_indexed <= n_tokens.max(sinks)
            && n_tokens.saturating_sub(self.n_indexed) < pending.max(1);
        let tokens = self.tokens.iter().all(|tokens| tokens.covers(sinks, self.n_indexed));
        let units = self.tokens.as_ref().unwrap_or(&self.index);
        let exists = |[unit, take]: &[u32; 2], head: &ClustersRecord<'_>| {
            head.sizes.get(*unit as usize).is_some_and(|size| (1..=*size).contains(take))
        };
        let choices = self.selection.iter().flat_map(|c| c.heads.iter().zip(&units.heads));
        let is_once = |choice: &[[u32; 2]]| {
            let mut chosen: Vec<u32> = choice.iter().map(|[unit, _]| *unit).collect();
            chosen.sort_unstable();
            chosen.is_sorted_by(|a, b| a < b)
        };
        let mut choices =
            choices.map(|(choice, head)| is_once(choice) && choice.iter().all(|c| exists(c, head)));
        ends && self.index.covers(sinks, self.n_indexed)
            && tokens
            && choices.all(|is_sound| is_sound)
    }
}
