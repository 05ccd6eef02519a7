//! `longview run`: one shot with a prompt, a chat without.

mod args;
mod chat;
mod one_shot;
mod prompt;
mod report;
mod saved;
mod talk;

use std::path::Path;

use anyhow::{Result, bail};
use longview_engine::EngineOptions;

pub use self::args::RunArgs;
use self::saved::{Note, SavedSession};
use crate::device::with_device;
use crate::interrupt::Interrupt;
use crate::{load, terminal};

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let text = prompt::read(args)?;
    let saved = args.session.as_deref().map(SavedSession::open).transpose()?;
    let (folder, context) = args.model.open()?;
    folder.tokenizer()?;
    // Without a template a document is continued: there is no conversation about it.
    let may_chat = folder.chat.is_some() || text.is_none() || saved.is_some();
    let is_chat = may_chat && is_chat(args, terminal::is_interactive());
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
            Some(saved) => {
                let (session, text) = saved.restore(args, &mut engine, change.as_ref(), text)?;
                (session, Some(text))
            }
            None => (engine.session(&policy)?, text),
        };
        if let (Some(path), Some(text)) = (&args.save_session, &text) {
            let ids = prompt::encode_document(args, &engine, text)?;
            let fate = format!("{} was not written", path.display());
            one_shot::prefill(&mut engine, &mut session, &ids, &interrupt, fate)?;
            let note = Note { document: Some(text.document().to_owned()), conversation: None };
            saved::write(&mut engine, &mut session, path, &note, "--save-session", &interrupt)?;
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

/// Whether a conversation begins. -p asks one thing; a document alone is talked about where somebody
/// sits at a terminal, and continued where the output goes on to another program.
fn is_chat(args: &RunArgs, stdin_is_terminal: bool) -> bool {
    match &args.file {
        _ if args.prompt.is_some() => false,
        _ if args.session.is_some() => true,
        None => true,
        Some(file) => {
            let wants_one = args.json || args.no_chat_template || args.save_session.is_some();
            stdin_is_terminal && !wants_one && file != Path::new("-")
        }
    }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn a_document_alone_is_talked_about_at_a_terminal() {
        let chats = |line: &str, stdin_is_terminal| {
            let words = ["x", "-m", "M"].into_iter().chain(line.split_whitespace());
            is_chat(&Line::try_parse_from(words).expect(line).run, stdin_is_terminal)
        };
        for line in ["", "--session s.lvs", "--session s.lvs -f book.txt"] {
            assert!(chats(line, true) && chats(line, false), "{line}");
        }
        assert!(chats("-f book.txt", true) && !chats("-f book.txt", false));
        for line in ["-p x", "-f book.txt -p x", "--session s.lvs -p x", "-f -"] {
            assert!(!chats(line, true) && !chats(line, false), "{line}");
        }
        for option in ["--json", "--no-chat-template", "--save-session s.lvs"] {
            assert!(!chats(&format!("-f book.txt {option}"), true), "{option}");
        }
    }
}
