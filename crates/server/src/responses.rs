//! `/v1/responses`: OpenAI's newer form of answers. Nothing of them is kept here: a conversation
//! goes on by sending it again, of which nothing is read twice.

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use longview_model::tokenizer::Specials;
use serde_json::{Map, Value, json};

use crate::answer::{Whole, progress_json, summary_json, whole};
use crate::app::{App, aside, parse};
use crate::asked::{Endpoint, How, Sending, check_model};
use crate::caller::Caller;
use crate::calls::{Call, Calls, Part};
use crate::conversation::{Prompt, REFUSAL, call_of, encode, template_fields, text_of_content};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};
use crate::job::{Event, Summary};
use crate::known::text_of;
use crate::random;
use crate::stream::{self, Script};
use crate::texts::{Conversation, Facts};
use crate::thoughts::Thoughts;
use crate::tools::{Tools, checked_tool, choice, listed};

/// Items of a conversation.
const MAX_ITEMS: usize = 4096;
/// Fields that mean nothing here, and that clients send all the same. An answer says that it is
/// not stored.
const IGNORED: [&str; 9] = [
    "include",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];
/// Fields for what is kept by a server, or done behind the client's back.
const UNSUPPORTED: [&str; 6] = [
    "background",
    "conversation",
    "max_tool_calls",
    "previous_response_id",
    "prompt",
    "top_logprobs",
];
/// Kinds of texts in items.
const TEXTS: [&str; 4] = ["input_text", "output_text", "text", REFUSAL];

/// A request that was read.
struct Read {
    ids: Vec<u32>,
    how: How,
    sending: Sending,
    calls: Calls,
    /// What an answer says of its request.
    said: Map<String, Value>,
}

/// Answers in a conversation.
pub(crate) async fn responses(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    app.check_free()?;
    let reader = app.clone();
    let Read { ids, mut how, sending, calls, said } = aside(move || read(&reader, &body)).await?;
    // The first event goes out when reading begins.
    let wants_progress = std::mem::replace(&mut how.return_progress, sending.stream);
    let form = Form::new(&app, calls, said, wants_progress);
    let events = app.submit(ids, how, None)?;
    if sending.stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    let (whole, summary) = whole(events, form.calls.clone()).await?;
    Ok(json_response(StatusCode::OK, &form.complete(&whole, &summary)))
}

/// Reads a request, and counts the tokens of its prompt.
pub(crate) fn n_tokens(app: &Caller, body: &[u8]) -> Result<usize, ApiError> {
    Ok(read(app, body)?.ids.len())
}

fn read(app: &Caller, body: &[u8]) -> Result<Read, ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    check_model(&mut fields, &app.model)?;
    fields.refuse(&UNSUPPORTED)?;
    if fields.text("truncation")?.is_some_and(|kind| kind != "disabled") {
        return Err(wrong("truncation", "disabled: nothing is ever cut off"));
    }
    let sending = Sending::read(&mut fields)?;
    let mut how = How::read(&mut fields, &app.model, &app.grammars, Endpoint::Responses)?;
    if let Some(text) = fields.any("text") {
        let text = text.as_object().ok_or_else(|| wrong("text", "an object"))?;
        if let Some(format) = text.get("format").filter(|format| !format.is_null()) {
            let constraint = app.grammars.of_format(format, "text.format", &app.model)?;
            how.constraint = constraint.or(how.constraint);
        }
    }
    let document = text_of(app, fields.text("context_id")?)?;
    let tools = tools(&mut fields)?;
    let mut messages = Vec::new();
    let instructions = fields.text("instructions")?;
    messages.extend(instructions.map(|text| json!({ "role": "system", "content": text })));
    messages.extend(input(&mut fields)?);
    let wants_thoughts = Thoughts::are_wanted(&mut fields)?;
    let calls = how.call_tools(&tools, &app.model, &app.grammars)?;
    let extra = template_fields(&mut fields)?;
    for name in IGNORED {
        fields.any(name);
    }
    app.note_unknown(&fields);
    let told = Conversation { messages, extra, ..Conversation::default() };
    let thoughts = (wants_thoughts, &mut how);
    let Prompt { ids, thoughts } = encode(app, told, document, &tools, thoughts)?;
    let calls = calls.behind(thoughts);
    Ok(Read { ids, said: said(&body, &how), how, sending, calls })
}

