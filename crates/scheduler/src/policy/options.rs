//! What a user may say about a policy: one list, from which command lines, configuration files and
//! the table of presets are made.

use longview_ops::{Distance, PoolKind, Pooling};

use super::advice::PolicyAdvice;
use super::error::{PolicyError, quoted};
use super::left_out::{AttentionBound, Residual};
use super::limits::{
    ANY_LAYERS, ANY_STEPS, ANY_TOKENS, DEEP_LAYERS, DIMENSIONS, DISTANCE, KEYS, LAYERS,
    MAX_CONTEXT, NEIGHBOURS, NONZERO_SHARE, PART, QUERIES, RATIO, SHARE, STEPS, TOKENS,
};
use super::preset::Preset;
use super::range::ValueRange;

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
        let tokens = text.parse().ok().filter(|tokens| *tokens <= MAX_CONTEXT);
        tokens
            .map(BudgetOption::Tokens)
            .ok_or_else(|| format!("'{}' is neither 'auto' nor {TOKENS}", quoted(text)))
    }
}

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$item:meta])* $variant:ident = $text:literal,)+
    })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $name {
                $($(#[$item])* $variant,)+
            }

            impl Choice for $name {
                const ALL: &'static [(Self, &'static str)] = &[$(($name::$variant, $text),)+];
            }

            impl std::str::FromStr for $name {
                type Err = String;

                fn from_str(text: &str) -> Result<Self, String> {
                    choose(text)
                }
            }
        )+
    };
}

/// A value that has a name.
pub(super) trait Choice: Copy + PartialEq + 'static {
    const ALL: &'static [(Self, &'static str)];
}

/// The name of a value; none for those that no user can ask for.
pub(super) fn name_of<C: Choice>(value: C) -> &'static str {
    C::ALL.iter().find(|(known, _)| *known == value).map_or("", |(_, name)| name)
}

fn choose<C: Choice>(text: &str) -> Result<C, String> {
    C::ALL.iter().find(|(_, name)| *name == text).map(|(value, _)| *value).ok_or_else(|| {
        let names: Vec<_> = C::ALL.iter().map(|(_, name)| *name).collect();
        format!("'{}' is not one of {}", quoted(text), names.join(", "))
    })
}

choices! {
    /// What stands for a block of keys.
    Representative {
        /// The largest value of every channel.
        Max = "max",
        /// The mean.
        Mean = "mean",
        /// Largest and smallest value of every channel: an upper bound.
        Quest = "quest",
        /// The mean of the keys that received most attention.
        Dynamic = "dynamic",
        /// The mean of every n-th key.
        Fix = "fix",
    }
    /// Who shares a selection of blocks.
    HeadSelect {
        /// All heads of a layer.
        Shared = "shared",
        /// The query heads of a KV head.
        Separate = "separate",
    }
    /// How a budget is divided among the KV heads of a layer.
    BudgetMode {
        /// Every head has the same.
        Uniform = "uniform",
        /// By the attention that the best tokens of a head receive (Ada-KV).
        Ada = "ada",
        /// As much as the estimated attention needs, step by step, up to the budget.
        Mass = "mass",
    }
    /// Where rows that were chosen are attended.
    Attend {
        /// On the device, which fetches those that it lacks.
        Device = "device",
        /// On the host, where they are; the results are merged.
        Host = "host",
    }
    /// At which positions an evicting policy has its first tokens.
    Positions {
        /// Where they are in the text.
        Text = "text",
        /// Where they are in the cache: right before the recent tokens.
        Cache = "cache",
    }
    /// Which comes first, neighbours or heads.
    PoolOrder {
        /// The heads of a group become one, then neighbours are pooled (the released Ada-KV).
        GroupFirst = "group-first",
        /// Neighbours of each head are pooled, then the heads of a group become one (SnapKV,
        /// kvpress).
        PoolFirst = "pool-first",
    }
    /// Which queries say how much a key represents its block (InfLLM).
    Importance {
        /// Those of the local window behind it, by their inner products (the paper).
        Local = "local",
        /// The last of the prompt, by their attention.
        Last = "last",
    }
    /// How LRQK's factors begin.
    LrqkInit {
        /// At random, from the seed.
        Random = "random",
        /// With the channels of queries, and those of keys, that are largest.
        Top = "top",
        /// With the channels that are largest in queries and keys together.
        TopJoint = "top-joint",
        /// With the best factors of the given rank (Eckart and Young).
        Svd = "svd",
    }
    /// How LRQK finds the low ranks of a step's query and key.
    LrqkDecode {
        /// By the prompt's projections, on the device.
        Projected = "projected",
        /// As the paper: fitted to the step on the host, and the bases with them.
        Adaptive = "adaptive",
    }
    /// Which of LRQK's factors is updated first.
    LrqkOrder {
        /// That of the keys, then that of the queries (the paper's algorithm 1).
        KeysFirst = "keys-first",
        /// That of the queries, then that of the keys with the new one (the released code for
        /// equal weights).
        QueriesFirst = "queries-first",
        /// Both from the old ones (the released code for other weights).
        Together = "together",
    }
}

