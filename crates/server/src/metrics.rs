//! Counters and gauges for Prometheus, under llama.cpp's names where it has them.
//!
//! Several servers may run in one process, so each has a recorder of its own, and none is installed
//! for the whole process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::job::Summary;
use crate::options::ServerOptions;

/// What is counted since the start, and what is so now.
#[derive(Debug)]
pub(crate) struct Metrics {
    page: PrometheusHandle,
    /// Prompt tokens that were read.
    pub(crate) prompt: Rate,
    /// Pieces of the ends of prompts.
    pub(crate) prompt_pieces: Counter,
    /// Under llama.cpp's name, and our own.
    cached_tokens: [Counter; 2],
    /// The most tokens that a request had at its end.
    n_tokens_max: Counter,
    drafts: Drafts,
    decode: Decode,
    pub(crate) requests: Counter,
    pub(crate) failed: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) refused: Counter,
    pub(crate) builds: Counter,
    pub(crate) restored: Counter,
    pub(crate) prompts_written: Counter,
    pub(crate) shared: Shared,
    now: Now,
    /// Whether a lost device is opened again.
    is_device_lost: AtomicBool,
}

/// Tokens that were computed on trial.
#[derive(Debug)]
struct Drafts {
    steps: Counter,
    tokens: Counter,
    accepted: Counter,
}

/// What went to shared storage and came from there.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fetched: Counter,
    pub(crate) missed: Counter,
    pub(crate) begun_layers: Counter,
    pub(crate) sent: Counter,
    pub(crate) failed: Counter,
}

/// Tokens, and how long they took. Both are kept here as well: handles of `metrics` cannot be read.
#[derive(Debug)]
pub(crate) struct Rate {
    n_tokens: AtomicU64,
    us: AtomicU64,
    tokens: Counter,
    /// A counter, but one with a fraction, which `metrics` has as a gauge alone.
    seconds: Gauge,
    per_s: Gauge,
}

/// Steps of answers.
#[derive(Debug)]
struct Decode {
    predicted: Rate,
    /// Answers that took part in steps, and steps.
    n_parts: AtomicU64,
    n_steps: AtomicU64,
    steps: Counter,
    busy: Gauge,
}

/// What is so now.
#[derive(Debug)]
struct Now {
    /// Under llama.cpp's name, and the one that gateways read.
    running: [Gauge; 2],
    waiting: [Gauge; 2],
    kept: Gauge,
    kept_tokens: Gauge,
    device_lost: Gauge,
    /// Under vLLM's name, and its older one.
    kv_usage: [Gauge; 2],
    /// Tokens of as many contexts of full length as may run.
    kv_capacity: usize,
}