/// What an answer repeats of its request.
fn said(body: &Value, how: &How) -> Map<String, Value> {
    let or = |name: &str, other: Value| match &body[name] {
        Value::Null => other,
        value => value.clone(),
    };
    let mut said = Map::new();
    for (name, other) in [
        ("instructions", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(false)),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("user", Value::Null),
    ] {
        said.insert(name.to_owned(), or(name, other));
    }
    let max_tokens = how.max_tokens.filter(|max| *max < usize::MAX);
    let top_p = Some(how.sampling.top_p).filter(|p| *p > f32::MIN_POSITIVE).unwrap_or(0.0);
    said.insert("max_output_tokens".to_owned(), json!(max_tokens));
    said.insert("temperature".to_owned(), json!(how.sampling.temperature));
    said.insert("top_p".to_owned(), json!(top_p));
    said
}

/// The field `input`: a text, or items.
fn input(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let wanted = format!("a text or a list of 1 to {MAX_ITEMS} items");
    let items = match fields.any("input") {
        Some(Value::String(text)) => return Ok(vec![json!({ "role": "user", "content": text })]),
        Some(Value::Array(items)) if (1..=MAX_ITEMS).contains(&items.len()) => items,
        _ => return Err(wrong("input", &wanted)),
    };
    let mut messages: Vec<Value> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        add(&format!("input[{i}]"), item, &mut messages)?;
    }
    // Thoughts that nothing followed.
    if messages.last().is_some_and(is_thought) {
        messages.pop();
    }
    Ok(messages)
}

/// Adds what an item is in the form of `/v1/chat/completions`, in which calls that follow each
/// other are one message.
fn add(name: &str, item: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let word =
        |key: &str| item[key].as_str().ok_or_else(|| wrong(&format!("{name}.{key}"), "a text"));
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let roles = ["system", "developer", "user", "assistant"];
            let role = item["role"].as_str().filter(|role| roles.contains(role));
            let wanted = format!("one of {}", roles.join(", "));
            let role = role.ok_or_else(|| wrong(&format!("{name}.role"), &wanted))?;
            let text = text_of_content(&format!("{name}.content"), &item["content"], &TEXTS)?;
            match messages.last_mut().filter(|last| role == "assistant" && is_thought(last)) {
                Some(last) => last["content"] = json!(text),
                None => messages.push(json!({ "role": role, "content": text })),
            }
        }
        "function_call" => {
            let text = word("arguments")?;
            let arguments = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
            let call = call_of(word("call_id")?, word("name")?, arguments);
            let last = messages.last_mut().filter(|last| last["role"] == "assistant");
            match last.map(|last| &mut last["tool_calls"]) {
                Some(Value::Array(calls)) => calls.push(call),
                Some(none) => *none = json!([call]),
                None => messages.push(json!({
                    "role": "assistant", "content": "", "tool_calls": [call],
                })),
            }
        }
        "function_call_output" => {
            let said = text_of_content(&format!("{name}.output"), &item["output"], &TEXTS)?;
            let id = word("call_id")?;
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": said }));
        }
        // Templates that know thoughts decide which of those before are said again. They are of
        // the message or the call that follows.
        "reasoning" => {
            let parts = item["content"].as_array().into_iter().flatten();
            let thoughts: String = parts.filter_map(|part| part["text"].as_str()).collect();
            if !thoughts.is_empty() {
                messages.push(json!({
                    "role": "assistant", "content": "", "reasoning_content": thoughts,
                }));
            }
        }
        _ => {
            let wanted = "message, function_call, function_call_output or reasoning";
            return Err(wrong(&format!("{name}.type"), wanted));
        }
    }
    Ok(())
}

