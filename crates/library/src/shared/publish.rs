//! From a library to shared storage, and away from there.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::Serialize;

use super::error::ShareError;
use super::find::in_parallel;
use super::record::{DocumentRecord, NameRecord, SessionRecord, VERSION};
use super::share::Share;
use crate::documents::{Document, Documents, DocumentsError, Id, SessionEntry, now_unix_s};

/// Parts that are sent at the same time.
const N_SENDING: usize = 4;
/// Objects of one document that are listed when it is removed.
const MOST_OBJECTS: usize = 1 << 20;
/// After how many seconds parts that no session lists are of a program that ended.
const ORPHAN_AGE_S: u64 = 24 * 3600;

/// What a publication did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// So many bytes were sent.
    Sent(u64),
    /// It is there already: this machine sent it before, or another one read the same.
    WasThere,
}

impl Share {
    /// Copies a session of a library, with its document, to the storage, unless it is there. Others
    /// see all of it or nothing. Only what was read to its end can be shared.
    ///
    /// # Errors
    /// If the storage does not answer or refuses; if the session is unfinished or gone.
    pub fn publish(
        &self,
        documents: &Documents,
        document: Id,
        session: &SessionEntry,
    ) -> Result<Published, ShareError> {
        self.noted(self.try_publish(documents, document, session))
    }

    fn try_publish(
        &self,
        documents: &Documents,
        id: Id,
        session: &SessionEntry,
    ) -> Result<Published, ShareError> {
        let gone = || DocumentsError::NotFound { word: id.short(), near: Vec::new() };
        let document = documents.get(id)?.ok_or_else(gone)?;
        let name = self.scope.session(&session.key, &session.chain, id);
        if !session.is_complete() {
            let what = "would be of a document that was not read to its end";
            return Err(ShareError::NotRight { name, what });
        }
        let before = self.session(&self.patient, &name)?;
        if before.is_some() && !self.is_damaged(&name) {
            return Ok(Published::WasThere);
        }
        self.remove_orphans(id)?;
        self.send_document(documents, &document)?;
        let mut record = SessionRecord {
            version: VERSION,
            document: id,
            key: session.key.clone(),
            model: session.model.clone(),
            about: session.about.clone(),
            preset: session.preset.clone(),
            context: session.context,
            n_tokens: session.n_tokens,
            bytes: session.bytes,
            saved_unix_s: now_unix_s(),
            chain: session.chain.clone(),
            upload: Id::fresh(),
            part_bytes: self.part_bytes,
            parts: Vec::new(),
        };
        let sent = self.send_parts(documents, session, &mut record);
        // One that was removed meanwhile must not come back.
        let is_here = || documents.get(id).map(|document| document.is_some());
        let won = sent.and_then(|()| Ok(is_here()? && self.send_manifest(&name, &record)?));
        if !matches!(won, Ok(true)) {
            // Nobody sees them; what cannot be removed now goes with the orphans.
            let _ = self.remove_upload(&record);
        }
        if !won? {
            return Ok(Published::WasThere);
        }
        if let Some(before) = before {
            let _ = self.remove_upload(&before);
        }
        self.note_replaced(&name);
        Ok(Published::Sent(record.bytes))
    }

    /// Text, record and name of a document. All are the same whoever sends them, but for the name.
    fn send_document(&self, documents: &Documents, document: &Document) -> Result<(), ShareError> {
        if self.document(document.id)?.is_none() {
            let text = documents.text(document.id)?;
            self.patient.put(&self.scope.text(document.id), Bytes::from(text))?;
            let record = DocumentRecord {
                version: VERSION,
                id: document.id,
                name: document.name.clone(),
                sources: document.sources.clone(),
                text_bytes: document.text_bytes,
            };
            self.put_sealed(&self.scope.record(document.id), &record)?;
        }
        let (name, id) = (document.name.clone(), document.id);
        let at = self.scope.named(&name);
        self.put_sealed(&at, &NameRecord { version: VERSION, name, id })
    }

    fn put_sealed(&self, name: &str, record: &impl Serialize) -> Result<(), ShareError> {
        self.patient.put(name, self.sealed(name, record)?)
    }

    fn sealed(&self, name: &str, record: &impl Serialize) -> Result<Bytes, ShareError> {
        let body = serde_json::to_vec(record).map_err(io::Error::from)?;
        Ok(Bytes::from(self.scope.seal(name, &body)))
    }

