//! A conversation at a terminal, or with another program through stdin and stdout.
//!
//! Each turn is rendered whole, as the template wants it; what the session has computed already is
//! found by the common prefix of the tokens, and only the rest is prefilled. So a turn that was
//! interrupted goes on where it stopped, and a conversation that is changed at its end is computed
//! from there.

mod actions;
mod commands;
mod editor;
mod history;
mod input;
mod settings;
mod source;
mod turn;

use std::io::{self, IsTerminal};

use anyhow::{Result, anyhow, bail};
use longview_engine::{Draft, Engine, GenerationParams, Session};
use longview_ops::Backend;
use pollster::block_on;

use self::commands::Said;
use self::editor::LineEditor;
use self::input::Input;
use self::source::Source;
use super::args::{RunArgs, params};
use super::prompt::{self, PromptText, common_prefix};
use super::talk::Talk;
use crate::failure::Interrupted;
use crate::interrupt::{Interrupt, LEAVE_HINT};
use crate::out::note;
use crate::progress::PrefillBar;
use crate::{terminal, units};

/// Bytes of text that a token of the context may stand for: a text of more does not fit.
const BYTES_OF_TOKEN: usize = 32;

/// Bytes that a turn may always have: what so short a text has of tokens is soon counted.
const LEAST_BYTES: usize = 1 << 20;

/// Tokens that an answer of some length takes: with fewer left, the user is told.
const LITTLE_ROOM: usize = 256;

struct Chat<'a, B: Backend> {
    args: &'a RunArgs,
    engine: Engine<B>,
    session: Session<B>,
    interrupt: &'a Interrupt,
    params: GenerationParams,
    /// What the chat is about; empty if there is no document.
    document: PromptText,
    /// What every conversation about the document begins with.
    document_ids: Vec<u32>,
    talk: Talk,
    /// The last question, if it has no answer: it did not fit, or Ctrl-C came first.
    unanswered: Option<String>,
    is_interactive: bool,
    n_asked: usize,
    n_failed: usize,
}

/// Whether to go on.
enum Next {
    Turn,
    Leave,
}

/// Talks until stdin ends, or the user leaves.
pub fn run<B: Backend>(
    args: &RunArgs,
    engine: Engine<B>,
    session: Session<B>,
    text: Option<PromptText>,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut source = open_source(engine.options().ctx_size)?;
    let document =
        text.unwrap_or_else(|| PromptText::new(String::new(), String::new(), prompt::talk(args)));
    let mut params = params(args, &engine);
    if args.sampling.draft().is_none()
        && !document.document().is_empty()
        && session.check_draft().is_ok()
    {
        params.draft = Draft::Lookup;
    }
    let mut chat = Chat {
        args,
        params,
        engine,
        session,
        interrupt,
        talk: document.talk().clone(),
        document,
        document_ids: Vec::new(),
        unanswered: None,
        is_interactive: source.is_interactive(),
        n_asked: 0,
        n_failed: 0,
    };
    chat.begin()?;
    chat.talk(&mut source)
}

/// A line editor where a person sits, else the lines of stdin.
fn open_source(ctx_size: usize) -> Result<Source> {
    if terminal::is_interactive() {
        return Ok(Source::Editor(Box::new(LineEditor::open()?)));
    }
    let max_bytes = ctx_size.saturating_mul(BYTES_OF_TOKEN).max(LEAST_BYTES);
    Ok(Source::Lines { max_bytes, has_prompt: io::stdin().is_terminal() })
}

