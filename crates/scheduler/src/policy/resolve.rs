//! From options to policies: defaults and what is wrong.

use longview_ops::{BlockSummary, PoolKind, Pooling};

use super::advice::PolicyAdvice;
use super::budget::{Budget, HeadBudgets, LayerBudgets};
use super::error::PolicyError;
use super::index::{
    BlockConfig, ClusterConfig, Index, IndexKind, Preselect, Projection, Rank, Schedule,
    TokenConfig, TwoStage,
};
use super::least_budget::{advised, too_small};
use super::left_out::{AttentionBound, Residual};
use super::limits::{INDEX_SEGMENT, MAX_CONTEXT, WHOLE_PROMPT_CONTEXT};
use super::options::{
    Attend, BudgetMode, BudgetOption, HeadSelect, Importance, LrqkDecode, LrqkInit, LrqkOrder,
    PolicyOptions, PoolOrder, Positions, Representative,
};
use super::preset::Preset;
use super::residency::{Eviction, KeptConfig, Residency, Statistic};
use super::resolved::Policy;
use super::small_budget::AlwaysAttended;

/// The last tokens that LRQK always attends, where the budget has room for them.
const LRQK_LITE_TOKENS: usize = 64;

/// Tokens of a cluster, on average.
const CLUSTER_TOKENS: usize = 16;

/// Most iterations of k-means, and those of Longview: it compares the tokens of the clusters that
/// it opens, so it hardly matters to it which cluster a token is in. On two books 10 iterations
/// recall what 4 do, and the output's error is 2 % smaller; the index takes twice as long.
const ITERATIONS: usize = 10;
const LONGVIEW_ITERATIONS: usize = 4;

/// Tokens in the clusters that Longview opens up to a context of [`LONGVIEW_SHORT`], and the most
/// multiples of its budget that these are: a small budget needs more of them to find its tokens. In
/// longer contexts both grow with its root: among more clusters more score above that of a token
/// that is looked for, but facts need an eighth of this.
const LONGVIEW_OPENS: usize = 2048;
const LONGVIEW_TIMES: usize = 16;
const LONGVIEW_SHORT: usize = 32_768;

/// At least so many tokens are opened in any context, and these multiples of the budget at least
/// and at most: the more a step attends, the less of it is among the last that were opened.
const LONGVIEW_OPENS_LEAST: usize = 3072;
const LONGVIEW_TIMES_LEAST: [usize; 2] = [2, 4];

/// Clusters that Longview scores at least, and the share of all that these are in long contexts:
/// with an eighth instead of a fourth, facts are lost; with half of these at 32K, one of 94 is.
const LONGVIEW_SCORES: usize = 4096;
const LONGVIEW_SCORED: usize = 4;

/// Tokens up to which Longview attends to everything where rows lie, if no budget is given.
/// Measured with SmolLM2 in Q4_1, whose other work is little: its search takes longer up to here.
const LONGVIEW_ATTENDS_ALL: usize = 8192;

/// Dimensions in which Longview compares tokens.
const LONGVIEW_RANK: usize = 32;

/// Of the tokens that are best in these dimensions, Longview compares so many again by their keys,
/// and at most so many times its budget. Measured with SmolLM2 at 32K: 1,024 of them take a seventh
/// of a step and 2,048 a third, and it is small budgets that gain answers.
const LONGVIEW_RERANKS: usize = 1024;
const LONGVIEW_RERANK_TIMES: usize = 4;

impl Policy {
    /// Validates `options` for sequences of up to `context` tokens.
    ///
    /// # Errors
    /// What cannot work, with what can ([`PolicyError::advice`]).
    pub fn resolve(options: &PolicyOptions, context: usize) -> Result<Policy, PolicyError> {
        let preset = options.preset;
        for option in options.given() {
            if !preset.info().options.contains(&option) {
                return Err(PolicyError::NotForPreset { option, preset });
            }
        }
        options.check_ranges()?;
        match of_budget(options, context, budget_tokens(options, context)?) {
            Err(PolicyError::BudgetTooSmall(small)) => {
                Err(advised(*small, options, |options, tokens| needs(options, context, tokens)))
            }
            result => result,
        }
    }
}

