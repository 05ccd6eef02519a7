//! Answers in OpenAI's form, with what llama.cpp says beside it.

use longview_reader::LeftOut;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::asked::Sending;
use crate::calls::{Call, Calls, Part};
use crate::error::ApiError;
use crate::events::Events;
use crate::job::{Event, Summary, TokenProb};
use crate::random;
use crate::stream::Script;
use crate::texts::{Facts, ModelFacts};
use crate::timings::timings_json;

/// How answers of one request look.
pub(crate) struct Form {
    model: Facts,
    id: String,
    created: u64,
    is_chat: bool,
    sending: Sending,
    has_logprobs: bool,
    has_tokens: bool,
    /// Which answers have begun: the first part of each says who speaks.
    begun: Vec<bool>,
    choices: Vec<Whole>,
    calls: Vec<Calls>,
    /// The part that ends the answer which ended last: what the request took belongs into it.
    ended: Option<Map<String, Value>>,
}

/// An answer as far as it came.
#[derive(Clone, Default)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) thoughts: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) logprobs: Vec<TokenProb>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) reason: Option<&'static str>,
    pub(crate) stop: Option<String>,
}

impl Whole {
    /// Adds parts of it.
    pub(crate) fn take(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Text(text) => self.text += &text,
                Part::Thought(thought) => self.thoughts += &thought,
                Part::Begin(call) => self.calls.push(call),
                Part::Arguments(more) => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments += &more;
                    }
                }
                Part::End => {}
            }
        }
    }
}

/// Waits for one whole answer that `calls` reads, for the endpoints that have no more.
pub(crate) async fn whole(
    mut events: Events,
    mut calls: Calls,
) -> Result<(Whole, Summary), ApiError> {
    let mut whole = Whole::default();
    while let Some(event) = events.recv().await {
        match event {
            Event::Progress(_) | Event::Step(_) => {}
            Event::Piece { text, mut logprobs, tokens, .. } => {
                whole.take(calls.push(&text));
                whole.tokens.extend(tokens);
                whole.logprobs.append(&mut logprobs);
            }
            Event::Finished { reason, stop, .. } => {
                whole.take(calls.finish(reason == "length"));
                (whole.reason, whole.stop) = (Some(reason), stop);
            }
            Event::Done(summary) => return Ok((whole, summary)),
            Event::Failed(error) => return Err(error),
        }
    }
    Err(ApiError::ended())
}

