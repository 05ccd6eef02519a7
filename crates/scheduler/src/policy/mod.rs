//! A policy is an index, a budget and a residency; presets name the published combinations.
//!
//! Users fill in [`PolicyOptions`]; [`Policy::resolve`] turns them into one validated [`Policy`] or
//! says which combination cannot work. Nothing else in the crate reads raw options.

mod options;
mod preset;
mod resolve;
mod text;

pub use options::{
    Attend, BudgetMode, BudgetOption, HeadSelect, Importance, LrqkDecode, LrqkInit, LrqkOrder,
    OPTIONS, OptionInfo, PolicyOptions, PoolOrder, Positions, Representative, Tail,
};
pub use preset::{Preset, PresetInfo};

use longview_ops::{BlockSummary, Distance, PoolKind, Pooling};

use crate::importance::LocalWindow;

/// Steps between handing a full window to the clustering worker and using its clusters: a fixed
/// number, so that the worker has time and the tokens do not depend on how much it took.
pub const FLUSH_STEPS: usize = 4;

/// Models at least this deep attend to everything in their first two layers unless told otherwise,
/// where the paper does: attention there is spread too evenly for any selection, and two layers of
/// many cost little.
pub const DEEP_LAYERS: usize = 16;

/// Contexts up to this many tokens are clustered whole, as in the paper: segments cost the embedded
/// model two of 24 answers at 32K. Longer ones go in segments of 8,192, because the work of one
/// clustering is quadratic.
pub const WHOLE_PROMPT_CONTEXT: usize = 32_768;

/// Rows that an index other than clusters takes in at a time at the end of a prompt: as many as fit
/// into a small device beside everything else.
pub const INDEX_SEGMENT: usize = 8_192;

/// Clusters of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterConfig {
    /// Mean tokens per cluster of a segment.
    pub cluster_tokens: usize,
    /// C+.
    pub window_clusters: usize,
    /// What near means.
    pub distance: Distance,
    /// Most k-means iterations.
    pub iterations: usize,
    /// Clusters above this size are split, so that none crowds the others out of the budget.
    pub max_cluster: usize,
    /// Seed.
    pub seed: u64,
}

/// Blocks of consecutive keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    /// Keys of a block.
    pub block: usize,
    /// What stands for them.
    pub summary: BlockSummary,
    /// Keys that stand for a block, where that is a choice.
    pub n_top: usize,
}

/// Single tokens, compared in a space of few dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenConfig {
    /// How that space is made.
    pub projection: Projection,
    /// Its dimensions; at most a head's width.
    pub rank: Rank,
    /// Whether every step fits the space to its query and key.
    pub adapts: bool,
}

/// How queries and keys are projected: `q k` is about `(q W_Q) (k W_K)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Projection {
    /// The leading eigenvectors of `sum k k^T` (Loki).
    PrincipalKeys,
    /// The channels of most mass after a rotation that makes queries' channels independent
    /// (InfiniGen).
    SkewedChannels,
    /// LRQK's joint factors, in the form that needs nothing but the sums `q q^T` and `k k^T`.
    Lrqk {
        /// Alternating updates.
        iterations: usize,
        /// How they begin.
        init: LrqkInit,
        /// Which is updated first.
        order: LrqkOrder,
        /// Of a random start.
        seed: u64,
    },
}

/// Dimensions of a projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rank {
    /// This many, or a quarter of a head's width if that is not given.
    Given(Option<usize>),
    /// The fewest that leave at most this relative error of the scores.
    Tolerance(f32),
}

/// What is compared with a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IndexKind {
    /// Clusters.
    Clusters(ClusterConfig),
    /// Blocks.
    Blocks(BlockConfig),
    /// Tokens.
    Tokens(TokenConfig),
}

/// The index of a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexConfig {
    /// What it holds.
    pub kind: IndexKind,
    /// Tokens of a prompt segment that is indexed as soon as it is finished; 0 for the whole prompt
    /// at its end.
    pub segment: usize,
    /// m: decoded tokens that are indexed together.
    pub window: usize,
    /// How a group chooses together.
    pub pooling: Pooling,
}

/// Where the tokens that a step does not attend are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residency {
    /// All KV rows stay on the device.
    Resident,
    /// They are not attended again; the device keeps the others alone.
    Evict,
    /// In host memory, recalled when they are chosen; the device keeps those of the last
    /// `cache_steps` steps, and with 0 fetches them in every step.
    Recall {
        /// R.
        cache_steps: usize,
    },
    /// In host memory, attended there by the host when they are chosen.
    AttendOnHost,
}

