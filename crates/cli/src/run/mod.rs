//! `longview run`: one shot with a prompt, a chat without.

mod args;
mod chat;
mod one_shot;
mod prompt;
mod report;
mod saved;

use anyhow::{Result, bail};
use longview_engine::EngineOptions;

pub use self::args::RunArgs;
use self::saved::SavedSession;
use crate::device::with_device;
use crate::interrupt::Interrupt;
use crate::{load, template};

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    // First of all: what stands in its way is said before anything is read.
    let output = args.save_session.as_deref().map(|path| saved::prepare(args, path)).transpose()?;
    let text = prompt::read(args)?;
    let saved = args.session.as_deref().map(SavedSession::open).transpose()?;
    let (folder, context) = args.model.open()?;
    folder.tokenizer()?;
    if let Some(chat) = folder.chat.as_ref().filter(|_| !args.no_chat_template) {
        template::check(chat)?;
    }
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
        if let (Some(file), Some(text)) = (output, &text) {
            let ids = prompt::encode_document(args, &engine, text)?;
            one_shot::prefill(&mut engine, &mut session, &ids, &interrupt)?;
            saved::write(&mut engine, &mut session, file, text.document(), &interrupt)?;
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