/// Whether a message has thoughts and nothing else yet.
fn is_thought(message: &Value) -> bool {
    message["reasoning_content"].is_string()
        && message["content"] == ""
        && message["tool_calls"].is_null()
}

fn tools(fields: &mut Fields<'_>) -> Result<Tools, ApiError> {
    let list = listed(fields, one_tool)?;
    let choice = fields.any("tool_choice").map(choice).transpose()?.unwrap_or_default();
    fields.flag("parallel_tool_calls")?;
    Tools::of(list, choice)
}

fn one_tool((i, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let param = format!("tools[{i}]");
    if tool["type"] != "function" {
        return Err(ApiError::unsupported(&format!("{param}.type")));
    }
    checked_tool(&param, &tool["name"], &tool["description"], &tool["parameters"])
}

/// How an answer looks.
struct Form {
    model: Facts,
    id: String,
    created: u64,
    said: Map<String, Value>,
    calls: Calls,
    wants_progress: bool,
    is_begun: bool,
    /// Events so far.
    n_events: usize,
    /// Items that are complete, and the text of the one that is open.
    output: Vec<Value>,
    open: Option<(Kind, String)>,
    /// What the model wrote for itself.
    thoughts: String,
    /// The call that is open.
    call: Option<Call>,
    reason: Option<&'static str>,
}

impl Form {
    fn new(app: &App, calls: Calls, said: Map<String, Value>, wants_progress: bool) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            model: app.model.clone(),
            id: format!("resp-{}", random::name()),
            created: now.map_or(0, |now| now.as_secs()),
            said,
            calls,
            wants_progress,
            is_begun: false,
            n_events: 0,
            output: Vec::new(),
            open: None,
            thoughts: String::new(),
            call: None,
            reason: None,
        }
    }

    /// The answer as it is, with what its end says.
    fn response(&self, status: &str, output: &[Value], usage: Value) -> Value {
        let mut body = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model.names[0],
            "output": output,
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "store": false,
            "truncation": "disabled",
            "usage": usage,
        });
        if status == "incomplete" {
            body["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        for (name, value) in &self.said {
            body[name] = value.clone();
        }
        body
    }

    fn ended(&self, whole: (Option<&str>, &str), output: &[Value], summary: &Summary) -> Value {
        let (reason, thoughts) = whole;
        let status = if reason == Some("length") { "incomplete" } else { "completed" };
        let ids = self.model.tokenizer.encode(thoughts, Specials::AsWritten);
        let n_thought = ids.map_or(0, |ids| ids.len());
        let mut body = self.response(status, output, usage(summary, n_thought));
        for (name, value) in summary_json(summary) {
            body[name] = value;
        }
        body
    }

    fn complete(&self, whole: &Whole, summary: &Summary) -> Value {
        let mut output: Vec<Value> = Vec::new();
        if !whole.thoughts.is_empty() {
            output.push(self.item(Kind::Thoughts, 0, "completed", &[&whole.thoughts]));
        }
        if !whole.text.is_empty() || (whole.calls.is_empty() && output.is_empty()) {
            output.push(self.item(Kind::Text, output.len(), "completed", &[&whole.text]));
        }
        for call in &whole.calls {
            output.push(self.call_item(output.len(), "completed", call, &call.arguments));
        }
        if let Some(last) = output.last_mut().filter(|_| whole.reason == Some("length")) {
            cut(last);
        }
        self.ended((whole.reason, &whole.thoughts), &output, summary)
    }

    fn item_id(&self, kind: &str, at: usize) -> String {
        format!("{kind}_{}_{at}", self.id)
    }

    /// An item with these texts.
    fn item(&self, kind: Kind, at: usize, status: &str, texts: &[&str]) -> Value {
        let content: Vec<Value> = texts.iter().map(|text| kind.part(text)).collect();
        let id = self.item_id(kind.id(), at);
        match kind {
            Kind::Text => json!({
                "id": id,
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            }),
            Kind::Thoughts => json!({
                "id": id,
                "type": "reasoning",
                "status": status,
                "summary": [],
                "content": content,
            }),
        }
    }

    fn call_item(&self, at: usize, status: &str, call: &Call, arguments: &str) -> Value {
        json!({
            "id": self.item_id("fc", at),
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": arguments,
            "status": status,
        })
    }

    /// An event, with its number.
    fn numbered(&mut self, kind: &str, mut event: Value) -> Value {
        event["type"] = json!(kind);
        event["sequence_number"] = json!(self.n_events);
        self.n_events += 1;
        event
    }

    /// An event of the item that is open.
    fn of_item(&mut self, kind: &str, id: &str, mut event: Value) -> Value {
        event["output_index"] = json!(self.output.len());
        event["item_id"] = json!(id);
        self.numbered(kind, event)
    }

    fn begin(&mut self) -> Vec<Value> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Vec::new();
        }
        let begun = self.response("in_progress", &[], Value::Null);
        vec![
            self.numbered("response.created", json!({ "response": begun })),
            self.numbered("response.in_progress", json!({ "response": begun })),
        ]
    }

    fn parts(&mut self, parts: Vec<Part>) -> Vec<Value> {
        let mut events = Vec::new();
        for part in parts {
            match part {
                Part::Text(text) => self.text(Kind::Text, &text, &mut events),
                Part::Thought(thought) => {
                    self.thoughts += &thought;
                    self.text(Kind::Thoughts, &thought, &mut events);
                }
                Part::Begin(call) => {
                    self.close(&mut events);
                    self.begin_call(call, &mut events);
                }
                Part::Arguments(more) => self.arguments(&more, &mut events),
                Part::End => self.end_call(&mut events),
            }
        }
        events
    }

    fn text(&mut self, kind: Kind, text: &str, events: &mut Vec<Value>) {
        if self.open.as_ref().is_some_and(|(open, _)| *open != kind) {
            self.close(events);
        }
        let at = self.output.len();
        let id = self.item_id(kind.id(), at);
        if self.open.is_none() {
            let item = self.item(kind, at, "in_progress", &[]);
            let added = json!({ "output_index": at, "item": item });
            events.push(self.numbered("response.output_item.added", added));
            let part = json!({ "content_index": 0, "part": kind.part("") });
            events.push(self.of_item("response.content_part.added", &id, part));
        }
        self.open.get_or_insert((kind, String::new())).1.push_str(text);
        let delta = kind.event(json!({ "content_index": 0, "delta": text }));
        events.push(self.of_item(&format!("response.{}.delta", kind.name()), &id, delta));
    }

    /// Ends the text that is open.
    fn close(&mut self, events: &mut Vec<Value>) {
        let Some((kind, text)) = self.open.take() else { return };
        let at = self.output.len();
        let id = self.item_id(kind.id(), at);
        let done = kind.event(json!({ "content_index": 0, "text": text }));
        events.push(self.of_item(&format!("response.{}.done", kind.name()), &id, done));
        let done = json!({ "content_index": 0, "part": kind.part(&text) });
        events.push(self.of_item("response.content_part.done", &id, done));
        let item = self.item(kind, at, "completed", &[&text]);
        self.done(item, events);
    }

    fn begin_call(&mut self, call: Call, events: &mut Vec<Value>) {
        let at = self.output.len();
        let item = self.call_item(at, "in_progress", &call, "");
        let added = json!({ "output_index": at, "item": item });
        events.push(self.numbered("response.output_item.added", added));
        self.call = Some(call);
    }

    fn arguments(&mut self, more: &str, events: &mut Vec<Value>) {
        if let Some(call) = &mut self.call {
            call.arguments += more;
        }
        let id = self.item_id("fc", self.output.len());
        let delta = json!({ "delta": more });
        events.push(self.of_item("response.function_call_arguments.delta", &id, delta));
    }

    fn end_call(&mut self, events: &mut Vec<Value>) {
        let Some(call) = self.call.take() else { return };
        let at = self.output.len();
        let id = self.item_id("fc", at);
        let done = json!({ "arguments": call.arguments, "name": call.name });
        events.push(self.of_item("response.function_call_arguments.done", &id, done));
        let item = self.call_item(at, "completed", &call, &call.arguments);
        self.done(item, events);
    }

    /// The last item was cut off, if its end is among these events.
    fn cut(&mut self, events: &mut [Value]) {
        let done = events.iter_mut().rev().find(|e| e["type"] == "response.output_item.done");
        let (Some(event), Some(item)) = (done, self.output.last_mut()) else { return };
        cut(item);
        event["item"] = item.clone();
    }

    fn done(&mut self, item: Value, events: &mut Vec<Value>) {
        let done = json!({ "output_index": self.output.len(), "item": item });
        events.push(self.numbered("response.output_item.done", done));
        self.output.push(item);
    }
}

