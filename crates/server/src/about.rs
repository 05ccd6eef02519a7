//! What a server says of itself, and texts and tokens without the engine.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use longview_model::tokenizer::Specials;
use serde_json::{Value, json};

use crate::app::{App, aside, parse};
use crate::complete::{messages, template_fields};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, wrong};

/// Whether requests are served.
pub(crate) fn health(app: &App) -> Result<Response<Body>, ApiError> {
    app.check_ready()?;
    Ok(json_response(StatusCode::OK, &json!({ "status": "ok" })))
}

/// The models that are served.
pub(crate) fn models(app: &App) -> Response<Body> {
    let data = app.model.names.iter().map(|name| {
        json!({
            "id": name,
            "object": "model",
            "created": app.started_unix_s,
            "owned_by": "longview",
            "meta": { "n_vocab": app.model.vocab_size, "n_ctx": app.model.ctx_size },
        })
    });
    let data: Vec<Value> = data.collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": data }))
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
    let body = json!({
        "model": model.names[0],
        "n_ctx": model.ctx_size,
        "total_slots": app.options.n_slots,
        "max_waiting": app.options.max_waiting,
        "n_taken": app.n_taken(),
        "policy": model.policy.text(),
        "has_chat_template": model.chat.is_some(),
        "has_contexts": app.options.documents.is_some(),
        "build_info": concat!("longview ", env!("CARGO_PKG_VERSION")),
    });
    json_response(StatusCode::OK, &body)
}

/// The tokens of a text.
pub(crate) async fn tokenize(app: Arc<App>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let body = aside(move || {
        let body = parse(&body)?;
        let mut fields = Fields::of(&body)?;
        let text = fields.text("content")?;
        let text = text.ok_or_else(|| ApiError::field("content", "content: is missing"))?;
        let is_special = fields.flag("add_special")?.unwrap_or(false);
        app.note_unknown(&fields);
        let specials = if is_special { Specials::Add } else { Specials::AsWritten };
        Ok(json!({ "tokens": app.model.encode(text, specials)? }))
    });
    Ok(json_response(StatusCode::OK, &body.await?))
}

/// The text of tokens.
pub(crate) async fn detokenize(app: Arc<App>, body: Bytes) -> Result<Response<Body>, ApiError> {
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
pub(crate) async fn apply_template(app: Arc<App>, body: Bytes) -> Result<Response<Body>, ApiError> {
    let body = aside(move || {
        let body = parse(&body)?;
        let mut fields = Fields::of(&body)?;
        let messages = messages(&mut fields)?;
        let is_asked = fields.flag("add_generation_prompt")?.unwrap_or(true);
        let extra = template_fields(&mut fields)?;
        app.note_unknown(&fields);
        Ok(json!({ "prompt": app.model.render(&messages, extra, is_asked)? }))
    });
    Ok(json_response(StatusCode::OK, &body.await?))
}