/// Which tokens an evicting policy keeps beside the recent ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepConfig {
    /// Whose attention counts.
    pub statistic: Statistic,
    /// Tokens between one choice and the next in decode.
    pub window: usize,
    /// Neighbours whose attention is pooled; 1 for none.
    pub kernel: usize,
    /// To what.
    pub pool: PoolKind,
    /// In which order.
    pub order: PoolOrder,
    /// Ada-KV's uniform share; `None` for equal heads.
    pub safeguard: Option<f32>,
    /// PyramidKV's ratio; `None` for equal layers.
    pub beta: Option<f32>,
}

/// Whose attention says what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// That of the last queries of the prompt, and then of those since the last choice.
    LastQueries(usize),
    /// That of all queries so far.
    AllQueries,
}

/// Ada-KV's budgets for heads that recall.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapt {
    /// Share of the budget that is every head's.
    pub safeguard: f32,
    /// Last queries of the prompt that count.
    pub queries: usize,
}

impl Adapt {
    /// No head gets more than this many times the mean: the device cache must hold what the
    /// largest one may recall.
    pub const MOST: usize = 2;
}

/// What a prompt's end narrows the choice of blocks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preselect {
    /// Blocks that stay.
    pub count: usize,
    /// Last queries of the prompt that say which.
    pub queries: usize,
    /// Neighbouring tokens whose attention is pooled first; 1 for none.
    pub kernel: usize,
    /// To what.
    pub pool: PoolKind,
    /// Whether a block is scored with the nearest quarter of each neighbour.
    pub neighbours: bool,
}

/// Clusters are opened for more tokens than are attended; which of them are is seen by the token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refine {
    /// Tokens in opened clusters, as a multiple of those that are recalled; at least 2.
    pub times: usize,
    /// How they are compared.
    pub tokens: TokenConfig,
}

/// A validated policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The preset it came from.
    pub preset: Preset,
    /// The index; `None` keeps no summary of the keys.
    pub index: Option<IndexConfig>,
    /// For policies that keep tokens by the attention they received.
    pub keep: Option<KeepConfig>,
    /// B, or `None` for all tokens.
    pub budget: Option<usize>,
    /// How budgets of recalling heads follow the attention of the prompt's last queries; `None` for
    /// equal budgets.
    pub adapt: Option<Adapt>,
    /// Where the rest is kept.
    pub residency: Residency,
    /// First tokens, always attended.
    pub sinks: usize,
    /// Last tokens, always attended.
    pub recent: usize,
    /// First layers that attend to everything.
    pub dense_layers: usize,
    /// Layers that share the choice of the first of them.
    pub layer_step: usize,
    /// Steps for which a choice holds.
    pub token_step: usize,
    /// Which queries say how much a key represents its block.
    pub importance: Importance,
    /// What the prompt's end narrows the choice to.
    pub preselect: Option<Preselect>,
    /// Recalled are no more than the share of the attention needs that the index estimates, up to
    /// the budget.
    pub mass: Option<f32>,
    /// Recalled are no more tokens than have a score within this distance of the best, on average
    /// over the heads, up to the budget.
    pub alpha: Option<f32>,
    /// Layers choose by the query that the input of the layer before predicts.
    pub ahead: bool,
    /// Bound what every step leaves out.
    pub certify: bool,
    /// Attend clusters that are not opened as their means.
    pub tail: bool,
    /// Choose tokens inside of opened clusters.
    pub refine: Option<Refine>,
    /// Where an evicting policy has its first tokens.
    pub positions: Positions,
    /// Threads of [`Residency::AttendOnHost`]; `None` for as many as the machine runs at once.
    pub host_threads: Option<usize>,
}

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
        /// B.
        budget: usize,
        /// First tokens.
        sinks: usize,
        /// Last tokens.
        recent: usize,
        /// m.
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
        /// C+.
        clusters: usize,
        /// m.
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

impl IndexConfig {
    /// Rows that are indexed together are a multiple of this.
    pub fn unit(&self) -> usize {
        match self.kind {
            IndexKind::Blocks(blocks) => blocks.block,
            IndexKind::Clusters(_) | IndexKind::Tokens(_) => 1,
        }
    }

    /// Whether the host fits the index's space to every step.
    pub fn adapts(&self) -> bool {
        matches!(self.kind, IndexKind::Tokens(TokenConfig { adapts: true, .. }))
    }