    /// The bytes of a session, some parts at the same time.
    fn send_parts(
        &self,
        documents: &Documents,
        session: &SessionEntry,
        record: &mut SessionRecord,
    ) -> Result<(), ShareError> {
        let path = documents.session_path(session);
        let n_parts = usize::try_from(record.bytes.div_ceil(record.part_bytes));
        let n_parts = n_parts.map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let failed = AtomicBool::new(false);
        let plan = &*record;
        let sent = in_parallel(N_SENDING, n_parts, |i| {
            if failed.load(Ordering::Relaxed) {
                return Err(io::Error::from(io::ErrorKind::Interrupted).into());
            }
            let sent = self.send_part(&path, plan, i);
            failed.fetch_or(sent.is_err(), Ordering::Relaxed);
            sent
        });
        let mut parts = Vec::with_capacity(n_parts);
        let mut first = None;
        for part in sent {
            match part {
                Ok(part) => parts.push(part),
                // Those that were not begun say nothing of why.
                Err(ShareError::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => first = first.or(Some(error)),
            }
        }
        if let Some(error) = first {
            return Err(error);
        }
        record.parts = parts;
        Ok(())
    }

    fn send_part(
        &self,
        path: &std::path::Path,
        record: &SessionRecord,
        i: usize,
    ) -> Result<Id, ShareError> {
        let (at, n) = record.span(i);
        let mut bytes = vec![0; n];
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut bytes)?;
        let hash = Id::of(&bytes);
        self.patient.put(&self.scope.part(record, i), Bytes::from(bytes))?;
        Ok(hash)
    }

    /// Lets the session be seen; whether it was this one that did.
    fn send_manifest(&self, name: &str, record: &SessionRecord) -> Result<bool, ShareError> {
        let pointer = self.scope.pointer(record.document, name);
        self.patient.put(&pointer, Bytes::new())?;
        let sealed = self.sealed(name, record)?;
        if self.patient.put_new(name, sealed.clone())? {
            return Ok(true);
        }
        match self.session(&self.patient, name)? {
            // Its answer was lost, and it was sent again.
            Some(there) if there.upload == record.upload => Ok(true),
            Some(_) if !self.is_damaged(name) => Ok(false),
            // Somebody else's, or with parts that are not right: it is of no use.
            _ => self.patient.put(name, sealed).map(|()| true),
        }
    }

    fn remove_upload(&self, record: &SessionRecord) -> Result<(), ShareError> {
        let n_parts = record.bytes.div_ceil(record.part_bytes) as usize;
        (0..n_parts).try_for_each(|i| self.quick.delete(&self.scope.part(record, i)))
    }

    /// Removes parts of programs that ended before their session could be seen.
    fn remove_orphans(&self, document: Id) -> Result<(), ShareError> {
        let listed = self.patient.list(&self.scope.uploads(document), MOST_OBJECTS)?;
        if listed.is_empty() {
            return Ok(());
        }
        let uploads: Vec<String> = self
            .sessions(document)?
            .iter()
            .map(|session| self.scope.upload(document, session.record.upload) + "/")
            .collect();
        let oldest = now_unix_s().saturating_sub(ORPHAN_AGE_S);
        for object in listed {
            let is_used = uploads.iter().any(|upload| object.name.starts_with(upload));
            if !is_used && object.changed_unix_s < oldest {
                self.patient.delete(&object.name)?;
            }
        }
        Ok(())
    }

    /// Removes a document with all that was read of it: first what lets others see it. Libraries
    /// that have it keep it.
    ///
    /// # Errors
    /// If the storage does not answer or refuses; some of it may be there still, and the same call
    /// goes on.
    pub fn remove(&self, document: Id) -> Result<(), ShareError> {
        self.noted(self.try_remove(document))
    }

    fn try_remove(&self, document: Id) -> Result<(), ShareError> {
        let pointers = self.patient.list(&self.scope.sessions(document), MOST_OBJECTS)?;
        for pointer in &pointers {
            if let Some(session) = self.scope.pointed(&pointer.name) {
                self.patient.delete(&session)?;
            }
        }
        if let Some(shared) = self.document(document)? {
            let at = self.scope.named(shared.name());
            let named: Option<NameRecord> = self.object(&self.patient, &at)?;
            if named.is_some_and(|named| named.id == document) {
                self.patient.delete(&at)?;
            }
        }
        for folder in [self.scope.uploads(document), self.scope.document(document)] {
            for object in self.patient.list(&folder, MOST_OBJECTS)? {
                self.patient.delete(&object.name)?;
            }
        }
        Ok(())
    }
}
