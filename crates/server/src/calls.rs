//! Calls of tools in what a model writes, found while it writes: text goes out at once, what may
//! become a call is held until that is sure. What only looked like a call stays text.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

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
    Call(Call),
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    /// Without one all is text.
    style: Option<Style>,
    /// What is not given out yet.
    held: String,
    /// Whether `held` follows the mark that opens a call.
    is_open: bool,
    /// Whether anything was given out.
    has_begun: bool,
}

impl Calls {
    pub(crate) fn new(style: Option<Style>) -> Self {
        Self { style, held: String::new(), is_open: false, has_begun: false }
    }

    /// What `text` completes.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let Some(style) = self.style else {
            self.say(text.to_owned(), &mut parts);
            return parts;
        };
        self.held += text;
        loop {
            let is_further = if self.is_open {
                self.close(&style, &mut parts)
            } else {
                self.open(&style, &mut parts)
            };
            if !is_further {
                return parts;
            }
        }
    }

    /// What is left at the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let Some(style) = self.style else { return parts };
        let held = std::mem::take(&mut self.held);
        let calls = if self.is_open || style.may_be_bare { read(&held) } else { None };
        match calls {
            Some(calls) => parts.extend(calls.into_iter().map(Part::Call)),
            None => {
                let open = if self.is_open { style.open } else { "" };
                self.say(format!("{open}{held}"), &mut parts);
            }
        }
        self.is_open = false;
        parts
    }

    fn say(&mut self, text: String, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.has_begun = true;
            parts.push(Part::Text(text));
        }
    }

    /// Looks for the beginning of a call; `true` if it was found.
    fn open(&mut self, style: &Style, parts: &mut Vec<Part>) -> bool {
        if let Some(at) = self.held.find(style.open) {
            let rest = self.held.split_off(at + style.open.len());
            let mut said = std::mem::replace(&mut self.held, rest);
            said.truncate(at);
            // Space before a call is of its form, not of the text.
            said.truncate(said.trim_end().len());
            self.say(said, parts);
            self.is_open = true;
            return true;
        }
        // JSON from the first sign on is a call or becomes text at the end.
        if style.may_be_bare && !self.has_begun && self.held.trim_start().starts_with('{') {
            return false;
        }
        let kept = kept(&self.held, style.open);
        // Space may belong to a call that follows.
        let n_said = self.held[..self.held.len() - kept].trim_end().len();
        let rest = self.held.split_off(n_said);
        let said = std::mem::replace(&mut self.held, rest);
        self.say(said, parts);
        false
    }

    /// Looks for the end of a call; `true` if it was found.
    fn close(&mut self, style: &Style, parts: &mut Vec<Part>) -> bool {
        if style.close.is_empty() {
            return false;
        }
        let Some(at) = self.held.find(style.close) else { return false };
        let rest = self.held.split_off(at + style.close.len());
        let mut inner = std::mem::replace(&mut self.held, rest);
        inner.truncate(at);
        self.is_open = false;
        match read(&inner) {
            Some(calls) => {
                self.has_begun = true;
                parts.extend(calls.into_iter().map(Part::Call));
            }
            None => self.say(format!("{}{inner}{}", style.open, style.close), parts),
        }
        true
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
fn kept(text: &str, mark: &str) -> usize {
    let longest = mark.len().min(text.len() + 1) - 1;
    let may_begin = |n: &usize| mark.is_char_boundary(*n) && text.ends_with(&mark[..*n]);
    (1..=longest).rev().find(may_begin).unwrap_or(0)
}

/// The calls in a text: objects one after the other, lists of them, or Mistral's newer
/// `name[ARGS]{...}`.
fn read(text: &str) -> Option<Vec<Call>> {
    let text = text.trim();
    if let Some((name, arguments)) = text.split_once("[ARGS]").or_else(|| named(text)) {
        let arguments: Value = serde_json::from_str(arguments.trim()).ok()?;
        return Some(vec![call(name.trim(), &arguments)?]);
    }
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

/// `name{...}`.
fn named(text: &str) -> Option<(&str, &str)> {
    let at = text.find('{').filter(|at| *at > 0)?;
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    text[..at].bytes().all(is_letter).then(|| text.split_at(at))
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
        let (mut text, mut found) = (String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Text(more) => text += &more,
                Part::Call(call) => {
                    assert!(
                        call.id.len() == 9 && call.id.bytes().all(|b| b.is_ascii_alphanumeric())
                    );
                    found.push((call.name, call.arguments));
                }
            }
        }
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
        check(hermes, one, "", &[("f", r#"{"a":"é}<"}"#)]);
        let two = format!("Well.\n{one}\n{one}");
        check(hermes, &two, "Well.", &[("f", r#"{"a":"é}<"}"#), ("f", r#"{"a":"é}<"}"#)]);
        let list =
            r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": 1}}]"#;
        check(mistral, list, "", &[("f", "{}"), ("g", r#"{"b":1}"#)]);
        check(mistral, r#"So[TOOL_CALLS]f[ARGS]{"b": 1}"#, "So", &[("f", r#"{"b":1}"#)]);
        check(mistral, r#"[TOOL_CALLS]f{"b": 1}"#, "", &[("f", r#"{"b":1}"#)]);
        let phi_call = r#"<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>"#;
        check(phi, phi_call, "", &[("f", "{}")]);
        let act =
            r#"I look.<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|>"#;
        check(internlm, act, "I look.", &[("f", "{}")]);
        check(llama, r#"{"name": "f", "parameters": {"b": 1}}"#, "", &[("f", r#"{"b":1}"#)]);
        let tagged = r#"<|python_tag|>{"type": "function", "name": "f", "parameters": {}}"#;
        check(llama, tagged, "", &[("f", "{}")]);
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
    fn text_before_a_call_goes_out_before_the_call_is_complete() {
        let mut calls = Calls::new(Some(HERMES));
        assert_eq!(calls.push("Let me see. <tool"), [Part::Text("Let me see.".to_owned())]);
        assert_eq!(calls.push("s are"), [Part::Text(" <tools are".to_owned())]);
        let mut none = Calls::new(None);
        assert_eq!(none.push("<tool_call>"), [Part::Text("<tool_call>".to_owned())]);
    }
}
