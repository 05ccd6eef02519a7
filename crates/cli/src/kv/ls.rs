//! `longview kv ls`: what there is.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use longview_library::documents::{Document, Documents, SessionEntry, Source, Usage};
use serde::Serialize;

use super::place;
use crate::models::day;
use crate::out::{self, note};
use crate::units;

/// Options of `longview kv ls`.
#[derive(Args)]
pub struct LsArgs {
    /// Print one JSON object [default: off].
    #[arg(long)]
    json: bool,
}

/// Prints them.
pub fn ls(library: Option<&Path>, args: &LsArgs) -> Result<()> {
    let documents = place::look(library)?;
    let (list, usage) = (documents.list()?, documents.usage()?);
    if args.json {
        return print_json(&documents, &list, usage);
    }
    let folder = documents.folder().display();
    if list.is_empty() {
        note(format_args!("no documents in {folder}; `longview kv build FILE -m MODEL` reads one"));
        return Ok(());
    }
    out::bytes(table(&documents, &list).as_bytes())?;
    let limit = match usage.quota_bytes {
        Some(quota) => format!(" of {} allowed", units::bytes(quota)),
        None => String::new(),
    };
    note(format_args!("{folder}: sessions take {}{limit}", units::bytes(usage.session_bytes)));
    Ok(())
}

const HEAD: [&str; 8] = ["name", "id", "tokens", "model", "size", "used", "pin", "state"];
/// Columns of numbers, which are to the right.
const IS_NUMBER: [bool; 8] = [false, false, true, false, true, false, false, false];

/// One line for each session, and one for a document without any.
fn table(documents: &Documents, list: &[Document]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for document in list {
        rows.extend(
            document.sessions.iter().map(|session| row(documents, document, Some(session))),
        );
        if document.sessions.is_empty() {
            rows.push(row(documents, document, None));
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 8] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).zip(IS_NUMBER).map(|((cell, width), is_number)| {
            if is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(documents: &Documents, document: &Document, session: Option<&SessionEntry>) -> [String; 8] {
    let used = day(UNIX_EPOCH + Duration::from_secs(document.used_unix_s));
    let pin = if document.pinned { "pin" } else { "" };
    let (name, id) = (document.name.clone(), document.id.short());
    let Some(session) = session else {
        let state = "text only".to_owned();
        let size = units::bytes(document.text_bytes);
        return [name, id, "-".into(), "-".into(), size, used, pin.into(), state];
    };
    let state = if session.is_complete() && place::lacks_index(documents, session) {
        "no index".to_owned()
    } else if session.is_complete() {
        "complete".to_owned()
    } else {
        format!("{} % read", 100 * session.n_tokens / session.n_document.max(1))
    };
    let key = &session.key;
    let how = [Some(&session.preset), Some(&key.kv_type), key.sparse.as_ref()];
    let how = how.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ");
    let model = format!("{} ({how})", model_name(session));
    let size = units::bytes(session.bytes);
    [name, id, units::count(session.n_tokens), model, size, used, pin.into(), state]
}

/// The last part of the model's place.
pub fn model_name(session: &SessionEntry) -> String {
    let name = Path::new(&session.model).file_name();
    name.map_or_else(|| session.model.clone(), |name| name.to_string_lossy().into_owned())
}

#[derive(Serialize)]
struct Listed<'a> {
    folder: String,
    session_bytes: u64,
    text_bytes: u64,
    quota_bytes: Option<u64>,
    documents: Vec<DocumentJson<'a>>,
}

#[derive(Serialize)]
struct DocumentJson<'a> {
    id: String,
    name: &'a str,
    sources: &'a [Source],
    text_bytes: u64,
    pinned: bool,
    added_unix_s: u64,
    used_unix_s: u64,
    sessions: Vec<SessionJson<'a>>,
}

#[derive(Serialize)]
struct SessionJson<'a> {
    path: String,
    model: &'a str,
    about: &'a str,
    fingerprint: String,
    policy: &'a str,
    kv_type: &'a str,
    reading: &'static str,
    prefill: &'a str,
    tokens: usize,
    document_tokens: usize,
    complete: bool,
    indexed: bool,
    context: usize,
    bytes: u64,
    saved_unix_s: u64,
}

fn print_json(documents: &Documents, list: &[Document], usage: Usage) -> Result<()> {
    let listed = list.iter().map(|document| DocumentJson {
        id: document.id.to_string(),
        name: &document.name,
        sources: &document.sources,
        text_bytes: document.text_bytes,
        pinned: document.pinned,
        added_unix_s: document.added_unix_s,
        used_unix_s: document.used_unix_s,
        sessions: document.sessions.iter().map(|s| session_json(documents, s)).collect(),
    });
    out::json(&Listed {
        folder: documents.folder().display().to_string(),
        session_bytes: usage.session_bytes,
        text_bytes: usage.text_bytes,
        quota_bytes: usage.quota_bytes,
        documents: listed.collect(),
    })
}

fn session_json<'a>(documents: &Documents, session: &'a SessionEntry) -> SessionJson<'a> {
    SessionJson {
        path: documents.session_path(session).display().to_string(),
        model: &session.model,
        about: &session.about,
        fingerprint: session.key.fingerprint.to_string(),
        policy: &session.preset,
        kv_type: &session.key.kv_type,
        reading: session.key.reading.name(),
        prefill: session.key.sparse.as_deref().unwrap_or("exact"),
        tokens: session.n_tokens,
        document_tokens: session.n_document,
        complete: session.is_complete(),
        indexed: !place::lacks_index(documents, session),
        context: session.context,
        bytes: session.bytes,
        saved_unix_s: session.saved_unix_s,
    }
}