impl Script for Form {
    fn event(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Progress(progress) => {
                let mut events = self.begin();
                if self.wants_progress {
                    let response = self.response("in_progress", &[], Value::Null);
                    let progress = progress_json(&progress);
                    let event = json!({ "response": response, "prompt_progress": progress });
                    events.push(self.numbered("response.in_progress", event));
                }
                events
            }
            Event::Piece { text, .. } => {
                let parts = self.calls.push(&text);
                self.parts(parts)
            }
            Event::Finished { reason, .. } => {
                self.reason = Some(reason);
                let parts = self.calls.finish(reason == "length");
                let mut events = self.parts(parts);
                // An answer without a word has a text all the same.
                if self.open.is_none() && self.output.is_empty() {
                    self.text(Kind::Text, "", &mut events);
                }
                self.close(&mut events);
                if reason == "length" {
                    self.cut(&mut events);
                }
                events
            }
            Event::Done(summary) => {
                let mut events = self.begin();
                let whole = (self.reason, self.thoughts.as_str());
                let body = self.ended(whole, &self.output, &summary);
                let kind = format!("response.{}", body["status"].as_str().unwrap_or_default());
                events.push(self.numbered(&kind, json!({ "response": body })));
                events
            }
            Event::Step(_) => Vec::new(),
            Event::Failed(error) => vec![self.error(&error)],
        }
    }

    fn ends_with_mark(&self) -> bool {
        false
    }

    fn has_names(&self) -> bool {
        true
    }

    fn error(&mut self, error: &ApiError) -> Value {
        let error = error.json()["error"].take();
        self.numbered("error", error)
    }
}

