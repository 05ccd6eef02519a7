//! From options to policies: defaults and what is wrong.

use longview_ops::{BlockReduceParams, BlockSummary, PoolKind, Pooling};

use super::budget::{Budget, HeadBudgets, LayerBudgets};
use super::error::PolicyError;
use super::index::{
    BlockConfig, ClusterConfig, Index, IndexKind, Preselect, Projection, Rank, Schedule,
    TokenConfig, TwoStage,
};
use super::limits::WHOLE_PROMPT_CONTEXT;
use super::options::{
    Attend, BudgetMode, BudgetOption, HeadSelect, Importance, LrqkDecode, LrqkInit, LrqkOrder,
    PolicyOptions, PoolOrder, Positions, Representative, Residual,
};
use super::preset::Preset;
use super::residency::{Eviction, KeptConfig, Residency, Statistic};
use super::resolved::Policy;
use crate::layout::LAST_QUERIES;

/// The last tokens that LRQK always attends, where the budget has room for them.
const LRQK_LITE_TOKENS: usize = 64;

impl Policy {
    /// Validates `options` for sequences of up to `context` tokens.
    pub fn resolve(options: &PolicyOptions, context: usize) -> Result<Policy, PolicyError> {
        let preset = options.preset;
        for option in options.given() {
            if !preset.info().options.contains(&option) {
                return Err(PolicyError::NotForPreset { option, preset });
            }
        }
        for (value, name) in [
            (options.iterations, "--iterations"),
            (options.cluster_tokens, "--cluster-tokens"),
            (options.window, "--window"),
            (options.block_size, "--block-size"),
            (options.layer_step, "--layer-step"),
            (options.token_step, "--token-step"),
            (options.rank, "--rank"),
            (options.observe, "--observe"),
            (options.preselect, "--preselect"),
            (options.host_threads, "--host-threads"),
        ] {
            if value == Some(0) {
                return Err(PolicyError::Zero(name));
            }
        }
        let budget = budget_tokens(options, context)?;
        match preset {
            Preset::Full => Ok(Policy::of(preset, Budget::ALL, Residency::Resident)),
            Preset::StreamingLlm => streaming(options, budget),
            Preset::Clusterkv => clusterkv(options, context, budget),
            Preset::Quest | Preset::Infllm | Preset::Ktransformers => blocks(options, budget),
            Preset::Loki | Preset::Infinigen | Preset::Lrqk => tokens(options, budget),
            Preset::Snapkv
            | Preset::Pyramidkv
            | Preset::AdaSnapkv
            | Preset::AdaPyramid
            | Preset::H2o => keep(options, budget),
        }
    }
}

