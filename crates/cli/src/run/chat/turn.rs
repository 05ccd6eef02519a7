//! One question and its answer.

use std::ops::ControlFlow;

use anyhow::Result;
use longview_engine::{EngineError, FinishReason, Generation};
use longview_ops::Backend;
use pollster::block_on;

use super::Chat;
use crate::failure::{Interrupted, describe};
use crate::out::note;
use crate::progress::PrefillBar;
use crate::run::prompt::{Encoding, common_prefix, encode_chat};
use crate::run::report::print_turn;
use crate::run::talk::Turn;
use crate::terminal::Quiet;
use crate::{out, units};

/// How a question ended.
enum Outcome {
    Answered(Generation),
    /// Ctrl-C came before the first word; what was read is kept.
    Interrupted,
    /// There is no room for it.
    TooLong {
        n_tokens: usize,
    },
}

impl<B: Backend> Chat<'_, B> {
    /// Asks `question` and keeps what is answered. A question without an answer can be asked again.
    ///
    /// # Errors
    /// If nobody reads the answer any more, or Ctrl-C ended an answer that goes to another program.
    pub fn ask(&mut self, question: String) -> Result<()> {
        self.n_asked += 1;
        self.session.reset_stats();
        let result = self.answer(&question);
        let problem = match result {
            Ok(Outcome::Answered(generation)) => return self.keep(question, generation),
            Ok(Outcome::Interrupted) => {
                let again = "/retry goes on with it";
                self.unanswered = Some(question);
                return self.end_interrupted(again);
            }
            Ok(Outcome::TooLong { n_tokens }) => self.too_long(n_tokens),
            Err(error) if error.is::<EngineError>() => describe(&error),
            Err(error) => return Err(error),
        };
        self.unanswered = Some(question);
        self.fail(&problem);
        Ok(())
    }

    /// The conversation with `question` is computed as far as the session does not have it, and the
    /// answer is shown as it comes.
    fn answer(&mut self, question: &str) -> Result<Outcome> {
        let _quiet = Quiet::new();
        let guard = self.interrupt.cancel_with(self.session.cancel_token());
        let ids = self.encode(Some(question))?;
        if ids.len() > self.engine.options().ctx_size {
            return Ok(Outcome::TooLong { n_tokens: ids.len() });
        }
        // At least one token is computed anew: its logits are wanted.
        let known = common_prefix(self.session.tokens(), &ids).min(ids.len().saturating_sub(1));
        block_on(self.session.cut(known))?;
        let mut bar = PrefillBar::new(ids.len() - known);
        let mut update = |progress| bar.update(progress, &guard);
        let rest = &ids[known..];
        let is_complete = block_on(self.engine.prefill(&mut self.session, rest, &mut update))?;
        drop(bar);
        if !is_complete {
            note(format_args!(
                "interrupted: {} of {} tokens of the conversation are computed and kept",
                units::count(self.session.n_tokens()),
                units::count(ids.len()),
            ));
            return Ok(Outcome::Interrupted);
        }
        let mut written = Ok(());
        let mut show = |text: &str| {
            written = out::piece(text);
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let generate = self.engine.generate(&mut self.session, &self.params, &mut show);
        let generation = block_on(generate)?;
        written?;
        Ok(Outcome::Answered(generation))
    }

    /// Ends the answer's line and remembers what was said.
    fn keep(&mut self, question: String, generation: Generation) -> Result<()> {
        let Generation { ids, text: answer, finish_reason } = generation;
        out::piece("\n")?;
        self.unanswered = None;
        self.talk.turns.push(Turn { question, answer });
        if self.args.stats {
            print_turn(&**self.engine.backend(), &self.session);
        }
        match finish_reason {
            FinishReason::ContextFull => note(format_args!(
                "the answer ends here: the context of {} tokens is full; {}",
                units::count(self.engine.options().ctx_size),
                self.way_out(),
            )),
            FinishReason::Cancelled => {
                let n = units::count(ids.len());
                note(format_args!("interrupted: the answer ends after {n} tokens and is kept"));
                return self.end_interrupted("");
            }
            FinishReason::Eos(_) | FinishReason::Stop(_) | FinishReason::Length => {}
        }
        Ok(())
    }

    /// After Ctrl-C a person goes on; where another program asks, the chat ends.
    pub fn end_interrupted(&self, advice: &str) -> Result<()> {
        if !self.is_interactive {
            let text = format!("the chat ends in turn {}", units::count(self.n_asked));
            return Err(Interrupted(text).into());
        }
        if !advice.is_empty() {
            note(advice);
        }
        Ok(())
    }

    fn too_long(&self, n_tokens: usize) -> String {
        format!(
            "no room for this turn: with it the conversation has {} tokens, and the context holds \
             {}; shorten it, {}",
            units::count(n_tokens),
            units::count(self.engine.options().ctx_size),
            self.way_out(),
        )
    }

    /// How to make room.
    pub fn way_out(&self) -> &'static str {
        if self.talk.turns.is_empty() {
            "or start again with a larger -c"
        } else {
            "/clear forgets the turns so far, /undo the last one, or start again with a larger -c"
        }
    }

    /// The tokens of the conversation, with `question` and up to where the model speaks, or
    /// without.
    pub fn encode(&self, question: Option<&str>) -> Result<Vec<u32>> {
        let chat = self.engine.chat().expect("checked before loading");
        let tokenizer = self.engine.tokenizer().expect("checked before loading");
        let messages = self.talk.messages(self.document.document(), question);
        let context = self.engine.options().ctx_size;
        let how = Encoding { context, add_generation_prompt: question.is_some() };
        encode_chat(chat, tokenizer, &messages, &how)
    }

    /// Cuts the session back to what the conversation says.
    pub fn settle(&mut self) -> Result<()> {
        let ids =
            if self.talk.turns.is_empty() { self.document_ids.clone() } else { self.encode(None)? };
        let known = common_prefix(self.session.tokens(), &ids);
        Ok(block_on(self.session.truncate(known))?)
    }
}
