//! Where messages come from: a line editor at a terminal, else stdin.

use std::io;

use anyhow::Result;

use super::editor::LineEditor;
use super::input::{Input, read_message};
use crate::out::note;

/// Where it comes from.
pub enum Source {
    /// A person at a terminal.
    Editor(Box<LineEditor>),
    /// Another program, or a terminal whose output goes elsewhere.
    Lines {
        /// A line or block above this cannot fit into the context.
        max_bytes: usize,
        /// Whether somebody waits for a prompt.
        has_prompt: bool,
    },
}

impl Source {
    /// What comes next.
    pub fn next(&mut self) -> Result<Input> {
        match self {
            Source::Editor(editor) => editor.next(),
            Source::Lines { max_bytes, has_prompt } => {
                if *has_prompt {
                    eprint_prompt();
                }
                read_message(&mut io::stdin().lock(), *max_bytes)
            }
        }
    }

    /// Asks a question that y answers; no where nobody can be asked.
    pub fn confirms(&mut self, question: &str) -> Result<bool> {
        match self {
            Source::Editor(editor) => editor.confirms(question),
            Source::Lines { .. } => {
                note(question);
                Ok(false)
            }
        }
    }

    /// Whether somebody reads what is said about the chat.
    pub fn is_interactive(&self) -> bool {
        matches!(self, Source::Editor(_))
    }
}

/// The prompt where the output goes to another program: it is not part of it.
fn eprint_prompt() {
    use std::io::Write;
    let mut stderr = io::stderr().lock();
    // Nobody may be there to read it.
    let _ = stderr.write_all(b"> ").and_then(|()| stderr.flush());
}
