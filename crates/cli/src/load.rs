//! From options to a model that is ready to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use longview_core::quant::QuantType;
use longview_engine::{Engine, EngineOptions};
use longview_model::config::{ModelConfig, RopeScaling};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;

use crate::args::numbers;
use crate::out::note;
use crate::{template, units};

/// Which model, and for how long a context.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Folder of the model in Hugging Face layout (config.json, *.safetensors, tokenizer.json), or
    /// a GGUF file.
    #[arg(short, long, value_name = "DIR")]
    pub model: PathBuf,

    /// Quantise the weights of a model in 16 or 32 bits while it is loaded: q8_0, q6_k, q5_k, q4_k,
    /// q5_0, q5_1, q4_0, q4_1, iq4_nl or mxfp4.
    #[arg(long, value_name = "TYPE")]
    pub quantize: Option<QuantType>,

    /// Most tokens of prompt and answer together; memory is planned for it. 0: as many as the
    /// session was saved with, or the text and an answer need, or the model was made for, as far
    /// as memory holds them.
    #[arg(
        short,
        long,
        value_name = "TOKENS",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = numbers::context
    )]
    pub ctx_size: usize,
}

impl ModelArgs {
    /// Opens the folder or file.
    pub fn open(&self) -> Result<ModelFolder> {
        let mut folder = open_folder(&self.model)?;
        if let Some(ty) = self.quantize {
            folder.tensors.quantize(&folder.config, ty)?;
        }
        Ok(folder)
    }
}

/// Opens a model's folder or file, or says what works in place of other things that models come in.
pub fn open_folder(path: &Path) -> Result<ModelFolder> {
    let shown = path.display();
    let ends_with = |wanted: &str| {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
    };
    if ends_with("gguf") && !path.exists() {
        bail!(
            "{shown}: there is no such file, and models are not downloaded yet; `hf download \
             USER/REPO FILE.gguf --local-dir DIR` fetches one, then -m DIR/FILE.gguf"
        );
    }
    if let Some(file) = gguf_in(path) {
        bail!(
            "{shown}: is a folder without config.json; name the file in it: -m {}",
            file.display()
        );
    }
    if path.is_file() && ends_with("safetensors") {
        bail!("{shown}: is a file; name the folder that it is in, with config.json beside it");
    }
    if !path.exists() && is_repository(path) {
        bail!(
            "{shown}: is not a folder here, and models are not downloaded yet; `hf download \
             {shown} --local-dir DIR` fetches it, then -m DIR"
        );
    }
    template::open_folder(path)
}

/// A GGUF file in a folder that holds no model in Hugging Face layout: the first by name.
fn gguf_in(folder: &Path) -> Option<PathBuf> {
    if folder.join("config.json").symlink_metadata().is_ok() {
        return None;
    }
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|name| name == "gguf");
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).filter(is_gguf).min()
}

/// Whether a path looks like the name of a repository: USER/REPO.
fn is_repository(path: &Path) -> bool {
    let is_name = |part: &str| {
        let is_right = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_right)
    };
    let parts = path.to_str().and_then(|text| text.split_once('/'));
    parts.is_some_and(|(user, repository)| is_name(user) && is_name(repository))
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
    let has_scaling = options.rope.is_some() || config.rope.scaling != RopeScaling::Default;
    if options.ctx_size > trained && !has_scaling {
        note(format_args!(
            "warning: {} was made for {} tokens, not {}; consider -c {} --rope-scaling yarn \
             --rope-scale {}",
            path.display(),
            units::count(trained),
            units::count(options.ctx_size),
            options.ctx_size,
            options.ctx_size.div_ceil(trained),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_told_from_a_path() {
        for name in ["org/name", "Qwen/Qwen2.5-0.5B-Instruct"] {
            assert!(is_repository(name.as_ref()), "{name}");
        }
        for path in ["name", "./a/b", "../b", "/a/b", "a/b/c", "a/", "~/b", "a b/c"] {
            assert!(!is_repository(path.as_ref()), "{path}");
        }
    }
}