    /// Whether the index bounds the scores of the keys that it stands for.
    pub fn is_bounded(&self) -> bool {
        match self.kind {
            IndexKind::Clusters(_) => true,
            IndexKind::Blocks(blocks) => blocks.summary == BlockSummary::MinMax,
            IndexKind::Tokens(_) => false,
        }
    }

    /// Numbers that describe a unit of keys of width `head_dim`.
    pub fn landmark_width(&self, head_dim: usize) -> usize {
        match self.kind {
            IndexKind::Clusters(_) => head_dim,
            IndexKind::Blocks(blocks) => blocks.summary.width(head_dim),
            IndexKind::Tokens(tokens) => tokens.rank.most(head_dim),
        }
    }
}

impl Rank {
    /// The most dimensions that there may be.
    pub fn most(self, head_dim: usize) -> usize {
        match self {
            Rank::Given(None) => head_dim.div_ceil(4).next_multiple_of(2).min(head_dim),
            Rank::Given(Some(rank)) => rank.min(head_dim),
            Rank::Tolerance(_) => head_dim,
        }
    }
}

impl Policy {
    /// Whether `layer` attends to everything under this policy.
    pub fn is_dense(&self, layer: usize) -> bool {
        self.residency == Residency::Resident || layer < self.dense_layers
    }

    /// The tokens behind a key whose queries say how much it represents its block, where they do.
    pub(crate) fn local_window(&self) -> Option<LocalWindow> {
        let is_local = self.importance == Importance::Local;
        is_local.then_some(LocalWindow { tokens: self.recent })
    }

    /// Rows of the device ring that holds tokens before they are indexed or leave.
    pub fn ring_rows(&self) -> usize {
        match (self.index, self.keep) {
            (Some(index), _) => self.recent + index.window + index.unit() - 1 + FLUSH_STEPS,
            (None, Some(keep)) => self.recent + keep.window,
            (None, None) => self.recent,
        }
    }

    /// The most tokens that any recalling head attends in a step; 0 without a budget.
    pub fn most_attended(&self) -> usize {
        let budget = self.budget.unwrap_or(0);
        if self.adapt.is_some() { Adapt::MOST * budget } else { budget }
    }

    /// Most tokens of a KV head that are compared one by one in a step; 0 where none are.
    pub fn candidates(&self, context: usize) -> usize {
        let times = self.refine.map_or(0, |refine| refine.times);
        (times * self.most_attended()).min(context)
    }

    /// Rows of the device cache of one KV head: what R steps, or the one under way, may select, and
    /// no more than there are tokens.
    pub fn cache_slots(&self, context: usize) -> usize {
        match (self.residency, self.budget) {
            (Residency::Recall { cache_steps }, Some(_)) => {
                let recalled = self.most_attended() - self.sinks - self.recent;
                (cache_steps.max(1) * recalled).min(context)
            }
            _ => 0,
        }
    }

    /// Most clusters, blocks or tokens that an index of `context` tokens has: segments and windows
    /// round up, and a split adds at most one cluster for each `max_cluster / 2` tokens.
    pub fn max_clusters(&self, context: usize) -> usize {
        let Some(index) = self.index else { return 0 };
        match index.kind {
            IndexKind::Clusters(c) => {
                let by_density = (context * c.window_clusters).div_ceil(index.window);
                context.div_ceil(c.cluster_tokens).max(by_density)
                    + 2 * context.div_ceil(c.max_cluster)
                    + context.div_ceil(index.window)
                    + 1
            }
            IndexKind::Blocks(blocks) => context / blocks.block + 1,
            IndexKind::Tokens(_) => context,
        }
    }

    /// Tokens that a KV head of `layer` keeps beside the recent ones, on average over its heads:
    /// the same in every layer, or falling from the first to the last as PyramidKV's (its equal
    /// steps; all layers together keep as many as without).
    pub fn kept(&self, layer: usize, n_layers: usize) -> usize {
        let (Some(keep), Some(budget)) = (self.keep, self.budget) else { return 0 };
        let mean = budget - self.recent;
        let (Some(beta), Some(steps)) = (keep.beta, n_layers.checked_sub(1 + self.dense_layers))
        else {
            return mean;
        };
        let least = (mean as f32 / beta) as usize;
        let most = 2 * mean - least;
        let fall = (most - least).checked_div(steps).unwrap_or(0);
        match steps {
            0 => mean,
            _ => most - fall * layer.saturating_sub(self.dense_layers),
        }
    }
}
