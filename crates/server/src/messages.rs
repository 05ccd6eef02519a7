//! `/v1/messages`: Anthropic's form of conversations, for clients that speak no other.

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::answer::{Whole, progress_json, summary_json, whole};
use crate::app::{App, aside, parse};
use crate::asked::{Endpoint, How, Sending, check_model};
use crate::caller::Caller;
use crate::calls::{Calls, Part};
use crate::constraint::Constraint;
use crate::conversation::{
    Prompt, call_of, encode, template_fields, text_of_content, unsupported_part, with_all,
};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};
use crate::job::{Event, Summary};
use crate::known::text_of;
use crate::random;
use crate::stream::{self, Script};
use crate::texts::{Conversation, Facts, ModelFacts};
use crate::thoughts::Thoughts;
use crate::tools::{Choice, Tools, checked_tool, listed};

/// Messages of a conversation.
const MAX_MESSAGES: usize = 4096;
/// Fields that mean nothing here, and that clients send all the same.
const IGNORED: [&str; 5] = ["metadata", "service_tier", "context_management", "betas", "container"];

/// A request that was read.
struct Read {
    ids: Vec<u32>,
    how: How,
    sending: Sending,
    calls: Calls,
}

/// Answers in a conversation.
pub(crate) async fn messages(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    app.check_free()?;
    let reader = app.clone();
    let Read { ids, mut how, sending, calls } = aside(move || read(&reader, &body)).await?;
    // The first event says how long the prompt is, which is known when reading begins.
    let wants_progress = std::mem::replace(&mut how.return_progress, sending.stream);
    let form = Form::new(&app, calls, wants_progress);
    let events = app.submit(ids, how, None)?;
    if sending.stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    let (whole, summary) = whole(events, form.calls.clone()).await?;
    Ok(json_response(StatusCode::OK, &form.complete(&whole, &summary)))
}

/// How many tokens a conversation is.
pub(crate) async fn count_tokens(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    let body = aside(move || {
        let body = parse(&body)?;
        let mut fields = Fields::of(&body)?;
        check_model(&mut fields, &app.model)?;
        let document = text_of(&app, fields.text("context_id")?)?;
        let tools = tools(&mut fields)?;
        let told = conversation(&mut fields)?;
        app.note_unknown(&fields);
        let n = app.model.encode_chat(with_all(&app, told, document, &tools)?)?.len();
        Ok(json!({ "input_tokens": n }))
    });
    Ok(json_response(StatusCode::OK, &body.await?))
}

/// Reads a request, and counts the tokens of its prompt.
pub(crate) fn n_tokens(app: &Caller, body: &[u8]) -> Result<usize, ApiError> {
    Ok(read(app, body)?.ids.len())
}

fn read(app: &Caller, body: &[u8]) -> Result<Read, ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    check_model(&mut fields, &app.model)?;
    fields.refuse(&["mcp_servers"])?;
    let sending = Sending::read(&mut fields)?;
    let mut how = How::read(&mut fields, &app.model, &app.grammars, Endpoint::Messages)?;
    if how.max_tokens.is_none() {
        return Err(ApiError::field("max_tokens", "max_tokens: is missing"));
    }
    if let Some(constraint) = output_form(app, &mut fields)? {
        if how.constraint.is_some() {
            let message = "output_config: a request has one form of the answer, not two";
            return Err(ApiError::field("output_config", message));
        }
        how.constraint = Some(constraint);
    }
    let wants_thoughts = Thoughts::are_wanted(&mut fields)?;
    let thinks = thinking(&mut fields, &app.model)?;
    let document = text_of(app, fields.text("context_id")?)?;
    let tools = tools(&mut fields)?;
    let mut told = conversation(&mut fields)?;
    if let Some(thinks) = thinks {
        // What templates call it that leave the choice.
        told.extra.entry("enable_thinking").or_insert(json!(thinks));
    }
    let calls = how.call_tools(&tools, &app.model, &app.grammars)?;
    for name in IGNORED {
        fields.any(name);
    }
    app.note_unknown(&fields);
    let thoughts = (wants_thoughts, &mut how);
    let Prompt { ids, thoughts } = encode(app, told, document, &tools, thoughts)?;
    Ok(Read { ids, how, sending, calls: calls.behind(thoughts) })
}

