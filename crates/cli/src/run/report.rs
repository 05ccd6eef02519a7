//! What a run can say about itself.

use std::time::Duration;

use anyhow::Result;
use longview_engine::{FinishReason, Generation, Session, Timings};
use longview_ops::Backend;
use longview_scheduler::{AttentionBound, RecallMode, SAMPLED_CONFIDENCE, Stats};
use serde::Serialize;

use super::args::RunArgs;
use crate::out::{self, note};
use crate::units;

/// The object of `--json`.
#[derive(Serialize)]
pub struct Report {
    model: String,
    policy: &'static str,
    budget_tokens: Option<usize>,
    chat_template: bool,
    prompt_ids: Vec<u32>,
    generated_ids: Vec<u32>,
    text: String,
    finish_reason: FinishReason,
    context_tokens: usize,
    seed: u64,
    timings: TimingsJson,
    statistics: StatsJson,
}

#[derive(Serialize)]
struct TimingsJson {
    load_s: f64,
    prefill_tokens: u64,
    prefill_s: f64,
    prefill_tokens_per_s: Option<f64>,
    decode_tokens: u64,
    decode_s: f64,
    decode_tokens_per_s: Option<f64>,
    /// Tokens that steps computed on trial, and those of them that the answer had.
    drafted_tokens: u64,
    accepted_tokens: u64,
    /// What the device was asked for each decoded token; `null` on the CPU.
    decode_device_per_token: Option<PerToken>,
}

#[derive(Serialize)]
struct PerToken {
    dispatches: f64,
    submits: f64,
    readbacks: f64,
    bytes_up: f64,
    bytes_down: f64,
}

impl PerToken {
    fn new(timings: &Timings) -> Option<Self> {
        let (n, d) = (timings.decode_tokens as f64, timings.decode_device);
        let each = |total: u64| total as f64 / n;
        (n > 0.0 && d.dispatches > 0).then(|| Self {
            dispatches: each(d.dispatches),
            submits: each(d.submits),
            readbacks: each(d.readbacks),
            bytes_up: each(d.bytes_up),
            bytes_down: each(d.bytes_down),
        })
    }
}

#[derive(Serialize)]
struct StatsJson {
    steps: u64,
    hits: u64,
    misses: u64,
    hit_rate: Option<f64>,
    fetched_bytes: u64,
    mean_attended: Option<f64>,
    selected_clusters: u64,
    clusterings: u64,
    /// Rows let go of for good.
    evictions: u64,
    /// Bounds of the attention that steps left out; only where the policy asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    bounds: Option<BoundsJson>,
    /// How the prompt was read.
    prefill: String,
    /// The part of all blocks that sparse prefill attended; only where there was any.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_density: Option<f64>,
    /// Which query chose what was recalled.
    recall: &'static str,
    speculated_steps: u64,
    repeated_steps: u64,
    failed_gates: u64,
    select_s: f64,
    fetch_s: f64,
    attend_s: f64,
    cluster_wait_s: f64,
    device_kv_bytes: u64,
    host_kv_bytes: u64,
    /// What follows is for people.
    #[serde(skip)]
    in_place: bool,
    #[serde(skip)]
    policy: &'static str,
    #[serde(skip)]
    budget: Option<usize>,
    /// First layers that attend every token, and all layers.
    #[serde(skip)]
    dense_layers: (usize, usize),
    /// What the device does in a slower way than it should; not there as a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<String>,
}

/// Bounds of steps, layers and query heads.
#[derive(Serialize)]
struct BoundsJson {
    /// Whether they are certain, or hold each with a confidence of 95 %.
    kind: &'static str,
    /// 1 where they are certain.
    confidence: f64,
    n: u64,
    /// The median bound of the share that was left out.
    median: Option<f64>,
    /// What 99 % of the bounds are at most.
    of_99_percent: Option<f64>,
    /// Share of bounds that are at most a half.
    telling: Option<f64>,
}

/// A prompt and its answer, and the time before them.
pub struct Answered {
    /// Time that loading the model took.
    pub load: Duration,
    /// All tokens of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Whether the chat template made them.
    pub has_template: bool,
    /// The answer.
    pub generation: Generation,
}

impl Report {
    /// The report of a run that has ended.
    pub fn new<B: Backend>(
        args: &RunArgs,
        backend: &B,
        session: &Session<B>,
        answered: Answered,
    ) -> Self {
        let Answered { load, prompt_ids, has_template, generation } = answered;
        Self {
            model: args.model.name(),
            policy: session.policy().preset.name(),
            budget_tokens: session.policy().budget.tokens,
            chat_template: has_template,
            prompt_ids,
            generated_ids: generation.ids,
            text: generation.text,
            finish_reason: generation.finish_reason,
            context_tokens: session.sequence().shape().capacity,
            seed: args.sampling.seed(),
            timings: TimingsJson::new(load, session.timings()),
            statistics: StatsJson::new(backend, session),
        }
    }

