//! The first axis: how keys are summarised, and how a step searches the summaries.

use longview_ops::{BlockSummary, Distance, PoolKind, Pooling};

use super::limits::{FLUSH_STEPS, INDEX_SEGMENT, LAST_RUN, ONE_RUN, TWO_RUNS};
use super::options::{Importance, LrqkInit, LrqkOrder};

/// The index of a policy that recalls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Index {
    /// What it holds.
    pub kind: IndexKind,
    /// Tokens of a prompt segment that is indexed as soon as it is finished; 0 for the whole prompt
    /// at its end.
    pub segment: usize,
    /// m: decoded tokens that are indexed together.
    pub window: usize,
    /// How the query heads of a KV head choose together.
    pub pooling: Pooling,
    /// Which layers and steps make a selection of their own.
    pub schedule: Schedule,
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

/// Clusters of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterConfig {
    /// Mean tokens per cluster of a segment.
    pub cluster_tokens: usize,
    /// Clusters that a full window of decoded tokens becomes, C+.
    pub window_clusters: usize,
    /// What near means.
    pub distance: Distance,
    /// Most k-means iterations.
    pub iterations: usize,
    /// Clusters above this size are split, so that none crowds the others out of the budget.
    pub max_cluster: usize,
    /// Of the random first centroids.
    pub seed: u64,
    /// Tokens are selected inside of opened clusters.
    pub two_stage: Option<TwoStage>,
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
    /// Which queries say how much a key represents its block.
    pub importance: Importance,
    /// What the prompt's end narrows the selection to.
    pub preselect: Option<Preselect>,
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
    /// The best joint factors of a rank, of sums of which that of queries is shrunk towards equal
    /// directions (Ledoit and Wolf): so they also tell keys apart for queries that are unlike the
    /// prompt's.
    ShrunkFactors,
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

/// Two-stage selection: clusters are opened for more tokens than a step attends, and of the tokens
/// in them those are attended that score best one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoStage {
    /// Tokens in opened clusters, as a multiple of those that are recalled; at least 2.
    pub times: usize,
    /// How they are compared.
    pub tokens: TokenConfig,
    /// The best of them are compared again by their keys, where kernels reach these: so many times
    /// those that are recalled; 0 for none.
    pub rerank: usize,
    /// Clusters that are scored, where groups of them have parts to choose them by; all where there
    /// are few more.
    pub scored: usize,
}

/// What a prompt's end narrows the selection of blocks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preselect {
    /// Blocks that stay.
    pub count: usize,
    /// Last queries of the prompt that say which.
    pub queries: usize,
    /// Neighbouring tokens whose attention is pooled first; 1 for none.
    pub kernel: usize,
    /// Their mean or their maximum.
    pub pool: PoolKind,
    /// Whether a block is scored with the nearest quarter of each neighbour.
    pub neighbours: bool,
}

/// Which layers and steps make a selection of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Layers that share the selection of the first of them.
    pub layer_step: usize,
    /// Steps for which a selection holds.
    pub token_step: usize,
    /// Layers select by the query that the input of the layer before predicts (InfiniGen).
    pub layer_prefetch: bool,
}

/// The tokens behind a key whose queries say how much it represents its block (InfLLM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalWindow {
    /// Tokens behind a key whose queries count, l_L.
    pub tokens: usize,
}

impl Schedule {
    /// Every layer selects by its own query in every step.
    pub const EVERY: Self = Self { layer_step: 1, token_step: 1, layer_prefetch: false };
}

impl Index {
    /// Tokens that may wait behind a full window, until it is indexed and their block is whole.
    pub fn waiting(&self) -> usize {
        self.unit() - 1 + FLUSH_STEPS
    }

    /// Rows behind the sinks that the index of a prompt covers, of `n` that are not recent ones.
    pub fn covers(&self, n: usize) -> usize {
        if n < self.window { 0 } else { n / self.unit() * self.unit() }
    }

