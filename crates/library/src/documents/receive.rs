//! A session that was made on another machine comes into the library.

use super::build::Saved;
use super::entry::{SessionEntry, SessionKey};
use super::error::DocumentsError;
use super::id::Id;
use super::part::Part;
use super::prefix::Chain;
use super::store::{Documents, now_unix_s};

/// What came.
#[derive(Clone, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) document: Id,
    pub(crate) key: &'a SessionKey,
    pub(crate) model: &'a str,
    pub(crate) about: &'a str,
    pub(crate) preset: &'a str,
    pub(crate) context: usize,
    pub(crate) n_tokens: usize,
    pub(crate) bytes: u64,
    pub(crate) chain: &'a Chain,
}

impl Documents {
    /// A file in the folder of sessions, without a name yet.
    pub(crate) fn new_part(&self) -> Result<Part, DocumentsError> {
        Part::create(&self.folder.sessions())
    }

    /// Gives a session that came its name. `None` if the library has as much of it, or gets it from
    /// another process just now.
    ///
    /// # Errors
    /// As [`Building::commit`](super::Building::commit).
    pub(crate) fn receive(
        &self,
        part: Part,
        received: &Received<'_>,
    ) -> Result<Option<Saved>, DocumentsError> {
        let building = match self.begin(received.document, received.key) {
            Err(DocumentsError::InUse { .. }) => return Ok(None),
            begun => begun?,
        };
        let has_file = |entry: &SessionEntry| self.session_path(entry).exists();
        let before = building.before().filter(|before| has_file(before));
        if before.is_some_and(|before| before.n_tokens >= received.n_tokens) {
            return Ok(None);
        }
        let entry = |file, _, turn| SessionEntry {
            file,
            key: received.key.clone(),
            model: received.model.to_owned(),
            about: received.about.to_owned(),
            preset: received.preset.to_owned(),
            context: received.context,
            n_tokens: received.n_tokens,
            // Nothing but what was read to its end is shared.
            n_document: received.n_tokens,
            bytes: received.bytes,
            saved_unix_s: now_unix_s(),
            turn,
            chain: received.chain.clone(),
        };
        building.commit_part(part, entry).map(Some)
    }
}
