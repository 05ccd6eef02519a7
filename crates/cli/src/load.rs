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
use longview_startup::embedded;

use crate::args::numbers;
use crate::interrupt::Interrupt;
use crate::models::{HubArgs, place};
use crate::out::note;
use crate::{template, units};

/// Which model, and for how long a context.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Folder of the model in Hugging Face layout (config.json, *.safetensors, tokenizer.json), a
    /// GGUF file, the name of a downloaded model (`longview ls`), or `needle`: the small model that
    /// is part of this program.
    #[arg(short, long, value_name = "MODEL", required_unless_present = "hf_repo")]
    model: Option<PathBuf>,

    #[command(flatten)]
    hub: HubArgs,

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
    /// The model as it was named.
    pub fn name(&self) -> String {
        match (&self.model, &self.hub.hf_repo) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(name)) => name.to_string(),
            (None, None) => String::new(),
        }
    }

    /// Whether none was named.
    pub fn is_absent(&self) -> bool {
        self.model.is_none() && self.hub.hf_repo.is_none()
    }

    /// The same, with the model at `path` where none was named.
    pub fn or(mut self, path: &Path) -> Self {
        if self.is_absent() {
            self.model = Some(path.to_owned());
        }
        self
    }

    /// Whether it is the model that is part of this program.
    pub fn is_embedded(&self) -> bool {
        self.model.as_deref().is_some_and(embedded::is_named)
    }

    /// Where it lies, as far as that is known without a download.
    pub fn place(&self) -> Option<PathBuf> {
        match &self.model {
            Some(path) => place(path).ok().flatten(),
            None => self.hub.here(),
        }
    }

    /// Opens the folder or file, after a download if it is to be had from the hub.
    pub fn open(&self, interrupt: &Interrupt) -> Result<ModelFolder> {
        self.quantized(match self.hub.fetch(interrupt)? {
            Some(path) => template::open_folder(&path)?,
            None => open_folder(self.model.as_deref().unwrap_or(Path::new("")))?,
        })
    }

    /// The same without a download; `None` for a model that is not here.
    pub fn open_here(&self) -> Result<Option<ModelFolder>> {
        if self.is_embedded() {
            return self.quantized(embedded::open()?).map(Some);
        }
        let Some(place) = self.place() else { return Ok(None) };
        self.quantized(template::open_folder(&place)?).map(Some)
    }

    fn quantized(&self, mut folder: ModelFolder) -> Result<ModelFolder> {
        if let Some(ty) = self.quantize {
            folder.tensors.quantize(&folder.config, ty)?;
        }
        Ok(folder)
    }
}

/// Opens a model's folder or file, or that of a downloaded model, or says what works in place of
/// other things that models come in.
pub fn open_folder(path: &Path) -> Result<ModelFolder> {
    if embedded::is_named(path) {
        return Ok(embedded::open()?);
    }
    let shown = path.display();
    let ends_with = |wanted: &str| {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
    };
    if ends_with("gguf") && !path.exists() {
        bail!(
            "{shown}: there is no such file; `longview pull USER/REPO:QUANT` downloads a model, \
             then -m USER/REPO:QUANT"
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
    Ok(template::open_folder(place(path)?.as_deref().unwrap_or(path))?)
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
