//! A policy is an index, a budget and a residency; presets name the published combinations.
//!
//! Users fill in [`PolicyOptions`]; [`Policy::resolve`] turns them into one validated [`Policy`] or
//! says which combination cannot work. Nothing else in the crate reads raw options.

use longview_ops::{Distance, Pooling};
use serde::{Deserialize, Serialize};

/// Steps between handing a full window to the clustering worker and using its clusters: a fixed
/// number, so that the worker has time and the tokens do not depend on how much it took.
pub const FLUSH_STEPS: usize = 4;

/// Models at least this deep attend to everything in their first two layers unless told otherwise,
/// as in the papers: attention there is spread too evenly for any selection, and two layers of many
/// cost little.
pub const DEEP_LAYERS: usize = 16;

/// Contexts up to this many tokens are clustered whole, as in the paper: segments cost the embedded
/// model two of 24 answers at 32K. Longer ones go in segments of 8,192, because the work of one
/// clustering is quadratic.
pub const WHOLE_PROMPT_CONTEXT: usize = 32_768;

/// The published systems that this release has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Every token attends to every earlier one: the oracle.
    Full,
    /// Semantic clusters recalled from the host (Liu et al., DAC 2025).
    Clusterkv,
    /// Sinks and the most recent tokens only (Xiao et al., ICLR 2024): the control that shows what
    /// recall adds. Keys keep their true positions.
    StreamingLlm,
}

impl Preset {
    /// All presets with the name that command lines use.
    pub const ALL: &'static [(Preset, &'static str)] = &[
        (Preset::Full, "full"),
        (Preset::Clusterkv, "clusterkv"),
        (Preset::StreamingLlm, "streaming-llm"),
    ];

    /// The name on command lines and in reports.
    pub fn name(self) -> &'static str {
        Preset::ALL.iter().find(|(p, _)| *p == self).expect("every preset is listed").1
    }
}

impl std::fmt::Display for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Preset {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let found = Preset::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(preset, _)| *preset).ok_or_else(|| PolicyError::UnknownPreset(text.to_owned()))
    }
}

/// How many tokens a KV head may attend in one step, sinks and recent window included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BudgetOption {
    /// By context length: 512 up to 4K, 1024 up to 32K, 2048 beyond.
    #[default]
    Auto,
    /// This many.
    Tokens(usize),
}

impl std::str::FromStr for BudgetOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(BudgetOption::Auto);
        }
        let tokens = text
            .parse()
            .map_err(|_| format!("'{text}' is neither a number of tokens nor 'auto'"))?;
        Ok(BudgetOption::Tokens(tokens))
    }
}

/// What a user may say about a policy. `None` takes the preset's default.
#[derive(Clone, Debug)]
pub struct PolicyOptions {
    /// The combination to start from.
    pub preset: Preset,
    /// B.
    pub budget: BudgetOption,
    /// First tokens, always attended. Default 16 (4 for `streaming-llm`, as its paper).
    pub sinks: Option<usize>,
    /// Last tokens, always attended and not yet clustered. Default 64, or a quarter of a small
    /// budget.
    pub recent: Option<usize>,
    /// m: tokens that gather behind the recent window before they are clustered. Default 320 as in
    /// the paper, or a quarter of a small budget.
    pub window: Option<usize>,
    /// C+: clusters made of a full window. Default: as many as keep `cluster_tokens` (the paper: 4
    /// of 320).
    pub window_clusters: Option<usize>,
    /// Mean tokens per cluster. Default 16; the paper's C0 = L / 80 is 80.
    pub cluster_tokens: Option<usize>,
    /// Tokens of a segment that is clustered alone as soon as it is finished; 0: the whole prompt
    /// as in the paper. Default 0 for contexts up to [`WHOLE_PROMPT_CONTEXT`], else 8192.
    pub cluster_segment: Option<usize>,
    /// What near means. Default cosine.
    pub distance: Distance,
    /// How a group's query heads share one selection. Default sum of softmax mass.
    pub pooling: Pooling,
    /// Most k-means iterations. Default 10.
    pub iterations: Option<usize>,
    /// R: steps for which recalled clusters stay in the device cache. Default 2.
    pub cache_steps: Option<usize>,
    /// First layers that attend to everything. Default by depth ([`PolicyOptions::for_depth`]): the
    /// papers use 2 for their models of 28 layers and more; shallow models need none.
    pub dense_layers: Option<usize>,
    /// Seed of k-means.
    pub seed: u64,
}