/// The policy of options in their ranges, with a budget of `budget` tokens.
fn of_budget(
    options: &PolicyOptions,
    context: usize,
    budget: usize,
) -> Result<Policy, PolicyError> {
    let preset = options.preset;
    match preset {
        Preset::Full => Ok(Policy::of(preset, Budget::ALL, Residency::Resident)),
        Preset::StreamingLlm => streaming(options, budget),
        Preset::Clusterkv | Preset::Longview => clusters(options, context, budget),
        Preset::Quest | Preset::Infllm | Preset::Ktransformers => blocks(options, budget),
        Preset::Loki | Preset::Infinigen | Preset::Lrqk => tokens(options, budget),
        Preset::Snapkv
        | Preset::Pyramidkv
        | Preset::AdaSnapkv
        | Preset::AdaPyramid
        | Preset::H2o => keep(options, budget),
    }
}

/// The least budget that is enough for what a budget of `tokens` has always attended; more than all
/// where `tokens` are not enough, and `tokens` where something else is wrong.
pub(super) fn needs(options: &PolicyOptions, context: usize, tokens: usize) -> usize {
    match of_budget(options, context, tokens) {
        Err(PolicyError::BudgetTooSmall(_)) => usize::MAX,
        Err(_) => tokens,
        Ok(policy) if policy.index.is_some() || policy.residency.kept().is_some() => {
            // And one more to choose.
            policy.sinks + policy.ring_rows() + 1
        }
        // Recent tokens that nobody asked for are what is left.
        Ok(policy) => policy.sinks + options.recent.unwrap_or(1),
    }
}

fn streaming(options: &PolicyOptions, budget: usize) -> Result<Policy, PolicyError> {
    let sinks = options.sinks.unwrap_or(4.min(budget.saturating_sub(1)));
    let recent = options.recent.unwrap_or(budget.saturating_sub(sinks));
    if options.recent == Some(0) {
        let reason = "0: a token attends to itself, which is a recent one";
        let advice = PolicyAdvice::Use { option: "recent", value: "1".into() };
        return Err(PolicyError::Conflict { option: "recent", reason, advice });
    }
    if recent == 0 || sinks.saturating_add(recent) > budget {
        let (window, waiting, leaves_no) = (0, 0, "all of them");
        let always = AlwaysAttended { sinks, recent: recent.max(1), window, waiting, leaves_no };
        return Err(too_small(options, budget, always));
    }
    let positions = options.positions.unwrap_or(Positions::Cache);
    let residency = Residency::Evict(Eviction::FirstTokens { positions });
    Ok(Policy {
        sinks,
        recent,
        dense_layers: options.dense_layers.unwrap_or(0),
        ..Policy::of(options.preset, Budget::of(budget), residency)
    })
}

/// ClusterKV, and Longview, which chooses tokens in the clusters.
fn clusters(options: &PolicyOptions, context: usize, budget: usize) -> Result<Policy, PolicyError> {
    let sinks = options.sinks.unwrap_or(16.min(budget / 8));
    let recent = options.recent.unwrap_or(64.min(budget / 4));
    let window = options.window.unwrap_or(320.min(budget / 4).max(1));
    let cluster_tokens = options.cluster_tokens.unwrap_or(CLUSTER_TOKENS);
    let window_clusters = options.window_clusters.unwrap_or(window.div_ceil(cluster_tokens));
    if window_clusters > window {
        return Err(PolicyError::WindowClusters { clusters: window_clusters, window });
    }
    // Longview ranks tokens, so segments lose it nothing; and its index does not depend on how long
    // a context might become.
    let whole = context <= WHOLE_PROMPT_CONTEXT && options.preset != Preset::Longview;
    let default = if whole { 0 } else { INDEX_SEGMENT.max(cluster_tokens) };
    let segment = options.cluster_segment.unwrap_or(default);
    if segment > 0 && segment < cluster_tokens {
        return Err(PolicyError::Segment { segment, tokens: cluster_tokens });
    }
    let clusters = ClusterConfig {
        cluster_tokens,
        window_clusters,
        distance: options.distance.unwrap_or_default(),
        iterations: options.iterations.unwrap_or(match options.preset {
            Preset::Longview => LONGVIEW_ITERATIONS,
            _ => ITERATIONS,
        }),
        max_cluster: (budget / 4).max(1),
        seed: options.seed.unwrap_or(0),
        two_stage: None,
    };
    let pooling = options.pooling.unwrap_or_default();
    let index = Index {
        kind: IndexKind::Clusters(clusters),
        segment,
        window,
        pooling,
        schedule: Schedule::EVERY,
    };
    let policy = recalled(options, Always { sinks, recent }, budget, index)?;
    // After the budget was checked, so that the error of a small budget comes first.
    let two_stage = two_stage(options, context, budget)?;
    let kind = IndexKind::Clusters(ClusterConfig { two_stage, ..clusters });
    let index = policy.index.map(|index| Index { kind, ..index });
    let residual = options.residual.unwrap_or(match options.preset {
        Preset::Longview if two_stage.is_some() => Residual::Groups,
        Preset::Longview => Residual::Means,
        _ => Residual::Drop,
    });
    if residual == Residual::Groups && two_stage.is_none() {
        let reason = "groups stand for clusters without a chosen token: with --two-stage above 1 \
                      alone";
        let advice = PolicyAdvice::Use { option: "residual", value: "means".into() };
        return Err(PolicyError::Conflict { option: "residual", reason, advice });
    }
    Ok(Policy { index, residual, attend_all: attend_all(options), ..policy })
}

