//! Calls of tools in what a model writes, found while it writes: text goes out at once, what may
//! become a call is held until that is sure, and the arguments of a call go out as they come. What
//! only looked like a call stays text.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::thoughts::{Said, Thoughts};
use crate::tools::Style;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// Nine letters and digits, as Mistral's templates want it.
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    /// What the model wrote for itself.
    Thought(String),
    /// A call begins; its arguments follow.
    Begin(Call),
    /// More of the arguments of the call that began last.
    Arguments(String),
    /// They are complete, or the answer was cut off.
    End,
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    /// Without one all is text.
    style: Option<Style>,
    /// There are no calls among thoughts.
    thoughts: Thoughts,
    /// What is not given out yet.
    held: String,
    state: State,
    /// Whether anything was given out, and whether a call was.
    has_begun: bool,
    has_calls: bool,
}

/// What `held` is the beginning of.
#[derive(Clone, Copy, Debug)]
enum State {
    Text,
    /// A call, behind the mark that opens one if `is_marked`.
    Head {
        is_marked: bool,
    },
    /// A call in no usual order: it is read when all of it is there.
    Whole {
        is_marked: bool,
    },
    /// Arguments; `is_wrapped`: within an object that has the name as well.
    Arguments {
        scan: Scan,
        is_wrapped: bool,
    },
    /// What follows arguments.
    After {
        is_wrapped: bool,
    },
}

/// What was found.
enum Step {
    /// Something: `held` may have more.
    Found,
    /// Nothing before more text comes.
    Wait,
}

impl Calls {
    pub(crate) fn new(style: Option<Style>) -> Self {
        Self {
            style,
            thoughts: Thoughts::default(),
            held: String::new(),
            state: State::Text,
            has_begun: false,
            has_calls: false,
        }
    }

    /// The same for answers that may have thoughts.
    pub(crate) fn behind(self, thoughts: Thoughts) -> Self {
        Self { thoughts, ..self }
    }

