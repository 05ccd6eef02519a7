//! From options to a model that is ready to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use longview_engine::{Engine, EngineOptions};
use longview_eval::policies::{self, Candidate};
use longview_eval::record::Run;
use longview_model::config::ModelConfig;
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;

use crate::args::{EngineArgs, RopeArgs};
use crate::out::note;
use crate::{embedded, units};

/// Which model, and for how long a context.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Folder of the model in Hugging Face layout: config.json, *.safetensors, tokenizer.json.
    #[arg(short, long, value_name = "DIR")]
    pub model: PathBuf,

    /// Most tokens of prompt and answer together; memory is planned for it. 0: what the model was
    /// made for.
    #[arg(short, long, value_name = "TOKENS", default_value_t = EngineOptions::default().ctx_size)]
    pub ctx_size: usize,
}

impl ModelArgs {
    /// Opens the folder and fixes the context.
    pub fn open(&self) -> Result<(ModelFolder, usize)> {
        let folder = ModelFolder::open(&self.model)?;
        let context = match self.ctx_size {
            0 => trained_context(&folder.config),
            n => n,
        };
        Ok((folder, context))
    }
}

/// Tokens that the model was made for.
pub fn trained_context(config: &ModelConfig) -> usize {
    let window = config.max_exact_context().unwrap_or(usize::MAX);
    config.max_position_embeddings.min(window)
}

/// Loads a model and says how long it took.
pub fn engine<B: Backend>(
    backend: Arc<B>,
    folder: ModelFolder,
    options: EngineOptions,
    policy: &PolicyOptions,
) -> Result<(Engine<B>, Duration)> {
    let path = folder.path.clone();
    let start = Instant::now();
    let engine = Engine::load(backend, folder, options, policy)?;
    let elapsed = start.elapsed();
    warn_of_length(engine.model().config(), &path, engine.options());
    Ok((engine, elapsed))
}

/// Longer contexts run, but nobody trained the model for them.
pub fn warn_of_length(config: &ModelConfig, path: &Path, options: &EngineOptions) {
    let trained = config.max_position_embeddings;
    if options.ctx_size > trained && options.rope.is_none() {
        note(format_args!(
            "warning: {} was made for {} tokens, not {}; consider --rope-scaling yarn",
            path.display(),
            units::count(trained),
            units::count(options.ctx_size),
        ));
    }
}

/// Fails before anything runs where memory does not hold what one of `candidates` needs.
pub fn check_memory<B: Backend>(
    args: &EngineArgs,
    backend: &B,
    folder: &ModelFolder,
    options: &EngineOptions,
    candidates: &[Candidate],
) -> Result<()> {
    let memory = args.device_memory.or(backend.capabilities().memory_bytes);
    for candidate in candidates {
        Engine::plan(backend, folder, options, &candidate.options)
            .and_then(|plan| plan.check(memory))
            .with_context(|| format!("--policies {}", policies::title(&candidate.label)))?;
    }
    Ok(())
}

/// Where the numbers of a results file come from; the seed, and settings besides those of the
/// engine, are the caller's.
pub fn run_record<B: Backend>(
    model: Option<&Path>,
    folder: &ModelFolder,
    engine: &EngineArgs,
    rope: &RopeArgs,
    backend: &B,
) -> Result<Run> {
    let ModelFolder { config, tensors, tokenizer, .. } = folder;
    // RoPE as the files have it: what the command line makes of it is a setting.
    let fingerprint = longview_engine::fingerprint(config, tensors, tokenizer.as_ref(), 0)?;
    let settings = [("--recall", engine.recall_text()), ("--rope-scaling", rope.to_string())];
    let words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(Run {
        command: words.join(" "),
        model: model.map_or_else(|| embedded::NAME.to_owned(), folder_name),
        fingerprint: fingerprint.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: backend.capabilities().device.clone(),
        device: backend.name().to_owned(),
        kv_type: engine.kv_type.to_string(),
        settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Run::default()
    })
}

/// The last part of a folder's name, also where it was given as `.`.
fn folder_name(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned()
}