/// A budget that was asked for by a number is kept at any length: what fits into it is attended
/// whole, without a search that would choose it all.
fn attend_all(options: &PolicyOptions) -> usize {
    // None of these says how a step searches.
    let allowed = ["budget", "dense-layers", "attention-bound"];
    let is_plain = options.given().iter().all(|name| allowed.contains(name));
    match options.budget.unwrap_or_default() {
        _ if options.preset != Preset::Longview || !is_plain => 0,
        BudgetOption::Auto => LONGVIEW_ATTENDS_ALL,
        BudgetOption::Tokens(budget) => budget,
    }
}

/// Two-stage selection: clusters, then tokens.
fn two_stage(
    options: &PolicyOptions,
    context: usize,
    budget: usize,
) -> Result<Option<TwoStage>, PolicyError> {
    let is_longview = options.preset == Preset::Longview;
    let default = if is_longview {
        let [few, many] = LONGVIEW_TIMES_LEAST;
        let least = (LONGVIEW_OPENS_LEAST / budget).clamp(few, many);
        // Of whole numbers, so that it is the same everywhere; in 64 bits.
        let long = (context.max(LONGVIEW_SHORT) as u64 * (1 << 16) / LONGVIEW_SHORT as u64).isqrt();
        let grown = |n: usize| ((n as u64 * long) >> 8) as usize;
        (grown(LONGVIEW_OPENS) / budget).clamp(least, grown(LONGVIEW_TIMES))
    } else {
        1
    };
    let times = options.two_stage.unwrap_or(default);
    if times == 1 {
        let reason = "means something to clusters with --two-stage above 1 alone";
        return match (options.rank, options.rerank) {
            (Some(_), _) => Err(PolicyError::conflict("rank", reason)),
            (None, Some(_)) => Err(PolicyError::conflict("rerank", reason)),
            (None, None) => Ok(None),
        };
    }
    if let Some(rank) = options.rank.filter(|rank| rank % 2 == 1) {
        let advice = PolicyAdvice::Use { option: "rank", value: (rank + 1).to_string() };
        let reason = "must be even with --two-stage";
        return Err(PolicyError::Conflict { option: "rank", reason, advice });
    }
    if options.attention_bound == Some(AttentionBound::WorstCase) {
        return Err(PolicyError::Conflict {
            option: "attention-bound",
            reason: "worst-case bounds clusters, not tokens in them: not with --two-stage",
            advice: PolicyAdvice::Use { option: "attention-bound", value: "sampled".into() },
        });
    }
    if options.budget_mode == Some(BudgetMode::Mass) {
        let reason = "mass is that of clusters: not with --two-stage";
        return Err(PolicyError::conflict("budget-mode", reason));
    }
    let (projection, rank, rerank) = if is_longview {
        let times = (LONGVIEW_RERANKS / budget).min(LONGVIEW_RERANK_TIMES);
        // Once the budget would change nothing.
        let rerank = if times > 1 { times } else { 0 };
        (Projection::ShrunkFactors, options.rank.or(Some(LONGVIEW_RANK)), rerank)
    } else {
        let (init, order) = (LrqkInit::Random, LrqkOrder::KeysFirst);
        let seed = options.seed.unwrap_or(0);
        (Projection::Lrqk { iterations: 2, init, order, seed }, options.rank, 0)
    };
    let tokens = TokenConfig { projection, rank: Rank::Given(rank), adapts: false };
    let rerank = options.rerank.unwrap_or(rerank);
    let cluster_tokens = options.cluster_tokens.unwrap_or(CLUSTER_TOKENS);
    let scored = if is_longview {
        (context / cluster_tokens / LONGVIEW_SCORED).max(LONGVIEW_SCORES)
    } else {
        usize::MAX
    };
    Ok(Some(TwoStage { times, tokens, rerank, scored }))
}

