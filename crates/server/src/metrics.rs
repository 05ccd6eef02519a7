//! Counters and gauges in the text form of Prometheus, under llama.cpp's names where it has them.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted since the start, and what is so now.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) prompt_tokens: Count,
    pub(crate) prompt_ms: Count,
    /// Pieces of the ends of prompts.
    pub(crate) prompt_pieces: Count,
    pub(crate) cached_tokens: Count,
    pub(crate) predicted_tokens: Count,
    pub(crate) predicted_ms: Count,
    pub(crate) decode_steps: Count,
    pub(crate) decode_rows: Count,
    pub(crate) requests: Count,
    pub(crate) failed: Count,
    pub(crate) cancelled: Count,
    pub(crate) refused: Count,
    pub(crate) builds: Count,
    pub(crate) restored: Count,
    /// Sessions that came from shared storage, prompts that it had nothing for, sessions that went
    /// there, and those that could not.
    pub(crate) shared_fetched: Count,
    pub(crate) shared_missed: Count,
    /// Layers in which a prompt was computed before all of what it begins with had come.
    pub(crate) shared_begun_layers: Count,
    pub(crate) shared_sent: Count,
    pub(crate) shared_failed: Count,
    pub(crate) waiting: Count,
    pub(crate) running: Count,
    pub(crate) kept: Count,
    pub(crate) kept_tokens: Count,
    /// Tokens of what runs, and of as many contexts of full length as may run.
    pub(crate) kv_tokens: Count,
    pub(crate) kv_capacity: Count,
    /// Tokens of as many contexts of full length as may run or be kept.
    pub(crate) kept_capacity: Count,
    /// 1 while a lost device is opened again.
    pub(crate) device_lost: Count,
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: usize) {
        self.0.store(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metrics {
    /// The page. `connections` are those that are open.
    pub(crate) fn text(&self) -> String {
        let per_s = |tokens: &Count, ms: &Count| match ms.get() {
            0 => 0.0,
            ms => tokens.get() as f64 * 1000.0 / ms as f64,
        };
        let steps = self.decode_steps.get().max(1);
        let whole = |count: &Count| count.get() as f64;
        let rows: [(&str, &str, &str, f64); 21] = [
            (
                "llamacpp:prompt_tokens_total",
                COUNTER,
                "Prompt tokens read.",
                whole(&self.prompt_tokens),
            ),
            (
                "llamacpp:prompt_seconds_total",
                COUNTER,
                "Time in prompts.",
                whole(&self.prompt_ms) / 1e3,
            ),
            (
                "llamacpp:tokens_predicted_total",
                COUNTER,
                "Tokens generated.",
                whole(&self.predicted_tokens),
            ),
            (
                "llamacpp:tokens_predicted_seconds_total",
                COUNTER,
                "Time in answers.",
                whole(&self.predicted_ms) / 1e3,
            ),
            ("llamacpp:n_decode_total", COUNTER, "Decode steps.", whole(&self.decode_steps)),
            (
                "llamacpp:n_busy_slots_per_decode",
                GAUGE,
                "Answers in a step, on average.",
                whole(&self.decode_rows) / steps as f64,
            ),
            (
                "llamacpp:prompt_tokens_seconds",
                GAUGE,
                "Prompt tokens per second.",
                per_s(&self.prompt_tokens, &self.prompt_ms),
            ),
            (
                "llamacpp:predicted_tokens_seconds",
                GAUGE,
                "Generated tokens per second.",
                per_s(&self.predicted_tokens, &self.predicted_ms),
            ),
            ("llamacpp:requests_processing", GAUGE, "Requests that run.", whole(&self.running)),
            ("llamacpp:requests_deferred", GAUGE, "Requests that wait.", whole(&self.waiting)),
            (
                "longview:cached_tokens_total",
                COUNTER,
                "Prompt tokens that were known.",
                whole(&self.cached_tokens),
            ),
            (
                "longview:prompt_end_pieces_total",
                COUNTER,
                "Pieces in which the ends of prompts were made.",
                whole(&self.prompt_pieces),
            ),
            (
                "longview:requests_total",
                COUNTER,
                "Requests that came to the engine.",
                whole(&self.requests),
            ),
            (
                "longview:requests_failed_total",
                COUNTER,
                "Requests that failed.",
                whole(&self.failed),
            ),
            (
                "longview:requests_cancelled_total",
                COUNTER,
                "Requests whose client left.",
                whole(&self.cancelled),
            ),
            (
                "longview:requests_refused_total",
                COUNTER,
                "Requests refused because the queue was full.",
                whole(&self.refused),
            ),
            (
                "longview:context_builds_total",
                COUNTER,
                "Documents that were read for a context.",
                whole(&self.builds),
            ),
            (
                "longview:contexts_restored_total",
                COUNTER,
                "Sessions opened from the library.",
                whole(&self.restored),
            ),
            (
                "longview:device_lost",
                GAUGE,
                "1 while a lost device is opened again.",
                whole(&self.device_lost),
            ),
            ("longview:contexts_kept", GAUGE, "Contexts in memory.", whole(&self.kept)),
            ("longview:contexts_kept_tokens", GAUGE, "Their tokens.", whole(&self.kept_tokens)),
        ];
        let mut text = lines(&rows);
        self.of_sharing(&mut text);
        self.for_gateways(&mut text);
        text
    }

    /// What went to shared storage and came from there.
    fn of_sharing(&self, text: &mut String) {
        let whole = |count: &Count| count.get() as f64;
        *text += &lines(&[
            (
                "longview:shared_fetched_total",
                COUNTER,
                "Sessions that came from shared storage.",
                whole(&self.shared_fetched),
            ),
            (
                "longview:shared_missed_total",
                COUNTER,
                "Long prompts that shared storage had nothing for, or failed.",
                whole(&self.shared_missed),
            ),
            (
                "longview:shared_begun_layers_total",
                COUNTER,
                "Layers in which a prompt was computed while later ones came from shared storage.",
                whole(&self.shared_begun_layers),
            ),
            (
                "longview:shared_sent_total",
                COUNTER,
                "Sessions that were copied to shared storage.",
                whole(&self.shared_sent),
            ),
            (
                "longview:shared_failed_total",
                COUNTER,
                "Sessions that could not be copied there.",
                whole(&self.shared_failed),
            ),
        ]);
    }

    /// What gateways choose a server by.
    fn for_gateways(&self, text: &mut String) {
        let whole = |count: &Count| count.get() as f64;
        // What is kept goes when its room is needed: to a gateway it is free, as it is with vLLM.
        let kv_usage = (whole(&self.kv_tokens) / whole(&self.kv_capacity).max(1.0)).min(1.0);
        *text += &lines(&[
            (WAITING, GAUGE, "Requests that wait, as gateways read it.", whole(&self.waiting)),
            (RUNNING, GAUGE, "Requests that run, as gateways read it.", whole(&self.running)),
            (KV_USAGE, GAUGE, "KV rows of what runs, of all that may; 1 is all.", kv_usage),
            (OLD_KV_USAGE, GAUGE, "The same, under its older name.", kv_usage),
        ]);
        let n_blocks = self.kept_capacity.get() / PREFIX_BLOCK;
        let _ = write!(
            text,
            "# HELP {CACHE} Room for beginnings, in blocks of tokens.\n# TYPE {CACHE} gauge\n\
             {CACHE}{{block_size=\"{PREFIX_BLOCK}\",num_gpu_blocks=\"{n_blocks}\"}} 1\n"
        );
    }
}

/// Each with its name, kind, help and value.
fn lines(rows: &[(&str, &str, &str, f64)]) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        // Writing to a text does not fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    text
}

/// What the endpoint picker of the Gateway API Inference Extension (llm-d's) reads, by the names
/// that vLLM has for it, which are its defaults. The last one is what vLLM called it before.
const WAITING: &str = "vllm:num_requests_waiting";
const RUNNING: &str = "vllm:num_requests_running";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
const OLD_KV_USAGE: &str = "vllm:gpu_cache_usage_perc";
/// How much a picker may expect to be remembered of prompts that it sent here.
const CACHE: &str = "vllm:cache_config_info";
/// Tokens of a block in it.
const PREFIX_BLOCK: u64 = 64;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