/// Names of what near means.
const DISTANCES: &[(Distance, &str)] = &[
    (Distance::Cosine, "cosine"),
    (Distance::L2, "l2"),
    (Distance::InnerProduct, "inner-product"),
];

/// Names of how a group chooses together.
const POOLINGS: &[(Pooling, &str)] = &[
    (Pooling::SumSoftmax, "sum"),
    (Pooling::MaxSoftmax, "max"),
    (Pooling::SizeWeighted, "size-weighted"),
];

/// Names of how neighbours are pooled.
const POOLS: &[(PoolKind, &str)] = &[(PoolKind::Average, "avg"), (PoolKind::Max, "max")];

impl Choice for Distance {
    const ALL: &'static [(Self, &'static str)] = DISTANCES;
}

impl Choice for Pooling {
    const ALL: &'static [(Self, &'static str)] = POOLINGS;
}

impl Choice for PoolKind {
    const ALL: &'static [(Self, &'static str)] = POOLS;
}

/// Reads one value, and says it as it is read.
trait Read: Sized {
    fn read(text: &str, range: &ValueRange) -> Result<Self, String>;
    fn text(&self) -> String;

    /// Whether it is in the range of its option.
    fn is_in(&self, _: &ValueRange) -> bool {
        true
    }

    /// The value of that range which is nearest to it, if there is one.
    fn nearest(&self, _: &ValueRange) -> Option<String> {
        None
    }
}

/// Parses a value that is described as `what`, or by the range of its option.
fn parsed<T: std::str::FromStr>(text: &str, range: &ValueRange, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| match range {
        ValueRange::Any => format!("'{}' is not {what}", quoted(text)),
        range => format!("'{}' is not {range}", quoted(text)),
    })
}

impl Read for usize {
    fn read(text: &str, range: &ValueRange) -> Result<Self, String> {
        parsed(text, range, "a whole number")
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn is_in(&self, range: &ValueRange) -> bool {
        range.has_whole(*self)
    }

    fn nearest(&self, range: &ValueRange) -> Option<String> {
        Some(range.nearest_whole(*self).to_string())
    }
}

impl Read for f32 {
    fn read(text: &str, range: &ValueRange) -> Result<Self, String> {
        parsed(text, range, "a number")
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn is_in(&self, range: &ValueRange) -> bool {
        range.has_number(*self)
    }

    fn nearest(&self, range: &ValueRange) -> Option<String> {
        range.nearest_number(*self).map(|nearest| nearest.to_string())
    }
}

macro_rules! read {
    ($($type:ty => $what:literal),+) => {
        $(impl Read for $type {
            fn read(text: &str, range: &ValueRange) -> Result<Self, String> {
                parsed(text, range, $what)
            }

            fn text(&self) -> String {
                self.to_string()
            }
        })+
    };
}

read!(u64 => "a whole number from 0 to 18,446,744,073,709,551,615", bool => "true or false");

macro_rules! read_choice {
    ($($type:ty),+) => {
        $(impl Read for $type {
            fn read(text: &str, _: &ValueRange) -> Result<Self, String> {
                choose(text)
            }

            fn text(&self) -> String {
                name_of(*self).to_owned()
            }
        })+
    };
}

read_choice!(
    Representative,
    HeadSelect,
    BudgetMode,
    Attend,
    Positions,
    PoolOrder,
    Importance,
    LrqkDecode,
    LrqkInit,
    LrqkOrder,
    Distance,
    Pooling,
    PoolKind
);

impl Read for Residual {
    fn read(text: &str, _: &ValueRange) -> Result<Self, String> {
        text.parse()
    }

