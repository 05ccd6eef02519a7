//! What the objects of shared storage say, and where they lie:
//!
//! ```text
//! v1/SCOPE/documents/D/record           a document: name, sources, size of its text
//! v1/SCOPE/documents/D/text             its text, whose hash is the document's id
//! v1/SCOPE/documents/D/sessions/I.S     empty: there is, or was to be, index/I/S
//! v1/SCOPE/names/N                      the document of a name
//! v1/SCOPE/index/I/S                    a session: what it is of, and the hash of each part
//! v1/SCOPE/prefixes/P/K.S               empty: a mark that there is, or was to be, index/I/S
//! v1/SCOPE/parts/D/U/0 1 2 ...          its bytes
//! ```
//!
//! D stands for a document. I stands for model, type of rows and the first block of tokens, so a
//! prompt finds all sessions that may begin like it with one list. S stands for document and way of
//! reading: two machines that read the same write to the same name. U is another one for each
//! upload.
//!
//! Where many begin with one block, as behind one system prompt, marks tell them apart: P stands
//! for model, type of rows and more blocks, for each of a few numbers of them ([`depths`]), and K
//! for policy and reading. Versions that knew no marks wrote the rest of this, and read it.

use serde::{Deserialize, Serialize};

use super::seal::ScopeKey;
use crate::documents::{Chain, Id, SessionKey, Source};

/// What this program writes. One that reads another leaves it alone.
pub(super) const VERSION: u32 = 1;
/// Bytes of a part, at most: large enough that asking for it is a small part of its time, and small
/// enough that many come at the same time.
pub const PART_BYTES: u64 = 8 << 20;
/// Digits of policy and reading in a mark: whom they mistake for another is looked at all the same.
const KIND_DIGITS: usize = 8;

/// A document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DocumentRecord {
    pub(super) version: u32,
    pub(super) id: Id,
    pub(super) name: String,
    pub(super) sources: Vec<Source>,
    pub(super) text_bytes: u64,
}

/// The document of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NameRecord {
    pub(super) version: u32,
    pub(super) name: String,
    pub(super) id: Id,
}

/// A session: the object that is written last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    pub(super) version: u32,
    pub(super) document: Id,
    pub(super) key: SessionKey,
    pub(super) model: String,
    pub(super) about: String,
    pub(super) preset: String,
    pub(super) context: usize,
    pub(super) n_tokens: usize,
    pub(super) bytes: u64,
    pub(super) saved_unix_s: u64,
    pub(super) chain: Chain,
    /// The folder of its parts.
    pub(super) upload: Id,
    pub(super) part_bytes: u64,
    /// The BLAKE3 hash of each part.
    pub(super) parts: Vec<Id>,
}

impl SessionRecord {
    /// Whether its numbers go together, so that no part lies behind the end.
    pub(super) fn is_sound(&self) -> bool {
        self.version == VERSION
            && (1..=PART_BYTES).contains(&self.part_bytes)
            && self.bytes.div_ceil(self.part_bytes) == self.parts.len() as u64
            && self.bytes > 0
    }

    /// Where part `i` begins and how long it is.
    pub(super) fn span(&self, i: usize) -> (u64, usize) {
        let at = i as u64 * self.part_bytes;
        (at, (self.bytes - at).min(self.part_bytes) as usize)
    }
}

/// The numbers of blocks by which sessions of so many are marked: each one up to 8, then four in
/// each doubling. So what two have in common is at most a quarter longer than one of these.
pub(super) fn depths(n_blocks: usize) -> impl Iterator<Item = usize> {
    let next = |n: &usize| Some(n + (1 << n.ilog2() >> 2).max(1));
    std::iter::successors(Some(2), next).take_while(move |n| *n <= n_blocks)
}

/// Names of objects of a scope.
impl ScopeKey {
    fn at(&self, rest: &str) -> String {
        format!("v{VERSION}/{}/{rest}", self.folder())
    }

    fn digits(&self, id: Id) -> String {
        self.name(&[b"id", id.bytes()])
    }

    pub(super) fn document(&self, id: Id) -> String {
        self.at(&format!("documents/{}", self.digits(id)))
    }