    /// Why it ended.
    pub fn finish_reason(&self) -> &FinishReason {
        &self.finish_reason
    }

    /// New tokens.
    pub fn n_generated(&self) -> usize {
        self.generated_ids.len()
    }

    /// Writes the object to stdout.
    pub fn print_json(&self) -> Result<()> {
        out::json(self)
    }

    /// Writes timings and statistics to stderr.
    pub fn print_stats(&self) {
        note(format_args!("load     {:.2} s", self.timings.load_s));
        note(format_args!("seed     {}", self.seed));
        print_figures(&self.timings, &self.statistics);
    }
}

/// Writes timings and statistics of a turn to stderr.
pub fn print_turn<B: Backend>(backend: &B, session: &Session<B>) {
    let timings = TimingsJson::new(Duration::ZERO, session.timings());
    print_figures(&timings, &StatsJson::new(backend, session));
}

fn print_figures(t: &TimingsJson, s: &StatsJson) {
    let line = |name: &str, tokens: u64, seconds: f64, rate: Option<f64>| {
        let (tokens, rate) = (units::counted(tokens, "token", "tokens"), units::rate(rate));
        note(format_args!("{name}  {tokens} in {seconds:.2} s, {rate} tokens/s"));
    };
    line("prefill", t.prefill_tokens, t.prefill_s, t.prefill_tokens_per_s);
    line("decode ", t.decode_tokens, t.decode_s, t.decode_tokens_per_s);
    if t.drafted_tokens > 0 {
        let (drafted, accepted) = (units::count(t.drafted_tokens), units::count(t.accepted_tokens));
        note(format_args!("draft    {drafted} tokens by lookup, {accepted} of them accepted"));
    }
    note(s.attended_line());
    if s.hit_rate.is_some() {
        note(format_args!(
            "cache    {} of the recalled rows were on the device, {} fetched from the host",
            units::share(s.hit_rate),
            units::bytes(s.fetched_bytes),
        ));
    }
    if s.recall == "speculative" {
        note(format_args!(
            "recall   speculative in {} of {} steps; {} run again exactly, where a query had moved \
             too far in {} cases",
            units::count(s.speculated_steps),
            units::count(s.steps),
            units::count(s.repeated_steps),
            units::count(s.failed_gates),
        ));
    }
    note(s.time_line());
    if let Some(d) = &t.decode_device_per_token {
        note(format_args!(
            "device   per token: {:.1} dispatches, {:.1} submits, {:.1} readbacks, {} up, {} down",
            d.dispatches,
            d.submits,
            d.readbacks,
            units::bytes(d.bytes_up as u64),
            units::bytes(d.bytes_down as u64),
        ));
    }
    if let Some(density) = s.prefill_density {
        let share = units::share(Some(density));
        note(format_args!("reading  {}: {share} of the blocks before a token attended", s.prefill));
    }
    if s.evictions > 0 {
        let rows = units::counted(s.evictions, "row", "rows");
        note(format_args!("evicted  {rows} of keys and values for good"));
    }
    if let Some(bounds) = &s.bounds {
        note(bounds.line());
    }
    let (device, host) = (units::bytes(s.device_kv_bytes), units::bytes(s.host_kv_bytes));
    if s.in_place {
        note(format_args!(
            "memory   {host} of keys and values, read where they are, {device} of index"
        ));
    } else {
        note(format_args!("memory   keys and values: {device} on the device, {host} on the host"));
    }
    if let Some(fallback) = &s.fallback {
        note(format_args!("slower   {fallback}"));
    }
}

impl BoundsJson {
    fn new(kind: AttentionBound, stats: &Stats) -> Option<Self> {
        let (kind, confidence) = match kind {
            AttentionBound::Off => return None,
            AttentionBound::WorstCase => ("worst-case", 1.0),
            AttentionBound::Sampled => ("sampled", SAMPLED_CONFIDENCE),
        };
        let bounds = &stats.bounds;
        Some(Self {
            kind,
            confidence,
            n: bounds.len(),
            median: bounds.median(),
            of_99_percent: bounds.of_most(),
            telling: bounds.share_telling(),
        })
    }

    /// What the bounds say of an answer.
    fn line(&self) -> String {
        let choices = units::counted(self.n, "choice", "choices");
        let (median, most) = (units::share(self.median), units::share(self.of_99_percent));
        if self.confidence < 1.0 {
            let confidence = units::share(Some(self.confidence));
            return format!(
                "bounds   with {confidence} confidence at most {most} of the attention was left out \
                 in 99 % of {choices}, and {median} in half of them"
            );
        }
        let said = match self.telling {
            Some(share) if share > 0.0 => "",
            _ => ": these bounds say nothing here",
        };
        format!(
            "bounds   at most {median} of the attention was left out in half of {choices}; a half \
             or less is certain in {}{said}",
            units::share(self.telling),
        )
    }
}

