//! The published systems by name: where each stands in the space of policies, and what may be said
//! about it.

use serde::Serialize;

macro_rules! presets {
    ($($(#[$doc:meta])* $variant:ident = $name:literal {
        description: $description:literal,
        source: $source:literal,
        index: $index:literal,
        budget: $budget:literal,
        residency: $residency:literal,
        dense_when_deep: $dense:literal,
        options: [$($option:literal),* $(,)?],
    })+) => {
        /// The published systems that this release has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Preset {
            $($(#[$doc])* $variant,)+
        }

        impl Preset {
            /// All presets with the name that command lines use.
            pub const ALL: &'static [(Preset, &'static str)] = &[$((Preset::$variant, $name),)+];

            /// What every program takes unless told otherwise.
            pub const DEFAULT: Preset = Preset::Longview;

            /// Where the preset stands.
            pub fn info(self) -> PresetInfo {
                match self {
                    $(Preset::$variant => PresetInfo {
                        name: $name,
                        description: $description,
                        source: $source,
                        index: $index,
                        budget: $budget,
                        residency: $residency,
                        dense_when_deep: $dense,
                        options: &[$($option),*],
                    },)+
                }
            }
        }
    };
}

/// A row of the table of presets.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PresetInfo {
    /// On command lines and in reports.
    pub name: &'static str,
    /// What a decode step attends under it, for somebody who knows attention and no paper.
    pub description: &'static str,
    /// Where it was published.
    pub source: &'static str,
    /// How keys are summarised and compared.
    pub index: &'static str,
    /// How many tokens each head attends.
    pub budget: &'static str,
    /// Where the others are.
    pub residency: &'static str,
    /// Whether deep models attend everything in their first two layers, as the paper does.
    pub dense_when_deep: bool,
    /// The options that mean something to it.
    pub options: &'static [&'static str],
}

