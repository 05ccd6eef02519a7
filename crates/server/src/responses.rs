//! `/v1/responses`: OpenAI's newer form of answers. Nothing of them is kept here: a conversation
//! goes on by sending it again, of which nothing is read twice.

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::answer::{Whole, progress_json, summary_json, whole};
use crate::app::{App, aside, parse};
use crate::asked::{Endpoint, How, Sending, check_model};
use crate::caller::Caller;
use crate::calls::{Call, Calls, Part};
use crate::conversation::{call_of, encode, template_fields, text_of_content};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};
use crate::job::{Event, Summary};
use crate::known::text_of;
use crate::stream::{self, Script};
use crate::texts::Facts;
use crate::tools::{Style, Tools, checked_tool, choice, listed};

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
const TEXTS: [&str; 3] = ["input_text", "output_text", "text"];

/// A request that was read.
struct Read {
    ids: Vec<u32>,
    how: How,
    sending: Sending,
    style: Option<Style>,
    /// What an answer says of its request.
    said: Map<String, Value>,
}

/// Answers in a conversation.
pub(crate) async fn responses(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    app.check_ready()?;
    let reader = app.clone();
    let Read { ids, mut how, sending, style, said } = aside(move || read(&reader, &body)).await?;
    // The first event goes out when reading begins.
    let wants_progress = std::mem::replace(&mut how.return_progress, sending.stream);
    let form = Form::new(&app, style, said, wants_progress);
    let events = app.submit(ids, how, None)?;
    if sending.stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    let (whole, summary) = whole(events, style).await?;
    Ok(json_response(StatusCode::OK, &form.complete(&whole, &summary)))
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
    let style = how.call_tools(&tools, &app.model, &app.grammars)?;
    let extra = template_fields(&mut fields)?;
    for name in IGNORED {
        fields.any(name);
    }
    app.note_unknown(&fields);
    let ids = encode(app, messages, document, &tools, extra)?;
    Ok(Read { ids, said: said(&body, &how), how, sending, style })
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
    said.insert("max_output_tokens".to_owned(), json!(how.max_tokens));
    said.insert("temperature".to_owned(), json!(how.sampling.temperature));
    said.insert("top_p".to_owned(), json!(how.sampling.top_p));
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
            messages.push(json!({ "role": role, "content": text }));
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
        // What was thought before is not part of the next prompt.
        "reasoning" => {}
        _ => {
            let wanted = "message, function_call, function_call_output or reasoning";
            return Err(wrong(&format!("{name}.type"), wanted));
        }
    }
    Ok(())
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
    open: Option<String>,
    /// The call that is open.
    call: Option<Call>,
    reason: Option<&'static str>,
}

impl Form {
    fn new(
        app: &App,
        style: Option<Style>,
        said: Map<String, Value>,
        wants_progress: bool,
    ) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            model: app.model.clone(),
            id: app.new_id("resp"),
            created: now.map_or(0, |now| now.as_secs()),
            said,
            calls: Calls::new(style),
            wants_progress,
            is_begun: false,
            n_events: 0,
            output: Vec::new(),
            open: None,
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

    fn ended(&self, reason: Option<&str>, output: &[Value], summary: &Summary) -> Value {
        let status = if reason == Some("length") { "incomplete" } else { "completed" };
        let mut body = self.response(status, output, usage(summary));
        for (name, value) in summary_json(summary) {
            body[name] = value;
        }
        body
    }

    fn complete(&self, whole: &Whole, summary: &Summary) -> Value {
        let mut output = Vec::new();
        if !whole.text.is_empty() || whole.calls.is_empty() {
            output.push(self.message(0, "completed", &[text_part(&whole.text)]));
        }
        for call in &whole.calls {
            output.push(self.call_item(output.len(), "completed", call, &call.arguments));
        }
        self.ended(whole.reason, &output, summary)
    }

    fn item_id(&self, kind: &str, at: usize) -> String {
        format!("{kind}_{}_{at}", self.id)
    }

    fn message(&self, at: usize, status: &str, content: &[Value]) -> Value {
        json!({
            "id": self.item_id("msg", at),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        })
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
                Part::Text(text) | Part::Thought(text) => self.text(&text, &mut events),
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

    fn text(&mut self, text: &str, events: &mut Vec<Value>) {
        let id = self.item_id("msg", self.output.len());
        if self.open.is_none() {
            let at = self.output.len();
            let item = self.message(at, "in_progress", &[]);
            let added = json!({ "output_index": at, "item": item });
            events.push(self.numbered("response.output_item.added", added));
            let part = json!({ "content_index": 0, "part": text_part("") });
            events.push(self.of_item("response.content_part.added", &id, part));
        }
        self.open.get_or_insert_default().push_str(text);
        let delta = json!({ "content_index": 0, "delta": text, "logprobs": [] });
        events.push(self.of_item("response.output_text.delta", &id, delta));
    }

    /// Ends the text that is open.
    fn close(&mut self, events: &mut Vec<Value>) {
        let Some(text) = self.open.take() else { return };
        let at = self.output.len();
        let id = self.item_id("msg", at);
        let done = json!({ "content_index": 0, "text": text, "logprobs": [] });
        events.push(self.of_item("response.output_text.done", &id, done));
        let part = text_part(&text);
        let done = json!({ "content_index": 0, "part": part });
        events.push(self.of_item("response.content_part.done", &id, done));
        let item = self.message(at, "completed", &[part]);
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
                let parts = self.calls.finish();
                let mut events = self.parts(parts);
                // An answer without a word has a text all the same.
                if self.open.is_none() && self.output.is_empty() {
                    self.text("", &mut events);
                }
                self.close(&mut events);
                events
            }
            Event::Done(summary) => {
                let mut events = self.begin();
                let body = self.ended(self.reason, &self.output, &summary);
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

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn usage(summary: &Summary) -> Value {
    json!({
        "input_tokens": summary.n_prompt,
        "input_tokens_details": { "cached_tokens": summary.n_cached },
        "output_tokens": summary.n_predicted,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": summary.n_prompt + summary.n_predicted,
    })
}