impl TimingsJson {
    fn new(load: Duration, timings: Timings) -> Self {
        Self {
            load_s: load.as_secs_f64(),
            prefill_tokens: timings.prefill_tokens,
            prefill_s: timings.prefill.as_secs_f64(),
            prefill_tokens_per_s: timings.prefill_tokens_per_s(),
            decode_tokens: timings.decode_tokens,
            decode_s: timings.decode.as_secs_f64(),
            decode_tokens_per_s: timings.decode_tokens_per_s(),
            drafted_tokens: timings.drafted_tokens,
            accepted_tokens: timings.accepted_tokens,
            decode_device_per_token: PerToken::new(&timings),
        }
    }
}

impl StatsJson {
    /// How many tokens were attended, and why on average more than the budget.
    fn attended_line(&self) -> String {
        let mean =
            self.mean_attended.map_or_else(|| "-".to_owned(), |n| units::count(n.round() as u64));
        let line = format!("policy   {}: {mean} tokens attended per step and KV head", self.policy);
        match (self.dense_layers, self.budget) {
            ((0, _), _) | (_, None) => line,
            ((dense, layers), Some(budget)) => {
                let (first, attend) =
                    if dense == 1 { ("layer", "attends") } else { ("layers", "attend") };
                let first = if dense == 1 { first.into() } else { format!("{dense} {first}") };
                let budget = units::count(budget);
                format!(
                    "{line} on average: the first {first} of {layers} {attend} all, the others up \
                     to {budget}"
                )
            }
        }
    }

    /// Where time went, without what does not happen in place.
    fn time_line(&self) -> String {
        let fetch =
            if self.in_place { String::new() } else { format!("fetch {:.2} s, ", self.fetch_s) };
        format!(
            "time     select {:.2} s, {fetch}attend {:.2} s, waited for clustering {:.2} s",
            self.select_s, self.attend_s, self.cluster_wait_s,
        )
    }

    fn new<B: Backend>(backend: &B, session: &Session<B>) -> Self {
        let stats: &Stats = session.stats();
        let blocks = session.sequence().block_counts();
        Self {
            steps: stats.steps,
            hits: stats.hits,
            misses: stats.misses,
            hit_rate: stats.hit_rate(),
            fetched_bytes: stats.fetched_bytes,
            mean_attended: stats.mean_attended(),
            selected_clusters: stats.selected_clusters,
            clusterings: stats.clusterings,
            evictions: stats.evictions,
            bounds: BoundsJson::new(session.policy().attention_bound, stats),
            prefill: session.sequence().was_read().to_string(),
            prefill_density: (blocks.all > 0).then(|| blocks.density()),
            recall: match session.sequence().recall_mode() {
                RecallMode::Exact => "exact",
                RecallMode::Speculative { .. } => "speculative",
            },
            speculated_steps: stats.speculated_steps,
            repeated_steps: stats.repeated_steps,
            failed_gates: stats.failed_gates,
            select_s: stats.select.as_secs_f64(),
            fetch_s: stats.fetch.as_secs_f64(),
            attend_s: stats.attend.as_secs_f64(),
            cluster_wait_s: stats.cluster_wait.as_secs_f64(),
            device_kv_bytes: session.sequence().device_kv_bytes(),
            host_kv_bytes: session.sequence().host_kv_bytes(),
            in_place: session.sequence().in_place(),
            policy: session.policy().preset.name(),
            budget: session.policy().budget.tokens,
            dense_layers: (session.policy().dense_layers, session.sequence().shape().n_layers),
            fallback: backend.fallback(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_say_how_certain_they_are() {
        let mut stats = Stats::new(1, 1);
        (0..99).for_each(|_| stats.bounds.add(0.25));
        stats.bounds.add(4.0);
        assert!(BoundsJson::new(AttentionBound::Off, &stats).is_none());
        let line = |kind| BoundsJson::new(kind, &stats).expect("bounds").line();
        assert_eq!(
            line(AttentionBound::Sampled),
            "bounds   with 95.0 % confidence at most 20.0 % of the attention was left out in 99 % of \
             100 choices, and 20.0 % in half of them"
        );
        assert_eq!(
            line(AttentionBound::WorstCase),
            "bounds   at most 20.0 % of the attention was left out in half of 100 choices; a half or \
             less is certain in 99.0 %"
        );
        let none = Stats::new(1, 1);
        let none = BoundsJson::new(AttentionBound::WorstCase, &none).expect("no bounds").line();
        assert!(none.ends_with("these bounds say nothing here"), "{none}");
    }

    #[test]
    fn json_says_which_bounds_there_are() {
        let mut stats = Stats::new(1, 1);
        stats.bounds.add(1.0);
        let bounds = BoundsJson::new(AttentionBound::Sampled, &stats);
        let json = serde_json::to_value(bounds).expect("an object");
        let want = serde_json::json!({
            "kind": "sampled",
            "confidence": 0.95,
            "n": 1,
            "median": 0.5,
            "of_99_percent": 0.5,
            "telling": 1.0,
        });
        assert_eq!(json, want);
    }
}
