//! What can go wrong with shared storage. None of it stops an answer: who asks reads the document.

use std::io;

use crate::documents::DocumentsError;

/// A document that cannot be shared, or does not come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// What names no storage.
    #[error("{address}: {reason}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it, and what to give.
        reason: String,
    },
    /// A key that is too short to keep anybody out.
    #[error("the key has {n_bytes} bytes and needs 16: `openssl rand -hex 32` makes one")]
    ShortKey {
        /// Its bytes.
        n_bytes: usize,
    },
    /// The storage does not answer, or refuses.
    #[error("shared storage: {0}", reason(source))]
    Storage {
        /// What the client says.
        #[source]
        source: Box<object_store::Error>,
    },
    /// An object that somebody else made, or that is not as it was written.
    #[error("shared storage: {name} {what}: it is left alone")]
    NotRight {
        /// The object.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The library of this machine.
    #[error(transparent)]
    Documents(#[from] DocumentsError),
    /// A file of the library of this machine.
    #[error("a file of the library: {0}")]
    Io(#[from] io::Error),
}

impl From<object_store::Error> for ShareError {
    fn from(source: object_store::Error) -> Self {
        Self::Storage { source: Box::new(source) }
    }
}

/// The whole chain in one line: what is of use (a refused connection, expired credentials) stands
/// at its end.
fn reason(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text.replace(['\n', '\r'], " ")
}