    /// What `text` completes.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        let said = self.thoughts.push(text);
        said.into_iter().flat_map(|said| self.take_said(said)).collect()
    }

    /// What is left at the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let said = self.thoughts.finish();
        let mut parts: Vec<Part> = said.map(|said| self.take_said(said)).unwrap_or_default();
        parts.extend(self.finish_text());
        parts
    }

    fn take_said(&mut self, said: Said) -> Vec<Part> {
        match said {
            Said::Thought(thought) => vec![Part::Thought(thought)],
            Said::Text(text) => self.push_text(&text),
        }
    }

    fn push_text(&mut self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let Some(style) = self.style else {
            self.say(text.to_owned(), &mut parts);
            return parts;
        };
        self.held += text;
        loop {
            let step = match self.state {
                State::Text => self.text(&style, &mut parts),
                State::Head { is_marked } => self.head(is_marked, &mut parts),
                State::Whole { is_marked } => self.whole(&style, is_marked, &mut parts),
                State::Arguments { scan, is_wrapped } => {
                    self.arguments(scan, is_wrapped, &mut parts)
                }
                State::After { is_wrapped } => self.after(&style, is_wrapped),
            };
            if matches!(step, Step::Wait) {
                return parts;
            }
        }
    }

    fn finish_text(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let Some(style) = self.style else { return parts };
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            // Space behind a call is of its form.
            State::Text if self.has_calls && held.trim().is_empty() => {}
            State::Text => self.say(held, &mut parts),
            State::Head { is_marked } | State::Whole { is_marked } => match read(&held) {
                Some(calls) => parts.extend(calls.into_iter().flat_map(of_call)),
                None => {
                    let open = if is_marked { style.open } else { "" };
                    self.say(format!("{open}{held}"), &mut parts);
                }
            },
            State::Arguments { .. } => {
                parts.extend((!held.is_empty()).then_some(Part::Arguments(held)));
                parts.push(Part::End);
            }
            // The rest of the call's own form.
            State::After { .. } => {}
        }
        parts
    }

    fn say(&mut self, text: String, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.has_begun = true;
            parts.push(Part::Text(text));
        }
    }

    /// The first `n` bytes of what is held.
    fn take(&mut self, n: usize) -> String {
        let rest = self.held.split_off(n);
        std::mem::replace(&mut self.held, rest)
    }

    /// Looks for the beginning of a call.
    fn text(&mut self, style: &Style, parts: &mut Vec<Part>) -> Step {
        if let Some(at) = self.held.find(style.open) {
            let said = self.take(at + style.open.len());
            // Space before a call is of its form, not of the text.
            self.say(said[..at].trim_end().to_owned(), parts);
            self.state = State::Head { is_marked: true };
            return Step::Found;
        }
        if style.may_be_bare && !self.has_begun && self.held.trim_start().starts_with('{') {
            self.state = State::Head { is_marked: false };
            return Step::Found;
        }
        let kept = kept(&self.held, style.open);
        // Space may belong to a call that follows.
        let n_said = self.held[..self.held.len() - kept].trim_end().len();
        let said = self.take(n_said);
        self.say(said, parts);
        Step::Wait
    }

    /// Looks for the name of a call and the beginning of its arguments.
    fn head(&mut self, is_marked: bool, parts: &mut Vec<Part>) -> Step {
        match Cursor::new(&self.held).head() {
            Ok(Head { name, at, is_wrapped }) => {
                drop(self.take(at));
                (self.has_begun, self.has_calls) = (true, true);
                parts.push(Part::Begin(Call { id: id(), name, arguments: String::new() }));
                self.state = State::Arguments { scan: Scan::default(), is_wrapped };
                Step::Found
            }
            Err(Miss::Short) => Step::Wait,
            Err(Miss::Wrong) => {
                self.state = State::Whole { is_marked };
                Step::Found
            }
        }
    }

    /// Looks for the mark that closes a call. Without one it is read at the end.
    fn whole(&mut self, style: &Style, is_marked: bool, parts: &mut Vec<Part>) -> Step {
        let at = self.held.find(style.close).filter(|_| is_marked && !style.close.is_empty());
        let Some(at) = at else { return Step::Wait };
        let all = self.take(at + style.close.len());
        self.state = State::Text;
        match read(&all[..at]) {
            Some(calls) => {
                (self.has_begun, self.has_calls) = (true, true);
                parts.extend(calls.into_iter().flat_map(of_call));
            }
            None => self.say(format!("{}{all}", style.open), parts),
        }
        Step::Found
    }

    /// Gives out arguments up to their end.
    fn arguments(&mut self, mut scan: Scan, is_wrapped: bool, parts: &mut Vec<Part>) -> Step {
        let end = scan.end(&self.held);
        let text = self.take(end.unwrap_or(self.held.len()));
        if !text.is_empty() {
            parts.push(Part::Arguments(text));
        }
        if end.is_none() {
            self.state = State::Arguments { scan, is_wrapped };
            return Step::Wait;
        }
        parts.push(Part::End);
        self.state = State::After { is_wrapped };
        Step::Found
    }

    /// Skips what belongs to the form of the call before: brackets, and the mark that closes it.
    fn after(&mut self, style: &Style, is_wrapped: bool) -> Step {
        let mut cursor = Cursor::new(&self.held);
        let result = cursor.after(style, is_wrapped);
        let at = cursor.at;
        self.state = match result {
            Ok(true) => State::Head { is_marked: true },
            Ok(false) | Err(Miss::Wrong) => State::Text,
            Err(Miss::Short) => return Step::Wait,
        };
        drop(self.take(at));
        Step::Found
    }
}

/// Where the brackets of JSON that comes in pieces stand.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

impl Scan {
    /// Where the value ends in `text`, which goes on from what was scanned before.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_text => self.is_escaped = true,
                b'"' => self.is_text = !self.is_text,
                _ if self.is_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// How a call begins.
struct Head {
    name: String,
    /// Where its arguments begin.
    at: usize,
    is_wrapped: bool,
}

/// Why something is not there.
enum Miss {
    /// It may come.
    Short,
    /// It will not.
    Wrong,
}

/// A place in a text that may not be complete.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Space, then `word`.
    fn word(&mut self, word: &str) -> Result<(), Miss> {
        self.space();
        if self.rest().starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(if word.starts_with(self.rest()) { Miss::Short } else { Miss::Wrong })
    }

