//! Plain objects of JavaScript, in and out.

use std::collections::BTreeMap;
use std::path::Path;

use js_sys::{Reflect, Uint8Array};
use longview_engine::Progress;
use longview_model::folder::ModelFolder;
use longview_reader::{Answer, ReaderError, Step};
use longview_scheduler::{PolicyError, PolicyOptions, Preset};
use longview_wgpu::WgpuBackend;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;

/// An error with a code as its name.
pub(super) fn coded(code: &str, message: &str) -> JsValue {
    let error = js_sys::Error::new(message);
    error.set_name(code);
    error.into()
}

pub(super) fn error(error: ReaderError) -> JsValue {
    coded(error.code(), &error.to_string())
}

pub(super) fn from_js<T: DeserializeOwned>(value: JsValue) -> Result<T, JsValue> {
    serde_wasm_bindgen::from_value(value).map_err(|e| coded("bad-input", &e.to_string()))
}

pub(super) fn to_js<T: Serialize>(value: &T) -> Result<JsValue, JsValue> {
    let objects = serde_wasm_bindgen::Serializer::json_compatible();
    value.serialize(&objects).map_err(|e| coded("other", &e.to_string()))
}

/// A part of the document as JavaScript counts.
#[derive(Serialize)]
struct PassageValue {
    start: usize,
    end: usize,
    weight: f64,
}

/// An answer about the document `text`.
pub(super) fn answer(answer: &Answer, text: &str) -> Result<JsValue, JsValue> {
    let passages = answer.passages.iter().map(|passage| {
        let place = passage.utf16(text);
        PassageValue { start: place.start, end: place.end, weight: passage.weight }
    });
    let value = to_js(answer)?;
    Reflect::set(&value, &"passages".into(), &to_js(&passages.collect::<Vec<_>>())?)?;
    Ok(value)
}

#[derive(Deserialize)]
pub(super) struct OpenOptions {
    pub adapter: Option<String>,
    pub tier: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeviceReport {
    pub adapter: String,
    pub tier: &'static str,
    pub is_software: bool,
    pub max_buffer_bytes: u64,
}

impl DeviceReport {
    /// `adapter` is what the browser calls it, for backends that are not told.
    pub fn of(backend: &WgpuBackend, adapter: &str) -> Self {
        let info = backend.info();
        Self {
            adapter: if info.adapter.is_empty() { adapter.to_owned() } else { info.adapter },
            tier: backend.shader_level().name(),
            is_software: info.is_software,
            max_buffer_bytes: info.max_buffer_bytes,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyReport {
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub options: &'static [&'static str],
    pub is_default: bool,
}

#[derive(Serialize)]
pub(super) struct OptionReport {
    pub name: &'static str,
    pub value: &'static str,
    pub help: &'static str,
}

#[derive(Deserialize)]
pub(super) struct PolicyValue {
    preset: String,
    budget: Option<f64>,
    #[serde(default)]
    options: BTreeMap<String, String>,
}

impl PolicyValue {
    /// The policy, if there is such a one.
    pub fn options(self) -> Result<PolicyOptions, JsValue> {
        let wrong = |e: PolicyError| coded("bad-input", &e.to_string());
        let mut policy = PolicyOptions::new(self.preset.parse::<Preset>().map_err(wrong)?);
        if let Some(budget) = self.budget {
            policy.set("budget", &budget.to_string()).map_err(wrong)?;
        }
        for (name, value) in &self.options {
            policy.set_once(name, value).map_err(wrong)?;
        }
        Ok(policy)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ModelReport {
    name: String,
    layers: usize,
    kv_heads: usize,
    query_heads: usize,
    head_dim: usize,
    vocab: usize,
    trained_context: Option<usize>,
    weight_bytes: u64,
    weight_type: String,
    context_tokens: usize,
    /// Known once the model is loaded.
    pub fingerprint: String,
}

impl ModelReport {
    pub fn new(name: &Path, folder: &ModelFolder, context_tokens: usize) -> Self {
        let config = &folder.config;
        Self {
            name: name.display().to_string(),
            layers: config.n_layers,
            kv_heads: config.n_kv_heads,
            query_heads: config.n_q_heads,
            head_dim: config.head_dim,
            vocab: config.vocab_size,
            trained_context: Some(config.max_position_embeddings),
            weight_bytes: folder.tensors.file_bytes(config),
            weight_type: folder.tensors.main_type(config).to_owned(),
            context_tokens,
            fingerprint: String::new(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PrefillProgress {
    done: usize,
    total: usize,
    tokens_per_s: f64,
    eta_s: f64,
}

impl PrefillProgress {
    pub fn new(p: Progress) -> Self {
        let (done, total) = (p.done, p.total);
        Self { done, total, tokens_per_s: p.tokens_per_s(), eta_s: p.eta().as_secs_f64() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AskOptions {
    pub question: String,
    pub policy: PolicyValue,
    pub max_tokens: usize,
    pub temperature: Option<f32>,
    pub map: Option<MapPlace>,
}

#[derive(Deserialize)]
pub(super) struct MapPlace {
    pub layer: u32,
    pub head: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepReport<'a> {
    text: &'a str,
    tokens: usize,
    tokens_per_s: f64,
    hits: u64,
    misses: u64,
}

/// A step with its map as bytes.
pub(super) fn step(step: &Step<'_>) -> Result<JsValue, JsValue> {
    let Step { text, tokens, tokens_per_s, hits, misses, map, fetched_bytes: _ } = step;
    let (tokens, tokens_per_s, hits, misses) = (*tokens, *tokens_per_s, *hits, *misses);
    let report = to_js(&StepReport { text, tokens, tokens_per_s, hits, misses })?;
    if let Some(map) = map {
        let object = js_sys::Object::new();
        Reflect::set(&object, &"cellTokens".into(), &(map.cell_tokens as f64).into())?;
        Reflect::set(&object, &"kinds".into(), &Uint8Array::from(map.kinds.as_slice()))?;
        Reflect::set(&object, &"counts".into(), &to_js(&map.counts)?)?;
        Reflect::set(&report, &"map".into(), &object)?;
    }
    Ok(report)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemoryReport {
    pub device_bytes: u64,
    pub host_bytes: u64,
    pub wasm_bytes: u64,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParityReport {
    pub passed: usize,
    pub failed: usize,
    pub worst: f64,
    pub messages: Vec<String>,
    pub not_run: Vec<NotRunReport>,
}

#[derive(Serialize)]
pub(super) struct NotRunReport {
    pub cases: usize,
    pub reason: String,
}
