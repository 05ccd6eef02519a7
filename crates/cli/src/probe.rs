//! `longview probe`: what policies do to the attention over a text, beside full attention.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use longview_engine::{Engine, EngineOptions};
use longview_eval::policies::{self, Candidate, PolicySpec};
use longview_eval::probe::{self, ProbeText};
use longview_eval::record::Run;
use longview_eval::results::ResultsFile;
use longview_model::tokenizer::Specials;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

use crate::args::{EngineArgs, RopeArgs};
use crate::device::with_device;
use crate::{embedded, out};

/// Options of `longview probe`.
#[derive(Args)]
#[command(after_help = "\
The text's first tokens are prefilled once; then every policy decodes the tokens that follow, as the
text has them, one by one, and each step's choice and attention are compared with full attention.
Results: recall of the true top tokens, attention kept, error of the output, perplexity, hits by the
steps that rows stay, singular values. `longview report` draws them.")]
pub struct ProbeArgs {
    /// The text.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,

    /// Tokens that are prefilled, each a run of its own.
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', default_value = "8192")]
    pub lengths: Vec<usize>,

    /// Tokens that are decoded after them.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub steps: usize,

    /// Compare the attention of every N-th step; all count for perplexity and hits.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub stride: usize,

    /// Policies, each PRESET[:OPTION=VALUE]..
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "full,clusterkv")]
    pub policies: Vec<String>,

    /// Tokens that a KV head attends.
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', default_value = "512")]
    pub budgets: Vec<usize>,

    /// Folder of the model in Hugging Face layout [default: the embedded model].
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,

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
    if args.steps == 0 || args.stride == 0 {
        bail!("--steps and --stride must be at least 1");
    }
    let specs =
        args.policies.iter().map(|text| PolicySpec::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let candidates = policies::candidates(&specs, &args.budgets)?;
    if candidates.iter().any(|c| c.options.preset == Preset::H2o) {
        bail!("--policies h2o: it needs a prefill of its own; probe the others");
    }
    let text = fs::read_to_string(&args.file)
        .with_context(|| format!("--file {}: cannot be read", args.file.display()))?;
    with_device!(args.engine.device()?, backend => measure(args, &candidates, &text, backend))
}

fn measure<B: Backend>(
    args: &ProbeArgs,
    candidates: &[Candidate],
    text: &str,
    backend: Arc<B>,
) -> Result<()> {
    let ids = embedded::open_or(args.model.as_deref())?.tokenizer()?.encode(text, Specials::Add)?;
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let model = args.model.as_deref().and_then(|path| path.file_name());
    let mut results = ResultsFile::open(
        &args.output,
        &Run {
            command: words.collect::<Vec<_>>().join(" "),
            model: model.map_or(embedded::NAME.into(), |m| m.to_string_lossy().into_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: backend.capabilities().device.clone(),
            device: backend.name().to_owned(),
            kv_type: args.engine.kv_type.to_string(),
            ..Run::default()
        },
    )?;
    let policies: Vec<(PolicyOptions, _)> =
        candidates.iter().map(|c| (c.options.clone(), c.label.clone())).collect();
    for length in &args.lengths {
        let needed = length + args.steps + 1;
        if ids.len() < needed {
            bail!(
                "--lengths {length}: needs {needed} tokens, {} has {}; give a longer text",
                args.file.display(),
                ids.len()
            );
        }
        let folder = embedded::open_or(args.model.as_deref())?;
        let options = EngineOptions {
            rope: args.rope.scaling(&folder.config),
            ..args.engine.options(needed)
        };
        let first = PolicyOptions::new(Preset::StreamingLlm);
        let mut engine = Engine::load(Arc::clone(&backend), folder, options, &first)?;
        let probed =
            ProbeText { name: &name, ids: &ids[..needed], length: *length, stride: args.stride };
        let mut records = Vec::new();
        let mut keep = |record| records.push(record);
        block_on(probe::probe(&mut engine, &probed, &policies, &mut keep))?;
        for record in &records {
            results.append(record)?;
        }
        let n = records.len();
        let file = args.output.display();
        out::bytes(format!("{length} tokens of {name}: {n} lines in {file}\n").as_bytes())?;
    }
    Ok(())
}