/// Quest, InfLLM, KTransformers.
fn blocks(options: &PolicyOptions, budget: usize) -> Result<Policy, PolicyError> {
    let preset = options.preset;
    // Blocks of 128 where there is room for some of them.
    let fitting = (budget / 16).max(1).next_power_of_two().clamp(4, 128);
    let block = options.block_size.unwrap_or(match preset {
        Preset::Quest => 16.min(fitting),
        _ => fitting,
    });
    let representative = options.representative.unwrap_or(match preset {
        Preset::Quest => Representative::Quest,
        _ => Representative::Dynamic,
    });
    let n_top = options.representative_num.unwrap_or(match preset {
        Preset::Infllm => 4,
        _ => 1,
    });
    let summary = match representative {
        Representative::Max => BlockSummary::Max,
        Representative::Mean => BlockSummary::Mean,
        Representative::Quest => BlockSummary::MinMax,
        Representative::Dynamic => BlockSummary::Top,
        Representative::Fix => BlockSummary::Strided,
    };
    let (sinks, recent) = match preset {
        Preset::Quest => (0, 0),
        Preset::Infllm => (128.min(budget / 8), 4096.min(budget / 2)),
        _ => (block.min(budget / 4), 4096.min(budget / 2)),
    };
    let sinks = options.sinks.unwrap_or(sinks);
    let recent = options.recent.unwrap_or(recent);
    // A window holds whole blocks.
    let window = options.window.unwrap_or(block).next_multiple_of(block);
    let pooling = match options.head_select {
        Some(HeadSelect::Separate) => Pooling::SumScores,
        Some(HeadSelect::Shared) => Pooling::SharedScores,
        None if preset == Preset::Quest => Pooling::SumScores,
        None => Pooling::SharedScores,
    };
    let blocks = |importance, preselect| {
        IndexKind::Blocks(BlockConfig { block, summary, n_top, importance, preselect })
    };
    let schedule = Schedule {
        layer_step: options.layer_step.unwrap_or(1),
        token_step: options.token_step.unwrap_or(1),
        layer_prefetch: false,
    };
    let kind = blocks(Importance::Last, None);
    let index = Index { kind, segment: 0, window, pooling, schedule };
    let policy = recalled(options, Always { sinks, recent }, budget, index)?;
    // After the budget was checked, so that the error of a small budget comes first.
    let kind = blocks(importance(options, recent)?, preselect(options)?);
    Ok(Policy { index: policy.index.map(|index| Index { kind, ..index }), ..policy })
}

/// Which queries say how much a key represents its block.
fn importance(options: &PolicyOptions, recent: usize) -> Result<Importance, PolicyError> {
    let default = match options.preset {
        Preset::Infllm => Importance::Local,
        _ => Importance::Last,
    };
    match options.importance.unwrap_or(default) {
        Importance::Local if recent == 0 => Err(PolicyError::Conflict {
            option: "importance",
            reason: "local: with --recent 0 there is no local window",
            advice: PolicyAdvice::Use { option: "importance", value: "last".into() },
        }),
        importance => Ok(importance),
    }
}

/// What the prompt's end narrows the choice of blocks to.
fn preselect(options: &PolicyOptions) -> Result<Option<Preselect>, PolicyError> {
    let Some(count) = options.preselect else {
        for (is_given, option) in [
            (options.preselect_kernel.is_some(), "preselect-kernel"),
            (options.preselect_neighbours.is_some(), "preselect-neighbours"),
            (options.pool.is_some(), "pool"),
        ] {
            if is_given {
                let reason = "means something with --preselect alone";
                return Err(PolicyError::conflict(option, reason));
            }
        }
        return Ok(None);
    };
    Ok(Some(Preselect {
        count,
        queries: options.observe.unwrap_or(128),
        kernel: options.preselect_kernel.unwrap_or(1),
        pool: options.pool.unwrap_or(PoolKind::Average),
        neighbours: options.preselect_neighbours.unwrap_or(true),
    }))
}

