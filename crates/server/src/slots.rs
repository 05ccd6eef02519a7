//! `POST /slots/{id}?action=save|restore|erase`: llama.cpp's way to keep what a slot holds.
//!
//! Requests are not bound to places here, and what is read is found by its tokens. So a slot is a
//! label of its scope: it names the tokens that the last request with this `id_slot` left behind.
//! To save them is to build a context of the library that has just these tokens, to restore them is
//! to go on from such a context once: both are requests that read no more than their last token,
//! where all others are known. The name of a file is that of the context, and never a path.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use longview_core::FileSource;
use longview_library::documents::{Document, DocumentsError, Id, NewDocument, Source};
use longview_scheduler::SessionFile;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::app::{App, aside, parse};
use crate::asked::How;
use crate::caller::Caller;
use crate::error::{ApiError, json_response};
use crate::events::Events;
use crate::fields::{Fields, wrong};
use crate::job::{Event, KeptText, Message};

/// What the library calls a source that is a slot.
const SLOT: &str = "slot";

/// Does what the query says.
pub(crate) async fn act(
    app: Caller,
    id: &str,
    query: Option<&str>,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    app.check_ready()?;
    let n_slots = app.options.n_slots;
    let slot = id.parse().ok().filter(|slot| *slot < n_slots);
    let slot: usize =
        slot.ok_or_else(|| wrong("id", &format!("the number of a slot, below {n_slots}")))?;
    let actions = query.unwrap_or_default().split('&').filter_map(|part| part.split_once('='));
    let mut actions = actions.filter(|(name, _)| *name == "action").map(|(_, action)| action);
    let answer = match (actions.next(), actions.next()) {
        (Some("save"), None) => save(app, slot, body).await?,
        (Some("restore"), None) => restore(app, slot, body).await?,
        (Some("erase"), None) => erase(&app, slot).await?,
        _ => return Err(wrong("action", "save, restore or erase, in the query")),
    };
    Ok(json_response(StatusCode::OK, &answer))
}

/// Keeps what the slot holds as a context of the library.
async fn save(app: Caller, slot: usize, body: Bytes) -> Result<Value, ApiError> {
    let began = Instant::now();
    let tokens = app.held().get(app.scope, slot);
    let adder = app.clone();
    let (kept, ids, filename) = aside(move || {
        let filename = filename(&adder, &body)?;
        let ids = tokens.ok_or_else(|| empty(slot))?.to_vec();
        let text = adder.model.tokenizer.decode(&ids, true);
        let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
        let id = add(&adder, slot, &filename, &text)?;
        Ok((KeptText { id, text }, ids, filename))
    })
    .await?;
    let (id, n_saved) = (kept.id, ids.len());
    read(&app, ids, kept).await?;
    let reader = app.clone();
    let document = aside(move || Ok(reader.library()?.get(id)?)).await?;
    let session = document.as_ref().and_then(|document| session_of(&app, document));
    Ok(json!({
        "id_slot": slot,
        "filename": filename,
        "context_id": id.to_string(),
        "n_saved": n_saved,
        "n_written": session.map_or(0, |session| session.bytes),
        "timings": { "save_ms": ms_since(began) },
    }))
}

/// Makes a context of the library ready for use, and has the slot hold it.
async fn restore(app: Caller, slot: usize, body: Bytes) -> Result<Value, ApiError> {
    let began = Instant::now();
    let finder = app.clone();
    let (kept, ids, filename, n_read) = aside(move || {
        let filename = filename(&finder, &body)?;
        let documents = finder.library()?;
        let document = documents.find(&filename)?;
        let session = session_of(&finder, &document).ok_or_else(|| {
            let message = "this context has no tokens of the model that is served: it must be read \
                           again";
            ApiError::new(StatusCode::NOT_FOUND, "context_not_found", message).about("filename")
        })?;
        let text = documents.text(document.id)?;
        let internal = |error: String| ApiError::internal(error);
        let source = FileSource::open(&documents.session_path(session));
        let source = source.map_err(|error| internal(error.to_string()))?;
        let tokens = SessionFile::open(&source).and_then(|file| file.tokens());
        let tokens = tokens.map_err(|error| internal(error.to_string()))?;
        Ok((KeptText { id: document.id, text }, tokens, filename, session.bytes))
    })
    .await?;
    let n_restored = ids.len();
    let held: Arc<[u32]> = ids.as_slice().into();
    read(&app, ids, kept).await?;
    app.held().put(app.scope, slot, held);
    Ok(json!({
        "id_slot": slot,
        "filename": filename,
        "n_restored": n_restored,
        "n_read": n_read,
        "timings": { "restore_ms": ms_since(began) },
    }))
}