impl<B: Backend> Chat<'_, B> {
    /// Reads the document, unless the session has it, and says what the chat is about.
    fn begin(&mut self) -> Result<()> {
        if self.is_interactive {
            self.interrupt.ask_first();
        }
        self.begin_document()?;
        let n_tokens = units::count(self.session.n_tokens());
        if !self.is_interactive {
            return Ok(());
        }
        if self.document_ids.is_empty() && self.talk.turns.is_empty() {
            let name = self.args.model.name();
            note(format_args!("chat with {name}; /help lists the commands, Ctrl-D ends"));
        } else if let Some(path) = &self.args.session {
            let path = path.display().to_string();
            let (name, n_turns) =
                (self.args.title.as_ref().unwrap_or(&path), self.talk.turns.len());
            let turns = match n_turns {
                0 => String::new(),
                1 => ", 1 turn".to_owned(),
                n => format!(", {} turns", units::count(n)),
            };
            note(format_args!("{name}: {n_tokens} tokens opened{turns}; /help lists the commands"));
        }
        Ok(())
    }

    /// Finds the tokens of the document, and computes them if the session is empty.
    fn begin_document(&mut self) -> Result<()> {
        if self.document.document().is_empty() {
            if let Some(file) = &self.args.file {
                bail!("{}: the file is empty: there is nothing to talk about", file.display());
            }
            return Ok(());
        }
        self.document_ids = prompt::encode_document(self.args, &self.engine, &self.document)?;
        let known = common_prefix(self.session.tokens(), &self.document_ids);
        let n_read = self.session.tokens().len();
        if n_read > 0 {
            return prompt::check_known(known, n_read.min(self.document_ids.len()));
        }
        self.read_document()
    }

    /// Computes the document, which the session lacks.
    fn read_document(&mut self) -> Result<()> {
        let name = self
            .args
            .file
            .as_ref()
            .map_or_else(String::new, |file| format!("{}: ", file.display()));
        let (ids, context) = (&self.document_ids, self.engine.options().ctx_size);
        if ids.len() >= context {
            bail!(
                "{name}the document has {} tokens, and the context holds {}; start with a larger -c",
                units::count(ids.len()),
                units::count(context)
            );
        }
        let guard = self.interrupt.cancel_with(self.session.cancel_token());
        let mut bar = PrefillBar::new(ids.len());
        let mut update = |progress| bar.update(progress, &guard);
        let is_complete = block_on(self.engine.prefill(&mut self.session, ids, &mut update))?;
        drop((bar, guard));
        let (n_read, n_tokens) = (units::count(self.session.n_tokens()), units::count(ids.len()));
        if !is_complete {
            if !self.is_interactive {
                let text = format!("{n_read} of {n_tokens} document tokens were computed");
                return Err(Interrupted(text).into());
            }
            note(format_args!(
                "interrupted: {n_read} of {n_tokens} document tokens are computed and kept; the \
                 rest is read with the first question"
            ));
            return Ok(());
        }
        let timings = self.session.timings();
        note(format_args!(
            "{name}{n_tokens} tokens read in {:.1} s, {} tokens/s; ask about it, /help lists the \
             commands",
            timings.prefill.as_secs_f64(),
            units::rate(timings.prefill_tokens_per_s()),
        ));
        Ok(())
    }

    fn talk(&mut self, source: &mut Source) -> Result<()> {
        let mut has_asked = false;
        loop {
            if self.is_interactive {
                self.announce_room();
            }
            // Ctrl-C came between an answer and the prompt.
            has_asked |= self.is_interactive && self.interrupt.take_asked();
            match source.next()? {
                Input::End => break,
                Input::Interrupt { is_empty: true } if has_asked => {
                    return Err(Interrupted("the chat was left".to_owned()).into());
                }
                Input::Interrupt { is_empty } => {
                    if is_empty {
                        note(LEAVE_HINT);
                    }
                    has_asked = is_empty;
                    continue;
                }
                Input::Block(text) => self.ask(text)?,
                Input::Line(line) => {
                    if let Next::Leave = self.line(&line, source)? {
                        break;
                    }
                }
                Input::Refused(reason) => {
                    self.n_asked += 1;
                    self.fail(&reason);
                }
            }
            has_asked = false;
        }
        self.end()
    }

    /// A command, or a question.
    fn line(&mut self, line: &str, source: &mut Source) -> Result<Next> {
        if line.trim().is_empty() {
            return Ok(Next::Turn);
        }
        match commands::parse(line) {
            Ok(Said::Text(text)) => self.ask(text).map(|()| Next::Turn),
            Ok(Said::Command(command)) => self.act(command, source),
            Err(reason) => {
                self.n_asked += 1;
                self.fail(&reason);
                Ok(Next::Turn)
            }
        }
    }

    /// Says that something did not work; the chat goes on.
    fn fail(&mut self, reason: &str) {
        self.n_failed += 1;
        note(format_args!("error: {reason}"));
    }

    /// Before a context is full, there is time to do something about it.
    fn announce_room(&self) {
        let context = self.engine.options().ctx_size;
        let left = context.saturating_sub(self.session.n_tokens());
        // A context that is small itself is not called full from the beginning.
        if left < LITTLE_ROOM.max(context / 10).min(context / 2) {
            note(format_args!(
                "{} of {} tokens of the context are left; {}",
                units::count(left),
                units::count(context),
                self.way_out(),
            ));
        }
    }

    /// Another program learns from the exit code whether everything was answered.
    fn end(&self) -> Result<()> {
        if self.n_failed > 0 && !self.is_interactive {
            let (failed, asked) = (units::count(self.n_failed), units::count(self.n_asked));
            let turns = if self.n_asked == 1 { "turn" } else { "turns" };
            return Err(anyhow!("{failed} of {asked} {turns} failed"));
        }
        Ok(())
    }
}