/// Loki, InfiniGen, LRQK.
fn tokens(options: &PolicyOptions, budget: usize) -> Result<Policy, PolicyError> {
    let is_lrqk = options.preset == Preset::Lrqk;
    let sinks = options.sinks.unwrap_or(if is_lrqk { 0 } else { 16.min(budget / 8) });
    let recent = options.recent.unwrap_or(64.min(budget / 4));
    let window = options.window.unwrap_or(64.min(budget / 4).max(1));
    let rank = match options.rank_tolerance {
        Some(_) if options.rank.is_some() => {
            let reason = "a --rank is given too; one of them chooses";
            return Err(PolicyError::conflict("rank-tolerance", reason));
        }
        Some(error) => Rank::Tolerance(error),
        None if is_lrqk => Rank::Given(Some(options.rank.unwrap_or(32))),
        None => Rank::Given(options.rank),
    };
    let projection = match options.preset {
        Preset::Loki => Projection::PrincipalKeys,
        Preset::Infinigen => Projection::SkewedChannels,
        _ => Projection::Lrqk {
            iterations: options.iterations.unwrap_or(2),
            init: options.lrqk_init.unwrap_or(LrqkInit::Random),
            order: options.lrqk_order.unwrap_or(LrqkOrder::KeysFirst),
            seed: options.seed.unwrap_or(0),
        },
    };
    let adapts = options.lrqk_decode == Some(LrqkDecode::Adaptive);
    let kind = IndexKind::Tokens(TokenConfig { projection, rank, adapts });
    let pooling = options.pooling.unwrap_or_default();
    let schedule = Schedule {
        layer_prefetch: options.layer_prefetch.unwrap_or(options.preset == Preset::Infinigen),
        ..Schedule::EVERY
    };
    let index = Index { kind, segment: 0, window, pooling, schedule };
    recalled(options, Always { sinks, recent }, budget, index)
}

/// Tokens that every step attends.
struct Always {
    sinks: usize,
    recent: usize,
}

/// A policy that recalls from the host.
fn recalled(
    options: &PolicyOptions,
    Always { sinks, recent }: Always,
    tokens: usize,
    index: Index,
) -> Result<Policy, PolicyError> {
    let heads = match options.budget_mode {
        Some(BudgetMode::Ada) => {
            HeadBudgets::Ada { safeguard: safeguard(options), queries: observed(options) }
        }
        Some(BudgetMode::Uniform | BudgetMode::Mass) | None => HeadBudgets::Uniform,
    };
    let mass = mass(options, &index)?;
    // An estimate of mass weighs clusters by their size.
    let pooling = match (mass, index.kind, options.pooling) {
        (Some(_), IndexKind::Clusters(_), None) => Pooling::SizeWeighted,
        _ => index.pooling,
    };
    let index = Index { pooling, ..index };
    let residency = match (options.attend, options.preset) {
        (Some(Attend::Host), _) | (None, Preset::Ktransformers) => {
            Residency::AttendOnHost { threads: options.host_threads }
        }
        _ => Residency::Recall { cache_steps: options.cache_steps.unwrap_or(2) },
    };
    if options.host_threads.is_some() && !residency.attends_on_host() {
        let reason = "means something with --attend host alone";
        return Err(PolicyError::conflict("host-threads", reason));
    }
    let attention_bound = options.attention_bound.unwrap_or_default();
    if attention_bound != AttentionBound::Off && !index.is_bounded() {
        let reason = "only clusters, and blocks with --representative quest, bound what they hold";
        return Err(PolicyError::conflict("attention-bound", reason));
    }
    let budget = Budget { heads, mass, alpha: alpha(options), ..Budget::of(tokens) };
    let policy = Policy {
        index: Some(index),
        attention_bound,
        seed: options.seed.unwrap_or(0),
        sinks,
        recent,
        dense_layers: options.dense_layers.unwrap_or(0),
        ..Policy::of(options.preset, budget, residency)
    };
    // A few more than the window are pending while the window is being indexed.
    let always = sinks.saturating_add(policy.ring_rows());
    if always < tokens {
        return Ok(policy);
    }
    let (window, waiting) = (index.window, index.waiting());
    let leaves_no = "a token to recall";
    Err(too_small(options, tokens, AlwaysAttended { sinks, recent, window, waiting, leaves_no }))
}