impl Metrics {
    /// Those of a server that has just started, for contexts of so many tokens.
    pub(crate) fn new(options: &ServerOptions, ctx_size: usize) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let names = Names(&recorder);
        let n_kept = (options.n_slots + options.max_kept).saturating_mul(ctx_size);
        names.room_for_beginnings(n_kept as u64);
        Self {
            page: recorder.handle(),
            prompt: Rate::new(
                names.counter("llamacpp:prompt_tokens_total", "Prompt tokens read."),
                names.gauge(PROMPT_SECONDS, "Time in prompts."),
                names.gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens per second."),
            ),
            prompt_pieces: names.counter(
                "longview:prompt_end_pieces_total",
                "Pieces in which the ends of prompts were made.",
            ),
            cached_tokens: [
                names.counter(
                    "llamacpp:prompt_tokens_cached_total",
                    "Prompt tokens that were known.",
                ),
                names.counter("longview:cached_tokens_total", "The same, under its older name."),
            ],
            n_tokens_max: names.counter(
                "llamacpp:n_tokens_max",
                "The most tokens of prompt and answer that a request had.",
            ),
            drafts: names.drafts(),
            decode: names.decode(),
            requests: names.counter("longview:requests_total", "Requests that came to the engine."),
            failed: names.counter("longview:requests_failed_total", "Requests that failed."),
            cancelled: names
                .counter("longview:requests_cancelled_total", "Requests whose client left."),
            refused: names.counter(
                "longview:requests_refused_total",
                "Requests refused because the queue was full.",
            ),
            builds: names.counter(
                "longview:context_builds_total",
                "Documents that were read for a context.",
            ),
            restored: names
                .counter("longview:contexts_restored_total", "Sessions opened from the library."),
            prompts_written: names.counter(
                "longview:prompts_written_total",
                "Prompts that were written to disk when memory let them go.",
            ),
            shared: names.shared(),
            now: names.now(options.n_slots.saturating_mul(ctx_size)),
            is_device_lost: AtomicBool::new(false),
        }
    }

    /// One step in which so many answers took part. What it gave them is counted by
    /// [`Metrics::predicted`].
    pub(crate) fn stepped(&self, n_answers: usize, took: Duration) {
        let Decode { predicted, n_parts, n_steps, steps, busy } = &self.decode;
        predicted.add(0, took);
        steps.increment(1);
        let n_parts = n_parts.fetch_add(n_answers as u64, Ordering::Relaxed) + n_answers as u64;
        let n_steps = n_steps.fetch_add(1, Ordering::Relaxed) + 1;
        busy.set(n_parts as f64 / n_steps as f64);
    }

    /// Tokens of answers: one each of a prompt's end and of a step, more where drafts were right.
    pub(crate) fn predicted(&self, n_tokens: usize) {
        self.decode.predicted.add(n_tokens, Duration::ZERO);
    }

    /// Tokens of a prompt that were known.
    pub(crate) fn cached(&self, n_tokens: usize) {
        self.cached_tokens.iter().for_each(|counter| counter.increment(n_tokens as u64));
    }

    /// What a request came to that has ended.
    pub(crate) fn ended(&self, summary: &Summary) {
        self.n_tokens_max.absolute(summary.n_tokens as u64);
        self.drafts.steps.increment(summary.n_drafts as u64);
        self.drafts.tokens.increment(summary.n_drafted as u64);
        self.drafts.accepted.increment(summary.n_accepted as u64);
    }

    /// Requests that run, and those that wait.
    pub(crate) fn set_requests(&self, n_running: usize, n_waiting: usize) {
        self.now.running.iter().for_each(|gauge| gauge.set(n_running as f64));
        self.now.waiting.iter().for_each(|gauge| gauge.set(n_waiting as f64));
    }

    /// Tokens of what runs. What is kept beside goes when its room is needed: to a gateway it is
    /// free, as it is with vLLM.
    pub(crate) fn set_kv_tokens(&self, n_tokens: usize) {
        let usage = n_tokens as f64 / self.now.kv_capacity.max(1) as f64;
        self.now.kv_usage.iter().for_each(|gauge| gauge.set(usage.min(1.0)));
    }

    /// Contexts in memory, and their tokens.
    pub(crate) fn set_kept(&self, n_contexts: usize, n_tokens: usize) {
        self.now.kept.set(n_contexts as f64);
        self.now.kept_tokens.set(n_tokens as f64);
    }

    pub(crate) fn set_device_lost(&self, is_lost: bool) {
        self.is_device_lost.store(is_lost, Ordering::Relaxed);
        self.now.device_lost.set(f64::from(u8::from(is_lost)));
    }

    pub(crate) fn is_device_lost(&self) -> bool {
        self.is_device_lost.load(Ordering::Relaxed)
    }

    /// The page, by names: the exporter has families in the order of a hash table.
    pub(crate) fn text(&self) -> String {
        let page = self.page.render();
        let mut families: Vec<&str> = page.split_inclusive("\n\n").collect();
        families.sort_unstable();
        let page = families.concat();
        [PROMPT_SECONDS, PREDICTED_SECONDS].iter().fold(page, |page, name| {
            page.replace(&format!("# TYPE {name} gauge"), &format!("# TYPE {name} counter"))
        })
    }
}

impl Rate {
    fn new(tokens: Counter, seconds: Gauge, per_s: Gauge) -> Self {
        Self { n_tokens: AtomicU64::new(0), us: AtomicU64::new(0), tokens, seconds, per_s }
    }

    pub(crate) fn add(&self, n_tokens: usize, took: Duration) {
        let (n, us) = (n_tokens as u64, took.as_micros() as u64);
        let n_tokens = self.n_tokens.fetch_add(n, Ordering::Relaxed) + n;
        let us = self.us.fetch_add(us, Ordering::Relaxed) + us;
        self.tokens.increment(n);
        self.seconds.set(us as f64 / 1e6);
        self.per_s.set(n_tokens as f64 * 1e6 / us.max(1) as f64);
    }
}

/// Makes handles, each with its name and what it is.
struct Names<'a>(&'a PrometheusRecorder);

