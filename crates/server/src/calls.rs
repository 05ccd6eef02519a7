//! Calls of tools in what a model writes, found while it writes: text goes out at once, what may
//! become a call is held until that is sure, and the arguments of a call go out as they come. What
//! only looked like a call stays text.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::cursor::{Cursor, Miss, kept};
use crate::tagged::{self, FUNCTION, Form, Tagged, ToolTypes};
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
    /// What its arguments are, where the form of calls does not say.
    types: Arc<ToolTypes>,
    /// There are no calls among thoughts.
    thoughts: Thoughts,
    /// What is not given out yet.
    held: String,
    state: State,
    /// A call whose arguments stand between marks, while they come.
    tagged: Option<Tagged>,
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
    /// Arguments between marks.
    Tagged,
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
            types: Arc::default(),
            thoughts: Thoughts::default(),
            held: String::new(),
            state: State::Text,
            tagged: None,
            has_begun: false,
            has_calls: false,
        }
    }

    /// The same with the types of the tools' arguments.
    pub(crate) fn typed(self, types: ToolTypes) -> Self {
        Self { types: Arc::new(types), ..self }
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

    /// What is left at the end of the answer; `is_cut`: it had more to say.
    pub(crate) fn finish(&mut self, is_cut: bool) -> Vec<Part> {
        let said = self.thoughts.finish();
        let mut parts: Vec<Part> = said.map(|said| self.take_said(said)).unwrap_or_default();
        parts.extend(self.finish_text(is_cut));
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
                State::Head { is_marked } => self.head(&style, is_marked, &mut parts),
                State::Whole { is_marked } => self.whole(&style, is_marked, &mut parts),
                State::Arguments { scan, is_wrapped } => {
                    self.arguments(scan, is_wrapped, &mut parts)
                }
                State::Tagged => self.tagged(&mut parts),
                State::After { is_wrapped } => self.after(&style, is_wrapped),
            };
            if matches!(step, Step::Wait) {
                return parts;
            }
        }
    }

    fn finish_text(&mut self, is_cut: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        let Some(style) = self.style else { return parts };
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            // Space behind a call is of its form.
            State::Text if self.has_calls && held.trim().is_empty() => {}
            State::Text if is_cut => {
                let said = before_call(&style, &held);
                self.say(said.to_owned(), &mut parts);
            }
            State::Text => self.say(held, &mut parts),
            State::Head { is_marked } | State::Whole { is_marked } => match read(&held) {
                Some(calls) => parts.extend(calls.into_iter().flat_map(of_call)),
                // The beginning of a call, which is nobody's text.
                None if is_cut && may_go_on(&style, &held, is_marked) => {}
                None => {
                    let open = if is_marked { style.open } else { "" };
                    self.say(format!("{open}{held}"), &mut parts);
                }
            },
            State::Arguments { .. } => {
                parts.extend((!held.is_empty()).then_some(Part::Arguments(held)));
                parts.push(Part::End);
            }
            State::Tagged => {
                let rest = self.tagged.take().map(|tagged| tagged.finish(&held));
                parts.extend(rest.filter(|rest| !rest.is_empty()).map(Part::Arguments));
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
        let open = self.held.find(style.open);
        if style.form == Form::Functions
            && let Some(at) = self.held.find(FUNCTION)
            && open.is_none_or(|open| at < open)
        {
            return self.bare_function(at, parts);
        }
        if let Some(at) = open {
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
        let bare = if style.form == Form::Functions { FUNCTION } else { "" };
        let kept = kept(&self.held, style.open).max(kept(&self.held, bare));
        // Space may belong to a call that follows.
        let n_said = self.held[..self.held.len() - kept].trim_end().len();
        let said = self.take(n_said);
        self.say(said, parts);
        Step::Wait
    }

    /// A call whose first mark was left out, which models do: one of a tool that there is.
    fn bare_function(&mut self, at: usize, parts: &mut Vec<Part>) -> Step {
        match tagged::head(Form::Functions, &self.held[at..]) {
            Ok((name, len)) if self.types.has(&name) => {
                let said = self.take(at + len);
                self.say(said[..at].trim_end().to_owned(), parts);
                self.begin_tagged(Form::Functions, name, parts);
                Step::Found
            }
            Err(Miss::Short) => {
                let n_said = self.held[..at].trim_end().len();
                let said = self.take(n_said);
                self.say(said, parts);
                Step::Wait
            }
            Ok(_) | Err(Miss::Wrong) => {
                let said = self.take(at + FUNCTION.len());
                self.say(said, parts);
                Step::Found
            }
        }
    }

    fn begin_tagged(&mut self, form: Form, name: String, parts: &mut Vec<Part>) {
        (self.has_begun, self.has_calls) = (true, true);
        self.tagged = Some(Tagged::new(form, &name, Arc::clone(&self.types)));
        parts.push(Part::Begin(Call { id: id(), name, arguments: String::new() }));
        self.state = State::Tagged;
    }

    /// Gives out arguments between marks as JSON.
    fn tagged(&mut self, parts: &mut Vec<Part>) -> Step {
        let Some(tagged) = &mut self.tagged else {
            self.state = State::Text;
            return Step::Found;
        };
        let mut json = String::new();
        let is_end = tagged.push(&mut self.held, &mut json);
        parts.extend((!json.is_empty()).then_some(Part::Arguments(json)));
        if !is_end {
            return Step::Wait;
        }
        parts.push(Part::End);
        self.tagged = None;
        self.state = State::After { is_wrapped: false };
        Step::Found
    }

    /// Looks for the name of a call and the beginning of its arguments. Those that are known to
    /// stand between marks may be JSON all the same.
    fn head(&mut self, style: &Style, is_marked: bool, parts: &mut Vec<Part>) -> Step {
        if style.form != Form::Json {
            match tagged::head(style.form, &self.held) {
                Ok((name, at)) => {
                    drop(self.take(at));
                    self.begin_tagged(style.form, name, parts);
                    return Step::Found;
                }
                Err(Miss::Short) => return Step::Wait,
                Err(Miss::Wrong) => {}
            }
        }
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

/// What stands before the beginning of a mark at the end of an answer that was cut off. One sign
/// may begin anything.
fn before_call<'a>(style: &Style, held: &'a str) -> &'a str {
    let bare = if style.form == Form::Functions { FUNCTION } else { "" };
    let begun = held.find(bare).filter(|at| {
        !bare.is_empty() && matches!(tagged::head(style.form, &held[*at..]), Err(Miss::Short))
    });
    let n_kept = kept(held, style.open).max(kept(held, bare));
    match begun.unwrap_or(held.len() - n_kept) {
        at if held.len() - at > 1 => held[..at].trim_end(),
        _ => held,
    }
}

/// Whether a call may begin so: behind its mark one that is in no usual order may as well.
fn may_go_on(style: &Style, held: &str, is_marked: bool) -> bool {
    let is_short = matches!(Cursor::new(held).head(), Err(Miss::Short))
        || style.form != Form::Json && matches!(tagged::head(style.form, held), Err(Miss::Short));
    match held.trim_start().as_bytes().first() {
        Some(b'{' | b'[') if is_marked => true,
        _ => is_short && (is_marked || held.contains("\"name\"")),
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

impl<'a> Cursor<'a> {
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
mod tests;