/// SnapKV, PyramidKV, their Ada-KV forms, H2O.
fn keep(options: &PolicyOptions, budget: usize) -> Result<Policy, PolicyError> {
    let preset = options.preset;
    let is_pyramid = matches!(preset, Preset::Pyramidkv | Preset::AdaPyramid);
    let is_ada = matches!(preset, Preset::AdaSnapkv | Preset::AdaPyramid);
    let beta = options.beta.unwrap_or(20.0);
    let safeguard = safeguard(options);
    let heavy = options.heavy_ratio.unwrap_or(0.5);
    let kernel = options.pool_kernel.unwrap_or(7);
    let is_h2o = preset == Preset::H2o;
    let observe = observed(options);
    let recent = if is_h2o {
        budget - ((budget as f32 * heavy) as usize).clamp(1, budget.max(2) - 1)
    } else {
        options.recent.unwrap_or(observe.min(budget / 4).max(1))
    };
    let window = options.window.unwrap_or(64.min(budget / 8).max(1));
    if recent.saturating_add(window) >= budget {
        let (sinks, waiting, leaves_no) = (0, 0, "a token to keep for its attention");
        let always = AlwaysAttended { sinks, recent, window, waiting, leaves_no };
        return Err(too_small(options, budget, always));
    }
    let averages = matches!(preset, Preset::Snapkv | Preset::Pyramidkv);
    let pool = options.pool.unwrap_or(if averages { PoolKind::Average } else { PoolKind::Max });
    let kept = KeptConfig {
        statistic: if is_h2o { Statistic::AllQueries } else { Statistic::LastQueries(observe) },
        window,
        kernel: if is_h2o { 1 } else { kernel },
        pool,
        order: options.pool_order.unwrap_or(PoolOrder::GroupFirst),
    };
    let budget = Budget {
        heads: if is_ada {
            HeadBudgets::Ada { safeguard, queries: observe }
        } else {
            HeadBudgets::Uniform
        },
        layers: if is_pyramid { LayerBudgets::Pyramid { beta } } else { LayerBudgets::Uniform },
        ..Budget::of(budget)
    };
    Ok(Policy {
        recent,
        dense_layers: options.dense_layers.unwrap_or(0),
        ..Policy::of(preset, budget, Residency::Evict(Eviction::ByAttention(kept)))
    })
}

/// The share of the estimated attention that is recalled.
fn mass(options: &PolicyOptions, index: &Index) -> Result<Option<f32>, PolicyError> {
    if options.budget_mode != Some(BudgetMode::Mass) {
        let reason = "means something with --budget-mode mass alone";
        return options.mass.map_or(Ok(None), |_| Err(PolicyError::conflict("mass", reason)));
    }
    if matches!(index.kind, IndexKind::Blocks(_)) {
        let reason = "the scores of blocks are no attention: uniform or ada";
        let advice = PolicyAdvice::Use { option: "budget-mode", value: "uniform".into() };
        return Err(PolicyError::Conflict { option: "budget-mode", reason, advice });
    }
    Ok(Some(options.mass.unwrap_or(0.95)))
}

/// InfiniGen's distance from the best score; none where it is infinite.
fn alpha(options: &PolicyOptions) -> Option<f32> {
    let default = if options.preset == Preset::Infinigen { 4.0 } else { f32::INFINITY };
    Some(options.alpha.unwrap_or(default)).filter(|alpha| alpha.is_finite())
}

/// Ada-KV's uniform share.
fn safeguard(options: &PolicyOptions) -> f32 {
    options.safeguard.unwrap_or(0.2)
}

/// Last queries of a prompt that are observed.
fn observed(options: &PolicyOptions) -> usize {
    options.observe.unwrap_or(32)
}

fn budget_tokens(options: &PolicyOptions, context: usize) -> Result<usize, PolicyError> {
    match options.budget.unwrap_or_default() {
        BudgetOption::Tokens(0) => Err(PolicyError::ZeroBudget),
        BudgetOption::Tokens(tokens) => Ok(tokens),
        BudgetOption::Auto if options.preset == Preset::Lrqk => {
            let lite = options.recent.unwrap_or(LRQK_LITE_TOKENS);
            Ok((lrqk_active_tokens(context) + lite).min(MAX_CONTEXT))
        }
        BudgetOption::Auto if context <= 4096 => Ok(512),
        BudgetOption::Auto if context <= 32768 => Ok(1024),
        BudgetOption::Auto => Ok(2048),
    }
}

/// LRQK's k, the active tokens that its authors recommend for a context.
fn lrqk_active_tokens(context: usize) -> usize {
    match context {
        0..=4096 => 256,
        4097..=8192 => 512,
        8193..=32767 => 1024,
        32768.. => 2048,
    }
}

#[cfg(test)]
mod tests;
