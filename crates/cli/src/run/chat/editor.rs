//! The line editor of a chat at a terminal.

use std::cell::Cell;

use anyhow::{Context as _, Result};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::config::BellStyle;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, CompletionType, Config, Context, Editor, Helper};

use super::commands;
use super::history::HistoryFile;
use super::input::{Fenced, Input, fenced};
use crate::out::note;

/// What stands before the text.
const PROMPT: &str = "> ";

/// Reads messages at a terminal, with the history of earlier chats.
pub struct LineEditor {
    editor: Editor<ChatHelper, MemHistory>,
    history: HistoryFile,
}

impl LineEditor {
    /// Fails where the terminal cannot be set up.
    pub fn open() -> Result<Self> {
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .bell_style(BellStyle::None)
            // Nothing is coloured, so NO_COLOR needs no asking.
            .color_mode(ColorMode::Disabled)
            .auto_add_history(false)
            .max_history_size(super::history::MAX_ENTRIES)
            .context("the history")?
            .build();
        let memory = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, memory).context("the terminal")?;
        editor.set_helper(Some(ChatHelper::default()));
        let (history, entries, warning) = HistoryFile::open();
        for entry in entries {
            editor.add_history_entry(entry).context("the history")?;
        }
        if let Some(warning) = warning {
            note(warning);
        }
        Ok(Self { editor, history })
    }

    /// The next message.
    pub fn next(&mut self) -> Result<Input> {
        match self.editor.readline(PROMPT) {
            Ok(text) => {
                self.remember(&text)?;
                Ok(match fenced(&text) {
                    Some(Fenced::Closed(inside)) => Input::Block(inside.to_owned()),
                    // A terminal that edits nothing asks no validator.
                    Some(Fenced::Open) | None => Input::Line(text),
                })
            }
            // The key, or the signal from another program.
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => {
                let is_empty = self.editor.helper().is_none_or(|helper| helper.is_empty.get());
                Ok(Input::Interrupt { is_empty })
            }
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(error).context("stdin: cannot be read"),
        }
    }

    /// Asks a question that y answers.
    pub fn confirms(&mut self, question: &str) -> Result<bool> {
        match self.editor.readline(&format!("{question} [y/N] ")) {
            Ok(answer) => Ok(matches!(answer.trim(), "y" | "Y" | "yes")),
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_) | ReadlineError::Eof) => {
                Ok(false)
            }
            Err(error) => Err(error).context("stdin: cannot be read"),
        }
    }

    /// Before it is answered: a text that does not fit is there to be shortened.
    fn remember(&mut self, text: &str) -> Result<()> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.editor.add_history_entry(text).context("the history")?;
        if let Some(warning) = self.history.add(text) {
            note(warning);
        }
        Ok(())
    }
}

/// What the editor asks about the text.
#[derive(Default)]
struct ChatHelper {
    /// The editor says that Ctrl-C was pressed, but not over what.
    is_empty: Cell<bool>,
    files: FilenameCompleter,
}

impl Helper for ChatHelper {}

impl Highlighter for ChatHelper {}

impl Hinter for ChatHelper {
    type Hint = String;

    /// Is called after every change, and hints at nothing.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Validator for ChatHelper {
    /// A block goes on to its second fence.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match fenced(context.input()) {
            Some(Fenced::Open) => ValidationResult::Incomplete,
            Some(Fenced::Closed(_)) | None => ValidationResult::Valid(None),
        })
    }
}

impl Completer for ChatHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..at];
        if commands::takes_file(typed) {
            return self.files.complete(line, at, context);
        }
        let (start, names) = commands::completions(typed);
        let pair = |name: String| Pair { display: name.clone(), replacement: format!("{name} ") };
        Ok((start, names.into_iter().map(pair).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn commands_and_names_are_completed() {
        let (helper, memory) = (ChatHelper::default(), MemHistory::new());
        let complete = |line: &str| {
            let (start, pairs) = helper.complete(line, line.len(), &Context::new(&memory)).unwrap();
            let replaced = pairs.into_iter().map(|pair| pair.replacement);
            replaced.map(|text| format!("{}{text}", &line[..start])).collect::<Vec<_>>()
        };
        assert_eq!(complete("/he"), ["/help "]);
        assert_eq!(complete("/s"), ["/save ", "/stats ", "/set ", "/system "]);
        assert_eq!(complete("/set top"), ["/set top-k ", "/set top-p "]);
        assert_eq!(complete("hello"), [""; 0]);
        assert_eq!(complete("say /he"), [""; 0], "only at the beginning");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let typed = format!("/load {}", folder.join("Cargo.to").display());
        assert_eq!(complete(&typed), [format!("/load {}", folder.join("Cargo.toml").display())]);
    }
}
