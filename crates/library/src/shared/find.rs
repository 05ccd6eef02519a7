//! What there is: sessions that a prompt begins with, and documents by name.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::de::DeserializeOwned;

use super::error::ShareError;
use super::record::{DocumentRecord, NameRecord, SessionRecord, VERSION};
use super::share::Share;
use super::storage::Storage;
use crate::documents::{
    BLOCK, Chain, Document, Documents, DocumentsError, Id, NewDocument, SessionKey,
};

/// Sessions with one first block that are looked at.
const MOST_ALIKE: usize = 64;
/// Sessions of one document that are looked at.
const MOST_SESSIONS: usize = 64;
/// Requests at the same time for what is small.
const N_ASKING: usize = 8;

/// A document of shared storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDocument {
    record: DocumentRecord,
}

/// A session of shared storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSession {
    pub(super) name: String,
    pub(super) record: SessionRecord,
    n_common: usize,
}

impl SharedDocument {
    /// The hash of its text.
    pub fn id(&self) -> Id {
        self.record.id
    }

    /// What the one who shared it calls it.
    pub fn name(&self) -> &str {
        &self.record.name
    }
}

impl SharedSession {
    /// The document.
    pub fn document(&self) -> Id {
        self.record.document
    }

    /// What makes it differ from others of the document.
    pub fn key(&self) -> &SessionKey {
        &self.record.key
    }

    /// The model as the one who shared it names it.
    pub fn model(&self) -> &str {
        &self.record.model
    }

    /// The model in words.
    pub fn about(&self) -> &str {
        &self.record.about
    }

    /// The context that it was saved with.
    pub fn context(&self) -> usize {
        self.record.context
    }

    /// Its tokens.
    pub fn n_tokens(&self) -> usize {
        self.record.n_tokens
    }

    /// Tokens in common with what was asked for, in whole blocks: there may be more.
    pub fn n_common(&self) -> usize {
        self.n_common
    }

    /// Bytes of its file.
    pub fn bytes(&self) -> u64 {
        self.record.bytes
    }

    /// When it was saved, in seconds since 1970, by the clock of the machine that did.
    pub fn saved_unix_s(&self) -> u64 {
        self.record.saved_unix_s
    }
}

impl Share {
    /// The session with most tokens in common with the beginning of `tokens`, and with more than
    /// `beyond`, as [`Documents::nearest`] finds it in a library: one list and a request for each
    /// session with the same first block. What has no right tag is not there.
    ///
    /// # Errors
    /// If the storage does not answer, or refuses.
    pub fn nearest(
        &self,
        key: &SessionKey,
        tokens: &[u32],
        context: usize,
        beyond: usize,
    ) -> Result<Option<SharedSession>, ShareError> {
        if tokens.len() < BLOCK.max(beyond) {
            return Ok(None);
        }
        let wanted = Chain::of(tokens);
        let folder = self.scope.index(key, &wanted);
        let listed = self.noted(self.quick.list(&folder, MOST_ALIKE))?;
        let found = self.sessions_of(listed.into_iter().map(|listed| listed.name).collect());
        let found = self.noted(found)?.into_iter().filter_map(|(name, record)| {
            let n_common = record.chain.common(&wanted);
            let fits = record.key.has_rows_of(key) && record.n_tokens <= context;
            (fits && n_common > beyond).then_some(SharedSession { name, record, n_common })
        });
        let found = found.filter(|session| !self.is_damaged(&session.name));
        Ok(found.max_by_key(|session| (session.n_common, session.record.key == *key)))
    }

    /// The document of this name, or of this whole id.
    ///
    /// # Errors
    /// As [`Share::nearest`].
    pub fn find(&self, word: &str) -> Result<Option<SharedDocument>, ShareError> {
        let name = self.scope.named(word);
        let named: Option<NameRecord> = self.noted(self.object(&self.quick, &name))?;
        let id = named.filter(|named| named.version == VERSION && named.name == word);
        let Some(id) = id.map(|named| named.id).or_else(|| word.parse().ok()) else {
            return Ok(None);
        };
        self.document(id)
    }