    /// Space, then a name of a tool.
    fn name(&mut self) -> Result<&'a str, Miss> {
        self.space();
        let is_other = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        match self.rest().find(is_other) {
            None => Err(Miss::Short),
            Some(0) => Err(Miss::Wrong),
            Some(n) => {
                let name = &self.rest()[..n];
                self.at += n;
                Ok(name)
            }
        }
    }

    /// A name between quotes.
    fn quoted(&mut self) -> Result<&'a str, Miss> {
        self.word("\"")?;
        let name = self.name()?;
        self.word("\"")?;
        Ok(name)
    }

    /// `{"name": "f", "arguments": {`, maybe in a list or with a type before, or Mistral's
    /// `f[ARGS]{` and `f{`.
    fn head(mut self) -> Result<Head, Miss> {
        match self.word("[") {
            Err(Miss::Short) => return Err(Miss::Short),
            Ok(()) | Err(Miss::Wrong) => {}
        }
        match self.word("{") {
            Ok(()) => {}
            Err(Miss::Short) => return Err(Miss::Short),
            Err(Miss::Wrong) => {
                let name = self.name()?.to_owned();
                match self.word("[ARGS]") {
                    Err(Miss::Short) => return Err(Miss::Short),
                    Ok(()) | Err(Miss::Wrong) => {}
                }
                return self.arguments(name, false);
            }
        }
        let mut key = self.quoted()?;
        if key == "type" {
            self.word(":")?;
            self.quoted()?;
            self.word(",")?;
            key = self.quoted()?;
        }
        if key != "name" {
            return Err(Miss::Wrong);
        }
        self.word(":")?;
        let name = self.quoted()?.to_owned();
        self.word(",")?;
        if !matches!(self.quoted()?, "arguments" | "parameters") {
            return Err(Miss::Wrong);
        }
        self.word(":")?;
        self.arguments(name, true)
    }

    fn arguments(mut self, name: String, is_wrapped: bool) -> Result<Head, Miss> {
        self.word("{")?;
        Ok(Head { name, at: self.at - 1, is_wrapped })
    }

    /// What follows arguments; whether another call does.
    fn after(&mut self, style: &Style, is_wrapped: bool) -> Result<bool, Miss> {
        if is_wrapped {
            self.word("}")?;
        }
        if style.is_list && is_wrapped {
            let is_last = match self.word(",") {
                Ok(()) => return Ok(true),
                Err(Miss::Short) => return Err(Miss::Short),
                Err(Miss::Wrong) => self.word("]"),
            };
            is_last?;
        }
        if !style.close.is_empty() {
            self.word(style.close)?;
        }
        Ok(false)
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
fn kept(text: &str, mark: &str) -> usize {
    let longest = mark.len().min(text.len() + 1) - 1;
    let may_begin = |n: &usize| mark.is_char_boundary(*n) && text.ends_with(&mark[..*n]);
    (1..=longest).rev().find(may_begin).unwrap_or(0)
}

/// The parts of a call that came as a whole.
fn of_call(mut call: Call) -> [Part; 3] {
    let arguments = std::mem::take(&mut call.arguments);
    [Part::Begin(call), Part::Arguments(arguments), Part::End]
}

/// The calls in a text in which they stand in no usual order: objects one after the other, or
/// lists of them.
fn read(text: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value.ok()? {
            Value::Array(list) => {
                for value in &list {
                    calls.push(of_value(value)?);
                }
            }
            value => calls.push(of_value(&value)?),
        }
    }
    (!calls.is_empty()).then_some(calls)
}

fn of_value(value: &Value) -> Option<Call> {
    let value = value.get("function").filter(|inner| inner.is_object()).unwrap_or(value);
    let arguments = value.get("arguments").or_else(|| value.get("parameters"))?;
    call(value["name"].as_str()?, arguments)
}

fn call(name: &str, arguments: &Value) -> Option<Call> {
    let arguments = match arguments {
        Value::String(text) => text.clone(),
        Value::Object(_) => arguments.to_string(),
        _ => return None,
    };
    (!name.is_empty()).then(|| Call { id: id(), name: name.to_owned(), arguments })
}

