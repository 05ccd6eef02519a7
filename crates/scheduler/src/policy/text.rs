//! A policy in full as text: what a session file says of the policy that it was saved under, and
//! what decides whether its index serves another one.

use super::options::name_of;
use super::{
    BlockConfig, ClusterConfig, IndexConfig, IndexKind, KeepConfig, Policy, Projection, Rank,
    Residency, Statistic, TokenConfig,
};

/// A value of which there may be none.
fn some<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "none".into(), text)
}

impl Policy {
    /// Every choice, one `name = value` a line, the same on every machine. Policies with the same
    /// text are the same, except for how many threads attend on the host, which changes no result.
    pub fn text(&self) -> String {
        // No `..`: what is added to a policy has to be added here.
        let Self {
            preset,
            index,
            keep,
            budget,
            adapt,
            residency,
            sinks,
            recent,
            dense_layers,
            layer_step,
            token_step,
            importance,
            preselect,
            mass,
            alpha,
            ahead,
            certify,
            tail,
            refine,
            positions,
            host_threads: _,
        } = self;
        let residency = match residency {
            Residency::Resident => "resident".into(),
            Residency::Evict => "evict".into(),
            Residency::Recall { cache_steps } => format!("recall, {cache_steps} steps"),
            Residency::AttendOnHost => "attend on host".into(),
        };
        let lines = [
            ("policy", preset.to_string()),
            ("index", some(*index, index_text)),
            ("keep", some(*keep, keep_text)),
            ("budget", some(*budget, |b| b.to_string())),
            ("adapt", some(*adapt, |a| format!("{}, {} queries", a.safeguard, a.queries))),
            ("residency", residency),
            ("sinks", sinks.to_string()),
            ("recent", recent.to_string()),
            ("dense layers", dense_layers.to_string()),
            ("layer step", layer_step.to_string()),
            ("token step", token_step.to_string()),
            ("importance", name_of(*importance).into()),
            (
                "preselect",
                some(*preselect, |p| {
                    let (pool, near) = (name_of(p.pool), p.neighbours);
                    format!("{}, {} queries, {} {pool}, {near}", p.count, p.queries, p.kernel)
                }),
            ),
            ("mass", some(*mass, |m| m.to_string())),
            ("alpha", some(*alpha, |a| a.to_string())),
            ("ahead", ahead.to_string()),
            ("certify", certify.to_string()),
            ("tail", tail.to_string()),
            ("refine", some(*refine, |r| format!("{} {}", r.times, tokens_text(r.tokens)))),
            ("positions", name_of(*positions).into()),
        ];
        lines.map(|(name, value)| format!("{name} = {value}\n")).concat()
    }
}

fn index_text(index: IndexConfig) -> String {
    let IndexConfig { kind, segment, window, pooling } = index;
    let kind = match kind {
        IndexKind::Clusters(clusters) => clusters_text(clusters),
        IndexKind::Blocks(BlockConfig { block, summary, n_top }) => {
            format!("blocks of {block}, summary {}, top {n_top}", summary as u32)
        }
        IndexKind::Tokens(tokens) => tokens_text(tokens),
    };
    // Numbers of the contract between host and kernels: policies use poolings that no user names.
    format!("{kind}; segment {segment}, window {window}, pooling {}", pooling as u32)
}

fn clusters_text(clusters: ClusterConfig) -> String {
    let ClusterConfig { cluster_tokens, window_clusters, distance, iterations, max_cluster, seed } =
        clusters;
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

fn keep_text(keep: KeepConfig) -> String {
    let KeepConfig { statistic, window, kernel, pool, order, safeguard, beta } = keep;
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
        "estimate",
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
            ("tail", "estimate"),
            ("refine", "2"),
            ("dense-layers", "1"),
            ("cache-steps", "3"),
        ] {
            assert_ne!(plain, text(&[(name, value)]), "{name}");
        }
    }
}
