//! `/v1/contexts`: documents that are read once, and asked by many.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use longview_engine::PrefillMode;
use longview_library::documents::{Document, Id, NewDocument, Source};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tracing::warn;

use crate::answer::{add_summary, progress_json};
use crate::app::{App, aside, parse};
use crate::asked::{How, check_model, prefill};
use crate::caller::Caller;
use crate::conversation::messages;
use crate::error::{ApiError, json_response};
use crate::events::Events;
use crate::fields::Fields;
use crate::job::{Event, KeptText, Message, Summary};
use crate::known::{Known, MESSAGES, find, known};
use crate::stream::{self, Script};
use crate::upload::{self, Upload};

/// Longest time without use after which a context may go: ten years.
const MAX_TTL_S: u64 = 315_360_000;

/// Reads a document, and keeps what was read.
pub(crate) async fn create(
    app: Caller,
    content_type: Option<&str>,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    app.check_free()?;
    let (fields, upload) = match upload::boundary(content_type) {
        Some(boundary) => upload::read(boundary, body).await?,
        None => (aside(move || parse(&body)).await?, None),
    };
    let reader = app.clone();
    let new = aside(move || read(&reader, &fields, upload)).await?;
    let NewContext { is_stream, document, ids, prefill } = new;
    let kept = KeptText { id: document.id, text: document.text };
    let (id, name) = (kept.id, document.name);
    let how = How::reading(app.model.policy.clone(), prefill);
    let events = app.submit(ids, how, Some(kept))?;
    let form = Form { id, name };
    if is_stream {
        return Ok(stream::respond(events, form, app.options.limits.ping));
    }
    Ok(json_response(StatusCode::OK, &form.whole(events).await?))
}

/// A document that came in, and how it is to be read.
struct NewContext {
    is_stream: bool,
    document: Added,
    ids: Vec<u32>,
    prefill: PrefillMode,
}

/// A document of the library that came in.
struct Added {
    id: Id,
    name: String,
    text: String,
}

/// Reads a request without a file, and counts the tokens of the document.
pub(crate) fn n_tokens(app: &Caller, body: &Value) -> Result<usize, ApiError> {
    Ok(read(app, body, None)?.ids.len())
}

fn read(app: &Caller, body: &Value, upload: Option<Upload>) -> Result<NewContext, ApiError> {
    let mut fields = Fields::of(body)?;
    check_model(&mut fields, &app.model)?;
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let is_pinned = fields.flag("pin")?.unwrap_or(false);
    let ttl_s = fields.whole("ttl", 1..=MAX_TTL_S)?;
    let name = fields.text("name")?;
    let text = fields.text("text")?;
    let prefill = prefill(&mut fields, &app.model, &app.model.policy)?;
    let has_messages = fields.any("messages").is_some();
    let (known, sources) = match (text, has_messages, upload) {
        (Some(text), false, None) => (Known::Text(text.to_owned()), Vec::new()),
        (None, true, None) => {
            let messages = messages(&mut fields)?;
            let source = Source {
                name: "conversation".into(),
                kind: MESSAGES.into(),
                bytes: 0,
                pages: None,
            };
            (Known::Messages(messages), vec![source])
        }
        (None, false, Some(upload)) => {
            let (text, source) = upload.text(app.options.limits.body_bytes as u64)?;
            (Known::Text(text), vec![source])
        }
        (None, false, None) => {
            let message = "text: is missing: give text, messages or a file";
            return Err(ApiError::field("text", message));
        }
        _ => {
            let message = "text, messages and a file: only one of them can be given";
            return Err(ApiError::field("text", message));
        }
    };
    app.note_unknown(&fields);
    let text = match &known {
        Known::Text(text) => text.clone(),
        Known::Messages(messages) => json!(messages).to_string(),
    };
    if text.trim().is_empty() {
        return Err(ApiError::field("text", "text: is empty: there is nothing to read"));
    }
    // Before it is kept: what does not fit is no context of this model.
    let ids = known.encode(app)?;
    if ids.len() >= app.model.ctx_size {
        return Err(ApiError::too_long(ids.len(), app.model.ctx_size, true));
    }
    let documents = app.library()?;
    let document = documents.add(NewDocument { text: &text, name, sources })?;
    if is_pinned {
        documents.set_pinned(document.id, true)?;
    }
    if ttl_s.is_some() {
        documents.set_ttl(document.id, ttl_s)?;
    }
    let document = Added { id: document.id, name: document.name, text };
    Ok(NewContext { is_stream, document, ids, prefill })
}

