//! A session that a model makes of a document, from the first token to its name.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use super::entry::{Document, SessionEntry, SessionKey};
use super::error::DocumentsError;
use super::id::Id;
use super::lock::Lock;
use super::part::{DeadPart, Part};
use super::prefix::Chain;
use super::quota::{self, Evicted};
use super::store::{Documents, now_unix_s};
use crate::space;

/// The right to write one session of a document. While it lives, no other process and no other
/// thread has it.
#[derive(Debug)]
pub struct Building<'a> {
    documents: &'a Documents,
    document: Document,
    key: SessionKey,
    _lock: Lock,
}

/// The file of a session that is being written, without a name yet. Dropped, it is gone.
#[derive(Debug)]
pub struct SessionWriter(Part);

/// A session file that is being written on behind what it has.
#[derive(Debug)]
pub struct Appending {
    file: File,
    path: PathBuf,
}

/// What a session file holds, for the manifest.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The tokens that were read.
    pub tokens: &'a [u32],
    /// Tokens of the whole document.
    pub n_document: usize,
    /// The context of the session.
    pub context: usize,
    /// The model as its user named it.
    pub model: &'a str,
    /// The model in words.
    pub about: &'a str,
    /// The policy's name.
    pub preset: &'a str,
}

/// A session that has its name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Saved {
    /// What the manifest says of it now.
    pub session: SessionEntry,
    /// What went for it.
    pub evicted: Vec<Evicted>,
    /// Bytes above the quota that are left, where pinned documents leave no room.
    pub over_quota_bytes: u64,
}

impl Documents {
    /// Begins a session of `document`, unless another process writes the same one.
    ///
    /// # Errors
    /// [`DocumentsError::InUse`], [`DocumentsError::ReadOnly`], ...
    pub fn begin(&self, document: Id, key: &SessionKey) -> Result<Building<'_>, DocumentsError> {
        let found = self.get(document)?;
        let document = found
            .ok_or_else(|| DocumentsError::NotFound { word: document.short(), near: Vec::new() })?;
        self.manifest()?.check_writable(&self.folder)?;
        let path = self.folder.build_lock(key.lock_id(document.id));
        let Some(lock) = Lock::attempt(&path)? else {
            return Err(DocumentsError::InUse { name: document.name });
        };
        self.sweep()?;
        Ok(Building { documents: self, document, key: key.clone(), _lock: lock })
    }

    /// Removes what processes that died have left: it may be large, and is of no use.
    pub(super) fn sweep(&self) -> Result<(), DocumentsError> {
        let _lock = Lock::wait(&self.folder.lock())?;
        // Without its list nobody knows what is of use: that is for `check`. Texts stay anyway.
        if self.folder.manifest().exists() {
            let unlisted = self.unlisted(&self.manifest()?);
            for path in unlisted.iter().filter(|path| path.starts_with(self.folder.sessions())) {
                let _ = std::fs::remove_file(path);
            }
        }
        self.dead_parts().iter().for_each(DeadPart::remove);
        Ok(())
    }

    pub(super) fn dead_parts(&self) -> Vec<DeadPart> {
        let folders = [self.folder.sessions(), self.folder.texts(), self.folder().to_owned()];
        folders.iter().flat_map(|folder| DeadPart::all_in(folder)).collect()
    }
}

