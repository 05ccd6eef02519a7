//! What a run of several policies needs before it begins: memory for each, and the record of where
//! its numbers come from.

use std::path::Path;

use anyhow::{Context, Result};
use longview_engine::{Engine, EngineOptions};
use longview_eval::policies::{self, Candidate};
use longview_eval::record::Run;
use longview_model::folder::ModelFolder;
use longview_ops::Backend;

use crate::args::{EngineArgs, RopeArgs};
use crate::context;

/// What the embedded model is called in results.
const EMBEDDED: &str = "needle (embedded)";

/// Fails before anything runs where memory does not hold what one of `candidates` needs.
pub fn check_memory<B: Backend>(
    args: &EngineArgs,
    backend: &B,
    folder: &ModelFolder,
    options: &EngineOptions,
    candidates: &[Candidate],
) -> Result<()> {
    let memory = context::memory(args, backend);
    for candidate in candidates {
        Engine::check_memory(backend, folder, options, &candidate.options, memory)
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
    let settings = [
        ("--prefill", engine.prefill.first().to_string()),
        ("--recall", engine.recall_text()),
        ("--rope-scaling", rope.to_string()),
    ];
    let words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(Run {
        command: words.join(" "),
        model: model.map_or_else(|| EMBEDDED.to_owned(), folder_name),
        fingerprint: fingerprint.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: backend.capabilities().device.clone(),
        device: backend.name().to_owned(),
        kv_type: engine.kv_type().to_string(),
        settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Run::default()
    })
}

/// The last part of a folder's name, also where it was given as `.`.
fn folder_name(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned()
}
