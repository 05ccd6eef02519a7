//! What commands about kept documents (`longview kv`) share with `longview run`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use longview_engine::PrefillMode;
use longview_model::folder::ModelFolder;

use super::args::RunArgs;
pub use super::prompt::common_prefix;
use super::prompt::encode_kept;
use crate::args::numbers::whole;
use crate::args::{EngineArgs, PolicyArgs, RopeArgs, SamplingArgs};
use crate::load::ModelArgs;

/// How a kept document is asked.
#[derive(Args)]
pub struct AskArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Most tokens to generate; -1: until the model ends or the context is full.
    #[arg(
        short = 'n',
        long,
        visible_alias = "n-predict",
        value_name = "TOKENS",
        default_value = "-1",
        allow_hyphen_values = true,
        value_parser = whole(-1..=1 << 30)
    )]
    predict: i64,

    /// Print one JSON object instead of the text: token ids, text, timings, statistics
    /// [default: off].
    #[arg(long)]
    json: bool,

    /// Print timings and what the policy did to stderr [default: off].
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    rope: RopeArgs,
}

impl AskArgs {
    /// The model that was given.
    pub fn model(&self) -> &ModelArgs {
        &self.model
    }

    /// How prompts are to be read.
    pub fn prefill(&self) -> PrefillMode {
        self.engine.prefill.first()
    }
}

/// A question about a session, or a chat about it, as `run --session`. `model` is where the
/// session's model lies, for where none was given; `keep_index` says how an index is kept that the
/// session lacks.
pub fn about_kept(
    args: AskArgs,
    (title, session): (String, PathBuf),
    model: &Path,
    is_chat: bool,
    (question, keep_index): (Option<String>, String),
) -> RunArgs {
    let AskArgs { model: given, predict, json, stats, sampling, policy, engine, rope } = args;
    RunArgs {
        model: given.or(model),
        file: None,
        prompt: question,
        save_session: None,
        force: false,
        session: Some(session),
        keep_index: Some(keep_index),
        title: Some(title),
        predict,
        system: None,
        no_chat_template: !is_chat,
        json,
        stats,
        simulate_device: false,
        sampling,
        policy,
        engine,
        rope,
    }
}

/// The tokens with which every prompt about a document begins.
///
/// # Errors
/// For a text that is far longer than `most` tokens, and one in which there is nothing to read.
pub fn document_tokens(
    folder: &ModelFolder,
    is_chat: bool,
    text: &str,
    most: usize,
) -> Result<Vec<u32>> {
    encode_kept(folder, is_chat, text, most)
}
