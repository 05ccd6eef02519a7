//! Answers in OpenAI's form, with what llama.cpp says beside it.

use serde_json::{Map, Value, json};
use tokio::sync::mpsc::Receiver;

use crate::app::App;
use crate::asked::Sending;
use crate::error::ApiError;
use crate::job::{Event, Summary, TokenProb};
use crate::stream::{self, Script};
use crate::texts::Facts;

/// How answers of one request look.
pub(crate) struct Form {
    model: Facts,
    id: String,
    created: u64,
    is_chat: bool,
    sending: Sending,
    has_logprobs: bool,
    /// Which answers have begun: the first part of each says who speaks.
    begun: Vec<bool>,
    choices: Vec<Whole>,
}

/// An answer as far as it came.
#[derive(Clone, Default)]
struct Whole {
    text: String,
    logprobs: Vec<TokenProb>,
    reason: Option<&'static str>,
}

impl Form {
    pub(crate) fn new(app: &App, is_chat: bool, sending: Sending, n: usize) -> Self {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let kind = if is_chat { "chatcmpl" } else { "cmpl" };
        Self {
            model: app.model.clone(),
            id: format!("{kind}-{:x}-{count}", app.started_unix_s),
            created: now.map_or(0, |now| now.as_secs()),
            is_chat,
            sending,
            has_logprobs: false,
            begun: vec![false; n],
            choices: vec![Whole::default(); n],
        }
    }

    pub(crate) fn with_logprobs(mut self, has_logprobs: bool) -> Self {
        self.has_logprobs = has_logprobs;
        self
    }

    /// Waits for the whole answer.
    pub(crate) async fn whole(mut self, mut events: Receiver<Event>) -> Result<Value, ApiError> {
        while let Some(event) = events.recv().await {
            match event {
                Event::Progress(_) => {}
                Event::Piece { choice, text, mut logprobs } => {
                    self.choices[choice].text += &text;
                    self.choices[choice].logprobs.append(&mut logprobs);
                }
                Event::Finished { choice, reason } => self.choices[choice].reason = Some(reason),
                Event::Done(summary) => return Ok(self.complete(&summary)),
                Event::Failed(error) => return Err(error),
            }
        }
        Err(stream::ended())
    }

    fn complete(&self, summary: &Summary) -> Value {
        let choices = self.choices.iter().enumerate().map(|(i, whole)| {
            let mut choice = json!({ "index": i, "finish_reason": whole.reason });
            if self.is_chat {
                choice["message"] = json!({ "role": "assistant", "content": whole.text });
            } else {
                choice["text"] = json!(whole.text);
            }
            choice["logprobs"] = self.logprobs(&whole.logprobs);
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

    fn piece(&mut self, choice: usize, text: &str, logprobs: &[TokenProb]) -> Value {
        let mut part = json!({ "index": choice, "finish_reason": null });
        if self.is_chat {
            let is_first = !std::mem::replace(&mut self.begun[choice], true);
            let who = is_first.then_some("assistant");
            part["delta"] = match who {
                Some(role) => json!({ "role": role, "content": text }),
                None => json!({ "content": text }),
            };
        } else {
            part["text"] = json!(text);
        }
        part["logprobs"] = self.logprobs(logprobs);
        part
    }

    fn logprobs(&self, probs: &[TokenProb]) -> Value {
        if !self.has_logprobs {
            return Value::Null;
        }
        let text = |id: u32| self.model.tokenizer.decode(&[id], false).unwrap_or_default();
        if self.is_chat {
            let one = |id: u32, logprob: f32| {
                let text = text(id);
                let bytes = text.as_bytes();
                json!({ "token": text, "id": id, "logprob": logprob, "bytes": bytes })
            };
            let content = probs.iter().map(|prob| {
                let mut entry = one(prob.id, prob.logprob);
                entry["top_logprobs"] =
                    prob.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect();
                entry
            });
            return json!({ "content": content.collect::<Vec<_>>() });
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
            Event::Piece { choice, text, logprobs } => {
                let piece = self.piece(choice, &text, &logprobs);
                vec![Value::Object(self.part(vec![piece]))]
            }
            Event::Finished { choice, reason } => {
                let mut last = json!({ "index": choice, "finish_reason": reason });
                if self.is_chat {
                    last["delta"] = json!({});
                } else {
                    last["text"] = json!("");
                }
                vec![Value::Object(self.part(vec![last]))]
            }
            Event::Done(summary) => {
                let mut last = self.part(Vec::new());
                add_summary(&mut last, &summary);
                if !self.sending.include_usage {
                    last.remove("usage");
                }
                vec![Value::Object(last)]
            }
            Event::Failed(error) => vec![error.json()],
        }
    }

    fn ends_with_mark(&self) -> bool {
        true
    }
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
    let n_read = n_prompt - n_cached;
    let per_s = |n: usize, ms: f64| n as f64 * 1e3 / ms.max(1e-6);
    let per_token = |n: usize, ms: f64| ms / n.max(1) as f64;
    body.insert(
        "usage".into(),
        json!({
            "prompt_tokens": n_prompt,
            "completion_tokens": n_predicted,
            "total_tokens": n_prompt + n_predicted,
            "prompt_tokens_details": { "cached_tokens": n_cached },
        }),
    );
    body.insert(
        "timings".into(),
        json!({
            "cache_n": n_cached,
            "prompt_n": n_read,
            "prompt_ms": summary.prompt_ms,
            "prompt_per_token_ms": per_token(n_read, summary.prompt_ms),
            "prompt_per_second": per_s(n_read, summary.prompt_ms),
            "predicted_n": n_predicted,
            "predicted_ms": summary.predicted_ms,
            "predicted_per_token_ms": per_token(n_predicted, summary.predicted_ms),
            "predicted_per_second": per_s(n_predicted, summary.predicted_ms),
            "queue_ms": summary.waited_ms,
        }),
    );
    body.insert(
        "longview".into(),
        json!({
            "policy": summary.policy,
            "attended_tokens": summary.attended,
            "of_tokens": summary.n_tokens,
        }),
    );
}