impl Form {
    pub(crate) fn new(app: &App, is_chat: bool, sending: Sending, n: usize) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let kind = if is_chat { "chatcmpl" } else { "cmpl" };
        Self {
            model: app.model.clone(),
            id: format!("{kind}-{}", random::name()),
            created: now.map_or(0, |now| now.as_secs()),
            is_chat,
            sending,
            has_logprobs: false,
            has_tokens: false,
            begun: vec![false; n],
            choices: vec![Whole::default(); n],
            calls: vec![Calls::new(None); n],
            ended: None,
        }
    }

    pub(crate) fn with_logprobs(mut self, has_logprobs: bool) -> Self {
        self.has_logprobs = has_logprobs;
        self
    }

    /// Whether each answer says its tokens.
    pub(crate) fn with_tokens(mut self, has_tokens: bool) -> Self {
        self.has_tokens = has_tokens;
        self
    }

    /// Calls of tools, and thoughts, are read so.
    pub(crate) fn with_calls(mut self, calls: Calls) -> Self {
        self.calls.fill(calls);
        self
    }

    /// Waits for the whole answer.
    pub(crate) async fn whole(mut self, mut events: Events) -> Result<Value, ApiError> {
        while let Some(event) = events.recv().await {
            match event {
                Event::Progress(_) | Event::Step(_) => {}
                Event::Piece { choice, text, mut logprobs, tokens, .. } => {
                    let parts = self.calls[choice].push(&text);
                    self.choices[choice].take(parts);
                    self.choices[choice].tokens.extend(tokens);
                    self.choices[choice].logprobs.append(&mut logprobs);
                }
                Event::Finished { choice, reason, .. } => {
                    let parts = self.calls[choice].finish(reason == "length");
                    self.choices[choice].take(parts);
                    self.choices[choice].reason = Some(reason);
                }
                Event::Done(summary) => return Ok(self.complete(&summary)),
                Event::Failed(error) => return Err(error),
            }
        }
        Err(ApiError::ended())
    }

    fn complete(&self, summary: &Summary) -> Value {
        let choices = self.choices.iter().enumerate().map(|(i, whole)| {
            let reason = reason(whole.reason, !whole.calls.is_empty());
            let mut choice = json!({ "index": i, "finish_reason": reason });
            if self.is_chat {
                let content =
                    (whole.calls.is_empty() || !whole.text.is_empty()).then_some(&whole.text);
                choice["message"] = json!({ "role": "assistant", "content": content });
                if !whole.thoughts.is_empty() {
                    choice["message"]["reasoning_content"] = json!(whole.thoughts);
                }
                if !whole.calls.is_empty() {
                    let calls = whole.calls.iter();
                    choice["message"]["tool_calls"] =
                        calls.map(|call| call_json(None, call)).collect();
                }
            } else {
                choice["text"] = json!(whole.text);
            }
            choice["logprobs"] = self.logprobs(&whole.logprobs);
            if self.has_tokens {
                choice["token_ids"] = json!(whole.tokens);
            }
            choice
        });
        let object = if self.is_chat { "chat.completion" } else { "text_completion" };
        let mut body = self.head(object, choices.collect());
        add_summary(&mut body, summary);
        Value::Object(body)
    }

    fn head(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("id".into(), json!(self.id));
        body.insert("object".into(), json!(object));
        body.insert("created".into(), json!(self.created));
        body.insert("model".into(), json!(self.model.names[0]));
        body.insert("choices".into(), Value::Array(choices));
        body
    }

    /// One part of a stream.
    fn part(&self, choices: Vec<Value>) -> Map<String, Value> {
        let object = if self.is_chat { "chat.completion.chunk" } else { "text_completion" };
        self.head(object, choices)
    }

    /// Parts of an answer; the probabilities are those of the tokens that completed them.
    fn pieces(&mut self, choice: usize, parts: Vec<Part>, logprobs: Vec<TokenProb>) -> Vec<Value> {
        self.choices[choice].logprobs.extend(logprobs);
        let mut pieces = Vec::new();
        for part in parts.into_iter().filter(|part| *part != Part::End) {
            let mut piece = json!({ "index": choice, "finish_reason": null });
            let is_first = !std::mem::replace(&mut self.begun[choice], true);
            let whole = &mut self.choices[choice];
            let probs = std::mem::take(&mut whole.logprobs);
            let tokens = std::mem::take(&mut whole.tokens);
            if self.is_chat {
                let mut delta = json!({});
                if is_first {
                    delta["role"] = json!("assistant");
                }
                match part {
                    Part::Text(text) => delta["content"] = json!(text),
                    Part::Thought(thought) => delta["reasoning_content"] = json!(thought),
                    Part::Begin(call) => {
                        let at = whole.calls.len();
                        delta["tool_calls"] = json!([call_json(Some(at), &call)]);
                        whole.calls.push(call);
                    }
                    Part::Arguments(more) => {
                        let at = whole.calls.len().saturating_sub(1);
                        let function = json!({ "arguments": more });
                        delta["tool_calls"] = json!([{ "index": at, "function": function }]);
                    }
                    Part::End => {}
                }
                piece["delta"] = delta;
            } else if let Part::Text(text) = part {
                piece["text"] = json!(text);
            }
            piece["logprobs"] = self.logprobs(&probs);
            if self.has_tokens {
                piece["token_ids"] = json!(tokens);
            }
            pieces.push(Value::Object(self.part(vec![piece])));
        }
        pieces
    }

    /// The end of a stream. As llama.cpp's server has it: many clients look into the first choice
    /// of every part, so that there is one without choices only where it was asked for.
    fn last(&mut self, summary: &Summary) -> Vec<Value> {
        let mut ended = self.ended.take();
        let mut last = match ended.take_if(|_| !self.sending.include_usage) {
            Some(part) => part,
            None => self.part(Vec::new()),
        };
        add_summary(&mut last, summary);
        if !self.sending.include_usage {
            last.remove("usage");
        }
        ended.into_iter().chain([last]).map(Value::Object).collect()
    }

    fn logprobs(&self, probs: &[TokenProb]) -> Value {
        if !self.has_logprobs {
            return Value::Null;
        }
        let text = |id: u32| self.model.tokenizer.decode(&[id], false).unwrap_or_default();
        if self.is_chat {
            return json!({ "content": probs_json(&self.model, probs) });
        }
        let top = probs.iter().map(|prob| {
            let pairs = prob.top.iter().map(|(id, logprob)| (text(*id), json!(logprob)));
            Value::Object(pairs.collect())
        });
        json!({
            "tokens": probs.iter().map(|prob| text(prob.id)).collect::<Vec<_>>(),
            "token_logprobs": probs.iter().map(|prob| prob.logprob).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
        })
    }
}