    /// The document with this id.
    ///
    /// # Errors
    /// As [`Share::nearest`].
    pub fn document(&self, id: Id) -> Result<Option<SharedDocument>, ShareError> {
        let record: Option<DocumentRecord> =
            self.noted(self.object(&self.quick, &self.scope.record(id)))?;
        let record = record.filter(|record| record.version == VERSION && record.id == id);
        Ok(record.map(|record| SharedDocument { record }))
    }

    /// Keeps the text of a document in a library, so that it can be named there. `None` if the text
    /// is not there, or not right.
    ///
    /// # Errors
    /// If the storage does not answer, or the library refuses.
    pub fn add_to(
        &self,
        documents: &Documents,
        document: &SharedDocument,
    ) -> Result<Option<Document>, ShareError> {
        let record = &document.record;
        let bytes = self.noted(self.patient.get(&self.scope.text(record.id)))?;
        let Some(bytes) = bytes.filter(|bytes| Id::of(bytes) == record.id) else { return Ok(None) };
        let Ok(text) = std::str::from_utf8(&bytes) else { return Ok(None) };
        let new = |name| NewDocument { text, name, sources: record.sources.clone() };
        // A document of this library keeps its name, and one that is here already too.
        let is_here = documents.get(record.id)?.is_some();
        let added = match documents.add(new((!is_here).then_some(&*record.name))) {
            Err(DocumentsError::NameTaken { .. } | DocumentsError::BadName { .. }) => {
                documents.add(new(None))
            }
            added => added,
        };
        Ok(Some(added?))
    }

    /// All sessions of a document, the one that was saved last first.
    ///
    /// # Errors
    /// As [`Share::nearest`].
    pub fn sessions(&self, document: Id) -> Result<Vec<SharedSession>, ShareError> {
        let pointers = self.quick.list(&self.scope.sessions(document), MOST_SESSIONS);
        let pointers = self.noted(pointers)?;
        let names = pointers.iter().filter_map(|listed| self.scope.pointed(&listed.name));
        let found = self.noted(self.sessions_of(names.collect()))?;
        let mut found: Vec<_> = found
            .into_iter()
            .filter(|(_, record)| record.document == document)
            .map(|(name, record)| SharedSession { name, n_common: record.n_tokens, record })
            .collect();
        found.sort_by_key(|session| std::cmp::Reverse(session.record.saved_unix_s));
        Ok(found)
    }

    /// The sessions of these names that are there and right.
    fn sessions_of(&self, names: Vec<String>) -> Result<Vec<(String, SessionRecord)>, ShareError> {
        let all = in_parallel(N_ASKING, names.len(), |i| self.session(&self.quick, &names[i]));
        let found = names.iter().zip(all).filter_map(|(name, found)| match found {
            Ok(Some(record)) => Some(Ok((name.clone(), record))),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        });
        found.collect()
    }

    /// One session, if it is there and right.
    pub(super) fn session(
        &self,
        storage: &Storage,
        name: &str,
    ) -> Result<Option<SessionRecord>, ShareError> {
        let record: Option<SessionRecord> = self.object(storage, name)?;
        Ok(record.filter(SessionRecord::is_sound))
    }

    /// An object with a tag, if it is there and right.
    pub(super) fn object<T: DeserializeOwned>(
        &self,
        storage: &Storage,
        name: &str,
    ) -> Result<Option<T>, ShareError> {
        let Some(sealed) = storage.get(name)? else { return Ok(None) };
        let body = self.scope.open(name, &sealed);
        // A later program may have written what this one cannot read.
        Ok(body.and_then(|body| serde_json::from_slice(body).ok()))
    }
}

/// `work` for 0 to `n`, on so many threads; the results in order.
pub(super) fn in_parallel<T: Send>(
    n_threads: usize,
    n: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(n));
    std::thread::scope(|scope| {
        for _ in 0..n_threads.min(n) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= n {
                        return;
                    }
                    let result = work(i);
                    done.lock().expect("no thread panics with it").push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}
