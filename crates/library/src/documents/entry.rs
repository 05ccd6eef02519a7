//! What the manifest says of a document and of the sessions that were made of it.

use serde::{Deserialize, Serialize};

use super::id::Id;
use super::prefix::Chain;

/// A document: a text, and sessions of models that have read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Document {
    /// The hash of its text.
    pub id: Id,
    /// What its user calls it; no two documents have the same.
    pub name: String,
    /// The files that its text was made of, in order.
    pub sources: Vec<Source>,
    /// Bytes of its text.
    pub text_bytes: u64,
    /// Whether its sessions stay, however full the library is.
    #[serde(default)]
    pub pinned: bool,
    /// When it came, in seconds since 1970.
    pub added_unix_s: u64,
    /// When it was last built or opened.
    pub used_unix_s: u64,
    /// The same as a number that only grows: clocks are set back.
    pub turn: u64,
    /// Seconds without use after which it may go. Programs that serve others see to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// What models have read of it.
    #[serde(default)]
    pub sessions: Vec<SessionEntry>,
}

/// A file that a text was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// As its user named it, for people alone.
    pub name: String,
    /// What it was: txt, md, html, pdf or docx.
    pub kind: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its pages, where a file has pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<u64>,
}

/// How a text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    /// As the first message of a chat, in the model's template.
    Chat,
    /// As it is.
    Plain,
}

impl Reading {
    /// As the manifest says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Plain => "plain",
        }
    }
}

/// What makes one session of a document differ from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKey {
    /// What keys and values depend on: model, weights, vocabulary, positions.
    pub fingerprint: Id,
    /// How they are stored: f16, q8, ...
    pub kv_type: String,
    /// How the text becomes tokens.
    pub reading: Reading,
    /// The policy whose index the file holds, as a text.
    pub policy: String,
    /// How prompts are read, where not every token attends to all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse: Option<String>,
}

impl SessionKey {
    /// Whether the rows of both may be the same: all but the index.
    pub fn has_rows_of(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
            && self.kv_type == other.kv_type
            && self.sparse == other.sparse
    }

    /// The name of who may write it.
    pub(crate) fn lock_id(&self, document: Id) -> Id {
        let parts = [
            &document.bytes()[..],
            self.fingerprint.bytes(),
            self.kv_type.as_bytes(),
            self.reading.name().as_bytes(),
            self.policy.as_bytes(),
        ];
        Id::of_parts(parts.into_iter().chain(self.sparse.as_ref().map(|sparse| sparse.as_bytes())))
    }
}

/// A session file and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionEntry {
    /// The name of its file, another one each time that it is saved.
    pub file: Id,
    /// What makes it differ from others of this document.
    pub key: SessionKey,
    /// The model as its user named it, to open it again.
    pub model: String,
    /// The model in words.
    pub about: String,
    /// The policy's name, for people.
    pub preset: String,
    /// The context that it was saved with.
    pub context: usize,
    /// Tokens that were read.
    pub n_tokens: usize,
    /// Tokens of the whole document.
    pub n_document: usize,
    /// Bytes of the file.
    pub bytes: u64,
    /// When it was saved.
    pub saved_unix_s: u64,
    /// The number of its last use, as of [`Document::turn`].
    pub turn: u64,
    /// Hashes of its tokens.
    pub chain: Chain,
}

impl SessionEntry {
    /// Whether all of the document was read.
    pub fn is_complete(&self) -> bool {
        self.n_tokens >= self.n_document
    }
}

impl Document {
    /// Bytes of its session files.
    pub fn session_bytes(&self) -> u64 {
        self.sessions.iter().map(|session| session.bytes).sum()
    }

    /// The session that was used last.
    pub fn latest(&self) -> Option<&SessionEntry> {
        self.sessions.iter().max_by_key(|session| session.turn)
    }

    /// The best session with the rows of `key`: of its policy if there is one, else the one with
    /// most tokens.
    pub fn session_of(&self, key: &SessionKey) -> Option<&SessionEntry> {
        let with_rows = self.sessions.iter().filter(|session| session.key.has_rows_of(key));
        with_rows.max_by_key(|session| {
            (session.key.policy == key.policy, session.n_tokens, session.turn)
        })
    }

    pub(super) fn has_file(&self, file: Id) -> bool {
        self.sessions.iter().any(|session| session.file == file)
    }

    /// The session of exactly this key.
    pub fn session(&self, key: &SessionKey) -> Option<&SessionEntry> {
        self.sessions.iter().find(|session| session.key == *key)
    }
}