    /// Rows of the run that begins behind the first `done` of `n` rows of a prompt that are
    /// indexed. Rows of a run are clustered together. Where runs end follows from `n` alone, and a
    /// prompt that is a little longer has the same runs but for the last, small ones.
    ///
    /// Whole segments come first. Where clusters alone are chosen, the rest is one run, since
    /// clusters of parts cost answers ([`Index::keeps_runs`]). Else up to 2,048 rows are one
    /// run, and up to 16,384 are two, of which the first has a multiple of an eighth of the largest
    /// power of two in the rest. More goes in powers of two, the largest first, and less than 1,024
    /// at last.
    ///
    /// Most of a short rest has to be one run: in a small one fewer tokens are alike, which costs
    /// answers. Of a longer one half is enough, and takes less time to be made anew.
    pub fn run(&self, n: usize, done: usize) -> usize {
        let left = n - done;
        if self.segment > 0 && left >= self.segment {
            return self.segment;
        }
        if self.keeps_runs() {
            return left;
        }
        // Behind whole segments.
        let rest = if self.segment > 0 { n % self.segment } else { n };
        if rest <= TWO_RUNS {
            let step = if rest <= ONE_RUN { rest } else { (1 << rest.ilog2()) / 8 };
            return if left == rest { rest / step * step } else { left };
        }
        if left < LAST_RUN { left } else { 1 << left.ilog2() }
    }

    /// Whether runs stay that were made when a prompt ended, also where it goes on or a question is
    /// taken back, and rows behind them become runs of their own. So it is where clusters alone are
    /// chosen: a whole prompt is one run there, and to make it anew for each question takes a
    /// second for 8,000 tokens, and with the square of the length for more. What such a policy says
    /// of a prompt depends on where known beginnings of it ended.
    pub fn keeps_runs(&self) -> bool {
        matches!(self.kind, IndexKind::Clusters(_)) && self.tokens().is_none()
    }

    /// The end of the first runs of `ends` that a prompt of which `n` rows behind `first` are
    /// indexed has as well.
    pub fn common_runs(&self, first: usize, n: usize, ends: impl Iterator<Item = usize>) -> usize {
        let mut common = first;
        for end in ends {
            if common >= first + n || end != common + self.run(n, common - first) {
                break;
            }
            common = end;
        }
        common
    }

    /// Rows that are indexed together are a multiple of this.
    pub fn unit(&self) -> usize {
        match self.kind {
            IndexKind::Blocks(blocks) => blocks.block,
            IndexKind::Clusters(_) | IndexKind::Tokens(_) => 1,
        }
    }

