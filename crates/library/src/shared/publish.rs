//! From a library to shared storage, and away from there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::Serialize;

use super::error::ShareError;
use super::find::{MOST_SEALED, N_ASKING, in_parallel};
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
        if let Some(before) = before.as_ref().filter(|before| !self.is_damaged(before.upload)) {
            self.mend(documents, &document, (&name, before))?;
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
        let sent = sent.and_then(|()| self.send_marks(&name, &record));
        // One that was removed meanwhile must not come back.
        let is_ready = sent.and_then(|()| Ok(documents.get(id)?.is_some()));
        if !matches!(is_ready, Ok(true)) {
            // Nobody sees them; what cannot be removed now goes with the orphans.
            let _ = self.remove_upload(&record);
            return is_ready.map(|_| Published::WasThere);
        }
        // A manifest that nobody waits for any more may come all the same, and then it needs its
        // parts. So they stay if this fails; without a manifest they go with the orphans.
        if !self.send_manifest(&name, &record)? {
            let _ = self.remove_upload(&record);
            return Ok(Published::WasThere);
        }
        if let Some(before) = before {
            let _ = self.remove_upload(&before);
        }
        Ok(Published::Sent(record.bytes))
    }

    /// Text, record and name of a document. All are the same whoever sends them, but for the name.
    fn send_document(&self, documents: &Documents, document: &Document) -> Result<(), ShareError> {
        self.send_text(documents, document)?;
        self.send_name(document)
    }

    /// Text and record, unless both are there and right: who fetches a session needs them.
    fn send_text(&self, documents: &Documents, document: &Document) -> Result<(), ShareError> {
        let (id, at) = (document.id, self.scope.text(document.id));
        let there: Option<DocumentRecord> = self.object(&self.patient, &self.scope.record(id))?;
        if let Some(there) = there.filter(|there| there.version == VERSION && there.id == id)
            && (self.is_text_right(&at) || self.text(&there)?.is_some())
        {
            return Ok(());
        }
        self.patient.put(&at, Bytes::from(documents.text(id)?))?;
        let record = DocumentRecord {
            version: VERSION,
            id,
            name: document.name.clone(),
            sources: document.sources.clone(),
            text_bytes: document.text_bytes,
        };
        self.put_sealed(&self.scope.record(id), &record)?;
        self.note_text(&at, true);
        Ok(())
    }

    fn send_name(&self, document: &Document) -> Result<(), ShareError> {
        let (name, id) = (document.name.clone(), document.id);
        let at = self.scope.named(&name);
        self.put_sealed(&at, &NameRecord { version: VERSION, name, id })
    }

    /// Sets right what is needed beside a session that is there: it may be damaged, or a version
    /// wrote the session that knew no marks.
    fn mend(
        &self,
        documents: &Documents,
        document: &Document,
        (session, record): (&str, &SessionRecord),
    ) -> Result<(), ShareError> {
        self.send_text(documents, document)?;
        // Another document may have got the name since, and keeps it.
        let at = self.scope.named(&document.name);
        if self.object::<NameRecord>(&self.patient, &at)?.is_none() {
            self.send_name(document)?;
        }
        let marks = self.scope.marks(&record.key, &record.chain, session);
        let is_marked = marks.last().map(|last| self.quick.get(last, 0)).transpose()?;
        if is_marked.is_some_and(|mark| mark.is_none()) {
            self.send_marks(session, record)?;
        }
        Ok(())
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

    /// What leads to a session of this name, which need not be there yet.
    fn send_marks(&self, name: &str, record: &SessionRecord) -> Result<(), ShareError> {
        let mut marks = self.scope.marks(&record.key, &record.chain, name);
        marks.push(self.scope.pointer(record.document, name));
        let put = |i: usize| self.patient.put(&marks[i], Bytes::new());
        in_parallel(N_SENDING, marks.len(), put).into_iter().collect()
    }

    /// Lets the session be seen; whether it was this one that did.
    fn send_manifest(&self, name: &str, record: &SessionRecord) -> Result<bool, ShareError> {
        let sealed = self.sealed(name, record)?;
        if self.patient.put_new(name, sealed.clone())? {
            return Ok(true);
        }
        match self.session(&self.patient, name)? {
            // Its answer was lost, and it was sent again.
            Some(there) if there.upload == record.upload => Ok(true),
            Some(there) if !self.is_damaged(there.upload) => Ok(false),
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
        let folder = |name: &str| name.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        // An upload may take days: it lives as long as something of it comes.
        let mut uploads = BTreeMap::<String, u64>::new();
        for object in &listed {
            let last = uploads.entry(folder(&object.name)).or_default();
            *last = object.changed_unix_s.max(*last);
        }
        let oldest = now_unix_s().saturating_sub(ORPHAN_AGE_S);
        uploads.retain(|_, last| *last < oldest);
        if uploads.is_empty() {
            return Ok(());
        }
        let Some(used) = self.uploads_in_use(document)? else { return Ok(()) };
        let dead = listed.iter().filter(|object| {
            let upload = folder(&object.name);
            uploads.contains_key(&upload) && !used.contains(&upload)
        });
        let dead: Vec<_> = dead.map(|object| object.name.clone()).collect();
        self.delete_all(&dead)
    }

    /// The folders of parts of all sessions of a document; `None` where one cannot be read, so that
    /// its parts are not known: a later program may have written it.
    fn uploads_in_use(&self, document: Id) -> Result<Option<BTreeSet<String>>, ShareError> {
        let pointers = self.patient.list(&self.scope.sessions(document), MOST_OBJECTS)?;
        let names = pointers.iter().filter_map(|listed| self.scope.pointed(&listed.name));
        let names: Vec<_> = names.collect();
        let manifests = in_parallel(N_ASKING, names.len(), |i| {
            let sealed = self.patient.get(&names[i], MOST_SEALED)?;
            let read = |sealed: Bytes| self.scope.open_record::<SessionRecord>(&names[i], &sealed);
            Ok::<_, ShareError>(sealed.map(read))
        });
        let mut used = BTreeSet::new();
        for manifest in manifests {
            match manifest? {
                // Removed, or not sent yet.
                None => {}
                Some(Some(record)) => {
                    used.insert(self.scope.upload(document, record.upload));
                }
                Some(None) => return Ok(None),
            }
        }
        Ok(Some(used))
    }

    fn delete_all(&self, names: &[String]) -> Result<(), ShareError> {
        let delete = |i: usize| self.patient.delete(&names[i]);
        in_parallel(N_ASKING, names.len(), delete).into_iter().collect()
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
            let Some(name) = self.scope.pointed(&pointer.name) else { continue };
            // Marks go first: nothing else says which there are.
            if let Some(record) = self.session(&self.patient, &name)? {
                self.delete_all(&self.scope.marks(&record.key, &record.chain, &name))?;
            }
            self.patient.delete(&name)?;
        }
        if let Some(shared) = self.document(document)? {
            let at = self.scope.named(shared.name());
            let named: Option<NameRecord> = self.object(&self.patient, &at)?;
            if named.is_some_and(|named| named.id == document) {
                self.patient.delete(&at)?;
            }
        }
        self.note_text(&self.scope.text(document), false);
        for folder in [self.scope.uploads(document), self.scope.document(document)] {
            for object in self.patient.list(&folder, MOST_OBJECTS)? {
                self.patient.delete(&object.name)?;
            }
        }
        Ok(())
    }
}