/// Anthropic's field `thinking`: whether the model is asked to think, where the request says so.
/// How much it thinks is not held to `budget_tokens`, but to `max_tokens` with the answer.
fn thinking(fields: &mut Fields<'_>, model: &ModelFacts) -> Result<Option<bool>, ApiError> {
    let Some(thinking) = fields.any("thinking") else { return Ok(None) };
    match thinking["type"].as_str() {
        Some("disabled") => Ok(Some(false)),
        Some("enabled" | "adaptive") if Thoughts::are_known(model) => Ok(Some(true)),
        Some("enabled" | "adaptive") => {
            let message = "thinking: the template of this model knows no thoughts";
            Err(ApiError::bad("unsupported", message).about("thinking"))
        }
        _ => Err(wrong("thinking", "an object of type enabled, adaptive or disabled")),
    }
}

/// What the answer must be: Anthropic's `format` within `output_config`, or its older place.
fn output_form(app: &App, fields: &mut Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let config = fields.any("output_config");
    let config =
        config.map(|config| config.as_object().ok_or_else(|| wrong("output_config", "an object")));
    let format = config.transpose()?.and_then(|config| config.get("format"));
    let format = format.filter(|format| !format.is_null());
    let (name, format) = match (format, fields.any("output_format")) {
        (Some(format), _) => ("output_config.format", format),
        (None, Some(format)) => ("output_format", format),
        (None, None) => return Ok(None),
    };
    app.grammars.of_format(format, name, &app.model)
}

/// The fields `system` and `messages`.
fn conversation(fields: &mut Fields<'_>) -> Result<Conversation, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.any("system") {
        let text = text_of_content("system", system, &["text"])?;
        messages.push(json!({ "role": "system", "content": text }));
    }
    let list = fields.any("messages").and_then(Value::as_array);
    let list = list.filter(|list| (1..=MAX_MESSAGES).contains(&list.len()));
    let list =
        list.ok_or_else(|| wrong("messages", &format!("a list of 1 to {MAX_MESSAGES} messages")))?;
    for (i, message) in list.iter().enumerate() {
        add(&format!("messages[{i}]"), message, &mut messages)?;
    }
    let extra = template_fields(fields)?;
    Ok(Conversation { messages, extra, ..Conversation::default() }.go_on())
}

/// Adds what one message is in OpenAI's form: results of tools are messages of their own there.
fn add(name: &str, message: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = message["role"].as_str().filter(|role| matches!(*role, "user" | "assistant"));
    let role = role.ok_or_else(|| wrong(&format!("{name}.role"), "user or assistant"))?;
    let field = format!("{name}.content");
    let blocks = match &message["content"] {
        Value::String(text) => {
            messages.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => return Err(wrong(&field, "a text or a list of blocks")),
    };
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let field = format!("{field}[{i}]");
        let word = |key: &str| {
            block[key].as_str().ok_or_else(|| wrong(&format!("{field}.{key}"), "a text"))
        };
        match (block["type"].as_str(), role) {
            (Some("text"), _) => text += word("text")?,
            // Templates that know thoughts decide which of those before are said again.
            (Some("thinking"), "assistant") => thoughts += word("thinking")?,
            // Nobody here can read these.
            (Some("redacted_thinking"), "assistant") => {}
            (Some("tool_use"), "assistant") => {
                calls.push(call_of(word("id")?, word("name")?, block["input"].clone()));
            }
            (Some("tool_result"), "user") => {
                let said = match &block["content"] {
                    Value::Null => String::new(),
                    content => text_of_content(&format!("{field}.content"), content, &["text"])?,
                };
                let id = word("tool_use_id")?;
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": said }));
            }
            (Some(kind @ ("image" | "document" | "search_result")), _) => {
                return Err(unsupported_part(&format!("{field}.type"), kind));
            }
            _ => {
                let wanted = "text, tool_use of the assistant, or tool_result of the user";
                return Err(wrong(&format!("{field}.type"), wanted));
            }
        }
    }
    let has_calls = !calls.is_empty();
    if has_calls || !text.is_empty() || blocks.is_empty() {
        let mut read = json!({ "role": role, "content": text });
        if has_calls {
            read["tool_calls"] = Value::Array(calls);
        }
        if !thoughts.is_empty() {
            read["reasoning_content"] = json!(thoughts);
        }
        messages.push(read);
    }
    Ok(())
}

