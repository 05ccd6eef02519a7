//! Which library, and what its models are called.

use std::path::{Path, PathBuf};

use anyhow::Result;
use longview_core::FileSource;
use longview_engine::fingerprint_digest;
use longview_library::documents::{Documents, Id, SessionEntry, default_folder};
use longview_scheduler::{Fingerprint, SessionFile};

use crate::load::ModelArgs;

/// The library that was named, or the user's.
pub fn open(given: Option<&Path>) -> Result<Documents> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => default_folder()?,
    };
    Ok(Documents::open(&folder)?)
}

/// What a library lists sessions of this model by.
pub fn fingerprint_id(fingerprint: &Fingerprint) -> Id {
    fingerprint_digest(fingerprint).into()
}

/// Whether a session was saved without the index that its policy needs: reading was broken off when
/// all was read and not yet indexed.
pub fn lacks_index(documents: &Documents, session: &SessionEntry) -> bool {
    // What is wrong with a file is said where it is opened.
    let Ok(source) = FileSource::open(&documents.session_path(session)) else { return false };
    SessionFile::open(&source).is_ok_and(|file| file.lacks_index())
}

/// A model in words that open it again from any folder.
pub fn model_words(args: &ModelArgs) -> String {
    if args.is_embedded() {
        return args.name();
    }
    let place = args.place().unwrap_or_else(|| PathBuf::from(args.name()));
    let whole = std::path::absolute(&place).unwrap_or(place);
    whole.display().to_string()
}
