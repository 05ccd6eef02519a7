//! A conversation on stdin and stdout.
//!
//! Each turn is rendered whole, as the template wants it; what the session has computed already is
//! found by the common prefix of the tokens, and only the rest is prefilled.

use std::io::{self, BufRead, IsTerminal};
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use longview_engine::{Engine, EngineError, Generation, GenerationParams, Session};
use longview_model::chat::ChatMessage;
use longview_ops::Backend;
use pollster::block_on;

use super::args::{RunArgs, params};
use super::prompt::{PromptText, common_prefix, encode_chat, known, system, utf8};
use super::report::print_turn;
use crate::interrupt::Interrupt;
use crate::progress::PrefillBar;
use crate::{out, units};

struct Chat<'a, B: Backend> {
    args: &'a RunArgs,
    engine: Engine<B>,
    session: Session<B>,
    interrupt: &'a Interrupt,
    params: GenerationParams,
    messages: Vec<ChatMessage>,
    /// What the first turn is about.
    document: Option<PromptText>,
}

/// Talks until stdin ends.
pub fn run<B: Backend>(
    args: &RunArgs,
    engine: Engine<B>,
    session: Session<B>,
    document: Option<PromptText>,
    interrupt: &Interrupt,
) -> Result<()> {
    let (params, messages) = (params(args, &engine), system(args));
    let mut chat = Chat { args, engine, session, interrupt, params, messages, document };
    let is_terminal = io::stdin().is_terminal();
    loop {
        if is_terminal {
            out::piece("> ")?;
        }
        let Some(line) = read_line()? else { break };
        if !line.trim().is_empty() {
            chat.turn(line)?;
        }
    }
    if is_terminal {
        out::piece("\n")?;
    }
    Ok(())
}

fn read_line() -> Result<Option<String>> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_until(b'\n', &mut bytes).context("stdin: cannot be read")?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let line = utf8(bytes, "stdin (one line)")?;
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}

impl<B: Backend> Chat<'_, B> {
    /// One question and its answer. A turn that does not fit is taken back, and the chat goes on.
    fn turn(&mut self, line: String) -> Result<()> {
        let document = self.document.take();
        let text = document.as_ref().map_or_else(|| line.clone(), |doc| doc.first_turn(&line));
        self.messages.push(ChatMessage::new("user", text));
        self.session.reset_stats();
        let result = self.turn_with(document.is_some());
        // A first turn that was taken back is still to come.
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            self.document = document;
        }
        result
    }

    /// Answers the last message; `is_first` if it begins with the document of the session.
    fn turn_with(&mut self, is_first: bool) -> Result<()> {
        match self.answer(is_first) {
            Ok(Some(answer)) => {
                out::piece("\n")?;
                self.messages.push(ChatMessage::new("assistant", answer.text));
                if self.args.stats {
                    print_turn(&**self.engine.backend(), &self.session);
                }
            }
            Ok(None) => {
                self.messages.pop();
            }
            Err(error) => match error.downcast_ref::<EngineError>() {
                Some(EngineError::PromptTooLong { .. } | EngineError::PromptFarTooLong { .. }) => {
                    self.messages.pop();
                    out::note(format_args!("error: {error}"));
                }
                _ => return Err(error),
            },
        }
        Ok(())
    }

    /// The model's answer; `None` if Ctrl-C came before its first word.
    fn answer(&mut self, is_first: bool) -> Result<Option<Generation>> {
        let guard = self.interrupt.cancel_with(self.session.cancel_token());
        let chat = self.engine.chat().expect("checked before loading");
        let tokenizer = self.engine.tokenizer().expect("checked before loading");
        let ids = encode_chat(chat, tokenizer, &self.messages, self.engine.options().ctx_size)?;
        let known = if is_first {
            known(&self.session, &ids)?
        } else {
            // At least one token is computed anew: its logits are wanted.
            common_prefix(self.session.tokens(), &ids).min(ids.len().saturating_sub(1))
        };
        block_on(self.session.truncate(known))?;
        let bar = PrefillBar::new(ids.len() - known);
        let mut update = |progress| bar.update(progress, &guard);
        let rest = &ids[known..];
        let is_complete = block_on(self.engine.prefill(&mut self.session, rest, &mut update))?;
        drop(bar);
        if !is_complete {
            out::note(format_args!(
                "interrupted: {} of {} tokens of the conversation are computed and kept",
                units::count(self.session.n_tokens()),
                units::count(ids.len()),
            ));
            return Ok(None);
        }
        let mut written = Ok(());
        let mut show = |text: &str| {
            written = out::piece(text);
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let generate = self.engine.generate(&mut self.session, &self.params, &mut show);
        let generation = block_on(generate)?;
        written?;
        Ok(Some(generation))
    }
}