/// Lets go what the slot holds, in memory: what was saved of it stays.
async fn erase(app: &Caller, slot: usize) -> Result<Value, ApiError> {
    let tokens = app.held().take(app.scope, slot);
    let n_erased = tokens.as_ref().map_or(0, |tokens| tokens.len());
    if let Some(tokens) = tokens {
        let (erased, is_erased) = oneshot::channel();
        let message = Message::Erase { scope: app.scope, tokens: Arc::clone(&tokens), erased };
        let full = "too much waits already; ask again later";
        app.inbox.try_send(message).map_err(|_| ApiError::unavailable("queue_full", full))?;
        // An engine that has ended holds nothing.
        let _ = is_erased.await;
        if let Some(prompts) = app.prompts().cloned() {
            aside(move || Ok(prompts.remove_prompts_like(&tokens)?)).await?;
        }
    }
    Ok(json!({ "id_slot": slot, "n_erased": n_erased }))
}

/// Reads tokens that are a context, as far as they are not known, and waits for that.
async fn read(app: &Caller, ids: Vec<u32>, kept: KeptText) -> Result<(), ApiError> {
    let how = How::reading(app.model.policy.clone(), app.model.prefill);
    let mut events: Events = app.submit(ids, how, Some(kept))?;
    while let Some(event) = events.recv().await {
        match event {
            Event::Done(_) => return Ok(()),
            Event::Failed(error) => return Err(error),
            Event::Progress(_) | Event::Step(_) => {}
            Event::Piece { .. } | Event::Finished { .. } => {}
        }
    }
    Err(ApiError::ended())
}

fn filename(app: &App, body: &[u8]) -> Result<String, ApiError> {
    let body = parse(body)?;
    let mut fields = Fields::of(&body)?;
    let filename = fields.text("filename")?.map(str::to_owned);
    app.note_unknown(&fields);
    filename.ok_or_else(|| ApiError::field("filename", "filename: is missing"))
}

/// Adds the text of a slot under a name. What another slot was saved as under this name goes;
/// nothing else does.
fn add(app: &Caller, slot: usize, filename: &str, text: &str) -> Result<Id, ApiError> {
    let documents = app.library()?;
    let about = |error: DocumentsError| ApiError::from(error).about("filename");
    let name = format!("slot {slot}");
    let sources = vec![Source { name, kind: SLOT.into(), bytes: 0, pages: None }];
    let id = Id::of(text.as_bytes());
    let is_slot = |found: &Document| found.sources.iter().any(|source| source.kind == SLOT);
    let is_old = |found: &Document| found.name == filename && found.id != id && is_slot(found);
    let Some(old) = documents.list()?.into_iter().find(is_old) else {
        let name = Some(filename);
        return Ok(documents.add(NewDocument { text, name, sources }).map_err(about)?.id);
    };
    let new = documents.add(NewDocument { text, name: None, sources }).map_err(about)?;
    documents.succeed(old.id, new.id)?;
    let _ = app.inbox.try_send(Message::Forget { scope: app.scope, id: old.id, ids: Vec::new() });
    Ok(new.id)
}

/// The session of a document that the served model has read.
fn session_of<'a>(
    app: &App,
    document: &'a Document,
) -> Option<&'a longview_library::documents::SessionEntry> {
    let own = document.sessions.iter().filter(|session| session.model == app.model.words);
    own.max_by_key(|session| (session.n_tokens, session.turn))
}

fn empty(slot: usize) -> ApiError {
    let message = format!(
        "slot {slot} holds nothing of this key: no request with \"id_slot\": {slot} has ended, or \
         too many others have since"
    );
    ApiError::bad("empty_slot", message).about("id")
}

fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
