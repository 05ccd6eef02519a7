//! Calls of tools whose arguments stand between marks and not in JSON, as Qwen3-Coder and GLM-4.5
//! write them. They become JSON while they come: texts piece by piece, other values when they are
//! complete. Of what type a value is the tool's schema says.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cursor::{Cursor, Miss, kept};

/// Schemas within each other that are looked into for types.
const MAX_DEPTH: usize = 8;

/// How arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As JSON.
    Json,
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>`, with a new line around each
    /// value.
    Functions,
    /// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
    Pairs,
}

/// What `<function=` calls begin with, also where the mark before it was left out.
pub(crate) const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";
const CALL_END: &str = "</tool_call>";

impl Form {
    /// What may stand between arguments.
    fn between(self) -> &'static [&'static str] {
        match self {
            Self::Json => &[],
            Self::Functions => &[PARAMETER, FUNCTION_END, CALL_END],
            Self::Pairs => &[KEY, CALL_END],
        }
    }

    /// What ends a value: its own mark first, then what shows that this was left out.
    fn value_ends(self) -> &'static [&'static str] {
        match self {
            Self::Json => &[],
            Self::Functions => &[PARAMETER_END, PARAMETER, FUNCTION_END, CALL_END],
            Self::Pairs => &[VALUE_END],
        }
    }
}

/// The types that a value may have; none that are known: any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Types(u8);

const TEXT: u8 = 1;
const INTEGER: u8 = 2;
const NUMBER: u8 = 4;
const BOOLEAN: u8 = 8;
const NULL: u8 = 16;
const OBJECT: u8 = 32;
const ARRAY: u8 = 64;

impl Types {
    /// What a schema says.
    fn of(schema: &Value, depth: usize) -> Self {
        let mut types = match &schema["type"] {
            Value::String(name) => named(name),
            Value::Array(names) => {
                names.iter().filter_map(Value::as_str).fold(0, |all, name| all | named(name))
            }
            _ => 0,
        };
        if types == 0 {
            let values = schema["enum"].as_array().into_iter().flatten();
            types = values.chain(schema.get("const")).fold(0, |all, value| all | type_of(value));
        }
        if types == 0 && depth < MAX_DEPTH {
            for name in ["anyOf", "oneOf"] {
                for option in schema[name].as_array().into_iter().flatten() {
                    match Self::of(option, depth + 1).0 {
                        // One of which nothing is known may be anything.
                        0 => return Self(0),
                        known => types |= known,
                    }
                }
            }
        }
        Self(types)
    }

    fn is_text(self) -> bool {
        self.0 == TEXT
    }

    /// The JSON of a value as the model wrote it. What is of none of the types is a text.
    fn json(self, text: &str) -> String {
        let has = |types: u8| self.0 == 0 || self.0 & types > 0;
        let bare = text.trim();
        // Python's words for these.
        match bare {
            "True" if has(BOOLEAN) => return "true".to_owned(),
            "False" if has(BOOLEAN) => return "false".to_owned(),
            "None" if has(NULL) => return "null".to_owned(),
            _ => {}
        }
        match serde_json::from_str::<Value>(bare) {
            // The model's own digits: a number need not fit into one of this machine.
            Ok(value) if !value.is_string() && has(type_of(&value)) => bare.to_owned(),
            // Where only texts are left quotes are of the text, else of JSON.
            Ok(value) if value.is_string() && self.0 == 0 => bare.to_owned(),
            _ => quoted(text),
        }
    }
}

fn named(name: &str) -> u8 {
    match name {
        "string" => TEXT,
        "integer" => INTEGER,
        "number" => NUMBER,
        "boolean" => BOOLEAN,
        "null" => NULL,
        "object" => OBJECT,
        "array" => ARRAY,
        _ => 0,
    }
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) if number.as_f64().is_some_and(|n| n.fract() == 0.0) => {
            INTEGER | NUMBER
        }
        Value::Number(_) => NUMBER,
        Value::String(_) => TEXT,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The inside of a text of JSON.
fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// Types of the arguments of each tool.
#[derive(Debug, Default)]
pub(crate) struct ToolTypes(BTreeMap<String, BTreeMap<String, Types>>);

impl ToolTypes {
    /// Of tools in OpenAI's form.
    pub(crate) fn of(tools: &[Value]) -> Self {
        let one = |tool: &Value| {
            let function = &tool["function"];
            let properties = function["parameters"]["properties"].as_object();
            let properties = properties.into_iter().flatten();
            let types = properties.map(|(name, schema)| (name.clone(), Types::of(schema, 0)));
            (function["name"].as_str().unwrap_or_default().to_owned(), types.collect())
        };
        Self(tools.iter().map(one).collect())
    }

    pub(crate) fn has(&self, tool: &str) -> bool {
        self.0.contains_key(tool)
    }

    fn types(&self, tool: &str, key: &str) -> Types {
        self.0.get(tool).and_then(|keys| keys.get(key)).copied().unwrap_or_default()
    }
}

/// The beginning of a call behind the mark that opens one: its name, and where that ends.
pub(crate) fn head(form: Form, text: &str) -> Result<(String, usize), Miss> {
    let mut cursor = Cursor::new(text);
    if form == Form::Functions {
        cursor.word(FUNCTION)?;
    }
    let name = cursor.name()?.to_owned();
    if form == Form::Functions {
        cursor.word(">")?;
        return Ok((name, cursor.at));
    }
    // What looks like a name is one where arguments follow, or the end.
    let at = cursor.at;
    match cursor.word(KEY) {
        Err(Miss::Wrong) => cursor.word(CALL_END)?,
        found => found?,
    }
    Ok((name, at))
}

/// Arguments of one call as they come.
#[derive(Clone, Debug)]
pub(crate) struct Tagged {
    form: Form,
    tool: String,
    types: Arc<ToolTypes>,
    place: Place,
    /// Arguments so far: a second one of a name is left out, as JSON has one.
    keys: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// Before an argument, or the end.
    Between,
    /// Within a value; `is_new`: nothing of it came.
    Value { types: Types, is_new: bool, is_second: bool },
}

impl Tagged {
    pub(crate) fn new(form: Form, tool: &str, types: Arc<ToolTypes>) -> Self {
        Self { form, tool: tool.to_owned(), types, place: Place::Between, keys: Vec::new() }
    }

    /// Takes what is complete out of `held`, and adds its JSON to `json`. Whether it was the end.
    pub(crate) fn push(&mut self, held: &mut String, json: &mut String) -> bool {
        loop {
            let step = match self.place {
                Place::Between => self.between(held, json),
                Place::Value { types, is_new, is_second } => {
                    let before = json.len();
                    let step = self.value(held, json, types, is_new);
                    if is_second {
                        json.truncate(before);
                    }
                    step
                }
            };
            match step {
                Step::Found => {}
                Step::Wait => return false,
                Step::End => return true,
            }
        }
    }

    /// What is left of the arguments at the end of the answer. They are closed between two of them:
    /// the marks of the end alone are missing. A value that was cut off stays open.
    pub(crate) fn finish(&self, held: &str) -> String {
        match self.place {
            Place::Between => self.close(),
            Place::Value { types, is_second: false, .. } if types.is_text() => escaped(held),
            Place::Value { .. } => String::new(),
        }
    }

    fn close(&self) -> String {
        if self.keys.is_empty() { "{}".to_owned() } else { "}".to_owned() }
    }

    /// Looks for the next argument. Anything else within a call is not of its form and goes.
    fn between(&mut self, held: &mut String, json: &mut String) -> Step {
        let marks = self.form.between();
        let Some((at, mark)) = first_of(held, marks) else {
            held.drain(..held.len() - longest_kept(held, marks));
            return Step::Wait;
        };
        held.drain(..at);
        if mark != PARAMETER && mark != KEY {
            if mark == FUNCTION_END {
                held.drain(..mark.len());
            }
            json.push_str(&self.close());
            return Step::End;
        }
        match self.key(&held[mark.len()..]) {
            Err(Miss::Short) => Step::Wait,
            Err(Miss::Wrong) => {
                held.drain(..mark.len());
                Step::Found
            }
            Ok((key, len)) => {
                held.drain(..mark.len() + len);
                let types = self.types.types(&self.tool, &key);
                let is_second = self.keys.contains(&key);
                if !is_second {
                    json.push_str(if self.keys.is_empty() { "{" } else { ", " });
                    json.push_str(&quoted(&key));
                    json.push_str(if types.is_text() { ": \"" } else { ": " });
                    self.keys.push(key);
                }
                self.place = Place::Value { types, is_new: true, is_second };
                Step::Found
            }
        }
    }

    /// The name of an argument behind its mark, and where its value begins.
    fn key(&self, text: &str) -> Result<(String, usize), Miss> {
        let end = if self.form == Form::Functions { ">" } else { KEY_END };
        let Some(at) = text.find(end) else {
            // Names have neither marks nor lines in them.
            let begun = &text[..text.len() - kept(text, end)];
            return Err(if begun.contains(['<', '\n']) { Miss::Wrong } else { Miss::Short });
        };
        let key = text[..at].trim();
        if key.is_empty() || key.contains(['<', '\n']) {
            return Err(Miss::Wrong);
        }
        let mut cursor = Cursor::new(&text[at + end.len()..]);
        if self.form == Form::Pairs {
            cursor.word(VALUE)?;
        }
        Ok((key.to_owned(), at + end.len() + cursor.at))
    }

    fn value(&mut self, held: &mut String, json: &mut String, types: Types, is_new: bool) -> Step {
        if is_new && self.form == Form::Functions {
            if held.is_empty() {
                return Step::Wait;
            }
            // The new lines around a value are of the form.
            if held.starts_with('\n') {
                held.drain(..1);
            }
        }
        if let Place::Value { is_new, .. } = &mut self.place {
            *is_new = false;
        }
        let ends = self.form.value_ends();
        let line = if self.form == Form::Functions { "\n" } else { "" };
        if let Some((at, end)) = first_of(held, ends) {
            let value = &held[..at];
            let value = value.strip_suffix(line).unwrap_or(value);
            if types.is_text() {
                json.push_str(&escaped(value));
                json.push('"');
            } else {
                json.push_str(&types.json(value));
            }
            let len = if Some(&end) == ends.first() { end.len() } else { 0 };
            held.drain(..at + len);
            self.place = Place::Between;
            return Step::Found;
        }
        if types.is_text() {
            let known = &held[..held.len() - longest_kept(held, ends)];
            let known = known.strip_suffix(line).unwrap_or(known);
            json.push_str(&escaped(known));
            let len = known.len();
            held.drain(..len);
        }
        Step::Wait
    }
}

/// What was found.
enum Step {
    Found,
    Wait,
    End,
}

/// The first of `marks` in a text.
fn first_of<'a>(text: &str, marks: &[&'a str]) -> Option<(usize, &'a str)> {
    marks.iter().filter_map(|mark| Some((text.find(mark)?, *mark))).min()
}

fn longest_kept(text: &str, marks: &[&str]) -> usize {
    marks.iter().map(|mark| kept(text, mark)).max().unwrap_or(0)
}
