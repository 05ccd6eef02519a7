//! Answers in llama.cpp's own form (`/completion`), of one prompt.
//!
//! A stream has no mark at its end: its last event is the one with `"stop": true`. What llama.cpp
//! repeats of the request (`generation_settings`, `prompt`) is left out.

use serde_json::{Map, Value, json};

use crate::answer::{self, Whole, probs_json, progress_json, summary_json};
use crate::app::App;
use crate::calls::Calls;
use crate::error::ApiError;
use crate::events::Events;
use crate::job::{Event, Summary};
use crate::stream::Script;
use crate::texts::Facts;

/// How one answer looks.
pub(crate) struct Form {
    model: Facts,
    /// Tokens of the prompt.
    n_prompt: usize,
    /// Tokens of the answer that events have given out.
    n_given: usize,
    has_probs: bool,
    has_tokens: bool,
    slot: usize,
    /// How the answer ended, once it has.
    end: Whole,
}

impl Form {
    pub(crate) fn new(app: &App, n_prompt: usize, has_probs: bool) -> Self {
        let (model, end) = (app.model.clone(), Whole::default());
        Self { model, n_prompt, n_given: 0, has_probs, has_tokens: false, slot: 0, end }
    }

    /// Whether tokens are said beside their text.
    pub(crate) fn with_tokens(mut self, has_tokens: bool) -> Self {
        self.has_tokens = has_tokens;
        self
    }

    /// The slot in which it leaves what it read and said.
    pub(crate) fn with_slot(self, slot: usize) -> Self {
        Self { slot, ..self }
    }

    /// Waits for the whole answer.
    pub(crate) async fn whole(self, events: Events) -> Result<Value, ApiError> {
        let (whole, summary) = answer::whole(events, Calls::new(None)).await?;
        Ok(self.last(&whole, &summary))
    }

    /// What an event and a whole answer have in common.
    fn part(&self, whole: &Whole) -> Map<String, Value> {
        let tokens = if self.has_tokens { &whole.tokens[..] } else { &[] };
        let mut part = Map::new();
        part.insert("index".into(), json!(0));
        part.insert("content".into(), json!(whole.text));
        part.insert("tokens".into(), json!(tokens));
        part.insert("stop".into(), json!(false));
        part.insert("tokens_predicted".into(), json!(self.n_given));
        part.insert("tokens_evaluated".into(), json!(self.n_prompt));
        if self.has_probs && !whole.logprobs.is_empty() {
            let probs = probs_json(&self.model, &whole.logprobs);
            part.insert("completion_probabilities".into(), probs);
        }
        part
    }

    /// The end of an answer, and what it took.
    fn last(&self, whole: &Whole, summary: &Summary) -> Value {
        let kind = match (whole.reason, &whole.stop) {
            (_, Some(_)) => "word",
            (Some("length"), None) => "limit",
            (_, None) => "eos",
        };
        let mut last = self.part(whole);
        last.insert("stop".into(), json!(true));
        last.insert("id_slot".into(), json!(self.slot));
        last.insert("model".into(), json!(self.model.names[0]));
        last.insert("tokens_predicted".into(), json!(summary.n_predicted));
        last.insert("tokens_cached".into(), json!(summary.n_tokens));
        last.insert("truncated".into(), json!(false));
        last.insert("stop_type".into(), json!(kind));
        last.insert("stopping_word".into(), json!(whole.stop.as_deref().unwrap_or_default()));
        last.extend(summary_json(summary).map(|(name, value)| (name.to_owned(), value)));
        Value::Object(last)
    }
}

impl Script for Form {
    fn event(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Progress(progress) => {
                let mut part = self.part(&Whole::default());
                part.insert("prompt_progress".into(), progress_json(&progress));
                vec![Value::Object(part)]
            }
            Event::Piece { text, logprobs, tokens, .. } => {
                self.n_given += tokens.len();
                let piece = Whole { text, logprobs, tokens, ..Whole::default() };
                vec![Value::Object(self.part(&piece))]
            }
            Event::Finished { reason, stop, .. } => {
                (self.end.reason, self.end.stop) = (Some(reason), stop);
                Vec::new()
            }
            Event::Done(summary) => vec![self.last(&self.end, &summary)],
            Event::Failed(error) => vec![error.json()],
            Event::Step(_) => Vec::new(),
        }
    }

    fn ends_with_mark(&self) -> bool {
        false
    }
}