impl PolicyOptions {
    /// A preset with its defaults.
    pub fn new(preset: Preset) -> Self {
        Self {
            preset,
            budget: BudgetOption::Auto,
            sinks: None,
            recent: None,
            window: None,
            window_clusters: None,
            cluster_tokens: None,
            cluster_segment: None,
            distance: Distance::default(),
            pooling: Pooling::default(),
            iterations: None,
            cache_steps: None,
            dense_layers: None,
            seed: 0,
        }
    }

    /// The same with what depends on the model's depth filled in: 2 dense layers from
    /// [`DEEP_LAYERS`] layers on, else 0.
    pub fn for_depth(mut self, n_layers: usize) -> Self {
        let default = if n_layers >= DEEP_LAYERS { 2 } else { 0 };
        self.dense_layers.get_or_insert(default);
        self
    }

    /// The same with a budget of `tokens`.
    pub fn with_budget(mut self, tokens: usize) -> Self {
        self.budget = BudgetOption::Tokens(tokens);
        self
    }
}

/// Clustering of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Mean tokens per cluster of a segment.
    pub cluster_tokens: usize,
    /// Tokens of a segment; 0 for the whole prompt.
    pub segment: usize,
    /// m.
    pub window: usize,
    /// C+.
    pub window_clusters: usize,
    /// What near means.
    pub distance: Distance,
    /// Group pooling.
    pub pooling: Pooling,
    /// Most k-means iterations.
    pub iterations: usize,
    /// Clusters above this size are split, so that none crowds the others out of the budget.
    pub max_cluster: usize,
    /// Seed.
    pub seed: u64,
}

/// Where the tokens that a step does not attend are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// All KV rows stay on the device.
    Resident,
    /// They are not attended again.
    Evict,
    /// In host memory, recalled cluster by cluster; the device keeps those of the last
    /// `cache_steps` steps.
    Recall {
        /// R.
        cache_steps: usize,
    },
}

/// A validated policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The preset it came from.
    pub preset: Preset,
    /// The index; `None` keeps no summary of the keys.
    pub index: Option<ClusterConfig>,
    /// B, or `None` for all tokens.
    pub budget: Option<usize>,
    /// Where the rest is kept.
    pub residency: Residency,
    /// First tokens, always attended.
    pub sinks: usize,
    /// Last tokens, always attended.
    pub recent: usize,
    /// First layers that attend to everything.
    pub dense_layers: usize,
}

/// Options that cannot work together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// No such preset.
    #[error("unknown policy '{0}': one of full, clusterkv, streaming-llm")]
    UnknownPreset(String),
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
    #[error("{option} has no meaning for --policy {preset}")]
    NotForPreset {
        /// The option.
        option: &'static str,
        /// The preset.
        preset: Preset,
    },
}

impl Policy {
    /// Validates `options` for sequences of up to `context` tokens.
    pub fn resolve(options: &PolicyOptions, context: usize) -> Result<Policy, PolicyError> {
        match options.preset {
            Preset::Full => Self::full(options),
            Preset::Clusterkv => Self::clusterkv(options, context),
            Preset::StreamingLlm => Self::streaming(options, context),
        }
    }

    fn full(options: &PolicyOptions) -> Result<Policy, PolicyError> {
        if options.budget == BudgetOption::Tokens(0) {
            return Err(PolicyError::ZeroBudget);
        }
        Ok(Policy {
            preset: Preset::Full,
            index: None,
            budget: None,
            residency: Residency::Resident,
            sinks: 0,
            recent: 0,
            dense_layers: 0,
        })
    }