/// Anthropic's fields `tools` and `tool_choice`.
fn tools(fields: &mut Fields<'_>) -> Result<Tools, ApiError> {
    let list = listed(fields, one_tool)?;
    let wanted = "an object of type auto, any, none, or tool with a name";
    let choice = match fields.any("tool_choice") {
        None => Choice::Auto,
        Some(choice) => match (choice["type"].as_str(), choice["name"].as_str()) {
            (Some("auto"), _) => Choice::Auto,
            (Some("any"), _) => Choice::Required,
            (Some("none"), _) => Choice::None,
            (Some("tool"), Some(name)) => Choice::Named(name.to_owned()),
            _ => return Err(wrong("tool_choice", wanted)),
        },
    };
    Tools::of(list, choice)
}

fn one_tool((i, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let param = format!("tools[{i}]");
    if tool["type"].as_str().is_some_and(|kind| kind != "custom") {
        return Err(ApiError::unsupported(&format!("{param}.type")));
    }
    checked_tool(&param, &tool["name"], &tool["description"], &tool["input_schema"])
}

/// How an answer looks.
struct Form {
    model: Facts,
    id: String,
    calls: Calls,
    wants_progress: bool,
    /// Whether the first event is out.
    is_begun: bool,
    /// The block that is open, if one is, and how many there were.
    open: Option<Block>,
    n_blocks: usize,
    has_calls: bool,
    ended: (Option<&'static str>, Option<String>),
}

impl Form {
    fn new(app: &App, calls: Calls, wants_progress: bool) -> Self {
        Self {
            model: app.model.clone(),
            id: format!("msg-{}", random::name()),
            calls,
            wants_progress,
            is_begun: false,
            open: None,
            n_blocks: 0,
            has_calls: false,
            ended: (None, None),
        }
    }

    fn message(&self, content: Vec<Value>, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model.names[0],
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    fn complete(&self, whole: &Whole, summary: &Summary) -> Value {
        let mut content = Vec::new();
        if !whole.thoughts.is_empty() {
            content.push(thinking_block(&whole.thoughts));
        }
        if !whole.text.is_empty() {
            content.push(json!({ "type": "text", "text": whole.text }));
        }
        for call in &whole.calls {
            // Arguments that were cut off are none.
            let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            content.push(json!({
                "type": "tool_use", "id": call.id, "name": call.name, "input": input,
            }));
        }
        let mut body = self.message(content, usage(summary));
        body["stop_reason"] = json!(reason(whole.reason, &whole.stop, !whole.calls.is_empty()));
        body["stop_sequence"] = json!(whole.stop);
        for (name, value) in summary_json(summary) {
            body[name] = value;
        }
        body
    }

    fn begin(&mut self, n_prompt: usize, n_cached: usize) -> Vec<Value> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Vec::new();
        }
        let summary = Summary { n_prompt, n_cached, ..Summary::default() };
        let message = self.message(Vec::new(), usage(&summary));
        vec![json!({ "type": "message_start", "message": message })]
    }

    fn parts(&mut self, parts: Vec<Part>) -> Vec<Value> {
        let mut events = Vec::new();
        for part in parts {
            match part {
                Part::Text(text) => {
                    let block = json!({ "type": "text", "text": "" });
                    self.open(Block::Text, block, &mut events);
                    let delta = json!({ "type": "text_delta", "text": text });
                    events.push(self.delta(delta));
                }
                Part::Thought(thought) => {
                    self.open(Block::Thoughts, thinking_block(""), &mut events);
                    let delta = json!({ "type": "thinking_delta", "thinking": thought });
                    events.push(self.delta(delta));
                }
                Part::Begin(call) => {
                    self.has_calls = true;
                    self.block_stop(&mut events);
                    let block = json!({
                        "type": "tool_use", "id": call.id, "name": call.name, "input": {},
                    });
                    self.open(Block::Call, block, &mut events);
                }
                Part::Arguments(more) => {
                    let delta = json!({ "type": "input_json_delta", "partial_json": more });
                    events.push(self.delta(delta));
                }
                Part::End => self.block_stop(&mut events),
            }
        }
        events
    }

    /// Begins a block, unless one of its kind is open.
    fn open(&mut self, kind: Block, block: Value, events: &mut Vec<Value>) {
        if self.open == Some(kind) {
            return;
        }
        self.block_stop(events);
        self.open = Some(kind);
        let index = self.n_blocks;
        self.n_blocks += 1;
        events
            .push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
    }

    fn delta(&self, delta: Value) -> Value {
        let index = self.n_blocks - 1;
        json!({ "type": "content_block_delta", "index": index, "delta": delta })
    }

    fn block_stop(&mut self, events: &mut Vec<Value>) {
        let Some(kind) = self.open.take() else { return };
        if kind == Block::Thoughts {
            // Clients wait for one; nothing is signed here.
            events.push(self.delta(json!({ "type": "signature_delta", "signature": "" })));
        }
        events.push(json!({ "type": "content_block_stop", "index": self.n_blocks - 1 }));
    }
}

/// Kinds of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thoughts,
    Text,
    Call,
}