    /// Why a selection of one token is not that token's alone, if it is not.
    pub fn why_no_draft(&self) -> Option<&'static str> {
        match self.schedule {
            _ if self.adapts() => Some("fits its factors to every token"),
            Schedule { layer_prefetch: true, .. } => Some("selects a layer ahead"),
            Schedule { layer_step: 2.., .. } => Some("selects for several layers"),
            Schedule { token_step: 2.., .. } => Some("selects for several tokens"),
            Schedule { .. } => None,
        }
    }

    /// Whether the host fits the index's space to every step.
    pub fn adapts(&self) -> bool {
        matches!(self.kind, IndexKind::Tokens(TokenConfig { adapts: true, .. }))
    }

    /// How single tokens are compared, where they are: all of them, or those in opened clusters.
    pub fn tokens(&self) -> Option<TokenConfig> {
        match self.kind {
            IndexKind::Tokens(tokens) => Some(tokens),
            IndexKind::Clusters(_) | IndexKind::Blocks(_) => {
                self.two_stage().map(|two_stage| two_stage.tokens)
            }
        }
    }

    /// The second stage of a selection among clusters, if there is one.
    pub fn two_stage(&self) -> Option<TwoStage> {
        match self.kind {
            IndexKind::Clusters(clusters) => clusters.two_stage,
            IndexKind::Blocks(_) | IndexKind::Tokens(_) => None,
        }
    }

    /// Whether the index bounds the scores of the keys that it stands for.
    pub fn is_bounded(&self) -> bool {
        match self.kind {
            IndexKind::Clusters(_) => true,
            IndexKind::Blocks(blocks) => blocks.summary == BlockSummary::MinMax,
            IndexKind::Tokens(_) => false,
        }
    }

    /// Whether the host must see what a step selects before the step can go on.
    pub fn needs_host_choice(&self) -> bool {
        self.adapts()
    }

    /// Whether later steps look at what a step selected.
    pub fn remembers_selection(&self) -> bool {
        self.schedule.token_step > 1 || self.adapts()
    }

    /// Whether every step selects anew by its own query and needs nothing else to do it, so that
    /// the selection of the step before may stand in for it.
    pub fn allows_speculation(&self) -> bool {
        self.schedule == Schedule::EVERY && !self.adapts() && self.two_stage().is_none()
    }

    /// Whether blocks are made, or chosen from, by the attention that their keys received: then
    /// those of a prompt are other ones once it goes on.
    pub fn observes(&self) -> bool {
        let asks =
            |blocks: BlockConfig| blocks.summary == BlockSummary::Top || blocks.preselect.is_some();
        matches!(self.kind, IndexKind::Blocks(blocks) if asks(blocks))
    }

    /// Rows of a prompt that are indexed at a time, where they are not clustered.
    pub fn piece_rows(&self) -> usize {
        if let IndexKind::Blocks(blocks) = self.kind {
            return INDEX_SEGMENT.next_multiple_of(blocks.block);
        }
        INDEX_SEGMENT
    }

    /// The tokens behind a key whose queries say how much it represents its block, where prefill
    /// records sums of queries for that; `recent` tokens are always attended.
    pub fn local_window(&self, recent: usize) -> Option<LocalWindow> {
        match self.kind {
            IndexKind::Blocks(BlockConfig { importance: Importance::Local, .. }) => {
                Some(LocalWindow { tokens: recent })
            }
            _ => None,
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

    /// Most runs of a prompt of `context` tokens.
    fn max_runs(&self, context: usize) -> usize {
        let segment = if self.segment == 0 { INDEX_SEGMENT } else { self.segment };
        context / segment + 1 + (context / LAST_RUN + 1).ilog2() as usize
    }

    /// Most runs of rows of `context` tokens that are indexed one after the other.
    pub fn max_batches(&self, context: usize) -> usize {
        context / self.window + self.max_runs(context) + 3
    }

    /// Most groups of `of` clusters: every batch ends with one that may have fewer.
    pub fn max_groups(&self, context: usize, of: usize) -> usize {
        self.max_units(context) / of + self.max_batches(context)
    }

    /// Most clusters, blocks or tokens that an index of `context` tokens has: runs and windows
    /// round up, and a split adds at most one cluster for each `max_cluster / 2` tokens.
    pub fn max_units(&self, context: usize) -> usize {
        match self.kind {
            IndexKind::Clusters(c) => {
                // Up to 2^60, which a word of 32 bits does not hold; no more than the context.
                let clusters = context as u64 * c.window_clusters as u64;
                let by_density = clusters.div_ceil(self.window as u64) as usize;
                let splits = context.div_ceil(c.max_cluster).saturating_mul(2);
                let runs = (context.div_ceil(self.window) + 1).max(self.max_runs(context));
                context
                    .div_ceil(c.cluster_tokens)
                    .max(by_density)
                    .saturating_add(splits)
                    .saturating_add(runs)
            }
            IndexKind::Blocks(blocks) => context / blocks.block + 1,
            IndexKind::Tokens(_) => context,
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

impl LocalWindow {
    /// Queries are summed over blocks of positions; a window has at least as many tokens as this
    /// divides it into, or one token a block.
    const PARTS: usize = 32;

    /// Tokens whose queries are summed together.
    pub fn block(self) -> usize {
        (self.tokens / Self::PARTS).max(1)
    }

    /// Blocks of a window.
    pub fn n_blocks(self) -> usize {
        self.tokens / self.block()
    }

    /// Blocks of `tokens` tokens.
    pub fn blocks_of(self, tokens: usize) -> usize {
        tokens.div_ceil(self.block())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: TokenConfig = TokenConfig {
        projection: Projection::PrincipalKeys,
        rank: Rank::Given(Some(6)),
        adapts: false,
    };

    const BLOCKS: BlockConfig = BlockConfig {
        block: 16,
        summary: BlockSummary::Mean,
        n_top: 1,
        importance: Importance::Last,
        preselect: None,
    };

    fn clusters(two_stage: Option<TwoStage>) -> IndexKind {
        IndexKind::Clusters(ClusterConfig {
            cluster_tokens: 10,
            window_clusters: 4,
            distance: Distance::Cosine,
            iterations: 10,
            max_cluster: 50,
            seed: 0,
            two_stage,
        })
    }

    fn index(kind: IndexKind) -> Index {
        let pooling = Pooling::SumSoftmax;
        Index { kind, segment: 0, window: 20, pooling, schedule: Schedule::EVERY }
    }

    fn two_stages() -> Index {
        index(clusters(Some(TwoStage { times: 2, tokens: TOKENS, rerank: 0, scored: usize::MAX })))
    }

    fn adapting() -> Index {
        index(IndexKind::Tokens(TokenConfig { adapts: true, ..TOKENS }))
    }

    #[test]
    fn adapting_needs_the_hosts_choice_and_like_two_stages_ends_speculation() {
        for kind in [clusters(None), IndexKind::Blocks(BLOCKS), IndexKind::Tokens(TOKENS)] {
            assert!(!index(kind).needs_host_choice(), "{kind:?}");
            assert!(index(kind).allows_speculation(), "{kind:?}");
        }
        assert!(!two_stages().needs_host_choice() && adapting().needs_host_choice());
        assert!(!two_stages().allows_speculation() && !adapting().allows_speculation());
        assert!(adapting().adapts() && !two_stages().adapts());
        let stage = TwoStage { times: 2, tokens: TOKENS, rerank: 0, scored: usize::MAX };
        assert_eq!([two_stages().two_stage(), adapting().two_stage()], [Some(stage), None]);
    }

    #[test]
    fn speculation_needs_a_selection_by_every_layer_in_every_step() {
        let scheduled = |layer_step, token_step, layer_prefetch| {
            let schedule = Schedule { layer_step, token_step, layer_prefetch };
            let index = Index { schedule, ..index(clusters(None)) };
            (index.allows_speculation(), index.remembers_selection())
        };
        assert_eq!(scheduled(1, 1, false), (true, false));
        assert_eq!(scheduled(2, 1, false), (false, false));
        assert_eq!(scheduled(1, 2, false), (false, true));
        assert_eq!(scheduled(1, 1, true), (false, false));
        assert!(adapting().remembers_selection());
    }

    #[test]
    fn clusters_and_extremes_bound_what_they_stand_for() {
        assert!(index(clusters(None)).is_bounded());
        assert!(!index(IndexKind::Tokens(TOKENS)).is_bounded());
        for summary in BlockSummary::ALL {
            let blocks = index(IndexKind::Blocks(BlockConfig { summary, ..BLOCKS }));
            assert_eq!(blocks.is_bounded(), summary == BlockSummary::MinMax, "{summary:?}");
        }
    }

    #[test]
    fn a_local_window_is_as_long_as_the_recent_tokens() {
        let local = IndexKind::Blocks(BlockConfig { importance: Importance::Local, ..BLOCKS });
        assert_eq!(index(local).local_window(40), Some(LocalWindow { tokens: 40 }));
        assert_eq!(index(IndexKind::Blocks(BLOCKS)).local_window(40), None);
        assert_eq!(index(clusters(None)).local_window(40), None);
        let window = LocalWindow { tokens: 64 };
        assert_eq!([window.blocks_of(0), window.blocks_of(4), window.blocks_of(5)], [0, 2, 3]);
    }

    #[test]
    fn a_landmark_is_as_wide_as_what_stands_for_the_keys() {
        assert_eq!(index(clusters(None)).landmark_width(128), 128);
        assert_eq!(index(IndexKind::Blocks(BLOCKS)).landmark_width(128), 128);
        let extremes = BlockConfig { summary: BlockSummary::MinMax, ..BLOCKS };
        assert_eq!(index(IndexKind::Blocks(extremes)).landmark_width(128), 256);
        assert_eq!(index(IndexKind::Tokens(TOKENS)).landmark_width(128), 6);
        let widths = |rank: Rank| [rank.most(128), rank.most(10), rank.most(1)];
        assert_eq!(widths(Rank::Given(None)), [32, 4, 1], "a quarter, even, at most the head");
        assert_eq!(widths(Rank::Given(Some(6))), [6, 6, 1]);
        assert_eq!(widths(Rank::Tolerance(0.1)), [128, 10, 1]);
    }

    /// Where the runs of a prompt end of which `n` rows are indexed.
    fn run_ends(index: &Index, n: usize) -> Vec<usize> {
        let mut ends = vec![0];
        while ends[ends.len() - 1] < n {
            let done = ends[ends.len() - 1];
            ends.push(done + index.run(n, done));
        }
        ends.split_off(1)
    }

    #[test]
    fn a_short_prompt_is_one_run_or_two() {
        let whole = two_stages();
        let segments = Index { segment: 8_192, ..whole };
        for index in [whole, segments] {
            for n in [1, 19, 320, 2_047, 2_048] {
                assert_eq!(run_ends(&index, n), [n]);
            }
            assert_eq!(run_ends(&index, 2_049), [2_048, 2_049]);
            assert_eq!(run_ends(&index, 4_095), [3_840, 4_095]);
            assert_eq!(run_ends(&index, 8_100), [7_680, 8_100]);
        }
        assert_eq!(run_ends(&whole, 8_192), [8_192]);
        assert_eq!(run_ends(&whole, 16_383), [15_360, 16_383]);
        for n in 2_049..=16_384 {
            let first = run_ends(&whole, n)[0];
            assert!(first > n - n / 8 - 1, "{n}: {first}");
        }
    }

    #[test]
    fn where_clusters_alone_are_chosen_what_is_behind_segments_is_one_run() {
        let whole = index(clusters(None));
        let segments = Index { segment: 8_192, ..whole };
        for n in [1, 8_100, 16_384, 32_000] {
            assert_eq!(run_ends(&whole, n), [n]);
        }
        assert_eq!(run_ends(&segments, 24_000), [8_192, 16_384, 24_000]);
        // Also behind runs of a prompt that went on.
        assert_eq!(whole.run(1_400, 900), 500);
        assert_eq!(segments.run(24_100, 9_000), 8_192);
        assert!(whole.keeps_runs() && segments.keeps_runs() && !two_stages().keeps_runs());
        assert!(!index(IndexKind::Blocks(BLOCKS)).keeps_runs());
        assert!(!index(IndexKind::Tokens(TOKENS)).keeps_runs());
    }

    #[test]
    fn a_long_prompt_has_segments_and_powers_of_two() {
        let whole = two_stages();
        assert_eq!(run_ends(&whole, 16_385), [16_384, 16_385]);
        assert_eq!(run_ends(&whole, 32_000), [16_384, 24_576, 28_672, 30_720, 31_744, 32_000]);
        let segments = Index { segment: 8_192, ..whole };
        assert_eq!(run_ends(&segments, 8_193), [8_192, 8_193]);
        let n = 2 * 8_192;
        assert_eq!(run_ends(&segments, n + 1_023), [8_192, n, n + 1_023]);
        assert_eq!(run_ends(&segments, n + 3_500), [8_192, n, n + 3_328, n + 3_500]);
    }

    #[test]
    fn a_prompt_that_goes_on_keeps_the_runs_that_the_longer_one_has() {
        let segments = Index { segment: 8_192, ..two_stages() };
        let common = |index: &Index, n: usize, longer: usize| {
            let ends = run_ends(index, n).into_iter().map(|end| 7 + end);
            index.common_runs(7, longer, ends) - 7
        };
        let whole = two_stages();
        assert_eq!(common(&whole, 1_000, 1_001), 0);
        assert_eq!(common(&whole, 12_500, 12_600), 12_288);
        assert_eq!(common(&whole, 12_500, 13_400), 0);
        assert_eq!(common(&whole, 30_000, 30_700), 29_696);
        assert_eq!(common(&whole, 30_000, 31_000), 28_672);
        assert_eq!(common(&segments, 100_000, 101_000), 98_304);
        assert_eq!(common(&segments, 100_000, 100_100), 98_304);
        assert_eq!(common(&segments, 101_500, 101_600), 98_304 + 3_072);
        assert_eq!(common(&segments, 100_000, 100_000), 100_000);
        assert_eq!(common(&segments, 9_000, 5_000), 0);
    }

    #[test]
    fn as_many_runs_are_made_room_for_as_there_are() {
        for segment in [0, 300, 8_192] {
            let index = Index { segment, window: 1 << 20, ..two_stages() };
            for n in (1..70_000).step_by(997).chain([2_047, 16_383, 32_767, 65_535]) {
                let most = (1..=n).rev().take(1_100).map(|n| run_ends(&index, n).len()).max();
                assert!(most.unwrap_or(0) <= index.max_runs(n), "{segment} {n}: {most:?}");
            }
        }
    }

    #[test]
    fn units_are_bounded_by_density_splits_and_rounding() {
        // Windows of 20 make 4 clusters each, twice as dense as segments: 101 tokens have
        // ceil(404 / 20) = 21 by density, 2 * ceil(101 / 50) = 6 by splits, ceil(101 / 20) = 6 by
        // windows that are rounded up, and one for the segment's end.
        assert_eq!(index(clusters(None)).max_units(101), 21 + 6 + 6 + 1);
        // With a window of 80, segments are denser: ceil(101 / 10) = 11, and 2 windows.
        let wide = Index { window: 80, ..index(clusters(None)) };
        assert_eq!(wide.max_units(101), 11 + 6 + 2 + 1);
        let blocks = index(IndexKind::Blocks(BLOCKS));
        assert_eq!([15, 16, 31].map(|n| blocks.max_units(n)), [1, 2, 2]);
        assert_eq!(index(IndexKind::Tokens(TOKENS)).max_units(101), 101);
        assert_eq!([blocks.unit(), index(clusters(None)).unit()], [16, 1]);
    }
}