impl Names<'_> {
    fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.0.describe_counter(name.into(), None, help.into());
        self.0.register_counter(&Key::from_static_name(name), &METADATA)
    }

    fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.0.describe_gauge(name.into(), None, help.into());
        self.0.register_gauge(&Key::from_static_name(name), &METADATA)
    }

    fn decode(&self) -> Decode {
        let tokens = self.counter("llamacpp:tokens_predicted_total", "Tokens generated.");
        let seconds = self.gauge(PREDICTED_SECONDS, "Time in answers.");
        let per_s = self.gauge("llamacpp:predicted_tokens_seconds", "Generated tokens per second.");
        Decode {
            predicted: Rate::new(tokens, seconds, per_s),
            n_parts: AtomicU64::new(0),
            n_steps: AtomicU64::new(0),
            steps: self.counter("llamacpp:n_decode_total", "Decode steps."),
            busy: self.gauge("llamacpp:n_busy_slots_per_decode", "Answers in a step, on average."),
        }
    }

    fn drafts(&self) -> Drafts {
        Drafts {
            steps: self.counter(
                "llamacpp:spec_decode_num_drafts_total",
                "Steps that computed tokens on trial, of requests that ended.",
            ),
            tokens: self.counter(
                "llamacpp:spec_decode_num_draft_tokens_total",
                "Tokens that they computed on trial.",
            ),
            accepted: self.counter(
                "llamacpp:spec_decode_num_accepted_tokens_total",
                "Of these, the ones that answers had.",
            ),
        }
    }

    fn shared(&self) -> Shared {
        Shared {
            fetched: self.counter(
                "longview:shared_fetched_total",
                "Sessions that came from shared storage.",
            ),
            missed: self.counter(
                "longview:shared_missed_total",
                "Long prompts that shared storage had nothing for, or failed.",
            ),
            begun_layers: self.counter(
                "longview:shared_begun_layers_total",
                "Layers in which a prompt was computed while later ones came from shared storage.",
            ),
            sent: self.counter(
                "longview:shared_sent_total",
                "Sessions that were copied to shared storage.",
            ),
            failed: self.counter(
                "longview:shared_failed_total",
                "Sessions that could not be copied there.",
            ),
        }
    }

    fn now(&self, kv_capacity: usize) -> Now {
        Now {
            running: [
                self.gauge("llamacpp:requests_processing", "Requests that run."),
                self.gauge(RUNNING, "Requests that run, as gateways read it."),
            ],
            waiting: [
                self.gauge("llamacpp:requests_deferred", "Requests that wait."),
                self.gauge(WAITING, "Requests that wait, as gateways read it."),
            ],
            kept: self.gauge("longview:contexts_kept", "Contexts in memory."),
            kept_tokens: self.gauge("longview:contexts_kept_tokens", "Their tokens."),
            device_lost: self
                .gauge("longview:device_lost", "1 while a lost device is opened again."),
            kv_usage: [
                self.gauge(KV_USAGE, "KV rows of what runs, of all that may; 1 is all."),
                self.gauge(OLD_KV_USAGE, "The same, under its older name."),
            ],
            kv_capacity,
        }
    }

    /// How much a picker may expect to be remembered of prompts that it sent here: as many contexts
    /// of full length as may run or be kept.
    fn room_for_beginnings(&self, n_tokens: u64) {
        let help = "Room for beginnings, in blocks of tokens.";
        self.0.describe_gauge(CACHE.into(), None, help.into());
        let label = |name: &'static str, n: u64| Label::new(name, n.to_string());
        let n_blocks = n_tokens / PREFIX_BLOCK;
        let labels = vec![label("block_size", PREFIX_BLOCK), label("num_gpu_blocks", n_blocks)];
        self.0.register_gauge(&Key::from_parts(CACHE, labels), &METADATA).set(1.0);
    }
}

const METADATA: Metadata<'_> = Metadata::new(env!("CARGO_CRATE_NAME"), Level::INFO, None);

const PROMPT_SECONDS: &str = "llamacpp:prompt_seconds_total";
const PREDICTED_SECONDS: &str = "llamacpp:tokens_predicted_seconds_total";

