//! `longview run`: one shot with a prompt, a chat without.

mod chat;
mod one_shot;
mod prompt;
mod report;
mod saved;

use anyhow::{Result, bail};
use clap::Args;
use longview_engine::{Engine, EngineOptions, GenerationParams};
use longview_ops::Backend;
use std::path::PathBuf;

use crate::args::{EngineArgs, PolicyArgs, RopeArgs, SamplingArgs};
use crate::device::with_device;
use crate::interrupt::Interrupt;
use crate::load::{self, ModelArgs};
use saved::SavedSession;

/// Options of `longview run`.
#[derive(Args)]
#[command(after_help = "\
With -f or -p: one shot. The text is the file followed by the prompt. A model with a chat template
gets it as one user message (file, blank line, prompt); --no-chat-template continues the plain text
instead, the prompt directly behind the file.
Without either: a chat on stdin, one line for each turn. Ctrl-C stops an answer, Ctrl-D ends.
With --session: -p asks about the document that was saved; without it, a chat about it begins.")]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// A UTF-8 text that comes before the prompt, such as a document; - reads stdin
    /// [default: none].
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// The prompt [default: none].
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,

    /// Read the document (-f) and write what was read to FILE; -p is answered afterwards, if it is
    /// given [default: none].
    #[arg(long, value_name = "FILE", requires = "file", conflicts_with = "session")]
    save_session: Option<PathBuf>,

    /// Go on from a document that --save-session wrote, without reading it again, under the policy
    /// that it was saved under unless another one is given. With -f: the document's text, for files
    /// that hold none [default: none].
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,

    /// Most tokens to generate; -1: until the model ends or the context is full.
    #[arg(
        short = 'n',
        long,
        visible_alias = "n-predict",
        value_name = "TOKENS",
        default_value = "-1",
        allow_hyphen_values = true,
        value_parser = clap::value_parser!(i64).range(-1..)
    )]
    predict: i64,

    /// System message of the chat template [default: none].
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT")]
    system: Option<String>,

    /// Continue the plain text even if the model has a chat template [default: off].
    #[arg(long, conflicts_with = "system")]
    no_chat_template: bool,

    /// Print one JSON object instead of the text: token ids, text, timings, statistics
    /// [default: off].
    #[arg(long)]
    json: bool,

    /// Print timings and what the policy did to stderr [default: off].
    #[arg(long)]
    stats: bool,

    /// Keep recalled tokens in separate device buffers although the CPU could read them where they
    /// are, so that hits and misses are real [default: off].
    #[arg(long)]
    simulate_device: bool,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    rope: RopeArgs,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let text = prompt::read(args)?;
    let saved = args.session.as_deref().map(SavedSession::open).transpose()?;
    let (folder, context) = args.model.open()?;
    folder.tokenizer()?;
    let is_chat = match saved {
        Some(_) => args.prompt.is_none(),
        None => text.is_none(),
    };
    if is_chat {
        check_chat(args, folder.chat.is_some())?;
    }
    let options = EngineOptions {
        simulate_device: args.simulate_device,
        rope: args.rope.scaling(&folder.config),
        ..args.engine.options(context)
    };
    let interrupt = Interrupt::install()?;
    let change = match &saved {
        Some(saved) => args.policy.change(saved.policy())?,
        None => Some(args.policy.options()?),
    };
    let known = || saved.as_ref().expect("without a session there is a policy").policy().clone();
    let policy = change.clone().unwrap_or_else(known);
    with_device!(args.engine.device()?, backend => {
        let (mut engine, load) = load::engine(backend, folder, options, &policy)?;
        let (mut session, text) = match &saved {
            Some(saved) => saved.restore(args, &mut engine, change.as_ref(), text)?,
            None => (engine.session(&policy)?, text),
        };
        if let (Some(path), Some(text)) = (&args.save_session, &text) {
            let ids = prompt::encode_document(args, &engine, text)?;
            one_shot::prefill(&mut engine, &mut session, &ids, &interrupt)?;
            saved::write(&mut engine, &mut session, path, text.document(), &interrupt)?;
            if args.prompt.is_none() {
                return Ok(());
            }
        }
        match text {
            Some(text) if !is_chat => {
                one_shot::run(args, engine, session, &text, &interrupt, load)
            }
            text => chat::run(args, engine, session, text, &interrupt),
        }
    })
}

/// A chat needs a template, and nowhere to put a JSON object.
fn check_chat(args: &RunArgs, has_template: bool) -> Result<()> {
    if args.json {
        bail!("--json describes one answer: give a prompt with -p or -f");
    }
    if args.no_chat_template || !has_template {
        bail!(
            "{}: without a chat template there is no chat: give a prompt with -p or -f",
            args.model.model.display()
        );
    }
    Ok(())
}

fn params<B: Backend>(args: &RunArgs, engine: &Engine<B>) -> GenerationParams {
    let max_tokens = usize::try_from(args.predict).ok();
    args.sampling.params(engine.generation_defaults(), max_tokens)
}
