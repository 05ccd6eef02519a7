//! What there is: sessions that a prompt begins with, and documents by name.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::error::ShareError;
use super::record::{self, DocumentRecord, NameRecord, SessionRecord, VERSION};
use super::seal::ScopeKey;
use super::share::Share;
use super::storage::{Listed, Storage};
use crate::documents::{
    BLOCK, Chain, Document, Documents, DocumentsError, Id, NewDocument, SessionKey,
};

/// Sessions of one document that are looked at.
const MOST_SESSIONS: usize = 64;
/// Objects of a list of which some are looked at: as many as a storage lists at once.
const MOST_LISTED: usize = 1000;
/// Bytes of an object with a tag. (A session of 128 GB has a megabyte of hashes.)
pub(super) const MOST_SEALED: u64 = 16 << 20;
/// Requests at the same time for what is small.
pub(super) const N_ASKING: usize = 8;

/// A document of shared storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDocument {
    record: DocumentRecord,
}

/// A session of shared storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSession {
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
    /// session with the same first block. Where these are more than 64, it is one of those with
    /// most in common: at least four fifths of the best one's blocks. What has no right tag is not
    /// there.
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
        let names = self.noted(self.alike(key, &wanted))?;
        let found = self.sessions_of(&names);
        let found = self.noted(found)?.into_iter().filter_map(|record| {
            let n_common = record.chain.common(&wanted);
            let fits = record.key.has_rows_of(key) && record.n_tokens <= context;
            (fits && n_common > beyond).then_some(SharedSession { record, n_common })
        });
        let found = found.filter(|session| !self.is_damaged(session.record.upload));
        Ok(found.max_by_key(|session| (session.n_common, session.record.key == *key)))
    }

    /// Sessions that begin like `wanted`: all of them, or those with most in common, then those
    /// that came last.
    fn alike(&self, key: &SessionKey, wanted: &Chain) -> Result<Vec<String>, ShareError> {
        let index = self.scope.index(key, wanted);
        let mut listed = self.quick.list(&index, MOST_LISTED)?;
        if listed.len() <= self.most_alike {
            return Ok(listed.into_iter().map(|listed| listed.name).collect());
        }
        newest_first(&mut listed);
        // Marks of sessions that are gone say nothing, where that can be told.
        let all = (listed.len() < MOST_LISTED)
            .then(|| listed.iter().map(|listed| listed.name.clone()).collect::<BTreeSet<_>>());
        let session = |mark: &str| {
            let name = ScopeKey::marked(&index, mark)?;
            all.as_ref().is_none_or(|all| all.contains(&name)).then_some(name)
        };
        let mut names = self.deepest(key, wanted, session)?;
        names.truncate(self.most_alike);
        let rest = listed.into_iter().map(|listed| listed.name);
        let rest: Vec<_> = rest.filter(|name| !names.contains(name)).collect();
        let n_more = self.most_alike - names.len();
        names.extend(rest.into_iter().take(n_more));
        Ok(names)
    }

    /// The sessions that are marked at the greatest depth at which there are any: those that were
    /// read as `key` says first, and then those that came last. `session` says what a mark means.
    fn deepest(
        &self,
        key: &SessionKey,
        wanted: &Chain,
        session: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>, ShareError> {
        let depths: Vec<usize> = record::depths(wanted.n_blocks()).collect();
        let kind = self.scope.kind(key);
        let (mut deepest, mut at, mut end) = (Vec::new(), 0, depths.len());
        // What is marked at one depth is marked at all before it.
        while at < end {
            let middle = at.midpoint(end);
            let folder = self.scope.prefix(key, wanted, depths[middle]);
            let mut marks = self.quick.list(&folder, MOST_LISTED)?;
            newest_first(&mut marks);
            let is_other = |mark: &Listed| !mark.name[folder.len() + 1..].starts_with(&kind);
            marks.sort_by_key(is_other);
            let names: Vec<_> = marks.iter().filter_map(|mark| session(&mark.name)).collect();
            if names.is_empty() {
                end = middle;
            } else {
                (deepest, at) = (names, middle + 1);
            }
        }
        Ok(deepest)
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
        let Some(bytes) = self.noted(self.text(record))? else { return Ok(None) };
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

    /// The text of a document, if it is there and right.
    pub(super) fn text(&self, record: &DocumentRecord) -> Result<Option<Bytes>, ShareError> {
        let name = self.scope.text(record.id);
        let bytes = self.patient.get(&name, record.text_bytes)?;
        let bytes = bytes.filter(|bytes| Id::of(bytes) == record.id);
        self.note_text(&name, bytes.is_some());
        Ok(bytes)
    }

    /// Sessions of a document, the one that was saved last first; of more than 64, those that came
    /// last.
    ///
    /// # Errors
    /// As [`Share::nearest`].
    pub fn sessions(&self, document: Id) -> Result<Vec<SharedSession>, ShareError> {
        let pointers = self.quick.list(&self.scope.sessions(document), MOST_LISTED);
        let mut pointers = self.noted(pointers)?;
        newest_first(&mut pointers);
        let names = pointers
            .iter()
            .take(MOST_SESSIONS)
            .filter_map(|listed| self.scope.pointed(&listed.name));
        let found = self.noted(self.sessions_of(&names.collect::<Vec<_>>()))?;
        let mut found: Vec<_> = found
            .into_iter()
            .filter(|record| record.document == document)
            .map(|record| SharedSession { n_common: record.n_tokens, record })
            .collect();
        found.sort_by_key(|session| std::cmp::Reverse(session.record.saved_unix_s));
        Ok(found)
    }

    /// The sessions of these names that are there and right.
    fn sessions_of(&self, names: &[String]) -> Result<Vec<SessionRecord>, ShareError> {
        let all = in_parallel(N_ASKING, names.len(), |i| self.session(&self.quick, &names[i]));
        all.into_iter().filter_map(Result::transpose).collect()
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
        let Some(sealed) = storage.get(name, MOST_SEALED)? else { return Ok(None) };
        Ok(self.scope.open_record(name, &sealed))
    }
}

fn newest_first(listed: &mut [Listed]) {
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.changed_unix_s));
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