impl Script for Form {
    fn event(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Progress(progress) => {
                let mut part = self.part(Vec::new());
                part.insert("prompt_progress".into(), progress_json(&progress));
                vec![Value::Object(part)]
            }
            Event::Step(step) => {
                let mut part = self.part(Vec::new());
                part.insert("longview".into(), step.json());
                vec![Value::Object(part)]
            }
            Event::Piece { choice, text, logprobs, tokens, .. } => {
                self.choices[choice].tokens.extend(tokens);
                let parts = match self.calls[choice].push(&text) {
                    // Probabilities that are left after the last text.
                    parts if parts.is_empty() && text.is_empty() => vec![Part::Text(text)],
                    parts => parts,
                };
                self.pieces(choice, parts, logprobs)
            }
            Event::Finished { choice, reason: why, .. } => {
                let parts = self.calls[choice].finish(why == "length");
                let mut events = self.pieces(choice, parts, Vec::new());
                let why = reason(Some(why), !self.choices[choice].calls.is_empty());
                let mut last = json!({ "index": choice, "finish_reason": why });
                if self.is_chat {
                    last["delta"] = json!({});
                } else {
                    last["text"] = json!("");
                }
                let part = self.part(vec![last]);
                // That of an answer before goes out: only the last one waits for the figures.
                let before = self.ended.replace(part).map(Value::Object);
                events.splice(..0, before);
                events
            }
            Event::Done(summary) => self.last(&summary),
            Event::Failed(error) => vec![error.json()],
        }
    }

    fn ends_with_mark(&self) -> bool {
        true
    }
}

/// The probabilities of tokens as OpenAI's chats have them. Of a token that is a part of a
/// character the text is U+FFFD, and `bytes` are its own.
pub(crate) fn probs_json(model: &ModelFacts, probs: &[TokenProb]) -> Value {
    let one = |id: u32, value: f32, name: &str| {
        let piece = model.tokenizer.piece(id).ok();
        let (text, bytes) = piece.map(|piece| (piece.text, piece.bytes)).unwrap_or_default();
        json!({ "token": text, "id": id, name: value, "bytes": bytes })
    };
    let entries = probs.iter().map(|prob| {
        let names = [("logprob", "top_logprobs"), ("prob", "top_probs")];
        let (name, top) = names[usize::from(prob.is_drawn)];
        let mut entry = one(prob.id, prob.logprob, name);
        entry[top] = prob.top.iter().map(|(id, value)| one(*id, *value, name)).collect();
        entry
    });
    entries.collect()
}

/// Why an answer ended, where it may have called tools.
fn reason(reason: Option<&'static str>, has_calls: bool) -> Option<&'static str> {
    reason.map(|reason| if has_calls && reason == "stop" { "tool_calls" } else { reason })
}

/// A call in OpenAI's form; in a stream each has its place.
fn call_json(place: Option<usize>, call: &Call) -> Value {
    let mut json = json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    });
    if let Some(place) = place {
        json["index"] = json!(place);
    }
    json
}

/// Progress as llama.cpp says it.
pub(crate) fn progress_json(progress: &crate::job::Progress) -> Value {
    json!({
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
    })
}

/// What a request took: OpenAI's usage, llama.cpp's timings, and what was attended.
pub(crate) fn add_summary(body: &mut Map<String, Value>, summary: &Summary) {
    let Summary { n_prompt, n_cached, n_predicted, .. } = *summary;
    body.insert(
        "usage".into(),
        json!({
            "prompt_tokens": n_prompt,
            "completion_tokens": n_predicted,
            "total_tokens": n_prompt + n_predicted,
            "prompt_tokens_details": { "cached_tokens": n_cached },
        }),
    );
    body.extend(summary_json(summary).map(|(name, value)| (name.to_owned(), value)));
}

/// llama.cpp's timings, and what was attended.
pub(crate) fn summary_json(summary: &Summary) -> [(&'static str, Value); 2] {
    let mut attended = json!({
        "policy": summary.policy,
        "attended_tokens": summary.attended,
        "of_tokens": summary.n_tokens,
        "prefill": summary.prefill.to_string(),
    });
    if let Some(seed) = summary.seed {
        attended["seed"] = seed.into();
    }
    if summary.blocks.all > 0 {
        attended["prefill_density"] = summary.blocks.density().into();
    }
    if let Some(LeftOut { median, most, confidence }) = summary.left_out {
        let bounds = json!({ "confidence": confidence, "median": median, "of_99_percent": most });
        attended["left_out_at_most"] = bounds;
    }
    if let Some(seen) = &summary.seen {
        seen.add_to(&mut attended);
    }
    [("timings", timings_json(summary)), ("longview", attended)]
}