fn thinking_block(thoughts: &str) -> Value {
    json!({ "type": "thinking", "thinking": thoughts, "signature": "" })
}

impl Script for Form {
    fn event(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Progress(progress) => {
                let mut events = self.begin(progress.total, progress.cached);
                if self.wants_progress {
                    let progress = progress_json(&progress);
                    events.push(json!({ "type": "ping", "prompt_progress": progress }));
                }
                events
            }
            Event::Piece { text, .. } => {
                let parts = self.calls.push(&text);
                self.parts(parts)
            }
            Event::Finished { reason, stop, .. } => {
                self.ended = (Some(reason), stop);
                let parts = self.calls.finish(reason == "length");
                let mut events = self.parts(parts);
                self.block_stop(&mut events);
                events
            }
            Event::Done(summary) => {
                let mut events = self.begin(summary.n_prompt, summary.n_cached);
                let (why, stop) = std::mem::take(&mut self.ended);
                let reason = reason(why, &stop, self.has_calls);
                let mut last = json!({
                    "type": "message_delta",
                    "delta": { "stop_reason": reason, "stop_sequence": stop },
                    "usage": usage(&summary),
                });
                for (name, value) in summary_json(&summary) {
                    last[name] = value;
                }
                events.extend([last, json!({ "type": "message_stop" })]);
                events
            }
            Event::Step(_) => Vec::new(),
            Event::Failed(error) => vec![error.anthropic_json()],
        }
    }

    fn ends_with_mark(&self) -> bool {
        false
    }

    fn has_names(&self) -> bool {
        true
    }

    fn error(&mut self, error: &ApiError) -> Value {
        error.anthropic_json()
    }

    fn ping(&self) -> String {
        // Before the first event a client may expect no other.
        if self.is_begun {
            "event: ping\ndata: {\"type\":\"ping\"}\n\n".to_owned()
        } else {
            ": ping\n\n".to_owned()
        }
    }
}

/// Tokens as Anthropic counts them: those that were known are not among the others.
fn usage(summary: &Summary) -> Value {
    json!({
        "input_tokens": summary.n_prompt - summary.n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": summary.n_cached,
        "output_tokens": summary.n_predicted,
    })
}

fn reason(
    reason: Option<&'static str>,
    stop: &Option<String>,
    has_calls: bool,
) -> Option<&'static str> {
    reason.map(|reason| match reason {
        "length" => "max_tokens",
        _ if has_calls => "tool_use",
        _ if stop.is_some() => "stop_sequence",
        _ => "end_turn",
    })
}
