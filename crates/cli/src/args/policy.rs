//! Which tokens a step attends.

use clap::Args;
use longview_ops::{Distance, Pooling};
use longview_scheduler::{BudgetOption, PolicyOptions, Preset};

const DISTANCES: &[(Distance, &str)] = &[
    (Distance::Cosine, "cosine"),
    (Distance::L2, "l2"),
    (Distance::InnerProduct, "inner-product"),
];

const POOLINGS: &[(Pooling, &str)] = &[
    (Pooling::SumSoftmax, "sum"),
    (Pooling::MaxSoftmax, "max"),
    (Pooling::SizeWeighted, "size-weighted"),
];

/// A policy and what may be changed about it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Policy")]
pub struct PolicyArgs {
    /// What a generated token attends: full: every earlier token; clusterkv: clusters of similar
    /// keys, recalled from host memory; streaming-llm: the first and the last tokens only.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "clusterkv",
        value_parser = super::one_of(Preset::ALL)
    )]
    pub policy: Preset,

    #[command(flatten)]
    tuning: TuningArgs,
}

/// What may be changed about a policy.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Policy")]
pub struct TuningArgs {
    /// Tokens that a KV head attends in one step, first and last tokens included; above the
    /// context it equals full attention. auto: 512 up to a context of 4096 tokens, 1024 up to
    /// 32768, 2048 beyond.
    #[arg(long, value_name = "TOKENS", default_value = "auto")]
    budget: BudgetOption,

    /// First tokens, always attended [default: 16, or an eighth of a small budget; 4 for
    /// streaming-llm].
    #[arg(long, value_name = "TOKENS")]
    sinks: Option<usize>,

    /// Last tokens, always attended [default: 64, or a quarter of a small budget; the rest of the
    /// budget for streaming-llm].
    #[arg(long, value_name = "TOKENS")]
    recent: Option<usize>,

    /// Generated tokens that gather behind the last ones before they are clustered [default: 320,
    /// or a quarter of a small budget].
    #[arg(long, value_name = "TOKENS")]
    window: Option<usize>,

    /// Clusters made of a full window [default: as many as keep --cluster-tokens].
    #[arg(long, value_name = "CLUSTERS")]
    window_clusters: Option<usize>,

    /// Mean tokens per cluster [default: 16; the ClusterKV paper uses 80].
    #[arg(long, value_name = "TOKENS")]
    cluster_tokens: Option<usize>,

    /// Prompt tokens that are clustered by themselves as soon as they are computed; 0: the whole
    /// prompt at its end, as in the paper [default: 0 up to a context of 32768, else 8192].
    #[arg(long, value_name = "TOKENS")]
    cluster_segment: Option<usize>,

    /// What makes two keys similar.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "cosine",
        value_parser = super::one_of(DISTANCES)
    )]
    distance: Distance,

    /// How query heads that share a KV head choose clusters together: by the sum or the largest of
    /// their attention, or weighted by cluster size.
    #[arg(long, value_name = "NAME", default_value = "sum", value_parser = super::one_of(POOLINGS))]
    pooling: Pooling,

    /// Most iterations of k-means [default: 10].
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,

    /// Steps for which recalled clusters stay on the device [default: 2].
    #[arg(long, value_name = "STEPS")]
    cache_steps: Option<usize>,

    /// First layers that attend every token [default: 2 for deep models as in the papers, else 0].
    #[arg(long, value_name = "LAYERS")]
    dense_layers: Option<usize>,

    /// Seed of k-means.
    #[arg(long, value_name = "N", default_value_t = 0)]
    cluster_seed: u64,
}

impl PolicyArgs {
    /// The policy that was asked for.
    pub fn options(&self) -> PolicyOptions {
        self.tuning.options(self.policy)
    }
}

impl TuningArgs {
    /// `preset` with these changes.
    pub fn options(&self, preset: Preset) -> PolicyOptions {
        PolicyOptions {
            preset,
            budget: self.budget,
            sinks: self.sinks,
            recent: self.recent,
            window: self.window,
            window_clusters: self.window_clusters,
            cluster_tokens: self.cluster_tokens,
            cluster_segment: self.cluster_segment,
            distance: self.distance,
            pooling: self.pooling,
            iterations: self.iterations,
            cache_steps: self.cache_steps,
            dense_layers: self.dense_layers,
            seed: self.cluster_seed,
        }
    }

    /// `preset` with the changes that mean something to every preset.
    pub fn common_options(&self, preset: Preset) -> PolicyOptions {
        PolicyOptions {
            budget: self.budget,
            dense_layers: self.dense_layers,
            ..PolicyOptions::new(preset)
        }
    }
}
