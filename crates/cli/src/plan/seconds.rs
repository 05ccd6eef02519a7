//! What reading and answering take here, measured over a short context when that is asked for.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use longview_engine::{Engine, EngineOptions, PrefillMode, Timing};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, RecallMode};
use pollster::block_on;
use serde::Serialize;

use crate::args::{EngineArgs, TuningArgs};
use crate::out::note;
use crate::table::Table;
use crate::units;

/// The longest context that is measured.
const DEPTH: usize = 16_384;

/// The shortest context of the table; each next one is four times as long.
const SHORTEST: usize = 4096;

/// Seconds of a policy over a context.
#[derive(Serialize)]
pub struct Seconds {
    policy: &'static str,
    context_tokens: usize,
    /// To read the context and to index it; `null` where the policy needs a prompt that was read
    /// under it.
    read_s: Option<f64>,
    /// Of a decoded token behind it.
    step_s: Option<f64>,
}

/// What was measured, drawn out to contexts of up to `context` tokens.
pub struct Estimate {
    pub seconds: Vec<Seconds>,
    took: Duration,
}

/// Measures the policies, which are resolved as for `context` tokens, on this machine. `engine` has
/// the options for a context of any size.
pub fn measure<B: Backend>(
    folder: ModelFolder,
    engine: &EngineArgs,
    (presets, tuning): (&[Preset], &TuningArgs),
    context: usize,
    backend: Arc<B>,
) -> Result<Estimate> {
    note(format_args!("plan: measuring how long reading and answering take"));
    let start = std::time::Instant::now();
    let chunk = engine.options(context).chunk_size;
    let measured = Timing::context(DEPTH.min(context), chunk);
    let options = EngineOptions {
        prefill: PrefillMode::Exact,
        recall: RecallMode::Exact,
        ..engine.options(measured)
    };
    let policies = presets.iter().map(|preset| tuning.meant_for(*preset));
    let policies: Vec<PolicyOptions> = policies.collect::<Result<_>>()?;
    let neutral = PolicyOptions::new(Preset::StreamingLlm);
    let n_vocab = folder.config.vocab_size as u32;
    let mut engine = Engine::load(backend, folder, options, &neutral)
        .with_context(|| format!("--time measures {} tokens", units::count(measured)))?;
    // What the tokens are changes no time.
    let ids: Vec<u32> =
        (0..Timing::n_text(&engine) as u32).map(|i| (i * i % 1009 + 31 * i) % n_vocab).collect();
    let timing = block_on(Timing::measure(&mut engine, &ids, &policies, context))?;
    let mut seconds = Vec::new();
    for context_tokens in lengths(context) {
        for (i, preset) in presets.iter().enumerate() {
            seconds.push(Seconds {
                policy: preset.name(),
                context_tokens,
                read_s: timing.read_s(i, context_tokens),
                step_s: timing.step_s(i, context_tokens),
            });
        }
    }
    Ok(Estimate { seconds, took: start.elapsed() })
}

/// Contexts of the table: the longest is the one that was asked for.
fn lengths(context: usize) -> impl Iterator<Item = usize> {
    let shorter = std::iter::successors(Some(SHORTEST), |length| Some(4 * length));
    shorter.take_while(move |length| *length < context).chain([context])
}

/// Prints a table of all.
pub fn print(estimate: &Estimate, policies: &[Preset], out: &mut dyn Write) -> io::Result<()> {
    let seconds = &estimate.seconds;
    let mut table = Table::new("", policies.iter().map(|preset| preset.name()));
    let mut rows = |heading: &str, cell: fn(&Seconds) -> String| {
        table.heading(heading);
        for of_length in seconds.chunks(policies.len()) {
            let tokens = units::count(of_length[0].context_tokens);
            table.row(&format!("  {tokens} tokens"), of_length.iter().map(cell));
        }
    };
    rows("reading", |s| s.read_s.map_or_else(|| "-".to_owned(), units::seconds));
    rows("answering, tokens/s", |s| units::rate(s.step_s.map(|s| 1.0 / s)));
    let took = units::seconds(estimate.took.as_secs_f64());
    writeln!(out, "\ntime here, drawn out from {took} of measurement; prompts are read exactly")?;
    table.write(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_that_was_asked_for_is_the_last_length() {
        let of = |context| lengths(context).collect::<Vec<_>>();
        assert_eq!(of(1000), [1000]);
        assert_eq!(of(4096), [4096]);
        assert_eq!(of(131_072), [4096, 16_384, 65_536, 131_072]);
    }
}