    fn streaming(options: &PolicyOptions, context: usize) -> Result<Policy, PolicyError> {
        for (set, option) in [
            (options.cluster_tokens.is_some(), "--cluster-tokens"),
            (options.cache_steps.is_some(), "--cache-steps"),
            (options.window.is_some(), "--window"),
        ] {
            if set {
                return Err(PolicyError::NotForPreset { option, preset: options.preset });
            }
        }
        let budget = budget_tokens(options.budget, context)?;
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
        Ok(Policy {
            preset: Preset::StreamingLlm,
            index: None,
            budget: Some(budget),
            residency: Residency::Evict,
            sinks,
            recent,
            dense_layers: options.dense_layers.unwrap_or(0),
        })
    }

    fn clusterkv(options: &PolicyOptions, context: usize) -> Result<Policy, PolicyError> {
        let budget = budget_tokens(options.budget, context)?;
        let sinks = options.sinks.unwrap_or(16.min(budget / 8));
        let recent = options.recent.unwrap_or(64.min(budget / 4));
        let window = options.window.unwrap_or(320.min(budget / 4).max(1));
        // A few more than the window are pending while the window is being clustered.
        let always = sinks + recent + window + FLUSH_STEPS;
        if always >= budget {
            let needed = always;
            return Err(PolicyError::BudgetTooSmall {
                preset: options.preset,
                budget,
                sinks,
                recent,
                window,
                needed,
            });
        }
        let cluster = Self::cluster_config(options, context, budget, window)?;
        let cache_steps = options.cache_steps.unwrap_or(2);
        if cache_steps == 0 {
            return Err(PolicyError::Zero("--cache-steps"));
        }
        Ok(Policy {
            preset: Preset::Clusterkv,
            index: Some(cluster),
            budget: Some(budget),
            residency: Residency::Recall { cache_steps },
            sinks,
            recent,
            dense_layers: options.dense_layers.unwrap_or(0),
        })
    }

    fn cluster_config(
        options: &PolicyOptions,
        context: usize,
        budget: usize,
        window: usize,
    ) -> Result<ClusterConfig, PolicyError> {
        let cluster_tokens = options.cluster_tokens.unwrap_or(16);
        let iterations = options.iterations.unwrap_or(10);
        for (value, name) in [
            (cluster_tokens, "--cluster-tokens"),
            (iterations, "--iterations"),
            (window, "--window"),
        ] {
            if value == 0 {
                return Err(PolicyError::Zero(name));
            }
        }
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
        Ok(ClusterConfig {
            cluster_tokens,
            segment,
            window,
            window_clusters,
            distance: options.distance,
            pooling: options.pooling,
            iterations,
            max_cluster: (budget / 4).max(1),
            seed: options.seed,
        })
    }

    /// Whether `layer` attends to everything under this policy.
    pub fn is_dense(&self, layer: usize) -> bool {
        self.residency == Residency::Resident || layer < self.dense_layers
    }

    /// Rows of the device ring that holds tokens before they are clustered or leave.
    pub fn ring_rows(&self) -> usize {
        match self.index {
            Some(cluster) => self.recent + cluster.window + FLUSH_STEPS,
            None => self.recent,
        }
    }

    /// Rows of the device cache of one KV head: what R steps may select, and no more than there are
    /// tokens.
    pub fn cache_slots(&self, context: usize) -> usize {
        match (self.residency, self.budget) {
            (Residency::Recall { cache_steps }, Some(budget)) => {
                (cache_steps * (budget - self.sinks - self.recent)).min(context)
            }
            _ => 0,
        }
    }

