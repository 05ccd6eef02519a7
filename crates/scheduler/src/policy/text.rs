//! A policy in full as text: what a session file says of the policy that it was saved under, and
//! what decides whether its index serves another one.

use super::budget::{Budget, HeadBudgets, LayerBudgets};
use super::index::{
    BlockConfig, ClusterConfig, Index, IndexKind, Projection, Rank, Schedule, TokenConfig, TwoStage,
};
use super::options::{Importance, Residual, name_of};
use super::residency::{KeptConfig, Residency, Statistic};
use super::resolved::Policy;

/// A value of which there may be none.
fn some<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "none".into(), text)
}

impl Policy {
    /// Every choice, one `name = value` a line, the same on every machine. Policies with the same
    /// text are the same, except for how many threads attend on the host, which changes no result.
    pub fn text(&self) -> String {
        // No `..`: what is added to a policy has to be added here. Names and their order are those
        // of the file format, whatever the code calls them today.
        let Self {
            preset,
            index,
            budget: Budget { tokens, heads, layers: _, mass, alpha },
            residency,
            sinks,
            recent,
            dense_layers,
            residual,
            bounds_attention,
        } = self;
        let adapt = match heads {
            HeadBudgets::Ada { safeguard, queries } if residency.recalls() => {
                format!("{safeguard}, {queries} queries")
            }
            HeadBudgets::Ada { .. } | HeadBudgets::Uniform => "none".into(),
        };
        let blocks = index.and_then(|index| match index.kind {
            IndexKind::Blocks(blocks) => Some(blocks),
            IndexKind::Clusters(_) | IndexKind::Tokens(_) => None,
        });
        let schedule = index.map_or(Schedule::EVERY, |index| index.schedule);
        let lines = [
            ("policy", preset.to_string()),
            ("index", some(*index, index_text)),
            ("keep", some(residency.kept(), |kept| kept_text(kept, &self.budget))),
            ("budget", some(*tokens, |b| b.to_string())),
            ("adapt", adapt),
            ("residency", residency_text(*residency)),
            ("sinks", sinks.to_string()),
            ("recent", recent.to_string()),
            ("dense layers", dense_layers.to_string()),
            ("layer step", schedule.layer_step.to_string()),
            ("token step", schedule.token_step.to_string()),
            (
                "importance",
                name_of(blocks.map_or(Importance::Last, |blocks| blocks.importance)).into(),
            ),
            (
                "preselect",
                some(blocks.and_then(|blocks| blocks.preselect), |p| {
                    let (pool, near) = (name_of(p.pool), p.neighbours);
                    format!("{}, {} queries, {} {pool}, {near}", p.count, p.queries, p.kernel)
                }),
            ),
            ("mass", some(*mass, |m| m.to_string())),
            ("alpha", some(*alpha, |a| a.to_string())),
            ("ahead", schedule.layer_prefetch.to_string()),
            ("certify", bounds_attention.to_string()),
            ("tail", (*residual == Residual::Means).to_string()),
            (
                "refine",
                some(index.and_then(|index| index.two_stage()), |TwoStage { times, tokens }| {
                    format!("{times} {}", tokens_text(tokens))
                }),
            ),
            ("positions", name_of(residency.first_positions()).into()),
        ];
        lines.map(|(name, value)| format!("{name} = {value}\n")).concat()
    }
}

fn residency_text(residency: Residency) -> String {
    match residency {
        Residency::Resident => "resident".into(),
        Residency::Evict(_) => "evict".into(),
        Residency::Recall { cache_steps } => format!("recall, {cache_steps} steps"),
        // How many threads attend changes no result.
        Residency::AttendOnHost { threads: _ } => "attend on host".into(),
    }
}

fn index_text(index: Index) -> String {
    let Index { kind, segment, window, pooling, schedule: _ } = index;
    let kind = match kind {
        IndexKind::Clusters(clusters) => clusters_text(clusters),
        IndexKind::Blocks(BlockConfig { block, summary, n_top, importance: _, preselect: _ }) => {
            format!("blocks of {block}, summary {}, top {n_top}", summary as u32)
        }
        IndexKind::Tokens(tokens) => tokens_text(tokens),
    };
    // Numbers of the contract between host and kernels: policies use poolings that no user names.
    format!("{kind}; segment {segment}, window {window}, pooling {}", pooling as u32)
}