/// What the endpoint picker of the Gateway API Inference Extension (llm-d's) reads, by the names
/// that vLLM has for it, which are its defaults. The last one is what vLLM called it before.
const WAITING: &str = "vllm:num_requests_waiting";
const RUNNING: &str = "vllm:num_requests_running";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
const OLD_KV_USAGE: &str = "vllm:gpu_cache_usage_perc";
const CACHE: &str = "vllm:cache_config_info";
/// Tokens of a block in it.
const PREFIX_BLOCK: u64 = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The value of each line, by its name with its labels.
    fn values<'a>(page: &'a str) -> BTreeMap<&'a str, f64> {
        let lines = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let value = |line: &'a str| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name, value.parse().expect("a number"))
        };
        lines.map(value).collect()
    }

    #[test]
    fn every_number_is_there_from_the_start_with_its_type_in_order() {
        let options = ServerOptions { n_slots: 2, max_kept: 6, ..ServerOptions::default() };
        let page = Metrics::new(&options, 256).text();
        let types: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        // Dashboards and gateways know them by these names.
        let wanted = [
            "llamacpp:n_busy_slots_per_decode gauge",
            "llamacpp:n_decode_total counter",
            "llamacpp:n_tokens_max counter",
            "llamacpp:predicted_tokens_seconds gauge",
            "llamacpp:prompt_seconds_total counter",
            "llamacpp:prompt_tokens_cached_total counter",
            "llamacpp:prompt_tokens_seconds gauge",
            "llamacpp:prompt_tokens_total counter",
            "llamacpp:requests_deferred gauge",
            "llamacpp:requests_processing gauge",
            "llamacpp:spec_decode_num_accepted_tokens_total counter",
            "llamacpp:spec_decode_num_draft_tokens_total counter",
            "llamacpp:spec_decode_num_drafts_total counter",
            "llamacpp:tokens_predicted_seconds_total counter",
            "llamacpp:tokens_predicted_total counter",
            "longview:cached_tokens_total counter",
            "longview:context_builds_total counter",
            "longview:contexts_kept gauge",
            "longview:contexts_kept_tokens gauge",
            "longview:contexts_restored_total counter",
            "longview:device_lost gauge",
            "longview:prompt_end_pieces_total counter",
            "longview:prompts_written_total counter",
            "longview:requests_cancelled_total counter",
            "longview:requests_failed_total counter",
            "longview:requests_refused_total counter",
            "longview:requests_total counter",
            "longview:shared_begun_layers_total counter",
            "longview:shared_failed_total counter",
            "longview:shared_fetched_total counter",
            "longview:shared_missed_total counter",
            "longview:shared_sent_total counter",
            "vllm:cache_config_info gauge",
            "vllm:gpu_cache_usage_perc gauge",
            "vllm:kv_cache_usage_perc gauge",
            "vllm:num_requests_running gauge",
            "vllm:num_requests_waiting gauge",
        ];
        assert_eq!(types, wanted);
        let n_helps = page.lines().filter(|line| line.starts_with("# HELP ")).count();
        assert_eq!(n_helps, wanted.len());
        let mut values = values(&page);
        // 8 contexts of 256 tokens are 32 blocks of 64.
        let room = "vllm:cache_config_info{block_size=\"64\",num_gpu_blocks=\"32\"}";
        assert_eq!(values.remove(room), Some(1.0), "{page}");
        assert_eq!(values.len(), wanted.len() - 1);
        assert!(values.values().all(|value| *value == 0.0), "{page}");
    }

    #[test]
    fn averages_follow_what_was_counted_and_servers_share_nothing() {
        let options = ServerOptions { n_slots: 2, ..ServerOptions::default() };
        let (metrics, other) = (Metrics::new(&options, 100), Metrics::new(&options, 100));
        metrics.prompt.add(30, Duration::from_millis(1500));
        metrics.prompt.add(0, Duration::from_millis(500));
        metrics.stepped(2, Duration::from_micros(400));
        metrics.stepped(1, Duration::from_micros(600));
        metrics.predicted(7);
        metrics.cached(20);
        let (n_drafts, n_drafted, n_accepted) = (2, 9, 4);
        for n_tokens in [80, 50] {
            let summary =
                Summary { n_tokens, n_drafts, n_drafted, n_accepted, ..Summary::default() };
            metrics.ended(&summary);
        }
        metrics.set_requests(1, 3);
        metrics.set_kv_tokens(50);
        metrics.set_kept(4, 70);
        metrics.set_device_lost(true);
        let page = metrics.text();
        let values = values(&page);
        for (name, wanted) in [
            ("llamacpp:prompt_tokens_total", 30.0),
            (PROMPT_SECONDS, 2.0),
            ("llamacpp:prompt_tokens_seconds", 15.0),
            ("llamacpp:tokens_predicted_total", 7.0),
            (PREDICTED_SECONDS, 0.001),
            ("llamacpp:predicted_tokens_seconds", 7000.0),
            ("llamacpp:n_decode_total", 2.0),
            ("llamacpp:n_busy_slots_per_decode", 1.5),
            ("llamacpp:n_tokens_max", 80.0),
            ("llamacpp:spec_decode_num_drafts_total", 4.0),
            ("llamacpp:spec_decode_num_draft_tokens_total", 18.0),
            ("llamacpp:spec_decode_num_accepted_tokens_total", 8.0),
            ("llamacpp:prompt_tokens_cached_total", 20.0),
            ("longview:cached_tokens_total", 20.0),
            ("llamacpp:requests_processing", 1.0),
            (RUNNING, 1.0),
            ("llamacpp:requests_deferred", 3.0),
            (WAITING, 3.0),
            (KV_USAGE, 0.25),
            (OLD_KV_USAGE, 0.25),
            ("longview:contexts_kept", 4.0),
            ("longview:contexts_kept_tokens", 70.0),
            ("longview:device_lost", 1.0),
        ] {
            assert_eq!(values.get(name), Some(&wanted), "{name}: {page}");
        }
        assert!(metrics.is_device_lost() && !other.is_device_lost());
        assert!(other.text().contains("llamacpp:prompt_tokens_total 0\n"));
    }
}
