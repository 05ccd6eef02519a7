//! `/v1/contexts`: documents that are read once, and asked by many.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use longview_library::documents::{Document, Documents, Id, NewDocument};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::Receiver;

use crate::answer::{add_summary, progress_json};
use crate::app::{App, aside, parse};
use crate::asked::{How, check_model, clip};
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::job::{Event, KeptText, Message, Summary};
use crate::stream::{self, Script};

/// The text of a context, if one is asked for.
pub(crate) fn text_of(app: &App, id: Option<&str>) -> Result<Option<String>, ApiError> {
    let Some(id) = id else { return Ok(None) };
    let documents = library(app)?;
    let document = find(documents, id).map_err(|error| error.about("context_id"))?;
    Ok(Some(documents.text(document.id)?))
}

fn library(app: &App) -> Result<&Documents, ApiError> {
    let none = "this server was started with --no-library: it keeps no contexts";
    app.options.documents.as_ref().ok_or_else(|| ApiError::bad("no_library", none))
}

/// A context by its id or its name.
fn find(documents: &Documents, word: &str) -> Result<Document, ApiError> {
    if word.len() > 256 {
        let message = format!("there is no context {}", clip(word));
        return Err(ApiError::new(StatusCode::NOT_FOUND, "context_not_found", message));
    }
    Ok(documents.find(word)?)
}

/// Reads a document, and keeps what was read.
pub(crate) async fn create(app: Arc<App>, body: Bytes) -> Result<Response<Body>, ApiError> {
    app.check_ready()?;
    let reader = Arc::clone(&app);
    let (is_stream, document, ids) = aside(move || read(&reader, &body)).await?;
    let kept = KeptText { id: document.id, text: document.text };
    let (id, name) = (kept.id, document.name);
    let how = How::reading(app.model.policy.clone());
    let events = app.submit(ids, how, Some(kept))?;
    let form = Form { id, name };
    if is_stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    Ok(json_response(StatusCode::OK, &form.whole(events).await?))
}

/// A document that came in.
struct NewContext {
    id: Id,
    name: String,
    text: String,
}

fn read(app: &App, body: &[u8]) -> Result<(bool, NewContext, Vec<u32>), ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    check_model(&mut fields, &app.model)?;
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let is_pinned = fields.flag("pin")?.unwrap_or(false);
    let name = fields.text("name")?;
    let text = fields.text("text")?;
    let text = text.ok_or_else(|| ApiError::field("text", "text: is missing"))?;
    app.note_unknown(&fields);
    if text.trim().is_empty() {
        return Err(ApiError::field("text", "text: is empty: there is nothing to read"));
    }
    // Before it is kept: what does not fit is no context of this model.
    let ids = app.model.encode_document(text)?;
    if ids.len() >= app.model.ctx_size {
        return Err(ApiError::too_long(ids.len(), app.model.ctx_size, true));
    }
    let documents = library(app)?;
    let document = documents.add(NewDocument { text, name, sources: Vec::new() })?;
    if is_pinned {
        documents.set_pinned(document.id, true)?;
    }
    let new = NewContext { id: document.id, name: document.name, text: text.to_owned() };
    Ok((is_stream, new, ids))
}

/// All contexts.
pub(crate) async fn list(app: Arc<App>) -> Result<Response<Body>, ApiError> {
    let list = aside(move || Ok(library(&app)?.list()?)).await?;
    let data: Vec<Value> = list.iter().map(describe).collect();
    Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
}

/// One context.
pub(crate) async fn get(app: Arc<App>, id: String) -> Result<Response<Body>, ApiError> {
    let document = aside(move || find(library(&app)?, &id)).await?;
    Ok(json_response(StatusCode::OK, &describe(&document)))
}

/// Removes a context: its text, and what was read of it.
pub(crate) async fn delete(app: Arc<App>, id: String) -> Result<Response<Body>, ApiError> {
    let remover = Arc::clone(&app);
    let id = aside(move || {
        let documents = library(&remover)?;
        let document = find(documents, &id)?;
        documents.remove(document.id)?;
        Ok(document.id)
    })
    .await?;
    // Where the engine's thread is far behind, the session goes when others need its room.
    let _ = app.inbox.try_send(Message::Forget(id));
    let body = json!({ "id": id.to_string(), "object": "context", "deleted": true });
    Ok(json_response(StatusCode::OK, &body))
}

fn describe(document: &Document) -> Value {
    let sessions = document.sessions.iter().map(|session| {
        json!({
            "about": session.about,
            "policy": session.preset,
            "n_tokens": session.n_tokens,
            "n_document": session.n_document,
            "bytes": session.bytes,
        })
    });
    json!({
        "id": document.id.to_string(),
        "object": "context",
        "name": document.name,
        "text_bytes": document.text_bytes,
        "pinned": document.pinned,
        "created": document.added_unix_s,
        "sessions": sessions.collect::<Vec<_>>(),
    })
}

/// How a build looks.
struct Form {
    id: Id,
    name: String,
}

impl Form {
    fn complete(&self, summary: &Summary) -> Value {
        let mut body = Map::new();
        body.insert("id".into(), json!(self.id.to_string()));
        body.insert("object".into(), json!("context"));
        body.insert("name".into(), json!(self.name));
        body.insert("n_tokens".into(), json!(summary.n_prompt));
        add_summary(&mut body, summary);
        Value::Object(body)
    }

    async fn whole(self, mut events: Receiver<Event>) -> Result<Value, ApiError> {
        while let Some(event) = events.recv().await {
            match event {
                Event::Done(summary) => return Ok(self.complete(&summary)),
                Event::Failed(error) => return Err(error),
                Event::Progress(_) | Event::Piece { .. } | Event::Finished { .. } => {}
            }
        }
        Err(stream::ended())
    }
}

impl Script for Form {
    fn event(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Progress(progress) => {
                vec![json!({
                    "object": "context.progress",
                    "prompt_progress": progress_json(&progress),
                })]
            }
            Event::Done(summary) => vec![self.complete(&summary)],
            Event::Failed(error) => vec![error.json()],
            Event::Piece { .. } | Event::Finished { .. } => Vec::new(),
        }
    }

    fn ends_with_mark(&self) -> bool {
        true
    }
}
