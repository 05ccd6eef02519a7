//! Which library, and what its models are called.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use longview_core::FileSource;
use longview_engine::fingerprint_digest;
use longview_library::documents::{Documents, Id, SessionEntry, default_folder};
use longview_library::shared::Share;
use longview_scheduler::{Fingerprint, SessionFile};

use crate::load::ModelArgs;

/// The library that was named, or the user's. One that is not there is made.
pub fn open(given: Option<&Path>) -> Result<Documents> {
    Ok(Documents::open(&folder(given)?)?)
}

/// The same for verbs that put nothing into it: none is made. The user's own has no documents
/// before the first one comes.
///
/// # Errors
/// For a folder that was named and is not there: it is a mistyped one.
pub fn look(given: Option<&Path>) -> Result<Documents> {
    if let Some(folder) = given
        && folder.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        bail!(
            "--library {}: there is no such folder; `longview kv build --library DIR FILE` makes a \
             library, and `longview kv ls` without --library shows your own",
            folder.display()
        );
    }
    Ok(Documents::look(&folder(given)?)?)
}

/// As [`look`], or [`open`] where documents may come from the storage that machines share.
pub fn look_beside(given: Option<&Path>, share: Option<&Share>) -> Result<Documents> {
    match share {
        Some(_) => open(given),
        None => look(given),
    }
}

fn folder(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(folder) => Ok(folder.to_owned()),
        None => Ok(default_folder()?),
    }
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