    pub(super) fn record(&self, id: Id) -> String {
        format!("{}/record", self.document(id))
    }

    pub(super) fn text(&self, id: Id) -> String {
        format!("{}/text", self.document(id))
    }

    pub(super) fn sessions(&self, id: Id) -> String {
        format!("{}/sessions", self.document(id))
    }

    pub(super) fn named(&self, name: &str) -> String {
        self.at(&format!("names/{}", self.name(&[b"document", name.as_bytes()])))
    }

    /// The folder of all sessions with rows of `key` that begin with the first block of `chain`.
    pub(super) fn index(&self, key: &SessionKey, chain: &Chain) -> String {
        self.at(&format!("index/{}", self.rows(b"index", key, chain.prefix(1))))
    }

    /// The folder of marks of all sessions with rows of `key` that begin with `n` blocks of
    /// `chain`.
    pub(super) fn prefix(&self, key: &SessionKey, chain: &Chain, n: usize) -> String {
        self.at(&format!("prefixes/{}", self.rows(b"prefix", key, chain.prefix(n))))
    }

    fn rows(&self, what: &[u8], key: &SessionKey, block: &str) -> String {
        let sparse = key.sparse.as_deref().unwrap_or("");
        let (model, kv_type) = (key.fingerprint.bytes(), key.kv_type.as_bytes());
        self.name(&[what, model, kv_type, sparse.as_bytes(), block.as_bytes()])
    }

    /// What the marks of sessions of this policy and reading begin with.
    pub(super) fn kind(&self, key: &SessionKey) -> String {
        let parts = [&b"kind"[..], key.policy.as_bytes(), key.reading.name().as_bytes()];
        self.name(&parts)[..KIND_DIGITS].to_owned() + "."
    }

    /// The marks of a session, the deepest last.
    pub(super) fn marks(&self, key: &SessionKey, chain: &Chain, session: &str) -> Vec<String> {
        let own = session.rsplit('/').next().unwrap_or("");
        let mark = |n| format!("{}/{}{own}", self.prefix(key, chain, n), self.kind(key));
        depths(chain.n_blocks()).map(mark).collect()
    }

    /// The session of `index` that a mark means.
    pub(super) fn marked(index: &str, mark: &str) -> Option<String> {
        let (_, own) = mark.rsplit('/').next()?.split_once('.')?;
        Some(format!("{index}/{own}"))
    }

    pub(super) fn session(&self, key: &SessionKey, chain: &Chain, document: Id) -> String {
        let own = key.lock_id(document);
        format!("{}/{}", self.index(key, chain), self.name(&[b"session", own.bytes()]))
    }

    /// The object that says of a document that it has this session.
    pub(super) fn pointer(&self, document: Id, session: &str) -> String {
        let mut words = session.rsplit('/');
        let (own, index) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        format!("{}/{index}.{own}", self.sessions(document))
    }

    /// The session that an object like [`ScopeKey::pointer`] means.
    pub(super) fn pointed(&self, pointer: &str) -> Option<String> {
        let (index, own) = pointer.rsplit('/').next()?.split_once('.')?;
        Some(self.at(&format!("index/{index}/{own}")))
    }

    pub(super) fn uploads(&self, document: Id) -> String {
        self.at(&format!("parts/{}", self.digits(document)))
    }

    pub(super) fn upload(&self, document: Id, upload: Id) -> String {
        format!("{}/{}", self.uploads(document), upload.short())
    }

    pub(super) fn part(&self, record: &SessionRecord, i: usize) -> String {
        format!("{}/{i}", self.upload(record.document, record.upload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_depths_stand_for_all() {
        assert_eq!(depths(1).count(), 0);
        assert_eq!(depths(9).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 8]);
        let all: Vec<_> = depths(4096).collect();
        assert_eq!(all[6..13], [8, 10, 12, 14, 16, 20, 24]);
        assert_eq!((all.len(), all.last()), (43, Some(&4096)));
        assert!(all.windows(2).all(|pair| pair[1] <= (pair[0] + 1).max(pair[0] * 5 / 4)));
    }
}