    fn text(&self) -> String {
        (*self).text()
    }
}

impl Read for AttentionBound {
    fn read(text: &str, _: &ValueRange) -> Result<Self, String> {
        text.parse()
    }

    fn text(&self) -> String {
        (*self).text()
    }
}

impl Read for BudgetOption {
    fn read(text: &str, _: &ValueRange) -> Result<Self, String> {
        text.parse()
    }

    /// None at all has an error of its own, which says more.
    fn is_in(&self, range: &ValueRange) -> bool {
        matches!(self, Self::Auto | Self::Tokens(0))
            || matches!(self, Self::Tokens(tokens) if range.has_whole(*tokens))
    }

    fn nearest(&self, range: &ValueRange) -> Option<String> {
        match self {
            Self::Auto => None,
            Self::Tokens(tokens) => tokens.nearest(range),
        }
    }

    fn text(&self) -> String {
        match self {
            BudgetOption::Auto => "auto".into(),
            BudgetOption::Tokens(tokens) => tokens.to_string(),
        }
    }
}

/// `value` of an option of that name, unless it is outside of its range.
fn check<T: Read>(option: &'static str, range: &ValueRange, value: &T) -> Result<(), PolicyError> {
    if value.is_in(range) {
        return Ok(());
    }
    let (value, nearest) = (value.text(), value.nearest(range));
    Err(PolicyError::Range { option, value, range: *range, nearest })
}

/// One option of policies.
#[derive(Clone, Copy, Debug)]
pub struct OptionInfo {
    /// Its name on command lines (`--name`) and in policy files (`name = ..`).
    pub name: &'static str,
    /// The name that it had before, which still works, and which session files of version 1 have.
    pub old_name: &'static str,
    /// What its value is.
    pub value: &'static str,
    /// Which values mean something.
    pub range: ValueRange,
    /// What it does, and its default.
    pub help: &'static str,
}

impl OptionInfo {
    /// The option of this name, the one that it had before included.
    pub fn find(name: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.name == name || option.old_name == name)
    }
}

macro_rules! options {
    (@old $name:literal) => { $name };
    (@old $name:literal $old:literal) => { $old };
    (@range) => { ValueRange::Any };
    (@range $range:expr) => { $range };
    ($(
        $(#[doc = $doc:literal])+
        $field:ident: $type:ty = $name:literal $((was $old:literal))?, $value:literal
            $(, $range:expr)?;
    )+) => {
        /// What a user may say about a policy. `None` takes the preset's default.
        #[derive(Clone, Debug, PartialEq)]
        pub struct PolicyOptions {
            /// The combination to start from.
            pub preset: Preset,
            $($(#[doc = $doc])+ pub $field: Option<$type>,)+
        }

        /// Every option, in the order of the documents.
        pub const OPTIONS: &[OptionInfo] = &[
            $(OptionInfo {
                name: $name,
                old_name: options!(@old $name $($old)?),
                value: $value,
                range: options!(@range $($range)?),
                help: concat!($($doc),+),
            },)+
        ];

        impl PolicyOptions {
            /// A preset with its defaults.
            pub fn new(preset: Preset) -> Self {
                Self { preset, $($field: None,)+ }
            }

            /// Sets the option of that name from text.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), PolicyError> {
                let wrong = |reason| PolicyError::Value { option: name.to_owned(), reason };
                match name {
                    $($name $(| $old)? => {
                        let range = options!(@range $($range)?);
                        let value = <$type>::read(text, &range).map_err(wrong)?;
                        check($name, &range, &value)?;
                        self.$field = Some(value);
                    })+
                    _ => return Err(PolicyError::UnknownOption(quoted(name))),
                }
                Ok(())
            }

            /// Takes the preset's default for the option of that name.
            pub(super) fn omit(&mut self, name: &str) {
                match name {
                    $($name $(| $old)? => self.$field = None,)+
                    _ => {}
                }
            }

            /// Fails for the first value that is outside of its option's range.
            pub(super) fn check_ranges(&self) -> Result<(), PolicyError> {
                $(if let Some(value) = &self.$field {
                    check($name, &options!(@range $($range)?), value)?;
                })+
                Ok(())
            }

            /// What was given, one `name = value` a line, the preset as `policy = name` first. The
            /// same options have the same text on every machine. Names are those of session files
            /// of version 1: the old ones, where an option was renamed since.
            pub fn text(&self) -> String {
                let mut text = format!("policy = {}\n", self.preset);
                $(if let Some(value) = &self.$field {
                    text.extend([options!(@old $name $($old)?), " = ", &value.text(), "\n"]);
                })+
                text
            }

            /// Names of the options that were given.
            pub fn given(&self) -> Vec<&'static str> {
                let mut given = Vec::new();
                $(if self.$field.is_some() { given.push($name); })+
                given
            }
        }
    };
}

options! {
    /// Tokens that a KV head attends in one step, first and last tokens included; above the context
    /// it equals full attention. auto: 512 up to a context of 4096 tokens, 1024 up to 32768, 2048
    /// beyond; for lrqk 256 up to 4096, 512 up to 8192, 1024 below 32768, else 2048, and the last
    /// tokens. Without it longview attends all of up to 8192 tokens, where they lie in the memory
    /// that computes.
    budget: BudgetOption = "budget", "TOKENS", TOKENS;
    /// How the budget is divided among the KV heads of a layer: uniform; ada: by the attention that
    /// the best tokens of a head receive; mass: what --mass needs in each step, up to the budget.
    budget_mode: BudgetMode = "budget-mode", "MODE";
    /// Share of the attention to indexed tokens, as the index estimates it, that --budget-mode mass
    /// recalls [default: 0.95].
    mass: f32 = "mass", "SHARE", NONZERO_SHARE;
    /// InfiniGen takes tokens whose score is at most this far below the best one's, as many for
    /// every head as the heads need on average, up to the budget; inf: the whole budget [default:
    /// 4].
    alpha: f32 = "alpha", "DISTANCE", DISTANCE;
    /// Whether a layer of infinigen chooses by the query that the input of the layer before
    /// predicts, as the paper, or by its own: true or false [default: true].
    layer_prefetch: bool = "layer-prefetch" (was "ahead"), "BOOL";
    /// Bound the attention that every step leaves out, and report it: worst-case (from the index,
    /// never violated), sampled (from drawn tokens, each with 95 % confidence) or off; each layer
    /// then waits for its query [default: off].
    attention_bound: AttentionBound = "attention-bound" (was "certify"), "KIND";
    /// What stands for tokens that a step does not choose: drop (nothing), means (each cluster's
    /// mean key and mean value, weighted by these tokens), groups (the same for clusters with a
    /// chosen token, and one mean for each 32 others), sample:N (N of them, drawn evenly, weighted
    /// by what they stand for; on the host) or verified:EPS,DELTA (as many as keep the error of the
    /// attention's sum below EPS, but for a chance of DELTA) [default: drop; groups for longview].
    residual: Residual = "residual" (was "tail"), "NAME";
    /// Open clusters for so many times the budget, and attend those of their tokens that score best
    /// in a space of --rank dimensions [default: 1, all tokens of fewer clusters; for longview what
    /// opens 2,048 tokens, but 16 at most, and 4 at least (3 above a budget of 768, 2 above 1,024);
    /// above 32,768 tokens more, by the root of the length].
    two_stage: usize = "two-stage" (was "refine"), "TIMES", STEPS;
    /// With --two-stage: score the best tokens again by their keys, so many times the budget of
    /// them, and attend the best of these; 0: none. On the CPU, with KV rows of 16 or 32 bits
    /// [default: 0; for longview what makes 1,024 tokens, at most 4].
    rerank: usize = "rerank", "TIMES", ANY_STEPS;
    /// Positions of first tokens once others are gone: cache (right before the recent ones) or text
    /// (where they were) [default: cache, as the paper].
    positions: Positions = "positions", "NAME";
    /// First tokens, always attended [default: 16, or an eighth of a small budget; 4 for
    /// streaming-llm; a block for ktransformers; 128 for infllm; none for quest and those that keep
    /// tokens by their attention].
    sinks: usize = "sinks", "TOKENS", ANY_TOKENS;
    /// Last tokens, always attended (ktransformers: local_windows_len; lrqk: lite tokens)
    /// [default: 64, or a quarter of a small budget; the rest of the budget for streaming-llm].
    recent: usize = "recent", "TOKENS", ANY_TOKENS;
    /// Generated tokens that gather behind the last ones before they are indexed, or before what is
    /// kept is chosen again [default: 320, or a quarter of a small budget].
    window: usize = "window", "TOKENS", TOKENS;
    /// Clusters made of a full window [default: as many as keep --cluster-tokens].
    window_clusters: usize = "window-clusters", "CLUSTERS", TOKENS;
    /// Mean tokens per cluster [default: 16; the ClusterKV paper uses 80].
    cluster_tokens: usize = "cluster-tokens", "TOKENS", TOKENS;
    /// Prompt tokens that are clustered by themselves as soon as they are computed; 0: the whole
    /// prompt at its end, as in the paper [default: 0 up to a context of 32768, else 8192; for
    /// longview always 8192].
    cluster_segment: usize = "cluster-segment", "TOKENS", ANY_TOKENS;
    /// What makes two keys similar: cosine, l2 or inner-product [default: cosine].
    distance: Distance = "distance", "NAME";
    /// How query heads that share a KV head choose together: by the sum or the max of their
    /// attention, or size-weighted [default: sum].
    pooling: Pooling = "pooling", "NAME";
    /// Most iterations of k-means, or of LRQK's factors [default: 10; for longview 4, for LRQK 2].
    iterations: usize = "iterations", "N", STEPS;
    /// Tokens of a block [default: 16 for quest; for ktransformers and infllm 128, less for small
    /// budgets].
    block_size: usize = "block-size", "TOKENS", TOKENS;
    /// What stands for a block of keys: max, mean, quest, dynamic or fix [default: quest for quest,
    /// dynamic for ktransformers and infllm].
    representative: Representative = "representative", "NAME";
    /// Keys of a block that dynamic and fix are made of [default: 1 for ktransformers, 4 for
    /// infllm].
    representative_num: usize = "representative-num", "KEYS", KEYS;
    /// Which queries say how much a key of infllm represents its block: local: those of the
    /// --recent tokens behind it, as the paper; last: the prompt's last 128 [default: local].
    importance: Importance = "importance", "QUERIES";
    /// Who shares a selection of blocks: shared (all heads of a layer) or separate (each KV head)
    /// [default: separate for quest, else shared].
    head_select: HeadSelect = "head-select", "MODE";
    /// Blocks of the prompt that decoding may choose from, by the attention of the prompt's last
    /// queries [default: all].
    preselect: usize = "preselect", "BLOCKS", TOKENS;
    /// Neighbouring tokens whose attention is pooled before --preselect scores blocks; odd
    /// [default: 1, none].
    preselect_kernel: usize = "preselect-kernel", "TOKENS", NEIGHBOURS;
    /// Whether --preselect scores a block with the nearest quarter of each neighbour: true or false
    /// [default: true].
    preselect_neighbours: bool = "preselect-neighbours", "BOOL";
    /// Layers that share the selection of the first of them [default: 1].
    layer_step: usize = "layer-step", "LAYERS", LAYERS;
    /// Steps for which a selection of blocks holds [default: 1].
    token_step: usize = "token-step", "STEPS", STEPS;
    /// Dimensions in which keys are compared with queries [default: 32 for lrqk and longview, else
    /// a quarter of a head's width].
    rank: usize = "rank", "R", DIMENSIONS;
    /// Choose the rank by the error of the scores q k that is left, relative, instead [default: the
    /// rank is given].
    rank_tolerance: f32 = "rank-tolerance", "ERROR", PART;
    /// How LRQK's factors begin: random, top, top-joint or svd [default: random, as the paper].
    lrqk_init: LrqkInit = "lrqk-init", "NAME";
    /// Which of LRQK's factors is updated first: keys-first, queries-first or together [default:
    /// keys-first, as the paper].
    lrqk_order: LrqkOrder = "lrqk-order", "NAME";
    /// How LRQK finds the low ranks of a step's query and key: projected, by the prompt's factors,
    /// on the device, or adaptive, as the paper, fitted to the step on the host [default:
    /// projected].
    lrqk_decode: LrqkDecode = "lrqk-decode", "NAME";
    /// Last queries of the prompt whose attention says what is kept [default: 32].
    observe: usize = "observe", "QUERIES", QUERIES;
    /// Neighbouring tokens whose attention is pooled; odd [default: 7].
    pool_kernel: usize = "pool-kernel", "TOKENS", NEIGHBOURS;
    /// Whether neighbours are pooled to their avg or their max [default: avg for snapkv, pyramidkv
    /// and ktransformers, max for the others].
    pool: PoolKind = "pool", "NAME";
    /// Whether heads of a group become one before neighbours are pooled, or after: group-first or
    /// pool-first [default: group-first].
    pool_order: PoolOrder = "pool-order", "ORDER";
    /// Share of every head's budget that Ada-KV does not move: 1 is uniform, 0 is all by attention
    /// [default: 0.2].
    safeguard: f32 = "safeguard", "SHARE", SHARE;
    /// PyramidKV's ratio of the mean budget to that of the last layer [default: 20].
    beta: f32 = "beta", "RATIO", RATIO;
    /// Share of the budget that H2O gives to tokens of much attention; the rest is for the last
    /// ones [default: 0.5].
    heavy_ratio: f32 = "heavy-ratio", "SHARE", PART;
    /// Where chosen rows are attended: on the device, which fetches them, or on the host, where
    /// they are [default: host for ktransformers, else device]. A device that shares the host's
    /// memory attends them in place either way.
    attend: Attend = "attend", "PLACE";
    /// Threads that attend on the host, each a KV head at a time, and no more than there are KV
    /// heads; the result is the same for any number [default: as many as the machine runs at once].
    host_threads: usize = "host-threads", "N", STEPS;
    /// Steps for which recalled rows stay on the device; 0: every step fetches all [default: 2].
    cache_steps: usize = "cache-steps", "STEPS", ANY_STEPS;
    /// First layers that attend every token [default: 2 for deep models as in the papers, else 0].
    dense_layers: usize = "dense-layers", "LAYERS", ANY_LAYERS;
    /// Seed of k-means, of LRQK's random start and of the tokens that are drawn [default: 0].
    seed: u64 = "cluster-seed", "N";
}

impl PolicyOptions {
    /// The same with what depends on the model's depth filled in: 2 dense layers from
    /// [`DEEP_LAYERS`] layers on, else 0. `full` and policies without dense layers in their
    /// papers are left alone.
    pub fn for_depth(mut self, n_layers: usize) -> Self {
        let default = if n_layers >= DEEP_LAYERS { 2 } else { 0 };
        if self.preset.info().dense_when_deep {
            self.dense_layers.get_or_insert(default);
        }
        self
    }

    /// Reads what [`PolicyOptions::text`] wrote.
    pub fn from_text(text: &str) -> Result<Self, PolicyError> {
        let mut lines = text.lines().map(|line| line.split_once(" = ").unwrap_or((line, "")));
        let mut options = match lines.next() {
            Some(("policy", name)) => Self::new(name.parse()?),
            _ => return Err(PolicyError::UnknownPreset(String::new())),
        };
        lines.try_for_each(|(name, value)| options.set_once(name, value))?;
        Ok(options)
    }

    /// [`PolicyOptions::set`] for an option that was not given yet, under its name or its old one.
    pub fn set_once(&mut self, name: &str, text: &str) -> Result<(), PolicyError> {
        match OptionInfo::find(name) {
            Some(info) if self.given().contains(&info.name) => Err(PolicyError::Twice(info.name)),
            _ => self.set(name, text),
        }
    }

    /// Does what an error advises.
    pub fn follow(&mut self, advice: &PolicyAdvice) -> Result<(), PolicyError> {
        match advice {
            PolicyAdvice::Raise { option, least } => self.set(option, &least.to_string()),
            PolicyAdvice::Use { option, value } => self.set(option, value),
            PolicyAdvice::Omit { option } => {
                self.omit(option);
                Ok(())
            }
        }
    }

    /// The same with a budget of `tokens`.
    pub fn with_budget(mut self, tokens: usize) -> Self {
        self.budget = Some(BudgetOption::Tokens(tokens));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Old name, new name, old value, new value.
    const RENAMED: [(&str, &str, &str, &str); 5] = [
        ("ahead", "layer-prefetch", "true", "true"),
        ("certify", "attention-bound", "true", "true"),
        ("tail", "residual", "estimate", "means"),
        ("tail", "residual", "drop", "drop"),
        ("refine", "two-stage", "3", "3"),
    ];

    fn with(name: &str, value: &str) -> PolicyOptions {
        let mut options = PolicyOptions::new(Preset::Clusterkv);
        options.set(name, value).unwrap();
        options
    }

    #[test]
    fn an_old_name_means_what_the_new_one_does() {
        for (old, new, old_value, new_value) in RENAMED {
            let want = with(new, new_value);
            for (name, value) in [(old, old_value), (old, new_value), (new, old_value)] {
                assert_eq!(with(name, value), want, "{name} = {value}");
            }
            assert_eq!(want.given(), [new], "errors and reports say the new name");
        }
        assert_eq!(with("tail", "estimate").residual, Some(Residual::Means));
        assert_eq!(with("refine", "3").two_stage, Some(3));
        assert_eq!(with("certify", "true").attention_bound, Some(AttentionBound::WorstCase));
        assert_eq!(with("ahead", "false").layer_prefetch, Some(false));
    }

    #[test]
    fn text_has_the_names_of_session_files_of_version_1() {
        for (old, new, old_value, new_value) in RENAMED {
            let text = with(new, new_value).text();
            assert_eq!(text, format!("policy = clusterkv\n{old} = {old_value}\n"));
            assert_eq!(PolicyOptions::from_text(&text), Ok(with(new, new_value)));
        }
        let new_names = "policy = clusterkv\nresidual = means\ntwo-stage = 3\n";
        let options = PolicyOptions::from_text(new_names).unwrap();
        assert_eq!(options.text(), "policy = clusterkv\ntail = estimate\nrefine = 3\n");
    }

    #[test]
    fn renamed_options_are_listed_with_both_names() {
        for info in OPTIONS {
            let renamed = RENAMED.iter().find(|(_, new, ..)| *new == info.name);
            let old = renamed.map_or(info.name, |(old, ..)| old);
            assert_eq!(info.old_name, old);
        }
    }

    #[test]
    fn text_keeps_the_order_and_the_values_that_were_given() {
        let mut options = PolicyOptions::new(Preset::Lrqk);
        for (name, value) in [("cluster-seed", "18446744073709551615"), ("budget", "auto")] {
            options.set(name, value).unwrap();
        }
        options.set("rank-tolerance", "0.1").unwrap();
        let text = "policy = lrqk\nbudget = auto\nrank-tolerance = 0.1\n\
                    cluster-seed = 18446744073709551615\n";
        assert_eq!(options.text(), text);
        assert_eq!(PolicyOptions::from_text(text), Ok(options));
    }

    #[test]
    fn a_value_that_is_none_says_what_would_do() {
        let message = |name, value| {
            PolicyOptions::new(Preset::Clusterkv).set(name, value).unwrap_err().to_string()
        };
        assert_eq!(message("mass", "much"), "--mass: 'much' is not a number above 0, at most 1");
        assert_eq!(
            message("budget", "some"),
            "--budget: 'some' is neither 'auto' nor a whole number from 1 to 1,073,741,824"
        );
        let want = "--certify: 'yes' is not one of off, worst-case, sampled";
        assert_eq!(message("certify", "yes"), want);
        assert_eq!(message("ahead", "yes"), "--ahead: 'yes' is not true or false");
        assert!(message("estimate", "tail").starts_with("unknown option 'estimate'"));
    }

    #[test]
    fn depth_fills_in_dense_layers_where_the_paper_has_them() {
        let dense = |preset, n_layers| PolicyOptions::new(preset).for_depth(n_layers).dense_layers;
        let deep = super::DEEP_LAYERS;
        assert_eq!(dense(Preset::Quest, deep), Some(2));
        assert_eq!(dense(Preset::Quest, deep - 1), Some(0));
        assert_eq!(dense(Preset::Loki, deep), None);
        assert_eq!(dense(Preset::Full, deep), None);
    }
}
