//! What a model writes for itself before it answers, between `<think>` and `</think>`, told from
//! the answer while it is written. Space around both is of the form and goes.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::texts::ModelFacts;

const OPEN: &str = "<think>";
/// Behind it there are none.
pub(crate) const CLOSE: &str = "</think>";

/// A part of what a model wrote.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Thought(String),
    Text(String),
}

/// Reads one answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thoughts {
    state: State,
    /// What is not given out yet.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    /// All is text.
    #[default]
    Off,
    /// Nothing came yet, or what may become the mark.
    Start,
    /// Within thoughts; whether any of them came.
    Inside { has_begun: bool },
    /// Behind thoughts, where no text came yet.
    Behind,
}

impl Thoughts {
    /// Whether a request wants thoughts told from the answer. llama.cpp's other forms are of older
    /// clients.
    pub(crate) fn are_wanted(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
        match fields.text("reasoning_format")? {
            None | Some("auto" | "deepseek") => Ok(true),
            Some("none") => Ok(false),
            Some(_) => Err(wrong("reasoning_format", "one of auto, deepseek, none")),
        }
    }

    /// For answers to `prompt` of a model whose template knows thoughts. Such a template may have
    /// begun them in the prompt; `is_held` says that the answer is held to a form from its first
    /// token on, and so does not go on with them.
    pub(crate) fn of(model: &ModelFacts, prompt: &str, is_held: bool) -> Self {
        if !Self::are_known(model) {
            return Self::default();
        }
        let is_begun = prompt.trim_end().ends_with(OPEN) && !is_held;
        let state = if is_begun { State::Inside { has_begun: false } } else { State::Start };
        Self { state, held: String::new() }
    }

    /// Whether the model's template says anything of thoughts.
    pub(crate) fn are_known(model: &ModelFacts) -> bool {
        let chat = model.chat.as_ref();
        chat.is_some_and(|chat| chat.mentions(OPEN) || chat.mentions(CLOSE))
    }

    /// Whether an answer says its marks only where special tokens are written out.
    pub(crate) fn need_specials(model: &ModelFacts) -> bool {
        Self::are_known(model) && (model.hides(OPEN) || model.hides(CLOSE))
    }

    /// What `text` completes.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Said> {
        let mut said = Vec::new();
        self.held += text;
        if self.state == State::Start {
            let begun = self.held.trim_start();
            if let Some(rest) = begun.strip_prefix(OPEN) {
                self.held = rest.to_owned();
                self.state = State::Inside { has_begun: false };
            } else if !OPEN.starts_with(begun) {
                self.state = State::Off;
            }
        }
        if let State::Inside { has_begun } = self.state {
            self.thought(has_begun, &mut said);
        }
        if self.state == State::Behind {
            self.held = self.held.trim_start().to_owned();
            if !self.held.is_empty() {
                self.state = State::Off;
            }
        }
        if self.state == State::Off && !self.held.is_empty() {
            said.push(Said::Text(std::mem::take(&mut self.held)));
        }
        said
    }

    /// What is left at the end of the answer.
    pub(crate) fn finish(&mut self) -> Option<Said> {
        let held = std::mem::take(&mut self.held);
        let said = match self.state {
            State::Inside { .. } => Said::Thought(held.trim_end().to_owned()),
            State::Off | State::Start | State::Behind => Said::Text(held),
        };
        let (Said::Thought(text) | Said::Text(text)) = &said;
        (!text.is_empty()).then_some(said)
    }

    /// Gives out thoughts up to their end, or up to what may be it.
    fn thought(&mut self, has_begun: bool, said: &mut Vec<Said>) {
        if !has_begun {
            self.held = self.held.trim_start().to_owned();
        }
        let end = self.held.find(CLOSE);
        let n_said = end.unwrap_or_else(|| self.held.len() - beginning_at_end(&self.held));
        let thought = self.held[..n_said].trim_end().to_owned();
        let rest = match end {
            Some(at) => at + CLOSE.len(),
            // Space may be the last before the mark.
            None => thought.len(),
        };
        self.held = self.held.split_off(rest);
        self.state = match end {
            Some(_) => State::Behind,
            None => State::Inside { has_begun: has_begun || !thought.is_empty() },
        };
        if !thought.is_empty() {
            said.push(Said::Thought(thought));
        }
    }
}

/// Bytes at the end of `text` that the closing mark begins with.
fn beginning_at_end(text: &str) -> usize {
    (1..CLOSE.len()).rev().find(|n| text.ends_with(&CLOSE[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thoughts and text of an answer that comes in pieces.
    fn read(state: State, pieces: &[&str]) -> (String, String) {
        let mut thoughts = Thoughts { state, held: String::new() };
        let mut all: Vec<Said> = pieces.iter().flat_map(|piece| thoughts.push(piece)).collect();
        all.extend(thoughts.finish());
        let (mut thought, mut text) = (String::new(), String::new());
        for said in all {
            match said {
                Said::Thought(more) => thought += &more,
                Said::Text(more) => text += &more,
            }
        }
        (thought, text)
    }

    fn both(thought: &str, text: &str) -> (String, String) {
        (thought.to_owned(), text.to_owned())
    }

    #[test]
    fn thoughts_are_found_however_the_answer_is_cut() {
        let answer =
            "\n<think>\nIs 1 < 2? It is.\n\nSo yes. </thin\n</think>\n\nYes, <b>1</b> < 2.\n";
        let wanted = both("Is 1 < 2? It is.\n\nSo yes. </thin", "Yes, <b>1</b> < 2.\n");
        for n in 1..answer.len() {
            let bytes = answer.as_bytes().chunks(n);
            let pieces: Vec<_> = bytes.map(|b| std::str::from_utf8(b).expect("ASCII")).collect();
            assert_eq!(read(State::Start, &pieces), wanted, "{n}");
        }
        let (start, rest) = answer.split_at(answer.find("Is").expect("it is there"));
        assert!(start.ends_with("<think>\n"));
        assert_eq!(read(State::Inside { has_begun: false }, &["\n", rest]), wanted, "begun before");
    }

    #[test]
    fn what_has_no_thoughts_is_text_as_it_is() {
        for text in ["", "Yes.", " \n<thin", "<b>x</b>", "a <think>b</think>", "  <thanks>"] {
            assert_eq!(read(State::Start, &[text]), both("", text), "{text}");
            assert_eq!(read(State::Off, &[text]), both("", text), "{text}");
        }
        assert_eq!(read(State::Start, &["<think></think>Yes."]), both("", "Yes."));
        assert_eq!(read(State::Start, &["<think>a</think>b<think>c"]), both("a", "b<think>c"));
    }

    #[test]
    fn thoughts_that_are_cut_off_are_thoughts() {
        assert_eq!(read(State::Start, &["<think>I loo", "k </th"]), both("I look </th", ""));
        assert_eq!(read(State::Inside { has_begun: false }, &[" I look. "]), both("I look.", ""));
    }

    #[test]
    fn thoughts_go_out_as_they_come() {
        let mut thoughts = Thoughts { state: State::Start, held: String::new() };
        assert_eq!(thoughts.push("<think>I "), [Said::Thought("I".into())]);
        assert_eq!(thoughts.push("look"), [Said::Thought(" look".into())]);
        assert_eq!(thoughts.push(" </"), []);
        assert_eq!(thoughts.push("think>"), []);
        assert_eq!(thoughts.push("\n"), []);
        assert_eq!(thoughts.push("Yes"), [Said::Text("Yes".into())]);
        assert_eq!(thoughts.push(" . "), [Said::Text(" . ".into())]);
    }
}
