//! Python's ways of writing values: `str`, `repr` and `json.dumps`.
//!
//! Templates were written for Python, and models were trained on what Python made of them:
//! `True` instead of `true`, `", "` between the items of a list. A value may hold itself, or one
//! list a thousand times: depth and length are bounded.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output};

use super::bounds::{MAX_TEXT_BYTES, beyond};

/// Lists within lists that are printed. JSON schemas of published tools have about 10.
const MAX_DEPTH: usize = 100;

/// An error if a value is too deep, or what was printed of it too long.
fn check(out: &str, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(beyond(format!("a value with more than {MAX_DEPTH} lists within lists")));
    }
    if out.len() > MAX_TEXT_BYTES {
        return Err(beyond(format!("a value of more than {} MiB", MAX_TEXT_BYTES >> 20)));
    }
    Ok(())
}

/// `{{ value }}`: text as it is, nothing for undefined, else Python's `repr`.
pub(super) fn print(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => {
            let mut text = String::new();
            repr(&mut text, value, 0)?;
            out.write_str(&text)
        }
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
}

fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check(out, depth)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => repr_str(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Single quotes unless only those occur in the text.
fn repr_str(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if letter == quote => out.extend(['\\', quote]),
            _ if (letter as u32) < 0x20 || letter as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", letter as u32);
            }
            _ => out.push(letter),
        }
    }
    out.push(quote);
}

/// Rust and Python agree on the digits and on when to use an exponent, not on how it is written.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    let text = format!("{float:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

/// The arguments of `json.dumps`.
pub(super) struct JsonStyle {
    pub indent: Option<usize>,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    /// Between items, and after a key.
    pub separators: Option<(String, String)>,
}

/// `json.dumps(value, ...)`.
pub(super) fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let (item, key) = match &style.separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut writer = JsonWriter { out: String::new(), style, item, key, depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    out: String,
    style: &'a JsonStyle,
    item: &'a str,
    key: &'a str,
    depth: usize,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        check(&self.out, self.depth)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&json_number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            kind => {
                let text = format!("tojson: {kind} is not JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        let items: Vec<Value> = value.try_iter()?.collect();
        self.enclosed('[', ']', items.len(), |writer, index| writer.value(&items[index]))
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sort_keys {
            keys.sort();
        }
        self.enclosed('{', '}', keys.len(), |writer, index| {
            let key = &keys[index];
            match key.as_str() {
                Some(text) => writer.string(text),
                None => {
                    check(&writer.out, writer.depth)?;
                    writer.string(&to_json(key, writer.style)?);
                }
            }
            writer.out.push_str(writer.key);
            writer.value(&value.get_item(key)?)
        })
    }

    /// Items between brackets, each on its own line if there is an indent.
    fn enclosed(
        &mut self,
        open: char,
        close: char,
        n_items: usize,
        mut write_item: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.depth += 1;
        for index in 0..n_items {
            self.out.push_str(if index > 0 { self.item } else { "" });
            self.new_line();
            write_item(self, index)?;
        }
        self.depth -= 1;
        if n_items > 0 {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * self.depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                _ if (letter as u32) < 0x20 => self.escape(letter),
                _ if self.style.ensure_ascii && letter as u32 >= 0x7f => self.escape(letter),
                _ => self.out.push(letter),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, letter: char) {
        for unit in letter.encode_utf16(&mut [0; 2]) {
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

/// JSON of Python has words for what is not a number.
fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        text => text.to_owned(),
    }
}
