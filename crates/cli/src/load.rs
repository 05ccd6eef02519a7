//! From options to a model that is ready to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use longview_engine::{Engine, EngineOptions};
use longview_model::config::ModelConfig;
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;

use crate::out::note;
use crate::{template, units};

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
        let folder = template::open_folder(&self.model)?;
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
