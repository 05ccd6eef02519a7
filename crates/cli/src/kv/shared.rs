//! Documents that come from the storage that machines share, and go there.
//!
//! A storage that does not answer is a warning: what is here is asked, and what is not is read.

use std::time::Instant;

use anyhow::{Result, bail};
use longview_library::documents::{
    Document, Documents, DocumentsError, Id, SessionEntry, SessionKey,
};
use longview_library::shared::{Published, Share, ShareError, SharedSession};

use super::place;
use crate::load::ModelArgs;
use crate::out::note;
use crate::units;

/// The document of this name or id: of the library, else of the storage.
pub fn find(documents: &Documents, share: Option<&Share>, word: &str) -> Result<Document> {
    let missing = match documents.find(word) {
        Err(error @ DocumentsError::NotFound { .. }) => error,
        found => return Ok(found?),
    };
    let Some(share) = share else { return Err(missing.into()) };
    let added = share.find(word).and_then(|shared| match shared {
        Some(shared) => share.add_to(documents, &shared),
        None => Ok(None),
    });
    match added {
        Ok(Some(document)) => Ok(document),
        Ok(None) => Err(missing.into()),
        Err(error) => {
            warn(&error);
            Err(missing.into())
        }
    }
}

/// Fetches what a prompt begins with, if the storage has more of it than `n_here` tokens.
pub fn fetch_nearest(
    documents: &Documents,
    share: &Share,
    (key, tokens, context): (&SessionKey, &[u32], usize),
    n_here: usize,
    (model, about): (&str, &str),
) {
    let found = share.nearest(key, tokens, context, n_here);
    let fetched = found.and_then(|found| match found {
        Some(found) => fetch(documents, share, &found, model, about),
        None => Ok(()),
    });
    if let Err(error) = fetched {
        warn(&error);
    }
}

/// Fetches a session of a document that a model can be asked with: the one that is given, else the
/// one that read it last. Whether there is one.
pub fn fetch_session(
    documents: &Documents,
    share: &Share,
    document: Id,
    model: &ModelArgs,
) -> Result<bool> {
    let sessions = match share.sessions(document) {
        Ok(sessions) => sessions,
        Err(error) => {
            warn(&error);
            return Ok(false);
        }
    };
    let mut words = None;
    let found = if model.is_absent() {
        sessions.first()
    } else {
        words = Some(place::model_words(model));
        let Some(folder) = model.open_here()? else { return Ok(false) };
        let (config, tensors) = (&folder.config, &folder.tensors);
        let mut found = None;
        for session in &sessions {
            let tokenizer = folder.tokenizer.as_ref();
            let made = longview_engine::fingerprint(config, tensors, tokenizer, session.context())?;
            if place::fingerprint_id(&made) == session.key().fingerprint {
                found = Some(session);
                break;
            }
        }
        found
    };
    let Some(found) = found else { return Ok(false) };
    let model = words.as_deref().unwrap_or(found.model());
    if let Err(error) = fetch(documents, share, found, model, found.about()) {
        warn(&error);
        return Ok(false);
    }
    Ok(true)
}

fn fetch(
    documents: &Documents,
    share: &Share,
    found: &SharedSession,
    model: &str,
    about: &str,
) -> Result<(), ShareError> {
    let start = Instant::now();
    let incoming = share.fetch(documents, found)?;
    incoming.keep(documents, model, about)?;
    note(format_args!(
        "{} tokens came from shared storage, {} in {:.2} s",
        units::count(found.n_tokens()),
        units::bytes(found.bytes()),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Copies what was read of a document to the storage.
pub fn send(documents: &Documents, share: &Share, document: &Document, session: &SessionEntry) {
    let start = Instant::now();
    match share.publish(documents, document.id, session) {
        Ok(Published::Sent(bytes)) => note(format_args!(
            "{}: {} shared in {:.2} s",
            document.name,
            units::bytes(bytes),
            start.elapsed().as_secs_f64()
        )),
        Ok(_) => note(format_args!("{}: is shared already", document.name)),
        Err(error) => {
            note(format_args!("warning: {}: is kept here, and not shared: {error}", document.name));
        }
    }
}

/// Removes a document from the storage.
pub fn remove(share: &Share, document: &Document) -> Result<()> {
    if let Err(error) = share.remove(document.id) {
        bail!(
            "{}: is removed here, and may still be shared: {error}; the same command goes on when \
             the storage answers",
            document.name
        );
    }
    Ok(())
}

fn warn(error: &ShareError) {
    note(format_args!("warning: {error}"));
}