/// All contexts.
pub(crate) async fn list(app: Caller) -> Result<Response<Body>, ApiError> {
    let lister = app.clone();
    let (list, usage) = aside(move || {
        let documents = lister.library()?;
        Ok((documents.list()?, documents.usage()?))
    })
    .await?;
    let data: Vec<Value> = list.iter().map(|document| describe(&app, document)).collect();
    let body = json!({
        "object": "list",
        "data": data,
        "bytes": usage.session_bytes + usage.text_bytes,
        "quota_bytes": usage.quota_bytes,
    });
    Ok(json_response(StatusCode::OK, &body))
}

/// One context.
pub(crate) async fn get(app: Caller, id: String) -> Result<Response<Body>, ApiError> {
    let finder = app.clone();
    let document = aside(move || find(&finder, &id)).await?;
    Ok(json_response(StatusCode::OK, &describe(&app, &document)))
}

/// The text of a context.
pub(crate) async fn text(app: Caller, id: String) -> Result<Response<Body>, ApiError> {
    let body = aside(move || {
        let documents = app.library()?;
        let document = find(&app, &id)?;
        let text = documents.text(document.id)?;
        let id = document.id.to_string();
        Ok(json!({ "id": id, "object": "context.text", "name": document.name, "text": text }))
    });
    Ok(json_response(StatusCode::OK, &body.await?))
}

/// Changes what was said of a context when it came: its name, whether it is pinned, and how long it
/// stays without use.
pub(crate) async fn change(
    app: Caller,
    id: String,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    let changer = app.clone();
    let document = aside(move || {
        let body = parse(&body)?;
        let mut fields = Fields::of(&body)?;
        let is_pinned = fields.flag("pin")?;
        let ttl_s = fields.whole("ttl", 0..=MAX_TTL_S)?;
        let name = fields.text("name")?;
        if is_pinned.is_none() && ttl_s.is_none() && name.is_none() {
            let message = "pin: is missing, as are name and ttl: give what is to change";
            return Err(ApiError::field("pin", message));
        }
        changer.note_unknown(&fields);
        let documents = changer.library()?;
        let document = find(&changer, &id)?;
        // First what may be refused: then nothing changes.
        if let Some(name) = name {
            documents.rename(document.id, name)?;
        }
        if let Some(is_pinned) = is_pinned {
            documents.set_pinned(document.id, is_pinned)?;
        }
        if let Some(ttl_s) = ttl_s {
            // Its time begins now: counted from its last use it might be over already.
            documents.touch(document.id, None)?;
            documents.set_ttl(document.id, Some(ttl_s).filter(|ttl_s| *ttl_s > 0))?;
        }
        find(&changer, &document.id.to_string())
    });
    Ok(json_response(StatusCode::OK, &describe(&app, &document.await?)))
}

/// Removes a context, its text and what was read of it, when the requests that use it have ended.
pub(crate) async fn delete(app: Caller, id: String) -> Result<Response<Body>, ApiError> {
    // It goes also where the client does not wait for it.
    let remover = app.clone();
    let removal = tokio::spawn(async move {
        let id = remove(remover, id).await?;
        remove_shared(app, id).await
    });
    let id = removal.await.map_err(|error| ApiError::internal(error.to_string()))??;
    let body = json!({ "id": id.to_string(), "object": "context", "deleted": true });
    Ok(json_response(StatusCode::OK, &body))
}

