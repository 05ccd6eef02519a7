//! Questions and answers on stdout, as they come.

use std::io::{self, Write};

use super::document::Question;
use crate::out;

/// Answers that are streamed; of the others only wrong ones are shown.
const STREAMED: usize = 6;

/// Shows an exam, or nothing.
pub struct View {
    quiet: bool,
    /// Every how many questions one is streamed.
    stride: usize,
    asked: usize,
    streaming: bool,
}

impl View {
    /// A view of `n_questions` questions.
    pub fn new(n_questions: usize, quiet: bool) -> Self {
        let mut stride = n_questions.div_ceil(STREAMED).max(1);
        if stride > 1 && stride.is_multiple_of(3) {
            // Facts take turns in three forms: this shows them all.
            stride += 1;
        }
        Self { quiet, stride, asked: 0, streaming: false }
    }

    /// A question is asked.
    pub fn begin(&mut self, question: &Question) -> io::Result<()> {
        self.streaming = !self.quiet && self.asked.is_multiple_of(self.stride);
        self.asked += 1;
        if self.streaming { self.question(question) } else { Ok(()) }
    }

    /// A part of the answer.
    pub fn piece(&mut self, text: &str) -> io::Result<()> {
        if self.streaming { out::piece(text) } else { Ok(()) }
    }

    /// The answer is complete.
    pub fn end(&mut self, question: &Question, answer: &str, is_right: bool) -> io::Result<()> {
        if self.quiet || (is_right && !self.streaming) {
            return Ok(());
        }
        if !self.streaming {
            self.question(question)?;
            out::piece(answer)?;
        }
        if is_right {
            out::piece("  right\n")
        } else {
            out::piece(&format!("  wrong: it is {}\n", question.answer.trim_start()))
        }
    }

    fn question(&self, question: &Question) -> io::Result<()> {
        let mut out = out::stdout();
        write!(out, "  at {:>3.0} %  {}|", 100.0 * question.depth, question.text)?;
        out.flush()
    }
}
