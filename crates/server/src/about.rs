//! What a server says of itself, and texts and tokens without the engine.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::PoisonError;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use longview_model::chat::ChatTemplate;
use longview_model::tokenizer::{Piece, Specials};
use longview_scheduler::{OPTIONS as POLICY_OPTIONS, Preset};
use serde_json::{Value, json};

use crate::app::{App, aside, parse};
use crate::asked::no_model;
use crate::caller::Caller;
use crate::conversation::{asked, messages, template_fields};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};
use crate::job::Slot;
use crate::texts::Conversation;
use crate::tools::Tools;

/// Whether requests are served.
pub(crate) fn health(app: &App) -> Result<Response<Body>, ApiError> {
    app.check_ready()?;
    Ok(json_response(StatusCode::OK, &json!({ "status": "ok" })))
}

/// The models that are served: one, by the name to show.
pub(crate) fn models(app: &App) -> Response<Body> {
    let body = json!({ "object": "list", "data": [model_json(app)] });
    json_response(StatusCode::OK, &body)
}

/// One model, by any of the names under which requests may ask for it.
pub(crate) fn model(app: &App, name: &str) -> Result<Response<Body>, ApiError> {
    if !app.model.names.iter().any(|known| known == name) {
        return Err(no_model(&app.model, name));
    }
    Ok(json_response(StatusCode::OK, &model_json(app)))
}

fn model_json(app: &App) -> Value {
    json!({
        "id": app.model.names[0],
        "object": "model",
        "created": app.started_unix_s,
        "owned_by": "longview",
        "meta": { "n_vocab": app.model.vocab_size, "n_ctx": app.model.ctx_size },
    })
}