fn streaming(options: &PolicyOptions, budget: usize) -> Result<Policy, PolicyError> {
    let sinks = options.sinks.unwrap_or(4.min(budget.saturating_sub(1)));
    let recent = options.recent.unwrap_or(budget.saturating_sub(sinks));
    if recent == 0 || sinks + recent > budget {
        return Err(PolicyError::BudgetTooSmall {
            preset: options.preset,
            budget,
            sinks,
            recent,
            window: 0,
            needed: sinks + recent.max(1) - 1,
        });
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

fn clusterkv(
    options: &PolicyOptions,
    context: usize,
    budget: usize,
) -> Result<Policy, PolicyError> {
    let sinks = options.sinks.unwrap_or(16.min(budget / 8));
    let recent = options.recent.unwrap_or(64.min(budget / 4));
    let window = options.window.unwrap_or(320.min(budget / 4).max(1));
    let cluster_tokens = options.cluster_tokens.unwrap_or(16);
    let window_clusters = options.window_clusters.unwrap_or(window.div_ceil(cluster_tokens));
    if window_clusters == 0 {
        return Err(PolicyError::Zero("--window-clusters"));
    }
    if window_clusters > window {
        return Err(PolicyError::WindowClusters { clusters: window_clusters, window });
    }
    let whole = context <= WHOLE_PROMPT_CONTEXT;
    let segment = options.cluster_segment.unwrap_or(if whole { 0 } else { 8192 });
    if segment > 0 && segment < cluster_tokens {
        return Err(PolicyError::Segment { segment, tokens: cluster_tokens });
    }
    let clusters = ClusterConfig {
        cluster_tokens,
        window_clusters,
        distance: options.distance.unwrap_or_default(),
        iterations: options.iterations.unwrap_or(10),
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
    let two_stage = two_stage(options)?;
    let kind = IndexKind::Clusters(ClusterConfig { two_stage, ..clusters });
    let index = policy.index.map(|index| Index { kind, ..index });
    Ok(Policy { index, residual: options.residual.unwrap_or(Residual::Drop), ..policy })
}

/// Two-stage selection: clusters, then tokens.
fn two_stage(options: &PolicyOptions) -> Result<Option<TwoStage>, PolicyError> {
    let wrong = |option: &str, reason: &str| {
        Err(PolicyError::Value { option: option.into(), reason: reason.into() })
    };
    let times = options.two_stage.unwrap_or(1);
    if times == 0 {
        return Err(PolicyError::Zero("--two-stage"));
    }
    if times == 1 {
        return match options.rank {
            Some(_) => wrong("rank", "means something to clusters with --two-stage above 1 alone"),
            None => Ok(None),
        };
    }
    if options.rank.is_some_and(|rank| rank % 2 == 1) {
        return wrong("rank", "must be even with --two-stage");
    }
    let clashes = [
        (options.residual == Some(Residual::Means), "residual", "means are those of clusters"),
        (
            options.attention_bound == Some(true),
            "attention-bound",
            "bounds clusters, not tokens in them",
        ),
        (options.budget_mode == Some(BudgetMode::Mass), "budget-mode", "mass is that of clusters"),
    ];
    if let Some((_, option, why)) = clashes.iter().find(|(given, ..)| *given) {
        return wrong(option, &format!("{why}: not with --two-stage"));
    }
    let projection = Projection::Lrqk {
        iterations: 2,
        init: LrqkInit::Random,
        order: LrqkOrder::KeysFirst,
        seed: options.seed.unwrap_or(0),
    };
    let rank = Rank::Given(options.rank);
    Ok(Some(TwoStage { times, tokens: TokenConfig { projection, rank, adapts: false } }))
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
    let most = BlockReduceParams::MAX_TOP as usize;
    if n_top == 0 || n_top > most {
        return Err(PolicyError::Range {
            option: "representative-num",
            value: n_top.to_string(),
            range: "1 to 32",
        });
    }
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
        Importance::Local if recent == 0 => Err(PolicyError::Value {
            option: "importance".into(),
            reason: "local: with --recent 0 there is no local window; use last".into(),
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
                let reason = "means something with --preselect alone".into();
                return Err(PolicyError::Value { option: option.into(), reason });
            }
        }
        return Ok(None);
    };
    Ok(Some(Preselect {
        count,
        queries: options.observe.unwrap_or(128),
        kernel: odd("preselect-kernel", options.preselect_kernel.unwrap_or(1))?,
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
        Some(error) if !(error > 0.0 && error < 1.0) => {
            return Err(PolicyError::Range {
                option: "rank-tolerance",
                value: error.to_string(),
                range: "above 0 and below 1",
            });
        }
        Some(_) if options.rank.is_some() => {
            return Err(PolicyError::Value {
                option: "rank-tolerance".into(),
                reason: "a --rank is given too; one of them chooses".into(),
            });
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
            HeadBudgets::Ada { safeguard: safeguard(options)?, queries: observed(options)? }
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
        return Err(PolicyError::Value {
            option: "host-threads".into(),
            reason: "means something with --attend host alone".into(),
        });
    }
    let bounds_attention = options.attention_bound.unwrap_or(false);
    if bounds_attention && !index.is_bounded() {
        return Err(PolicyError::Value {
            option: "attention-bound".into(),
            reason: "only clusters, and blocks with --representative quest, bound what they hold"
                .into(),
        });
    }
    let budget = Budget { heads, mass, alpha: alpha(options)?, ..Budget::of(tokens) };
    let policy = Policy {
        index: Some(index),
        bounds_attention,
        sinks,
        recent,
        dense_layers: options.dense_layers.unwrap_or(0),
        ..Policy::of(options.preset, budget, residency)
    };
    // A few more than the window are pending while the window is being indexed.
    let always = sinks + policy.ring_rows();
    if always < tokens {
        return Ok(policy);
    }
    Err(PolicyError::BudgetTooSmall {
        preset: options.preset,
        budget: tokens,
        sinks,
        recent,
        window: index.window,
        needed: always,
    })
}

/// SnapKV, PyramidKV, their Ada-KV forms, H2O.
fn keep(options: &PolicyOptions, budget: usize) -> Result<Policy, PolicyError> {
    let preset = options.preset;
    let share = |option: &'static str, value: f32, range: &'static str, ok: bool| {
        if ok {
            Ok(value)
        } else {
            Err(PolicyError::Range { option, value: value.to_string(), range })
        }
    };
    let is_pyramid = matches!(preset, Preset::Pyramidkv | Preset::AdaPyramid);
    let is_ada = matches!(preset, Preset::AdaSnapkv | Preset::AdaPyramid);
    let beta = options.beta.unwrap_or(20.0);
    let beta = share("beta", beta, "above 1", beta > 1.0)?;
    let safeguard = safeguard(options)?;
    let heavy = options.heavy_ratio.unwrap_or(0.5);
    let heavy = share("heavy-ratio", heavy, "above 0 and below 1", heavy > 0.0 && heavy < 1.0)?;
    let kernel = odd("pool-kernel", options.pool_kernel.unwrap_or(7))?;
    let is_h2o = preset == Preset::H2o;
    let observe = observed(options)?;
    let recent = if is_h2o {
        budget - ((budget as f32 * heavy) as usize).clamp(1, budget.max(2) - 1)
    } else {
        options.recent.unwrap_or(observe.min(budget / 4).max(1))
    };
    let window = options.window.unwrap_or(64.min(budget / 8).max(1));
    if recent + window >= budget {
        return Err(PolicyError::BudgetTooSmall {
            preset,
            budget,
            sinks: 0,
            recent,
            window,
            needed: recent + window,
        });
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
    let wrong = |option: &str, reason: &str| {
        Err(PolicyError::Value { option: option.into(), reason: reason.into() })
    };
    if options.budget_mode != Some(BudgetMode::Mass) {
        return match options.mass {
            Some(_) => wrong("mass", "means something with --budget-mode mass alone"),
            None => Ok(None),
        };
    }
    if matches!(index.kind, IndexKind::Blocks(_)) {
        return wrong("budget-mode", "the scores of blocks are no attention: uniform or ada");
    }
    let mass = options.mass.unwrap_or(0.95);
    if mass > 0.0 && mass <= 1.0 {
        return Ok(Some(mass));
    }
    let range = "above 0 and at most 1";
    Err(PolicyError::Range { option: "mass", value: mass.to_string(), range })
}

/// InfiniGen's distance from the best score; none where it is infinite.
fn alpha(options: &PolicyOptions) -> Result<Option<f32>, PolicyError> {
    let default = if options.preset == Preset::Infinigen { 4.0 } else { f32::INFINITY };
    let alpha = options.alpha.unwrap_or(default);
    if alpha > 0.0 {
        return Ok(alpha.is_finite().then_some(alpha));
    }
    Err(PolicyError::Range { option: "alpha", value: alpha.to_string(), range: "above 0" })
}

/// Ada-KV's uniform share.
fn safeguard(options: &PolicyOptions) -> Result<f32, PolicyError> {
    let safeguard = options.safeguard.unwrap_or(0.2);
    if (0.0..=1.0).contains(&safeguard) {
        return Ok(safeguard);
    }
    let value = safeguard.to_string();
    Err(PolicyError::Range { option: "safeguard", value, range: "0 to 1" })
}

/// Neighbours that are pooled, the one in the middle included.
fn odd(option: &'static str, kernel: usize) -> Result<usize, PolicyError> {
    if kernel.is_multiple_of(2) {
        return Err(PolicyError::Range { option, value: kernel.to_string(), range: "odd" });
    }
    Ok(kernel)
}

/// Last queries of a prompt that are observed.
fn observed(options: &PolicyOptions) -> Result<usize, PolicyError> {
    let observe = options.observe.unwrap_or(32);
    if observe <= LAST_QUERIES {
        return Ok(observe);
    }
    let range = "at most 128, the queries that a prefill records";
    Err(PolicyError::Range { option: "observe", value: observe.to_string(), range })
}

fn budget_tokens(options: &PolicyOptions, context: usize) -> Result<usize, PolicyError> {
    match options.budget.unwrap_or_default() {
        BudgetOption::Tokens(0) => Err(PolicyError::ZeroBudget),
        BudgetOption::Tokens(tokens) => Ok(tokens),
        BudgetOption::Auto if options.preset == Preset::Lrqk => {
            Ok(lrqk_active_tokens(context) + options.recent.unwrap_or(LRQK_LITE_TOKENS))
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
