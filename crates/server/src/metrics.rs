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
    pub(crate) waiting: Count,
    pub(crate) running: Count,
    pub(crate) kept: Count,
    pub(crate) kept_tokens: Count,
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
        let mut text = String::new();
        for (name, kind, help, value) in rows {
            // Writing to a text does not fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
        text
    }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