/// Says that an item was cut off; a call whose arguments are complete was not.
fn cut(item: &mut Value) {
    let arguments = item["arguments"].as_str();
    let is_whole = arguments.is_some_and(|text| serde_json::from_str::<Value>(text).is_ok());
    if !is_whole {
        item["status"] = json!("incomplete");
    }
}

/// Kinds of items that are texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thoughts,
}

impl Kind {
    /// What ids of its items begin with.
    fn id(self) -> &'static str {
        match self {
            Self::Text => "msg",
            Self::Thoughts => "rs",
        }
    }

    /// What its parts, and their events, are called.
    fn name(self) -> &'static str {
        match self {
            Self::Text => "output_text",
            Self::Thoughts => "reasoning_text",
        }
    }

    fn part(self, text: &str) -> Value {
        let mut part = self.event(json!({ "type": self.name(), "text": text }));
        if self == Self::Text {
            part["annotations"] = json!([]);
        }
        part
    }

    /// With what is said of texts alone.
    fn event(self, mut event: Value) -> Value {
        if self == Self::Text {
            event["logprobs"] = json!([]);
        }
        event
    }
}

fn usage(summary: &Summary, n_thought: usize) -> Value {
    json!({
        "input_tokens": summary.n_prompt,
        "input_tokens_details": { "cached_tokens": summary.n_cached },
        "output_tokens": summary.n_predicted,
        "output_tokens_details": { "reasoning_tokens": n_thought.min(summary.n_predicted) },
        "total_tokens": summary.n_prompt + summary.n_predicted,
    })
}
