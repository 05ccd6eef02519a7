//! A policy in full as text: what a session file says of the policy that it was saved under, and
//! what decides whether its index serves another one.

use super::budget::{Budget, HeadBudgets, LayerBudgets};
use super::index::{
    BlockConfig, ClusterConfig, Index, IndexKind, Projection, Rank, Schedule, TokenConfig, TwoStage,
};
use super::left_out::tail_text;
use super::options::{Importance, name_of};
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
            attend_all,
            residual,
            attention_bound,
            // That of the index, which says it.
            seed: _,
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
            ("certify", attention_bound.text()),
            ("tail", tail_text(*residual)),
            (
                "refine",
                some(index.and_then(|index| index.two_stage()), |two_stage| {
                    // What is compared again, or first, changes nothing that is kept.
                    let TwoStage { times, tokens, rerank: _, scored: _ } = two_stage;
                    format!("{times} {}", tokens_text(tokens))
                }),
            ),
            ("positions", name_of(residency.first_positions()).into()),
        ];
        let text = lines.map(|(name, value)| format!("{name} = {value}\n")).concat();
        // Files of versions that did not know it have no such line.
        if *attend_all == 0 { text } else { format!("{text}attend all = {attend_all}\n") }
    }

    /// Whether the indexes of a policy with this text are those of this one, with what belongs to
    /// them, where there are any. How many tokens a step opens, and up to where it searches for
    /// none, changes nothing in them.
    pub(crate) fn is_indexed_as(&self, text: &str) -> bool {
        let own = self.text();
        let lines = index_lines(&own).eq(index_lines(text));
        lines && own.ends_with('\n') == text.ends_with('\n')
    }
}

/// The lines of a policy's text that an index depends on.
fn index_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().map(without_times).filter(|(name, _)| *name != "attend all")
}

