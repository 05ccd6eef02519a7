//! Contexts of the library as requests go on from them.

use longview_library::documents::{Document, Documents, DocumentsError};
use serde_json::Value;
use tracing::warn;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;

/// What the library calls a source that is a conversation.
pub(crate) const MESSAGES: &str = "messages";

/// A context that a request goes on from.
pub(crate) enum Known {
    /// It comes before the prompt, or before the first message of the user.
    Text(String),
    /// Its messages come before those of the request.
    Messages(Vec<Value>),
}

/// The context that is asked for, if one is.
pub(crate) fn text_of(app: &Caller, id: Option<&str>) -> Result<Option<Known>, ApiError> {
    let Some(id) = id else { return Ok(None) };
    let documents = app.library()?;
    let document = find(app, id).map_err(|error| error.about("context_id"))?;
    if document.ttl_s.is_some() {
        // A use; a library that cannot be written to is one that can be read.
        let _ = documents.touch(document.id, None);
    }
    known(documents, &document).map(Some)
}

/// What a document of the library is to a request.
pub(crate) fn known(documents: &Documents, document: &Document) -> Result<Known, ApiError> {
    let text = documents.text(document.id)?;
    if !document.sources.iter().any(|source| source.kind == MESSAGES) {
        return Ok(Known::Text(text));
    }
    match serde_json::from_str(&text) {
        Ok(Value::Array(messages)) => Ok(Known::Messages(messages)),
        _ => Err(ApiError::internal("the context is no conversation any more")),
    }
}

impl Known {
    /// What all prompts that go on from it begin with.
    pub(crate) fn encode(&self, app: &App) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Text(text) => app.model.encode_document(text),
            Self::Messages(messages) => app.model.encode_conversation(messages),
        }
    }
}

/// A context by its id or its name: of the library, else of the storage that servers share, from
/// which its text then comes into the library.
pub(crate) fn find(app: &Caller, word: &str) -> Result<Document, ApiError> {
    // Names have up to 200 letters, of up to 4 bytes.
    if word.len() > 1024 {
        let near = Vec::new();
        return Err(DocumentsError::NotFound { word: word.to_owned(), near }.into());
    }
    let documents = app.library()?;
    let missing = match documents.find(word) {
        Err(error @ DocumentsError::NotFound { .. }) => error,
        found => return Ok(found?),
    };
    let Some(share) = app.share().filter(|share| !share.rests()) else {
        return Err(missing.into());
    };
    let added = share.find(word).and_then(|shared| match shared {
        Some(shared) => share.add_to(documents, &shared),
        None => Ok(None),
    });
    let added = added.unwrap_or_else(|error| {
        warn!("a context is not looked for: {error}");
        None
    });
    added.ok_or_else(|| missing.into())
}