/// An id that no other call of this server has.
fn id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let hash = blake3::hash(format!("{count} {:?}", started.unwrap_or_default()).as_bytes());
    hash.to_hex()[..9].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::{HERMES, STYLES};

    /// What an answer is that comes in pieces of `n` letters: its text, then its calls.
    fn read_in_pieces(style: Style, answer: &str, n: usize) -> (String, Vec<(String, String)>) {
        let mut calls = Calls::new(Some(style));
        let letters: Vec<char> = answer.chars().collect();
        let pieces = letters.chunks(n).map(|piece| piece.iter().collect::<String>());
        let mut parts: Vec<Part> = pieces.flat_map(|piece| calls.push(&piece)).collect();
        parts.extend(calls.finish());
        let (mut text, mut found, mut n_ended) = (String::new(), Vec::new(), 0);
        for part in parts {
            match part {
                Part::Thought(thought) => panic!("a thought: {thought}"),
                Part::Text(more) => text += &more,
                Part::Begin(call) => {
                    let is_sound = call.id.bytes().all(|b| b.is_ascii_alphanumeric());
                    assert!(call.id.len() == 9 && is_sound, "{call:?}");
                    found.push((call.name, String::new()));
                }
                Part::Arguments(more) => found.last_mut().expect("a call").1 += &more,
                Part::End => n_ended += 1,
            }
        }
        assert_eq!(n_ended, found.len(), "{answer}");
        (text, found)
    }

    fn check(style: Style, answer: &str, text: &str, calls: &[(&str, &str)]) {
        let calls: Vec<_> = calls.iter().map(|(n, a)| ((*n).to_owned(), (*a).to_owned())).collect();
        for n in [1, 2, 5, 1000] {
            let found = read_in_pieces(style, answer, n);
            assert_eq!(found, (text.to_owned(), calls.clone()), "{answer} by {n}");
        }
    }

    #[test]
    fn calls_are_found_in_the_form_of_each_family() {
        let [hermes, mistral, phi, internlm, llama] = STYLES;
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é}<\"}}\n</tool_call>";
        let arguments = r#"{"a": "é}<"}"#;
        check(hermes, one, "", &[("f", arguments)]);
        let two = format!("Well.\n{one}\n{one}");
        check(hermes, &two, "Well.", &[("f", arguments), ("f", arguments)]);
        let list =
            r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": 1}}]"#;
        check(mistral, list, "", &[("f", "{}"), ("g", r#"{"b": 1}"#)]);
        check(mistral, r#"So[TOOL_CALLS]f[ARGS]{"b": 1}"#, "So", &[("f", r#"{"b": 1}"#)]);
        check(mistral, r#"[TOOL_CALLS]f{"b": 1}"#, "", &[("f", r#"{"b": 1}"#)]);
        let phi_call = r#"<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>"#;
        check(phi, phi_call, "", &[("f", "{}")]);
        let act =
            r#"I look.<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|>"#;
        check(internlm, act, "I look.", &[("f", "{}")]);
        check(llama, r#"{"name": "f", "parameters": {"b": 1}}"#, "", &[("f", r#"{"b": 1}"#)]);
        let tagged = r#"<|python_tag|>{"type": "function", "name": "f", "parameters": {}}"#;
        check(llama, tagged, "", &[("f", "{}")]);
    }

    #[test]
    fn calls_in_an_unusual_order_and_cut_off_ones_are_calls_too() {
        let [hermes, mistral, _, _, llama] = STYLES;
        let turned = "<tool_call>{\"arguments\": {\"b\": 1}, \"name\": \"f\"}</tool_call>\n";
        check(hermes, turned, "", &[("f", r#"{"b":1}"#)]);
        let text = r#"<tool_call>{"name": "f", "arguments": "{}"}</tool_call>"#;
        check(hermes, text, "", &[("f", "{}")]);
        check(llama, r#"{"parameters": {}, "name": "f"}"#, "", &[("f", "{}")]);
        let list = r#"[TOOL_CALLS][{"arguments": {}, "name": "f"}]"#;
        check(mistral, list, "", &[("f", "{}")]);
        let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": \"}";
        check(hermes, cut, "", &[("f", "{\"b\": \"}")]);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        let [hermes, mistral, _, _, llama] = STYLES;
        for text in ["", "2 < 3", "<tool", "a <tool_call", "plain text ", "<tool_call>{\"name\": 3"]
        {
            check(hermes, text, text, &[]);
        }
        let broken = "<tool_call>{\"name\": \"f\"}</tool_call> and on";
        check(hermes, broken, broken, &[]);
        check(mistral, "[TOOL_CALLS] [", "[TOOL_CALLS] [", &[]);
        check(llama, "{\"a\": 1}", "{\"a\": 1}", &[]);
        check(
            llama,
            "Well {\"name\": \"f\", \"parameters\": {}}",
            "Well {\"name\": \"f\", \"parameters\": {}}",
            &[],
        );
        // A list of arguments is none.
        let listed = "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>";
        check(HERMES, listed, listed, &[]);
    }

    #[test]
    fn text_and_arguments_go_out_before_a_call_is_complete() {
        let mut calls = Calls::new(Some(HERMES));
        assert_eq!(calls.push("Let me see. <tool"), [Part::Text("Let me see.".to_owned())]);
        assert_eq!(calls.push("s are"), [Part::Text(" <tools are".to_owned())]);
        let mut calls = Calls::new(Some(HERMES));
        let begun = calls.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"");
        assert!(matches!(&begun[0], Part::Begin(call) if call.name == "f"), "{begun:?}");
        assert_eq!(begun[1..], [Part::Arguments("{\"a\"".to_owned())]);
        assert_eq!(calls.push(": [{}]"), [Part::Arguments(": [{}]".to_owned())]);
        assert_eq!(calls.push("}}"), [Part::Arguments("}".to_owned()), Part::End]);
        assert_eq!(calls.push("</tool_call>"), []);
        assert_eq!(calls.finish(), []);
        let mut none = Calls::new(None);
        assert_eq!(none.push("<tool_call>"), [Part::Text("<tool_call>".to_owned())]);
    }
}