presets! {
    /// Every token attends to every earlier one: the oracle.
    Full = "full" {
        description: "Attends all tokens: the slowest, and nothing is left out.",
        source: "-",
        index: "none",
        budget: "all tokens",
        residency: "resident",
        dense_when_deep: false,
        // A budget says nothing here, but one command line serves several presets.
        options: ["budget", "dense-layers"],
    }
    /// Semantic clusters recalled from the host.
    Clusterkv = "clusterkv" {
        description: "Groups tokens with similar keys into clusters, and attends the clusters \
                      that fit the query best.",
        source: "ClusterKV (Liu et al., DAC 2025, arXiv 2412.03213)",
        index: "k-means clusters of keys",
        budget: "uniform, last cluster trimmed",
        residency: "recall",
        dense_when_deep: true,
        options: [
            "budget", "sinks", "recent", "window", "window-clusters", "cluster-tokens",
            "cluster-segment", "distance", "pooling", "iterations", "cache-steps", "dense-layers",
            "cluster-seed", "budget-mode", "mass", "safeguard", "observe", "attention-bound", "attend",
            "residual", "two-stage", "rank", "rerank", "host-threads",
        ],
    }
    /// The best tokens of opened clusters, and the means of all that is left.
    Longview = "longview" {
        description: "Opens the clusters that fit the query best, attends the best tokens in \
                      them, and counts all others by their means.",
        source: "Longview: ClusterKV's clusters, LRQK's factors, Loki's tokens, means of the rest",
        index: "k-means clusters of keys; in them, tokens in joint low-rank factors",
        budget: "uniform, token by token; means of clusters and of groups of them for the rest",
        residency: "recall",
        dense_when_deep: false,
        options: [
            "budget", "sinks", "recent", "window", "window-clusters", "cluster-tokens",
            "cluster-segment", "distance", "pooling", "iterations", "cache-steps", "dense-layers",
            "cluster-seed", "budget-mode", "safeguard", "observe", "attention-bound", "attend",
            "residual", "two-stage", "rank", "rerank", "host-threads",
        ],
    }
    /// Sinks and the most recent tokens only: the control that shows what recall adds.
    StreamingLlm = "streaming-llm" {
        description: "Attends the first and the last tokens alone. What stands between is not \
                      found: it shows what recall adds.",
        source: "StreamingLLM (Xiao et al., ICLR 2024, arXiv 2309.17453)",
        index: "none: first and last tokens",
        budget: "uniform",
        residency: "evict",
        dense_when_deep: true,
        options: ["budget", "sinks", "recent", "positions", "dense-layers"],
    }
    /// Pages by an upper bound of their scores.
    Quest = "quest" {
        description: "Cuts the context into pages, and attends the pages whose keys could score \
                      highest.",
        source: "Quest (Tang et al., ICML 2024, arXiv 2406.10774)",
        index: "largest and smallest key per page and channel",
        budget: "uniform, last page trimmed",
        residency: "recall",
        dense_when_deep: true,
        options: [
            "budget", "sinks", "recent", "window", "block-size", "head-select", "cache-steps",
            "dense-layers", "budget-mode", "safeguard", "observe", "attention-bound",
        ],
    }
    /// Blocks by the mean of their most attended keys.
    Infllm = "infllm" {
        description: "Cuts the context into blocks, and attends those whose most attended keys \
                      fit the query best.",
        source: "InfLLM (Xiao et al., NeurIPS 2024, arXiv 2402.04617)",
        index: "mean of a block's most attended keys",
        budget: "uniform, last block trimmed",
        residency: "recall",
        dense_when_deep: false,
        options: [
            "budget", "sinks", "recent", "window", "block-size", "representative-num",
            "importance", "head-select", "cache-steps", "dense-layers", "budget-mode", "safeguard",
            "observe",
        ],
    }
    /// Blocks by one of five representatives.
    Ktransformers = "ktransformers" {
        description: "Cuts the context into blocks with a representative each, and attends those \
                      whose representatives fit the query best.",
        source: "KTransformers CPU sparse attention (kvcache-ai, 2024)",
        index: "max, mean, quest, dynamic or fix per block; preselection",
        budget: "uniform, last block trimmed",
        residency: "attended on the host, or recalled",
        dense_when_deep: false,
        options: [
            "budget", "sinks", "recent", "window", "block-size", "representative",
            "representative-num", "head-select", "preselect", "preselect-kernel",
            "preselect-neighbours", "pool", "observe", "layer-step", "token-step", "cache-steps",
            "attend", "host-threads", "dense-layers", "attention-bound",
        ],
    }
    /// Tokens by the principal components of their keys.
    Loki = "loki" {
        description: "Compares the query with every token in the few directions in which keys \
                      differ most, and attends the best.",
        source: "Loki (Singhania et al., NeurIPS 2024, arXiv 2406.02542)",
        index: "keys in their leading principal components, tokens",
        budget: "uniform",
        residency: "recall",
        dense_when_deep: false,
        options: [
            "budget", "sinks", "recent", "window", "rank", "rank-tolerance", "pooling",
            "cache-steps", "dense-layers", "budget-mode",
            "mass", "safeguard", "observe",
        ],
    }
    /// Tokens by the most telling channels of skewed keys.
    Infinigen = "infinigen" {
        description: "Compares the query with every token in the few channels that tell most, and \
                      attends those that score near the best.",
        source: "InfiniGen (Lee et al., OSDI 2024, arXiv 2406.19707)",
        index: "partial skewed keys, tokens",
        budget: "threshold below the best score, up to a cap",
        residency: "recall",
        dense_when_deep: false,
        options: [
            "budget", "sinks", "recent", "window", "rank", "alpha", "layer-prefetch", "pooling",
            "cache-steps", "dense-layers", "budget-mode", "mass", "safeguard", "observe",
        ],
    }
    /// Tokens by joint low-rank factors of queries and keys.
    Lrqk = "lrqk" {
        description: "Compares the query with every token by short factors of queries and keys, \
                      and attends the best.",
        source: "LRQK (Li et al., NeurIPS 2025, arXiv 2510.23649), Gram form",
        index: "joint low-rank factors of queries and keys, tokens",
        budget: "uniform and lite tokens",
        residency: "recall, hits and misses",
        dense_when_deep: false,
        options: [
            "budget", "sinks", "recent", "window", "rank", "rank-tolerance", "iterations",
            "lrqk-init", "lrqk-order", "lrqk-decode", "pooling", "cache-steps", "dense-layers",
            "budget-mode", "mass", "safeguard", "observe", "cluster-seed",
        ],
    }
    /// Tokens that the prompt's last queries attended.
    Snapkv = "snapkv" {
        description: "Keeps the tokens that the end of the prompt attended most. No later step \
                      attends the others.",
        source: "SnapKV (Li et al., NeurIPS 2024, arXiv 2404.14469)",
        index: "attention of the last queries, tokens",
        budget: "uniform",
        residency: "evict",
        dense_when_deep: false,
        options: [
            "budget", "recent", "window", "observe", "pool-kernel", "pool", "pool-order",
            "dense-layers",
        ],
    }
    /// The same with more tokens in the first layers than in the last.
    Pyramidkv = "pyramidkv" {
        description: "Keeps the tokens that the end of the prompt attended most, more of them in \
                      the first layers than in the last. No later step attends the others.",
        source: "PyramidKV (Cai et al., 2024, arXiv 2406.02069)",
        index: "attention of the last queries, tokens",
        budget: "falling from layer to layer",
        residency: "evict",
        dense_when_deep: false,
        options: [
            "budget", "recent", "window", "observe", "pool-kernel", "pool", "pool-order", "beta",
            "dense-layers",
        ],
    }
    /// SnapKV with budgets by head.
    AdaSnapkv = "ada-snapkv" {
        description: "Keeps the tokens that the end of the prompt attended most, more of them in \
                      heads that attend many. No later step attends the others.",
        source: "Ada-KV (Feng et al., NeurIPS 2025, arXiv 2407.11550)",
        index: "attention of the last queries, tokens",
        budget: "adaptive per head",
        residency: "evict",
        dense_when_deep: false,
        options: [
            "budget", "recent", "window", "observe", "pool-kernel", "pool", "pool-order",
            "safeguard", "dense-layers",
        ],
    }
    /// PyramidKV with budgets by head.
    AdaPyramid = "ada-pyramid" {
        description: "Keeps the tokens that the end of the prompt attended most, more of them in \
                      the first layers and in heads that attend many. No later step attends the \
                      others.",
        source: "Ada-KV (Feng et al., NeurIPS 2025, arXiv 2407.11550) and PyramidKV",
        index: "attention of the last queries, tokens",
        budget: "adaptive per head, falling from layer to layer",
        residency: "evict",
        dense_when_deep: false,
        options: [
            "budget", "recent", "window", "observe", "pool-kernel", "pool", "pool-order",
            "safeguard", "beta", "dense-layers",
        ],
    }
    /// Tokens that all queries so far attended.
    H2o = "h2o" {
        description: "Keeps the tokens that all tokens so far attended most, and the latest. No \
                      later step attends the others.",
        source: "H2O (Zhang et al., NeurIPS 2023, arXiv 2306.14048)",
        index: "attention of all queries so far, tokens",
        budget: "uniform: heavy hitters and recent tokens",
        residency: "evict",
        dense_when_deep: false,
        options: ["budget", "heavy-ratio", "window", "dense-layers"],
    }
}

impl Preset {
    /// The name on command lines and in reports.
    pub fn name(self) -> &'static str {
        self.info().name
    }
}

impl std::fmt::Display for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Preset {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