    /// Most clusters that `context` tokens can make: segments and windows round up, and a split
    /// adds at most one cluster for each `max_cluster / 2` tokens.
    pub fn max_clusters(&self, context: usize) -> usize {
        let Some(c) = self.index else { return 0 };
        let by_density = (context * c.window_clusters).div_ceil(c.window);
        context.div_ceil(c.cluster_tokens).max(by_density)
            + 2 * context.div_ceil(c.max_cluster)
            + context.div_ceil(c.window)
            + 1
    }
}

fn budget_tokens(option: BudgetOption, context: usize) -> Result<usize, PolicyError> {
    match option {
        BudgetOption::Tokens(0) => Err(PolicyError::ZeroBudget),
        BudgetOption::Tokens(tokens) => Ok(tokens),
        BudgetOption::Auto if context <= 4096 => Ok(512),
        BudgetOption::Auto if context <= 32768 => Ok(1024),
        BudgetOption::Auto => Ok(2048),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(change: impl FnOnce(&mut PolicyOptions)) -> Result<Policy, PolicyError> {
        let mut options = PolicyOptions::new(Preset::Clusterkv).with_budget(1024);
        change(&mut options);
        Policy::resolve(&options, 32768)
    }

    #[test]
    fn the_paper_is_a_set_of_options() {
        let paper = resolve(|o| {
            o.cluster_tokens = Some(80);
            o.cluster_segment = Some(0);
            o.recent = Some(0);
            o.window = Some(320);
            o.cache_steps = Some(1);
        });
        let cluster = paper.unwrap().index.unwrap();
        assert_eq!((cluster.window, cluster.window_clusters), (320, 4));
    }

    #[test]
    fn defaults_fit_every_budget_from_64() {
        for budget in [64, 100, 256, 512, 1000, 1024, 2048, 100_000] {
            let options = PolicyOptions::new(Preset::Clusterkv).with_budget(budget);
            let policy = Policy::resolve(&options, 1 << 20).unwrap();
            assert!(policy.sinks + policy.ring_rows() < budget, "{policy:?}");
        }
    }

    #[test]
    fn combinations_that_cannot_work_are_named() {
        let message = |r: Result<Policy, PolicyError>| r.unwrap_err().to_string();
        assert!(message(resolve(|o| o.budget = BudgetOption::Tokens(0))).starts_with("--budget 0"));
        let small = message(resolve(|o| {
            o.budget = BudgetOption::Tokens(300);
            o.window = Some(320);
        }));
        assert!(small.contains("--budget 300") && small.contains("window of 320"), "{small}");
        assert_eq!(
            message(resolve(|o| o.cache_steps = Some(0))),
            "--cache-steps must be at least 1"
        );
        assert_eq!(
            message(resolve(|o| o.cluster_tokens = Some(0))),
            "--cluster-tokens must be at least 1"
        );
        assert!(
            message(resolve(|o| o.window_clusters = Some(9999))).contains("--window-clusters 9999")
        );
        assert!(message(resolve(|o| o.cluster_segment = Some(8))).contains("--cluster-segment 8"));
        let streaming = message(resolve(|o| {
            o.preset = Preset::StreamingLlm;
            o.cluster_tokens = Some(16);
        }));
        assert_eq!(streaming, "--cluster-tokens has no meaning for --policy streaming-llm");
        assert!("quest".parse::<Preset>().unwrap_err().to_string().contains("one of full"));
    }

    #[test]
    fn deep_models_have_dense_layers_unless_told_otherwise() {
        let dense = |n_layers, chosen| {
            let options =
                PolicyOptions { dense_layers: chosen, ..PolicyOptions::new(Preset::Clusterkv) };
            Policy::resolve(&options.for_depth(n_layers), 32768).unwrap().dense_layers
        };
        assert_eq!(
            [dense(4, None), dense(32, None), dense(32, Some(0)), dense(4, Some(1))],
            [0, 2, 0, 1]
        );
    }

    #[test]
    fn a_budget_means_all_attended_tokens() {
        let policy = resolve(|o| o.preset = Preset::StreamingLlm).unwrap();
        assert_eq!(policy.sinks + policy.recent, 1024);
    }
}