/// Counters for Prometheus.
pub(crate) fn metrics(app: &App) -> Response<Body> {
    let mut response = Response::new(Body::from(app.metrics.text()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// How the server was started.
pub(crate) fn props(app: &App) -> Response<Body> {
    let model = &app.model;
    let template = model.chat.as_ref().and_then(ChatTemplate::source);
    let policies = Preset::ALL.iter().map(|(preset, name)| {
        let info = preset.info();
        json!({
            "name": name,
            "title": info.source,
            "description": info.description,
            "options": info.options,
        })
    });
    let options = POLICY_OPTIONS.iter().map(
        |option| json!({ "name": option.name, "value": option.value, "help": option.help.trim() }),
    );
    // Where the host keeps its files is nothing to its clients.
    let path = Path::new(&model.words);
    let path = path.file_name().filter(|_| path.is_absolute()).map(OsStr::to_string_lossy);
    let path = path.unwrap_or_else(|| model.words.as_str().into());
    let token = |id: Option<u32>| id.and_then(|id| model.tokenizer.decode(&[id], false).ok());
    let body = json!({
        "model": model.names[0],
        "model_alias": model.names[0],
        "model_path": path,
        "is_embedded": model.is_embedded,
        "needs_key": app.keys.are_needed(),
        "n_ctx": model.ctx_size,
        "default_generation_settings": {
            "n_ctx": model.ctx_size,
            "params": {
                "temperature": model.generation.temperature,
                "top_p": model.generation.top_p,
                "top_k": model.generation.top_k,
                "min_p": model.generation.min_p,
            },
        },
        "chat_template": template,
        "bos_token": token(model.tokenizer.bos_id()),
        "eos_token": token(model.tokenizer.eos_id()),
        "modalities": { "vision": false, "audio": false },
        "total_slots": app.options.n_slots,
        "max_waiting": app.options.max_waiting,
        "n_taken": app.n_taken(),
        "policy": model.policy.text(),
        "prefill": model.prefill.to_string(),
        "n_layers": model.n_layers,
        "n_kv_heads": model.n_kv_heads,
        "default_policy": model.policy.preset.name(),
        "policies": policies.collect::<Vec<_>>(),
        "policy_options": options.collect::<Vec<_>>(),
        "has_chat_template": model.chat.is_some(),
        "has_contexts": app.options.documents.is_some(),
        "build_info": concat!("longview ", env!("CARGO_PKG_VERSION")),
    });
    json_response(StatusCode::OK, &body)
}

/// The requests of this key that run. Places that others have look like free ones.
pub(crate) fn slots(app: &Caller) -> Response<Body> {
    let slots = app.slots.lock().unwrap_or_else(PoisonError::into_inner);
    let own = slots.iter().filter(|slot| slot.scope == app.scope);
    let mut rows: Vec<Value> = own.map(slot).collect();
    for id in rows.len()..app.options.n_slots {
        rows.push(json!({ "id": id, "n_ctx": app.model.ctx_size, "is_processing": false }));
    }
    for (id, row) in rows.iter_mut().enumerate() {
        row["id"] = json!(id);
        row["n_ctx"] = json!(app.model.ctx_size);
    }
    json_response(StatusCode::OK, &Value::Array(rows))
}

fn slot(slot: &Slot) -> Value {
    let mut row = json!({
        "id": 0,
        "id_task": slot.task,
        "is_processing": true,
        "n_prompt_tokens": slot.n_prompt,
        "n_prompt_tokens_cache": slot.n_cached,
        "n_prompt_tokens_processed": slot.n_read,
        "n_decoded": slot.n_decoded,
        "policy": slot.policy,
        "state": slot.state.name(),
        "prefill": slot.prefill.to_string(),
    });
    if !slot.prefill.is_exact() {
        row["prefill_density"] = slot.blocks.density().into();
    }
    if let Some(id) = slot.builds {
        row["context_id"] = id.to_string().into();
    }
    row
}

/// The tokens of a text.
pub(crate) async fn tokenize(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    let body = aside(move || {
        let body = parse(&body)?;
        let mut fields = Fields::of(&body)?;
        let text = fields.text("content")?;
        let text = text.ok_or_else(|| ApiError::field("content", "content: is missing"))?;
        let is_special = fields.flag("add_special")?.unwrap_or(false);
        let has_pieces = fields.flag("with_pieces")?.unwrap_or(false);
        app.note_unknown(&fields);
        let specials = Specials::of_text(is_special);
        let ids = app.model.encode(text, specials)?;
        if !has_pieces {
            return Ok(json!({ "tokens": ids }));
        }
        let piece = |id: &u32| {
            let piece = app.model.tokenizer.piece(*id);
            let Piece { text, bytes } =
                piece.map_err(|error| ApiError::internal(error.to_string()))?;
            // As llama.cpp's server has parts of characters, which are no text.
            let piece = if text.as_bytes() == bytes { json!(text) } else { json!(bytes) };
            Ok(json!({ "id": id, "piece": piece }))
        };
        Ok(json!({ "tokens": ids.iter().map(piece).collect::<Result<Vec<_>, ApiError>>()? }))
    });
    Ok(json_response(StatusCode::OK, &body.await?))
}

/// The text of tokens.
pub(crate) async fn detokenize(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    let body = aside(move || {
        let body = parse(&body)?;
        let mut fields = Fields::of(&body)?;
        let vocab = app.model.vocab_size;
        let refused = || wrong("tokens", &format!("a list of whole numbers below {vocab}"));
        let list = fields.any("tokens").and_then(Value::as_array).ok_or_else(refused)?;
        let id =
            |value: &Value| u32::try_from(value.as_u64()?).ok().filter(|id| (*id as usize) < vocab);
        let ids: Vec<u32> = list.iter().map(id).collect::<Option<_>>().ok_or_else(refused)?;
        app.note_unknown(&fields);
        let text = app.model.tokenizer.decode(&ids, false);
        let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(json!({ "content": text }))
    });
    Ok(json_response(StatusCode::OK, &body.await?))
}

/// The text that a conversation becomes.
pub(crate) async fn apply_template(app: Caller, body: Bytes) -> Result<Response<Body>, ApiError> {
    let body = aside(move || Ok(json!({ "prompt": template_text(&app, &body)? })));
    Ok(json_response(StatusCode::OK, &body.await?))
}

/// Reads such a request, and makes that text.
pub(crate) fn template_text(app: &App, body: &[u8]) -> Result<String, ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    let is_asked = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let whole = |messages| Conversation { messages, ..Conversation::default() };
    let mut told = if is_asked { asked(&mut fields)? } else { whole(messages(&mut fields)?) };
    told.messages = app.model.as_known(told.messages);
    told.tools = Tools::read(&mut fields)?.tell(&app.model, &mut told.messages);
    told.extra = template_fields(&mut fields)?;
    app.note_unknown(&fields);
    app.model.render(told, is_asked)
}
