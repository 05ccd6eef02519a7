//! `longview run`: one shot with a prompt, a chat without.

mod args;
mod chat;
mod kept;
mod one_shot;
mod prompt;
mod report;
mod saved;
mod talk;

use std::path::Path;

use anyhow::{Result, bail};
use longview_engine::{CancelToken, Draft, EngineOptions, KvResidency};
use longview_model::folder::ModelFolder;

pub use self::args::RunArgs;
pub use self::kept::{AskArgs, about_kept, common_prefix, document_tokens};
use self::prompt::PromptText;
use self::saved::{Note, SavedSession};
use crate::context::{self, Chooser, Content, Limit};
use crate::device::with_device;
use crate::interrupt::Interrupt;
use crate::out::note;
use crate::{load, template, terminal};

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    // First of all: what stands in its way is said before anything is read.
    let output = args.save_session.as_deref().map(|path| saved::prepare(args, path)).transpose()?;
    let mut text = prompt::read(args)?;
    let saved = args.session.as_deref().map(|path| SavedSession::open("--session", path));
    let saved = saved.transpose()?;
    let folder = args.model.open(&interrupt)?;
    folder.tokenizer()?;
    if let Some(chat) = folder.chat.as_ref().filter(|_| !args.no_chat_template) {
        template::check(chat)?;
    }
    // Without a template a document is continued: there is no conversation about it.
    let may_chat = folder.chat.is_some() || text.is_none() || saved.is_some();
    let is_chat = may_chat && is_chat(args, terminal::is_interactive());
    if is_chat {
        check_chat(args, folder.chat.is_some())?;
    } else {
        tell_unread_input(args);
    }
    let limit = Limit::new(&folder.config, &args.rope);
    let content = content(args, &folder, &limit, saved.as_ref(), text.as_mut(), is_chat)?;
    let options = EngineOptions {
        simulate_device: args.simulate_device,
        rope: args.rope.scaling(&folder.config),
        max_drafted: args::max_drafted(args, is_chat),
        // There is one session, so all of the device's memory is for it.
        kv_residency: args.engine.kv_residency.unwrap_or(KvResidency::Auto),
        kv_dtype: args.engine.kv_type_of_session(saved.as_ref().map(SavedSession::kv_type)),
        ..args.engine.options(args.model.ctx_size.max(1))
    };
    let change = match &saved {
        Some(saved) => args.policy.change(saved.policy())?,
        None => Some(args.policy.options()?),
    };
    let known = || saved.as_ref().expect("without a session there is a policy").policy().clone();
    let policy = change.clone().unwrap_or_else(known);
    with_device!(args.engine.device()?, backend => {
        let chooser = Chooser {
            backend: &*backend,
            folder: &folder,
            options: &options,
            policy: &policy,
            memory: context::memory(&args.engine, &*backend),
        };
        let ctx_size = match args.model.ctx_size {
            0 => chooser.choose(&limit, content)?,
            given => chooser.check(given, content)?,
        };
        let options = EngineOptions { ctx_size, ..options };
        let (mut engine, load) = load::engine(backend, folder, options, &policy)?;
        let (mut session, text) = match &saved {
            Some(saved) => {
                let keep = args.keep_index.as_deref().unwrap_or(match args.save_session {
                    Some(_) => "kept",
                    None => "not kept: --save-session with -f keeps it",
                });
                saved.tell_lack(keep);
                // Ctrl-C ends the program here.
                let (change, cancel) = (change.as_ref(), CancelToken::default());
                let (session, text) = saved.restore(args, &mut engine, change, text, &cancel)?;
                (session, Some(text))
            }
            None => (engine.session(&policy)?, text),
        };
        if args.sampling.draft() == Some(Draft::Lookup) {
            // Before anything is read.
            session.check_draft()?;
        }
        if let (Some(file), Some(text)) = (output, &text) {
            let ids = prompt::encode_document(args, &engine, text)?;
            let how = (&interrupt, &file);
            let interrupted = saved::read(args, &mut engine, &mut session, &ids, how)?;
            let note = Note { document: Some(text.document().to_owned()), conversation: None };
            let came_from = args.session.as_deref();
            let how = (&interrupt, interrupted.is_some());
            saved::write(&mut engine, &mut session, came_from, file, &note, how)?;
            if let Some(interrupted) = interrupted {
                return Err(interrupted.into());
            }
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

/// What the context has to hold. Texts are counted here, before anything is loaded.
fn content(
    args: &RunArgs,
    folder: &ModelFolder,
    limit: &Limit,
    saved: Option<&SavedSession>,
    text: Option<&mut PromptText>,
    is_chat: bool,
) -> Result<Content> {
    let answer = usize::try_from(args.predict).ok();
    let name = if args.file.is_some() { "document" } else { "prompt" };
    let count = |text| match args.model.ctx_size {
        0 => {
            let most = saved.map_or(0, SavedSession::context).max(limit.tokens());
            let counted = prompt::count(args, folder, text, most);
            counted.map_err(|error| limit.explained(name, error))
        }
        given => prompt::count(args, folder, text, given),
    };
    let n_tokens = text.map(count).transpose()?;
    Ok(match (saved, n_tokens) {
        (Some(saved), n_tokens) => {
            let (tokens, n_tokens) = (saved.n_tokens(), n_tokens.unwrap_or(0));
            // With the document the text has what the session has, and more.
            let question =
                if args.file.is_some() { n_tokens.saturating_sub(tokens) } else { n_tokens };
            Content::Session { tokens, saved: saved.context(), question, answer }
        }
        (None, Some(tokens)) => {
            Content::Text { name, tokens, answer, is_chat: is_chat || args.save_session.is_some() }
        }
        (None, None) => Content::Unknown,
    })
}

/// Whether a conversation begins. -p asks one thing; a document alone is talked about where
/// somebody sits at a terminal, and continued where the output goes on to another program.
fn is_chat(args: &RunArgs, stdin_is_terminal: bool) -> bool {
    match &args.file {
        _ if args.prompt.is_some() => false,
        _ if args.session.is_some() => args.save_session.is_none(),
        None => true,
        Some(file) => {
            let wants_one = args.json || args.no_chat_template || args.save_session.is_some();
            stdin_is_terminal && !wants_one && file != Path::new("-")
        }
    }
}

/// Says that what is piped in is not read, where the prompt and the document are given: people who
/// write `cat FILE | longview run -p QUESTION` mean it to be.
fn tell_unread_input(args: &RunArgs) {
    let reads_stdin = args.file.as_deref() == Some(Path::new("-"));
    // A kept document comes with a question of its own, and takes no -f.
    if reads_stdin || args.title.is_some() || !terminal::has_piped_input() {
        return;
    }
    let given = if args.prompt.is_some() { "-p" } else { "-f" };
    note(format_args!("note: stdin is not read beside {given}; `-f -` reads it as the document"));
}

/// A chat needs a template, and nowhere to put a JSON object.
fn check_chat(args: &RunArgs, has_template: bool) -> Result<()> {
    if args.json {
        bail!("--json describes one answer: give a prompt with -p or -f");
    }
    if args.no_chat_template || !has_template {
        bail!(
            "{}: without a chat template there is no chat: give a prompt with -p or -f",
            args.model.name()
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