async fn remove(app: Caller, id: String) -> Result<Id, ApiError> {
    let reader = app.clone();
    let (id, ids, text) = aside(move || {
        let documents = reader.library()?;
        let document = find(&reader, &id)?;
        // A text that is damaged or too long is in no prompt.
        let known = known(documents, &document).ok();
        let ids = known.as_ref().and_then(|known| known.encode(&reader).ok());
        let text = match known {
            Some(Known::Text(text)) => Some(text),
            _ => None,
        };
        Ok((document.id, ids.unwrap_or_default(), text))
    })
    .await?;
    let (unused, is_unused) = oneshot::channel();
    let remove = Message::Remove { scope: app.scope, id, ids: ids.clone(), unused };
    app.inbox.try_send(remove).map_err(|_| busy())?;
    // An engine that has ended uses nothing.
    let _ = is_unused.await;
    let remover = app.clone();
    let ids = aside(move || {
        remover.library()?.remove(id)?;
        // What was said about it has all of it.
        if let Some(prompts) = remover.prompts() {
            prompts.remove_prompts_with(&ids, text.as_deref())?;
        }
        Ok(ids)
    })
    .await?;
    // Where the engine's thread is far behind, the session goes when others need its room.
    let _ = app.inbox.try_send(Message::Forget { scope: app.scope, id, ids });
    Ok(id)
}

/// Removes a context from where other servers find it. Those that have it keep it.
async fn remove_shared(app: Caller, id: Id) -> Result<Id, ApiError> {
    aside(move || {
        let Some(share) = app.share() else { return Ok(id) };
        share.remove(id).map_err(|error| {
            warn!("context {}: stays shared: {error}", id.short());
            let message = "it is removed here, and not from the storage that servers share, which \
                           does not answer or refuses: ask again later";
            ApiError::unavailable("share_unreachable", message)
        })?;
        Ok(id)
    })
    .await
}

fn busy() -> ApiError {
    ApiError::unavailable("queue_full", "too much waits already; ask again later")
}

/// Removes contexts that were not used for as long as they were to stay, again and again.
pub(crate) async fn sweep(app: Arc<App>) {
    loop {
        tokio::time::sleep(app.options.limits.sweep).await;
        for scope in app.keys.scopes() {
            sweep_scope(&Caller::new(Arc::clone(&app), scope)).await;
        }
    }
}

async fn sweep_scope(app: &Caller) {
    let lister = app.clone();
    let Ok(list) = aside(move || Ok(lister.library()?.list()?)).await else { return };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_s = now.map_or(0, |now| now.as_secs());
    for document in list.iter().filter(|document| is_over(document, now_s)) {
        if let Err(error) = remove(app.clone(), document.id.to_string()).await {
            warn!("context {}: stays: {}", document.id.short(), error.json());
        }
    }
}

fn is_over(document: &Document, now_s: u64) -> bool {
    let end_s = document.ttl_s.map(|ttl_s| document.used_unix_s.saturating_add(ttl_s));
    !document.pinned && end_s.is_some_and(|end_s| end_s <= now_s)
}

fn describe(app: &App, document: &Document) -> Value {
    let sessions = document.sessions.iter().map(|session| {
        json!({
            "about": session.about,
            "is_served": session.model == app.model.words,
            "policy": session.preset,
            "prefill": session.key.sparse.as_deref().unwrap_or("exact"),
            "n_tokens": session.n_tokens,
            "n_document": session.n_document,
            "bytes": session.bytes,
        })
    });
    json!({
        "id": document.id.to_string(),
        "object": "context",
        "name": document.name,
        "is_conversation": document.sources.iter().any(|source| source.kind == MESSAGES),
        "text_bytes": document.text_bytes,
        "pinned": document.pinned,
        "ttl": document.ttl_s,
        "created": document.added_unix_s,
        "used": document.used_unix_s,
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

    async fn whole(self, mut events: Events) -> Result<Value, ApiError> {
        while let Some(event) = events.recv().await {
            match event {
                Event::Done(summary) => return Ok(self.complete(&summary)),
                Event::Failed(error) => return Err(error),
                Event::Progress(_) | Event::Step(_) => {}
                Event::Piece { .. } | Event::Finished { .. } => {}
            }
        }
        Err(ApiError::ended())
    }
}

impl Script for Form {
    fn event(&mut self, event: Event) -> Vec<Value> {
        match event {
            Event::Progress(progress) => {
                vec![json!({
                    "object": "context.progress",
                    "id": self.id.to_string(),
                    "prompt_progress": progress_json(&progress),
                })]
            }
            Event::Done(summary) => vec![self.complete(&summary)],
            Event::Failed(error) => vec![error.json()],
            Event::Step(_) | Event::Piece { .. } | Event::Finished { .. } => Vec::new(),
        }
    }

    fn ends_with_mark(&self) -> bool {
        true
    }
}
