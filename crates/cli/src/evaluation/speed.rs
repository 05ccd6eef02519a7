//! `longview speed`: what decoding costs against the context, under each policy.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use longview_engine::{Engine, EngineOptions};
use longview_eval::haystack::TextSource;
use longview_eval::policies::{self, Candidate};
use longview_eval::record::{Record, Speed};
use longview_eval::results::ResultsFile;
use longview_eval::speed::{self, SpeedTest};
use longview_model::config::ModelConfig;
use longview_model::tokenizer::Specials;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

use super::compared::ComparedArgs;
use super::record;
use crate::args::{EngineArgs, RopeArgs, numbers};
use crate::device::with_device;
use crate::progress::RunProgress;
use crate::{load, out, units};

/// Options of `longview speed`.
#[derive(Args)]
#[command(after_help = "\
Up to --prefilled tokens each policy reads the text itself, and the time of that and what of it was
spent waiting for clusters or another index is kept. Longer contexts are that text's rows over and over with noise of
one per cent, and every policy makes its index over them. Then text is decoded token by token: the
median step, and its shares of selection, fetching and attention. `longview report` draws them.")]
pub struct SpeedArgs {
    /// Tokens in the context, each a run of its own.
    #[arg(
        long,
        value_name = "TOKENS,..",
        value_delimiter = ',',
        default_value = "1024,8192,32768",
        value_parser = numbers::tokens
    )]
    pub contexts: Vec<usize>,

    /// The longest context that is prefilled; of longer ones the rest is injected.
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768, value_parser = numbers::tokens)]
    pub prefilled: usize,

    /// Tokens that are decoded; of several numbers each is reported.
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "32",
        value_parser = numbers::count(1..=1 << 20)
    )]
    pub steps: Vec<usize>,

    #[command(flatten)]
    pub compared: ComparedArgs,

    /// Folder of *.txt files to read [default: sentences are generated].
    #[arg(long, value_name = "DIR")]
    pub text: Option<PathBuf>,

    /// File that results are added to, one JSON object a line.
    #[arg(short, long, value_name = "FILE", default_value = "speed.jsonl")]
    pub output: PathBuf,

    /// Keep recalled tokens in separate device buffers although the CPU could read them where they
    /// are, so that fetching is real [default: off].
    #[arg(long)]
    pub simulate_device: bool,

    #[command(flatten)]
    pub engine: EngineArgs,

    #[command(flatten)]
    pub rope: RopeArgs,
}

/// Runs the command.
pub fn run(args: &SpeedArgs) -> Result<()> {
    args.compared.check_output(&args.output, &[])?;
    let candidates = args.compared.candidates()?;
    let own = candidates.iter().find(|policy| policy.needs_own_prefill());
    if let Some(policy) = own
        && args.contexts.iter().any(|context| *context > args.prefilled)
    {
        bail!(
            "--policies {}: it needs a prefill of its own; give --contexts up to {}",
            policies::title(&policy.label),
            args.prefilled
        );
    }
    with_device!(args.engine.device()?, backend => measure(args, &candidates, backend))
}

fn measure<B: Backend>(args: &SpeedArgs, candidates: &[Candidate], backend: Arc<B>) -> Result<()> {
    let mut steps = args.steps.clone();
    steps.sort_unstable();
    steps.dedup();
    let source = args.text.as_deref().map_or(Ok(TextSource::Generated), TextSource::open)?;
    let plan = SpeedTest { ids: &[], prefilled: args.prefilled, steps: &steps };
    let folder = args.compared.folder()?;
    // Before the text is made: of a context that no memory holds that would take hours.
    for context in &args.contexts {
        let options = options(args, &plan, *context, &folder.config);
        record::check_memory(&args.engine, &*backend, &folder, &options, candidates)
            .with_context(|| format!("--contexts {context}"))?;
    }
    let needed = args.contexts.iter().map(|context| plan.needed(*context)).max().unwrap_or(0);
    // A word is a token at least.
    let text = source.essay(0, needed).join(" ");
    let ids = folder.tokenizer()?.encode(&text, Specials::Add)?;
    let test = SpeedTest { ids: &ids, ..plan };
    let model = args.compared.model.as_deref();
    let mut run = record::run_record(model, &folder, &args.engine, &args.rope, &*backend)?;
    run.settings.extend(settings(args, &source));
    let mut results = ResultsFile::open(&args.output, &run)?;
    let progress = RunProgress::new("speed", false);
    let mut written = Ok(());
    let mut keep = |record: Speed| {
        if written.is_ok() {
            written = write(&mut results, record);
        }
    };
    let mut rows = None;
    for (i, context) in args.contexts.iter().copied().enumerate() {
        let (n, n_contexts) = (i + 1, args.contexts.len());
        let tokens = units::count(context);
        progress.say(format!("context {n} of {n_contexts}, {tokens} tokens"));
        let folder = args.compared.folder()?;
        let options = options(args, &test, context, &folder.config);
        load::warn_of_length(&folder.config, &folder.path, &options);
        let first = PolicyOptions::new(Preset::StreamingLlm);
        let mut engine = Engine::load(Arc::clone(&backend), folder, options, &first)?;
        if context <= args.prefilled {
            block_on(speed::after_prefill(&mut engine, &test, context, candidates, &mut keep))?;
            continue;
        }
        let rows = match &rows {
            Some(rows) => rows,
            None => rows.insert(block_on(speed::rows_of(&mut engine, &ids[..args.prefilled]))?),
        };
        let measured =
            speed::after_injection(&mut engine, &test, rows, context, candidates, &mut keep);
        block_on(measured)?;
    }
    written
}

/// Keeps a measurement and shows it.
fn write(results: &mut ResultsFile, speed: Speed) -> Result<()> {
    let line = line(&speed);
    results.append(&Record::Speed(speed))?;
    out::bytes(line.as_bytes())
}

fn line(speed: &Speed) -> String {
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let share = |part: f64| units::share(Some(part / speed.step_s.max(1e-12)));
    let budget = match speed.policy.budget {
        0 => String::new(),
        budget => format!(" B={budget}"),
    };
    let prefill = speed.prefill_s.map_or_else(
        || "injected".to_owned(),
        |all| match speed.index_s {
            Some(index) => {
                format!("prefill {all:.1} s, {} for the index", units::share(Some(index / all)))
            }
            None => format!("prefill {all:.1} s"),
        },
    );
    format!(
        "{} tokens, {}{budget}: {} a step of {} (select {}, fetch {}, attend {}), {prefill}\n",
        units::count(speed.context),
        policies::title(&speed.policy),
        ms(speed.step_s),
        speed.steps,
        share(speed.select_s),
        share(speed.fetch_s),
        share(speed.attend_s),
    )
}

fn options(
    args: &SpeedArgs,
    test: &SpeedTest<'_>,
    context: usize,
    config: &ModelConfig,
) -> EngineOptions {
    EngineOptions {
        simulate_device: args.simulate_device,
        rope: args.rope.scaling(config),
        ..args.engine.options(test.room(context))
    }
}

fn settings(args: &SpeedArgs, source: &TextSource) -> BTreeMap<String, String> {
    [
        ("--text", source.name()),
        ("--prefilled", args.prefilled.to_string()),
        ("--simulate-device", args.simulate_device.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}
