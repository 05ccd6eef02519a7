//! A decoded token of the embedded model: speed, and what it asks of the device.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context, Result};
use longview_core::SplitMix64;
use longview_engine::{Engine, EngineOptions, GenerationParams, Session, Timings};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, RecallMode, Stats};
use pollster::block_on;

use super::harness::Bench;
use crate::files;

/// How much is read, kept and decoded.
struct Plan {
    prompt_tokens: usize,
    budget_tokens: usize,
    warm_up_tokens: usize,
    tokens: usize,
    /// Of these runs the fastest counts.
    runs: usize,
}

const FULL: Plan =
    Plan { prompt_tokens: 2048, budget_tokens: 512, warm_up_tokens: 8, tokens: 32, runs: 3 };

const QUICK: Plan =
    Plan { prompt_tokens: 512, budget_tokens: 192, warm_up_tokens: 2, tokens: 4, runs: 1 };

/// Never taken back: what speculation costs where no query turns.
const NO_GATE: f32 = -1.0;

/// A line of the table.
struct Mode {
    policy: Preset,
    recall: RecallMode,
}

impl Mode {
    fn title(&self) -> String {
        let recall = match self.recall {
            RecallMode::Exact => "exact".to_owned(),
            RecallMode::Speculative { gate: NO_GATE } => "speculative, no gate".to_owned(),
            RecallMode::Speculative { gate } => format!("speculative, gate {gate}"),
        };
        match self.policy {
            Preset::Full => "token full".into(),
            policy => format!("token {policy} {recall}"),
        }
    }
}

/// Decodes under every policy and way to recall that the filter lets through.
pub(super) fn table<B: Backend>(
    bench: &Bench<'_, B>,
    backend: &Arc<B>,
    out: &mut dyn Write,
) -> Result<()> {
    let plan = if bench.quick { &QUICK } else { &FULL };
    let gates = [RecallMode::DEFAULT_GATE, NO_GATE];
    let mut modes = vec![
        Mode { policy: Preset::Full, recall: RecallMode::Exact },
        Mode { policy: Preset::Clusterkv, recall: RecallMode::Exact },
    ];
    // Rows attended in place are not fetched: there is nothing to be ahead of.
    if !backend.capabilities().unified_memory {
        let modes_of_gates = gates.map(|gate| RecallMode::Speculative { gate });
        modes.extend(modes_of_gates.map(|recall| Mode { policy: Preset::Clusterkv, recall }));
    }
    modes.retain(|mode| mode.title().contains(bench.filter));
    if modes.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nembedded model, {} tokens read, budget {}, f16 rows; per token, mean of {}",
        plan.prompt_tokens, plan.budget_tokens, plan.tokens
    )?;
    writeln!(
        out,
        "{:<40} {:>8}  dispatches  submits  waits   KB up  KB down  hit rate  speculated",
        "", "tokens/s"
    )?;
    for mode in &modes {
        let (timings, stats) = decode(backend, mode, plan)?;
        let has_counters = backend.device_counters().is_some();
        writeln!(out, "{}", line(mode, &timings, &stats, has_counters))?;
        out.flush()?;
    }
    Ok(())
}

/// The fastest run of a mode.
fn decode<B: Backend>(backend: &Arc<B>, mode: &Mode, plan: &Plan) -> Result<(Timings, Stats)> {
    let folder = ModelFolder::open(&files::needle())?;
    let policy = match mode.policy {
        Preset::Full => PolicyOptions::new(Preset::Full),
        other => PolicyOptions::new(other).with_budget(plan.budget_tokens),
    };
    let options = EngineOptions { recall: mode.recall, ..EngineOptions::default() };
    let mut engine = Engine::load(Arc::clone(backend), folder, options, &policy)?;
    let mut session = engine.session(&policy)?;
    let ids = prompt(&engine, plan.prompt_tokens)?;
    let (last, document) = ids.split_last().context("a prompt of no tokens")?;
    let mut go_on = |_| ControlFlow::Continue(());
    block_on(engine.prefill(&mut session, document, &mut go_on))?;
    let mut best: Option<(Timings, Stats)> = None;
    for _ in 0..plan.runs {
        block_on(session.truncate(document.len()))?;
        block_on(engine.feed(&mut session, &[*last]))?;
        generate(&mut engine, &mut session, plan.warm_up_tokens)?;
        session.reset_stats();
        generate(&mut engine, &mut session, plan.tokens)?;
        let run = (session.timings(), session.stats().clone());
        if best.as_ref().is_none_or(|(timings, _)| run.0.decode < timings.decode) {
            best = Some(run);
        }
    }
    best.context("no run")
}

