//! `longview probe`: what policies do to the attention over a text, beside full attention.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use longview_engine::{Engine, EngineOptions};
use longview_eval::coverage::Coverage;
use longview_eval::policies::{Candidate, title};
use longview_eval::probe::{self, ProbeText};
use longview_eval::record::Record;
use longview_eval::results::ResultsFile;
use longview_model::tokenizer::Specials;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

use super::compared::ComparedArgs;
use super::record;
use crate::args::{EngineArgs, RopeArgs, numbers};
use crate::device::with_device;
use crate::files::input;
use crate::progress::RunProgress;
use crate::{out, units};

/// Options of `longview probe`.
#[derive(Args)]
#[command(after_help = "\
The text's first tokens are prefilled once; then every policy decodes the tokens that follow, as the
text has them, one by one, and each step's choice and attention are compared with full attention.
h2o, and infllm by its own scores, read the text again, each for itself.
Results: recall of the true top tokens, attention kept, error of the output, perplexity, hits by the
steps that rows stay, singular values. `longview report` draws them.")]
pub struct ProbeArgs {
    /// The text.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,

    /// Tokens that are prefilled, each a run of its own.
    #[arg(
        long,
        value_name = "TOKENS,..",
        value_delimiter = ',',
        default_value = "8192",
        value_parser = numbers::tokens
    )]
    pub lengths: Vec<usize>,

    /// Tokens that are decoded after them.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        value_parser = numbers::count(1..=1 << 20)
    )]
    pub steps: usize,

    /// Compare the attention of every N-th step; all count for perplexity and hits.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::count(1..=1 << 20))]
    pub stride: usize,

    #[command(flatten)]
    pub compared: ComparedArgs,

    /// File that results are added to, one JSON object a line.
    #[arg(short, long, value_name = "FILE", default_value = "probes.jsonl")]
    pub output: PathBuf,

    #[command(flatten)]
    pub engine: EngineArgs,

    #[command(flatten)]
    pub rope: RopeArgs,
}

/// Runs the command.
pub fn run(args: &ProbeArgs) -> Result<()> {
    args.compared.check_output(&args.output, &[("-f", Some(args.file.as_path()))])?;
    let candidates = args.compared.candidates()?;
    let text = input::read_text("-f", &args.file)?;
    with_device!(args.engine.device()?, backend => measure(args, &candidates, &text, backend))
}

fn measure<B: Backend>(
    args: &ProbeArgs,
    candidates: &[Candidate],
    text: &str,
    backend: Arc<B>,
) -> Result<()> {
    let folder = args.compared.folder()?;
    let ids = folder.tokenizer()?.encode(text, Specials::Add)?;
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let model = args.compared.model.as_deref();
    let run = record::run_record(model, &folder, &args.engine, &args.rope, &*backend)?;
    let mut results = ResultsFile::open(&args.output, &run)?;
    let progress = RunProgress::new("probe", false);
    for (i, length) in args.lengths.iter().enumerate() {
        let needed = length + args.steps + 1;
        if ids.len() < needed {
            bail!(
                "--lengths {length}: needs {needed} tokens, {} has {}; give a longer text",
                args.file.display(),
                ids.len()
            );
        }
        let folder = args.compared.folder()?;
        let options = EngineOptions {
            rope: args.rope.scaling(&folder.config),
            // What a device looks up itself the host does not see.
            device_cache: false,
            ..args.engine.options(needed)
        };
        record::check_memory(&args.engine, &*backend, &folder, &options, candidates)
            .with_context(|| format!("--lengths {length}"))?;
        let first = PolicyOptions::new(Preset::StreamingLlm);
        let mut engine = Engine::load(Arc::clone(&backend), folder, options, &first)?;
        let probed =
            ProbeText { name: &name, ids: &ids[..needed], length: *length, stride: args.stride };
        let (nth, n_lengths, tokens) = (i + 1, args.lengths.len(), units::count(*length));
        let (mut n, mut bounds) = (0, BTreeMap::<_, Coverage>::new());
        let mut keep = |record| {
            n += 1;
            if let Record::Probe(probe) = &record {
                let policy = format!("{} at {}", title(&probe.policy), probe.policy.budget);
                bounds.entry(policy).or_default().add(probe);
            }
            let lines = units::count(n);
            progress.say(format!("length {nth} of {n_lengths}, {tokens} tokens, {lines} lines"));
            results.append(&record)
        };
        block_on(probe::probe(&mut engine, &probed, candidates, &mut keep))?;
        let file = args.output.display();
        out::bytes(format!("{length} tokens of {name}: {n} lines in {file}\n").as_bytes())?;
        for (policy, bounds) in bounds {
            if let Some(line) = bounds_line(&bounds) {
                out::bytes(format!("{policy}: {line}\n").as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Whether bounds held, and how near they were; `None` where the policy asks for none.
fn bounds_line(bounds: &Coverage) -> Option<String> {
    let held = units::share(bounds.held());
    let (most, below) = bounds.summary()?;
    let near = match bounds.tightness() {
        Some(ratio) => format!("the median bound is {ratio:.3} times it"),
        None => "no bound to compare with it".into(),
    };
    Some(format!(
        "{held} of {} bounds hold; where more than 1 % was left out ({} cases), {near}; 99 % of \
         the bounds are at most {}, and {} of the choices left out no more",
        units::count(bounds.n_cases()),
        units::count(bounds.n_large()),
        units::share(Some(most)),
        units::share(Some(below)),
    ))
}
