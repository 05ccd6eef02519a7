//! What a request sees of its answer beside the text: how each step recalled, where the tokens of
//! the context stood in it, and which passages of the document the answer rests on.
//!
//! It costs what a face pays that shows it, so it is asked for: the host reads the keys that a few
//! steps attended, and a step's map has one letter for each of at most 4,096 cells.

use std::sync::Arc;

use longview_core::{HeadId, LayerId};
use longview_engine::EngineError;
use longview_reader::{Attention, ContextMap, Passage, TextPieces, places_in};
use serde_json::{Value, json};

use crate::error::{ApiError, clip};
use crate::fields::{Fields, wrong};
use crate::texts::ModelFacts;

/// The field of a request.
const FIELD: &str = "longview";

/// What is looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// Whether the answer says which passages it rests on.
    pub(crate) wants_passages: bool,
    /// Whether each step says what it recalled.
    pub(crate) wants_steps: bool,
    /// The layer and KV head of which each step has a map.
    pub(crate) map: Option<(LayerId, HeadId)>,
    /// The document, once it was found where passages are wanted.
    pub(crate) document: Option<Arc<LookedAt>>,
}

/// A document in a prompt.
#[derive(Debug)]
pub(crate) struct LookedAt {
    pub(crate) text: String,
    pub(crate) pieces: TextPieces,
    /// Tokens of the prompt.
    pub(crate) n_tokens: usize,
}

/// A part of the document, as clients count: in characters (Unicode code points).
#[derive(Clone, Debug)]
pub(crate) struct Quote {
    start: usize,
    end: usize,
    weight: f64,
    text: String,
}

/// What a step of an answer did.
#[derive(Clone, Debug)]
pub(crate) struct StepLook {
    /// Tokens of the answer so far.
    pub(crate) tokens: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) map: Option<ContextMap>,
}

/// What was seen of a whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Where passages were wanted.
    pub(crate) passages: Option<Vec<Quote>>,
    pub(crate) hit_rate: Option<f64>,
    pub(crate) device_bytes: u64,
    pub(crate) host_bytes: u64,
}

impl Look {
    /// What the field says, if it is there.
    pub(crate) fn read(
        fields: &mut Fields<'_>,
        model: &ModelFacts,
        n_answers: usize,
    ) -> Result<Option<Self>, ApiError> {
        let Some(value) = fields.any(FIELD) else { return Ok(None) };
        let mut inner = Fields::of(value).map_err(|_| wrong(FIELD, "an object"))?;
        let about = |error: ApiError| error.about(FIELD);
        let look = Self {
            wants_passages: inner.flag("passages").map_err(about)?.unwrap_or(false),
            wants_steps: inner.flag("steps").map_err(about)?.unwrap_or(false),
            map: inner.any("map").map(|place| read_place(place, model)).transpose()?,
            document: None,
        };
        if let Some(name) = inner.unknown().next() {
            let name = clip(name);
            let message = format!("{FIELD}: knows passages, steps and map, and not {name}");
            return Err(ApiError::field(FIELD, message));
        }
        if n_answers > 1 {
            return Err(wrong(FIELD, "given with n: 1"));
        }
        Ok(Some(look))
    }

    /// Whether steps are told of one by one.
    pub(crate) fn tells_steps(&self) -> bool {
        self.wants_steps || self.map.is_some()
    }

    /// An error where passages are wanted of a prompt that has no document.
    pub(crate) fn without_document() -> ApiError {
        wrong("longview", "given without passages, or with the context_id of a text")
    }
}

fn read_place(value: &Value, model: &ModelFacts) -> Result<(LayerId, HeadId), ApiError> {
    let (n_layers, n_heads) = (model.n_layers, model.n_kv_heads);
    let refused = || {
        let wanted = format!("an object with layer below {n_layers} and head below {n_heads}");
        wrong("longview.map", &wanted).about(FIELD)
    };
    let number = |name: &str, n: usize| {
        let number = usize::try_from(value[name].as_u64()?).ok()?;
        (number < n).then_some(number)
    };
    let place = number("layer", n_layers).zip(number("head", n_heads));
    let (layer, head) = place.ok_or_else(refused)?;
    Ok((LayerId::new(layer), HeadId::new(head)))
}

impl LookedAt {
    /// A document among the `n_tokens` tokens of a prompt.
    pub(crate) fn new(
        model: &ModelFacts,
        prompt: &str,
        n_tokens: usize,
        document: String,
    ) -> Result<Self, ApiError> {
        let places = places_in(&model.tokenizer, prompt, n_tokens, &document);
        let pieces = TextPieces::new(&document, &places.map_err(EngineError::from)?);
        Ok(Self { text: document, pieces, n_tokens })
    }

    /// The passages that received most.
    pub(crate) fn quotes(&self, attention: &Attention) -> Vec<Quote> {
        let passages = self.pieces.passages(attention.mass());
        passages.iter().map(|passage| self.quote(passage)).collect()
    }

    fn quote(&self, passage: &Passage) -> Quote {
        let text = &self.text[passage.place.clone()];
        let start = self.text[..passage.place.start].chars().count();
        let end = start + text.chars().count();
        Quote { start, end, weight: passage.weight, text: text.to_owned() }
    }
}

impl StepLook {
    /// As clients read it.
    pub(crate) fn json(&self) -> Value {
        let Self { tokens, hits, misses, map } = self;
        let mut json = json!({ "tokens": tokens, "hits": hits, "misses": misses });
        if let Some(map) = map {
            // One letter a cell: a list of numbers would be twice as long.
            let kinds: String = map.kinds.iter().map(|kind| char::from(b'0' + kind)).collect();
            json["map"] =
                json!({ "cell_tokens": map.cell_tokens, "cells": kinds, "counts": map.counts });
        }
        json
    }
}

impl Seen {
    /// Adds it to what an answer says of itself.
    pub(crate) fn add_to(&self, json: &mut Value) {
        json["hit_rate"] = json!(self.hit_rate);
        json["device_bytes"] = json!(self.device_bytes);
        json["host_bytes"] = json!(self.host_bytes);
        if let Some(quotes) = &self.passages {
            let quote = |quote: &Quote| {
                let Quote { start, end, weight, text } = quote;
                json!({ "start": start, "end": end, "weight": weight, "text": text })
            };
            json["passages"] = quotes.iter().map(quote).collect();
        }
    }
}