fn generate<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    n_tokens: usize,
) -> Result<()> {
    let params = GenerationParams {
        max_tokens: Some(n_tokens),
        ignore_eos: true,
        ..GenerationParams::default()
    };
    block_on(engine.generate(session, &params, &mut |_| ControlFlow::Continue(())))?;
    Ok(())
}

/// Text that says something else all the time, as the documents that the model was made for.
fn prompt<B: Backend>(engine: &Engine<B>, n_tokens: usize) -> Result<Vec<u32>> {
    let tokenizer = engine.tokenizer().context("the embedded model has a tokenizer")?;
    let (mut rng, mut ids) = (SplitMix64::new(7), vec![0]);
    let places = ["harbour", "mill", "orchard", "chapel", "quarry", "library", "bridge", "market"];
    while ids.len() < n_tokens {
        let (from, to) = (places[rng.below(places.len())], places[rng.below(places.len())]);
        let text = format!("Parcel {} went from the {from} to the {to}. ", rng.below(10_000));
        ids.extend(tokenizer.encode(&text, Specials::AsWritten)?);
    }
    ids.truncate(n_tokens);
    Ok(ids)
}

fn line(mode: &Mode, timings: &Timings, stats: &Stats, has_counters: bool) -> String {
    let speed = timings.decode_tokens_per_s().unwrap_or(f64::NAN);
    let line = format!("{:<40} {speed:>8.1}", mode.title());
    if !has_counters {
        return line;
    }
    let n = timings.decode_tokens.max(1) as f64;
    let device = timings.decode_device;
    let mean = |count: u64| count as f64 / n;
    let hits = stats.hit_rate().map_or("-".into(), |rate| format!("{:.0} %", 100.0 * rate));
    format!(
        "{line}  {:>10.1}  {:>7.1}  {:>5.1}  {:>6.1}  {:>7.1}  {hits:>8}  {}",
        mean(device.dispatches),
        mean(device.submits),
        mean(device.readbacks),
        mean(device.bytes_up) / 1e3,
        mean(device.bytes_down) / 1e3,
        match mode.recall {
            RecallMode::Exact => "-".into(),
            RecallMode::Speculative { .. } => format!(
                "{} of {}, {} run twice",
                stats.speculated_steps, stats.steps, stats.repeated_steps
            ),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use longview_ops::DeviceCounters;
    use std::time::Duration;

    #[test]
    fn a_line_has_means_of_what_was_counted() {
        let timings = Timings {
            decode_tokens: 4,
            decode: Duration::from_millis(200),
            decode_device: DeviceCounters {
                dispatches: 100,
                submits: 8,
                readbacks: 4,
                bytes_up: 10_000,
                bytes_down: 2000,
            },
            ..Timings::default()
        };
        let stats = Stats { hits: 3, misses: 1, steps: 4, ..Stats::default() };
        let words = |line: String| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        let full = Mode { policy: Preset::Full, recall: RecallMode::Exact };
        let found = words(line(&full, &timings, &stats, true));
        let figures = ["20.0", "25.0", "2.0", "1.0", "2.5", "0.5", "75", "%", "-"];
        assert_eq!(found, [&["token", "full"][..], &figures].concat());
        assert_eq!(words(line(&full, &timings, &stats, false)), ["token", "full", "20.0"]);
        let recall = RecallMode::Speculative { gate: 0.5 };
        let ahead = Mode { policy: Preset::Clusterkv, recall };
        let stats = Stats { speculated_steps: 3, repeated_steps: 1, ..stats };
        let line = line(&ahead, &timings, &stats, true);
        assert!(line.starts_with("token clusterkv speculative, gate 0.5 "), "{line}");
        assert!(line.ends_with("  3 of 4, 1 run twice"), "{line}");
    }
}