impl Building<'_> {
    /// The document as it was when this began.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// What is there of this very session, to go on from.
    pub fn before(&self) -> Option<&SessionEntry> {
        self.document.session(&self.key)
    }

    /// A file to write the session to. May be called again: what is read may be saved in between.
    pub fn writer(&self) -> Result<SessionWriter, DocumentsError> {
        Ok(SessionWriter(Part::create(&self.documents.folder.sessions())?))
    }

    /// The file of the session of this building, to write more behind its first `at` bytes, which
    /// stay. Who has it open reads on: what they read is before.
    pub fn append_to(&self, saved: &SessionEntry, at: u64) -> Result<Appending, DocumentsError> {
        let path = self.documents.folder.session(saved.file);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(DocumentsError::io("opened", &path))?;
        file.set_len(at)
            .and_then(|()| file.seek(SeekFrom::Start(at)))
            .map_err(DocumentsError::io("written", &path))?;
        Ok(Appending { file, path })
    }

    /// Puts what was written behind a session on the disk, and lets the manifest say what it holds
    /// now. A process that dies in here leaves a file with what it had before, or with all of it.
    ///
    /// # Errors
    /// [`DocumentsError::Removed`] where the session went meanwhile; what the system says.
    pub fn commit_appended(
        &self,
        mut appending: Appending,
        saved: &SessionEntry,
        facts: &Facts<'_>,
    ) -> Result<Saved, DocumentsError> {
        let path = appending.path.clone();
        appending.file.sync_all().map_err(DocumentsError::io("written to the disk", &path))?;
        let bytes = appending.file.stream_position();
        let bytes = bytes.map_err(DocumentsError::io("written", &path))?;
        let (file, id) = (saved.file, self.document.id);
        let (session, evicted, over_quota_bytes) = self.documents.change(|manifest| {
            let turn = manifest.next_turn();
            let session = self.entry(file, bytes, turn, facts);
            let removed = || DocumentsError::Removed { name: self.document.name.clone() };
            let document = manifest.document_mut(id).ok_or_else(removed)?;
            let listed = document.sessions.iter_mut().find(|listed| listed.file == file);
            *listed.ok_or_else(removed)? = session.clone();
            (document.turn, document.used_unix_s) = (turn, session.saved_unix_s);
            let evicted = quota::evict(manifest, id);
            let quota = manifest.quota_bytes;
            let over = quota.map_or(0, |quota| manifest.session_bytes().saturating_sub(quota));
            Ok((session, evicted, over))
        })?;
        self.documents.delete_sessions(evicted.iter().map(|gone| gone.file));
        Ok(Saved { session, evicted, over_quota_bytes })
    }

    /// Puts the file on the disk, gives it a name, and lets the manifest say so, in place of the
    /// one before. A process that dies in here leaves the one before or this one.
    ///
    /// # Errors
    /// What was there before is there still.
    pub fn commit(
        &self,
        writer: SessionWriter,
        facts: &Facts<'_>,
    ) -> Result<Saved, DocumentsError> {
        self.commit_part(writer.0, |file, bytes, turn| self.entry(file, bytes, turn, facts))
    }

    /// As [`Building::commit`]; `entry` makes of the file's name, its bytes and the number of its
    /// use what the manifest says of it.
    pub(super) fn commit_part(
        &self,
        mut part: Part,
        entry: impl FnOnce(Id, u64, u64) -> SessionEntry,
    ) -> Result<Saved, DocumentsError> {
        let bytes = part.sync()?;
        let (documents, id) = (self.documents, self.document.id);
        let file = Id::fresh();
        let mut old = Vec::new();
        let changed = documents.change(|manifest| {
            let turn = manifest.next_turn();
            let session = entry(file, bytes, turn);
            let removed = || DocumentsError::Removed { name: self.document.name.clone() };
            let document = manifest.document_mut(id).ok_or_else(removed)?;
            old.extend(document.sessions.iter().filter(|s| s.key == self.key).map(|s| s.file));
            document.sessions.retain(|session| session.key != self.key);
            document.sessions.push(session.clone());
            (document.turn, document.used_unix_s) = (turn, session.saved_unix_s);
            let evicted = quota::evict(manifest, id);
            // Only now, so that no file is named where anything before fails.
            part.publish(&documents.folder.session(file))?;
            Ok((session, evicted, manifest.session_bytes(), manifest.quota_bytes))
        });
        let (session, evicted, total, quota) = changed.inspect_err(|_| {
            // The disk may have been full for the manifest alone. Where that was replaced before
            // the system refused, the file counts.
            let is_listed = documents.get(id).map(|d| d.is_some_and(|d| d.has_file(file)));
            if is_listed.is_ok_and(|is_listed| !is_listed) {
                documents.delete_sessions([file]);
            }
        })?;
        documents.delete_sessions(old.into_iter().chain(evicted.iter().map(|gone| gone.file)));
        let over_quota_bytes = quota.map_or(0, |quota| total.saturating_sub(quota));
        Ok(Saved { session, evicted, over_quota_bytes })
    }

    fn entry(&self, file: Id, bytes: u64, turn: u64, facts: &Facts<'_>) -> SessionEntry {
        SessionEntry {
            file,
            key: self.key.clone(),
            model: facts.model.to_owned(),
            about: facts.about.to_owned(),
            preset: facts.preset.to_owned(),
            context: facts.context,
            n_tokens: facts.tokens.len(),
            n_document: facts.n_document,
            bytes,
            saved_unix_s: now_unix_s(),
            turn,
            chain: Chain::of(facts.tokens),
        }
    }
}

impl SessionWriter {
    /// The error to show where writing to it failed because there is no room: errors of those who
    /// write do not always say so.
    pub fn space_error(&self) -> Option<DocumentsError> {
        let folder = self.0.path().parent()?.to_owned();
        let free_bytes = space::free_bytes(&folder);
        let error = DocumentsError::NoSpace { folder, needed_bytes: None, free_bytes };
        self.0.is_out_of_space().then_some(error)
    }
}

impl Write for SessionWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Write for Appending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