fn clusters_text(clusters: ClusterConfig) -> String {
    let ClusterConfig {
        cluster_tokens,
        window_clusters,
        distance,
        iterations,
        max_cluster,
        seed,
        two_stage: _,
    } = clusters;
    format!(
        "clusters of {cluster_tokens}, {window_clusters} a window, {}, {iterations} iterations, \
         at most {max_cluster}, seed {seed}",
        name_of(distance)
    )
}

fn tokens_text(tokens: TokenConfig) -> String {
    let TokenConfig { projection, rank, adapts } = tokens;
    let projection = match projection {
        Projection::PrincipalKeys => "principal keys".into(),
        Projection::SkewedChannels => "skewed channels".into(),
        Projection::Lrqk { iterations, init, order, seed } => {
            let (init, order) = (name_of(init), name_of(order));
            format!("lrqk, {iterations} iterations, {init}, {order}, seed {seed}")
        }
    };
    let rank = match rank {
        Rank::Given(rank) => some(rank, |r| r.to_string()),
        Rank::Tolerance(error) => format!("by error {error}"),
    };
    format!("tokens by {projection}, rank {rank}, adapts {adapts}")
}

fn kept_text(kept: KeptConfig, budget: &Budget) -> String {
    let KeptConfig { statistic, window, kernel, pool, order } = kept;
    let safeguard = match budget.heads {
        HeadBudgets::Ada { safeguard, .. } => Some(safeguard),
        HeadBudgets::Uniform => None,
    };
    let beta = match budget.layers {
        LayerBudgets::Pyramid { beta } => Some(beta),
        LayerBudgets::Uniform => None,
    };
    let statistic = match statistic {
        Statistic::LastQueries(n) => format!("last {n} queries"),
        Statistic::AllQueries => "all queries".into(),
    };
    format!(
        "{statistic}, window {window}, {kernel} {} {}, safeguard {}, beta {}",
        name_of(pool),
        name_of(order),
        some(safeguard, |s| s.to_string()),
        some(beta, |b| b.to_string())
    )
}

#[cfg(test)]
mod tests {
    use super::super::{OPTIONS, PolicyOptions, Preset};
    use super::*;

    /// One of them is a value of any option.
    const VALUES: &[&str] = &[
        "ada",
        "0.25",
        "7",
        "true",
        "means",
        "text",
        "host",
        "local",
        "max",
        "cosine",
        "svd",
        "shared",
        "pool-first",
        "together",
        "adaptive",
    ];

    #[test]
    fn options_survive_as_text() {
        for (preset, name) in Preset::ALL {
            let mut options = PolicyOptions::new(*preset).with_budget(512);
            assert_eq!(options.text(), format!("policy = {name}\nbudget = 512\n"));
            for option in OPTIONS {
                for value in VALUES {
                    if options.set(option.name, value).is_ok() {
                        break;
                    }
                }
            }
            assert_eq!(options.given().len(), OPTIONS.len(), "{:?}", options.given());
            assert_eq!(PolicyOptions::from_text(&options.text()), Ok(options));
        }
        assert!(PolicyOptions::from_text("").is_err());
        assert!(PolicyOptions::from_text("policy = full\nnonsense = 3\n").is_err());
        assert!(PolicyOptions::from_text("policy = full\nbudget\n").is_err());
    }

    #[test]
    fn policies_that_differ_have_other_texts() {
        let text = |settings: &[(&str, &str)]| {
            let mut options = PolicyOptions::new(Preset::Clusterkv).with_budget(1024);
            settings.iter().for_each(|(name, value)| options.set(name, value).expect("a value"));
            Policy::resolve(&options, 4096).expect("a policy").text()
        };
        let plain = text(&[]);
        assert_eq!(plain, text(&[("cluster-tokens", "16")]), "the default, said");
        for (name, value) in [
            ("cluster-tokens", "8"),
            ("distance", "l2"),
            ("window", "64"),
            ("cluster-seed", "1"),
            ("residual", "means"),
            ("two-stage", "2"),
            ("dense-layers", "1"),
            ("cache-steps", "3"),
        ] {
            assert_ne!(plain, text(&[(name, value)]), "{name}");
        }
    }
}