/// The name and the value of a line, the latter without the opened tokens as a multiple of the
/// budget.
fn without_times(line: &str) -> (&str, &str) {
    let (name, value) = line.split_once(" = ").unwrap_or((line, ""));
    let of_tokens = value.split_once(' ').filter(|_| name == "refine");
    (name, of_tokens.map_or(value, |(_, tokens)| tokens))
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
        Projection::ShrunkFactors => "joint factors of shrunk sums of queries".into(),
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
            ("residual", "sample:8"),
            ("attention-bound", "sampled"),
            ("two-stage", "2"),
            ("dense-layers", "1"),
            ("cache-steps", "3"),
        ] {
            assert_ne!(plain, text(&[(name, value)]), "{name}");
        }
    }

    #[test]
    fn how_many_tokens_are_opened_makes_no_other_index() {
        let policy = |settings: &[(&str, &str)]| {
            let mut options = PolicyOptions::new(Preset::Longview).with_budget(512);
            settings.iter().for_each(|(name, value)| options.set(name, value).expect("a value"));
            Policy::resolve(&options, 4096).expect("a policy")
        };
        let plain = policy(&[]);
        for (settings, is_same) in [
            (vec![], true),
            (vec![("two-stage", "3")], true),
            (vec![("two-stage", "3"), ("rank", "16")], false),
            (vec![("two-stage", "1")], false),
            (vec![("cluster-seed", "5")], false),
        ] {
            let text = policy(&settings).text();
            assert_eq!(plain.is_indexed_as(&text), is_same, "{settings:?}");
        }
        assert!(!plain.is_indexed_as(plain.text().trim_end()));
        assert!(!plain.is_indexed_as(&format!("{}more = 1\n", plain.text())));
    }

    /// What differs between the texts of presets; all else is as in [`TextCase::text`].
    struct TextCase {
        policy: &'static str,
        index: &'static str,
        keep: &'static str,
        budget: &'static str,
        residency: &'static str,
        sinks: usize,
        recent: usize,
        importance: &'static str,
        alpha: &'static str,
        ahead: bool,
        positions: &'static str,
    }

    /// A preset that differs in nothing.
    const PLAIN: TextCase = TextCase {
        policy: "",
        index: "none",
        keep: "none",
        budget: "512",
        residency: "recall, 2 steps",
        sinks: 0,
        recent: 64,
        importance: "last",
        alpha: "none",
        ahead: false,
        positions: "text",
    };

    impl TextCase {
        /// The lines of session files of version 1, in their order.
        fn text(&self) -> String {
            let Self { policy, index, keep, budget, residency, sinks, recent, .. } = self;
            let Self { importance, alpha, ahead, positions, .. } = self;
            format!(
                "policy = {policy}\nindex = {index}\nkeep = {keep}\nbudget = {budget}\n\
                 adapt = none\nresidency = {residency}\nsinks = {sinks}\nrecent = {recent}\n\
                 dense layers = 0\nlayer step = 1\ntoken step = 1\nimportance = {importance}\n\
                 preselect = none\nmass = none\nalpha = {alpha}\nahead = {ahead}\n\
                 certify = false\ntail = false\nrefine = none\npositions = {positions}\n"
            )
        }
    }

    /// Every preset with a budget of 512 for contexts of 4,096 tokens, as the release that wrote
    /// session files of version 1 had it.
    const PRESETS: [TextCase; 14] = [
        TextCase { policy: "full", budget: "none", residency: "resident", recent: 0, ..PLAIN },
        TextCase {
            policy: "clusterkv",
            index: "clusters of 16, 8 a window, cosine, 10 iterations, at most 128, seed 0; \
                    segment 0, window 128, pooling 0",
            sinks: 16,
            ..PLAIN
        },
        TextCase {
            policy: "streaming-llm",
            residency: "evict",
            sinks: 4,
            recent: 508,
            positions: "cache",
            ..PLAIN
        },
        TextCase {
            policy: "quest",
            index: "blocks of 16, summary 2, top 1; segment 0, window 16, pooling 3",
            recent: 0,
            ..PLAIN
        },
        TextCase {
            policy: "infllm",
            index: "blocks of 32, summary 4, top 4; segment 0, window 32, pooling 4",
            sinks: 64,
            recent: 256,
            importance: "local",
            ..PLAIN
        },
        TextCase {
            policy: "ktransformers",
            index: "blocks of 32, summary 4, top 1; segment 0, window 32, pooling 4",
            residency: "attend on host",
            sinks: 32,
            recent: 256,
            ..PLAIN
        },
        TextCase {
            policy: "loki",
            index: "tokens by principal keys, rank none, adapts false; segment 0, window 64, \
                    pooling 0",
            sinks: 16,
            ..PLAIN
        },
        TextCase {
            policy: "infinigen",
            index: "tokens by skewed channels, rank none, adapts false; segment 0, window 64, \
                    pooling 0",
            sinks: 16,
            alpha: "4",
            ahead: true,
            ..PLAIN
        },
        TextCase {
            policy: "lrqk",
            index: "tokens by lrqk, 2 iterations, random, keys-first, seed 0, rank 32, adapts \
                    false; segment 0, window 64, pooling 0",
            ..PLAIN
        },
        TextCase {
            policy: "snapkv",
            keep: "last 32 queries, window 64, 7 avg group-first, safeguard none, beta none",
            residency: "evict",
            recent: 32,
            ..PLAIN
        },
        TextCase {
            policy: "pyramidkv",
            keep: "last 32 queries, window 64, 7 avg group-first, safeguard none, beta 20",
            residency: "evict",
            recent: 32,
            ..PLAIN
        },
        TextCase {
            policy: "ada-snapkv",
            keep: "last 32 queries, window 64, 7 max group-first, safeguard 0.2, beta none",
            residency: "evict",
            recent: 32,
            ..PLAIN
        },
        TextCase {
            policy: "ada-pyramid",
            keep: "last 32 queries, window 64, 7 max group-first, safeguard 0.2, beta 20",
            residency: "evict",
            recent: 32,
            ..PLAIN
        },
        TextCase {
            policy: "h2o",
            keep: "all queries, window 64, 1 max group-first, safeguard none, beta none",
            residency: "evict",
            recent: 256,
            ..PLAIN
        },
    ];

    #[test]
    fn presets_have_the_texts_of_session_files_of_version_1() {
        let is_of_version_1 = |preset: &&(Preset, &str)| preset.0 != Preset::Longview;
        let presets: Vec<_> = Preset::ALL.iter().filter(is_of_version_1).collect();
        assert_eq!(PRESETS.len(), presets.len());
        for ((preset, name), case) in presets.into_iter().zip(&PRESETS) {
            assert_eq!(case.policy, *name);
            let options = PolicyOptions::new(*preset).with_budget(512);
            assert_eq!(Policy::resolve(&options, 4096).unwrap().text(), case.text());
        }
    }

    /// The lines in which a policy's text differs from that of its preset.
    fn changed_lines(preset: Preset, settings: &[(&str, &str)]) -> Vec<String> {
        let text = |settings: &[(&str, &str)]| {
            let mut options = PolicyOptions::new(preset).with_budget(512);
            settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
            Policy::resolve(&options, 4096).unwrap().text()
        };
        let (plain, other) = (text(&[]), text(settings));
        assert_eq!(plain.lines().count(), other.lines().count());
        let differ = plain.lines().zip(other.lines()).filter(|(a, b)| a != b);
        differ.map(|(_, line)| line.to_owned()).collect()
    }

    #[test]
    fn a_later_preset_says_the_same_things_in_the_same_lines() {
        let text = |preset| {
            let options = PolicyOptions::new(preset).with_budget(512);
            Policy::resolve(&options, 4096).unwrap().text()
        };
        let (longview, clusterkv) = (text(Preset::Longview), text(Preset::Clusterkv));
        let differ = longview.lines().zip(clusterkv.lines()).filter(|(a, b)| a != b);
        let changed: Vec<&str> = differ.map(|(line, _)| line).collect();
        let want = [
            "policy = longview",
            "index = clusters of 16, 8 a window, cosine, 4 iterations, at most 128, seed 0; segment \
             8192, window 128, pooling 0",
            "tail = groups",
            "refine = 4 tokens by joint factors of shrunk sums of queries, rank 32, adapts false",
        ];
        assert_eq!(changed, want);
    }

    #[test]
    fn choices_have_the_texts_of_session_files_of_version_1() {
        let changed = changed_lines(
            Preset::Clusterkv,
            &[
                ("budget-mode", "ada"),
                ("certify", "true"),
                ("tail", "estimate"),
                ("distance", "l2"),
                ("dense-layers", "1"),
            ],
        );
        let want = [
            "index = clusters of 16, 8 a window, l2, 10 iterations, at most 128, seed 0; segment \
             0, window 128, pooling 0",
            "adapt = 0.2, 32 queries",
            "dense layers = 1",
            "certify = true",
            "tail = true",
        ];
        assert_eq!(changed, want);
        let given = [("refine", "3"), ("rank", "8"), ("attend", "host"), ("cluster-seed", "7")];
        let want = [
            "index = clusters of 16, 8 a window, cosine, 10 iterations, at most 128, seed 7; \
             segment 0, window 128, pooling 0",
            "residency = attend on host",
            "refine = 3 tokens by lrqk, 2 iterations, random, keys-first, seed 7, rank 8, adapts \
             false",
        ];
        assert_eq!(changed_lines(Preset::Clusterkv, &given), want);
        let given = [
            ("preselect", "9"),
            ("preselect-kernel", "5"),
            ("layer-step", "2"),
            ("token-step", "3"),
            ("observe", "20"),
            ("pool", "max"),
            ("attend", "device"),
        ];
        let want = [
            "residency = recall, 2 steps",
            "layer step = 2",
            "token step = 3",
            "preselect = 9, 20 queries, 5 max, true",
        ];
        assert_eq!(changed_lines(Preset::Ktransformers, &given), want);
        let given =
            [("budget-mode", "mass"), ("mass", "0.9"), ("alpha", "inf"), ("ahead", "false")];
        let want = ["mass = 0.9", "alpha = none", "ahead = false"];
        assert_eq!(changed_lines(Preset::Infinigen, &given), want);
        let given = [
            ("rank-tolerance", "0.25"),
            ("lrqk-init", "svd"),
            ("lrqk-order", "together"),
            ("lrqk-decode", "adaptive"),
        ];
        let want = ["index = tokens by lrqk, 2 iterations, svd, together, seed 0, rank by error \
                     0.25, adapts true; segment 0, window 64, pooling 0"];
        assert_eq!(changed_lines(Preset::Lrqk, &given), want);
        let given = [("pool-order", "pool-first"), ("safeguard", "0.5"), ("beta", "4")];
        let want = ["keep = last 32 queries, window 64, 7 max pool-first, safeguard 0.5, beta 4"];
        assert_eq!(changed_lines(Preset::AdaPyramid, &given), want);
        let given = [("positions", "text")];
        assert_eq!(changed_lines(Preset::StreamingLlm, &given), ["positions = text"]);
        let threads = [("host-threads", "3")];
        assert!(changed_lines(Preset::Ktransformers, &threads).is_empty(), "changes no result");
    }
}
