//! The library: what there is, and changes to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::entry::{Document, SessionEntry, SessionKey, Source};
use super::error::DocumentsError;
use super::folder::{Folder, id_of};
use super::id::Id;
use super::lock::Lock;
use super::manifest::Manifest;
use super::name::{check_name, name_of_file};
use super::part::write_whole;
use super::prefix::Chain;
use super::quota;
use crate::space;

/// Digits of an id that name a document.
const MIN_DIGITS: usize = 4;
/// Names that a message suggests.
const MAX_NEAR: usize = 3;

/// A library of documents. Cheap to open and to share between threads: it holds no file open, and
/// every call reads the manifest anew, so it sees what other processes did.
#[derive(Clone, Debug)]
pub struct Documents {
    pub(super) folder: Folder,
}

/// A text that comes into the library.
#[derive(Clone, Debug)]
pub struct NewDocument<'a> {
    /// The text.
    pub text: &'a str,
    /// What to call it; `None`: what is there keeps its name, else one is made of the source's.
    pub name: Option<&'a str>,
    /// Where it comes from.
    pub sources: Vec<Source>,
}

/// A session that begins like a list of tokens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Nearest {
    /// Its document.
    pub document: Document,
    /// The session.
    pub session: SessionEntry,
    /// Tokens that both begin with, in whole blocks: there may be more.
    pub n_common: usize,
}

/// What a removal freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freed {
    /// Files that are gone.
    pub n_files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// How full the library is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of session files.
    pub session_bytes: u64,
    /// Bytes of texts.
    pub text_bytes: u64,
    /// The most that session files may take together.
    pub quota_bytes: Option<u64>,
}

impl Documents {
    /// Opens the library in `folder`, and makes it if there is none.
    ///
    /// # Errors
    /// [`DocumentsError::Foreign`] for a folder with other things in it; what the system says.
    pub fn open(folder: &Path) -> Result<Self, DocumentsError> {
        Ok(Self { folder: Folder::open(folder)? })
    }

    /// The library in `folder` for who only looks: where there is none, it has no documents, and
    /// nothing is made. What would change it fails there.
    ///
    /// # Errors
    /// As [`Documents::open`].
    pub fn look(folder: &Path) -> Result<Self, DocumentsError> {
        Ok(Self { folder: Folder::look(folder)? })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether a newer program wrote it, so that this one changes nothing.
    pub fn is_read_only(&self) -> Result<bool, DocumentsError> {
        Ok(self.manifest()?.check_writable(&self.folder).is_err())
    }

    /// All documents, the one that was used last first.
    pub fn list(&self) -> Result<Vec<Document>, DocumentsError> {
        let mut documents = self.manifest()?.documents;
        documents.sort_by_key(|document| std::cmp::Reverse(document.turn));
        Ok(documents)
    }

    /// How full it is.
    pub fn usage(&self) -> Result<Usage, DocumentsError> {
        let manifest = self.manifest()?;
        Ok(Usage {
            session_bytes: manifest.session_bytes(),
            text_bytes: manifest.documents.iter().map(|d| d.text_bytes).sum(),
            quota_bytes: manifest.quota_bytes,
        })
    }

    /// The document of this name, or whose id begins so (four digits or more).
    ///
    /// # Errors
    /// [`DocumentsError::NotFound`] with names that are like it; [`DocumentsError::Ambiguous`].
    pub fn find(&self, word: &str) -> Result<Document, DocumentsError> {
        let mut documents = self.manifest()?.documents;
        if let Some(at) = documents.iter().position(|document| document.name == word) {
            return Ok(documents.swap_remove(at));
        }
        let mut found: Vec<&Document> = Vec::new();
        if word.len() >= MIN_DIGITS {
            found.extend(documents.iter().filter(|d| d.id.to_string().starts_with(word)));
        }
        match found[..] {
            [] => Err(DocumentsError::NotFound {
                word: word.to_owned(),
                near: near(word, &documents),
            }),
            [document] => Ok(document.clone()),
            _ => {
                let names = found.iter().map(|d| format!("{} ({})", d.id.short(), d.name));
                let (word, names) = (word.to_owned(), names.collect());
                Err(DocumentsError::Ambiguous { word, names })
            }
        }
    }

    /// The document with this id, if it is here.
    pub fn get(&self, id: Id) -> Result<Option<Document>, DocumentsError> {
        Ok(self.manifest()?.document(id).cloned())
    }

    /// Keeps a text. One that is here already stays as it is, but for a name that is given.
    ///
    /// # Errors
    /// [`DocumentsError::NameTaken`], [`DocumentsError::BadName`], [`DocumentsError::EmptyText`],
    /// [`DocumentsError::NoSpace`], ...
    pub fn add(&self, new: NewDocument<'_>) -> Result<Document, DocumentsError> {
        let NewDocument { text, name, sources } = new;
        if let Some(name) = name {
            check_name(name)?;
        }
        if text.trim().is_empty() {
            let name = name.map(str::to_owned).unwrap_or_else(|| name_of(&sources));
            return Err(DocumentsError::EmptyText { name });
        }
        let id = Id::of(text.as_bytes());
        self.change(|manifest| {
            let turn = manifest.next_turn();
            let path = self.folder.text(id);
            // Also where the manifest lists it: the file may have been lost.
            if fs::metadata(&path).map_or(0, |found| found.len()) != text.len() as u64 {
                write_whole(&path, text.as_bytes())?;
            }
            let at = manifest.documents.iter().position(|document| document.id == id);
            if let Some(name) = name {
                check_free(manifest, name, id)?;
            }
            let Some(at) = at else {
                let name = match name {
                    Some(name) => name.to_owned(),
                    None => free_name(manifest, &name_of(&sources)),
                };
                let (now, text_bytes) = (now_unix_s(), text.len() as u64);
                let document = Document {
                    id,
                    name,
                    sources,
                    text_bytes,
                    pinned: false,
                    added_unix_s: now,
                    used_unix_s: now,
                    turn,
                    ttl_s: None,
                    sessions: Vec::new(),
                };
                manifest.documents.push(document.clone());
                return Ok(document);
            };
            let document = &mut manifest.documents[at];
            if let Some(name) = name {
                document.name = name.to_owned();
            }
            (document.turn, document.used_unix_s) = (turn, now_unix_s());
            Ok(document.clone())
        })
    }

    /// The text of a document, compared with its hash.
    ///
    /// # Errors
    /// [`DocumentsError::Damaged`], or what the system says.
    pub fn text(&self, id: Id) -> Result<String, DocumentsError> {
        let path = self.folder.text(id);
        let bytes = fs::read(&path).map_err(DocumentsError::io("read", &path))?;
        let damaged = |what| DocumentsError::Damaged { path: path.clone(), what };
        if Id::of(&bytes) != id {
            return Err(damaged("the text is not as it was written"));
        }
        String::from_utf8(bytes).map_err(|_| damaged("it is no text"))
    }

    /// Where a session file is. It stays what it is; it may be gone when it is opened, where
    /// another process removed it.
    pub fn session_path(&self, session: &SessionEntry) -> PathBuf {
        self.folder.session(session.file)
    }

    /// The session with most tokens in common with the beginning of `tokens`, of those whose rows
    /// are what `key` says and that fit into `context`; `None` if none has a block of them. No
    /// session file is opened: compare the tokens when it is.
    pub fn nearest(
        &self,
        key: &SessionKey,
        tokens: &[u32],
        context: usize,
    ) -> Result<Option<Nearest>, DocumentsError> {
        let (manifest, wanted) = (self.manifest()?, Chain::of(tokens));
        let mut best: Option<(bool, Nearest)> = None;
        for document in &manifest.documents {
            let fits = |s: &&SessionEntry| s.key.has_rows_of(key) && s.n_tokens <= context;
            for session in document.sessions.iter().filter(fits) {
                let n_common = session.chain.common(&wanted);
                let is_same = session.key == *key;
                let is_better = best.as_ref().is_none_or(|(is_best_same, best)| {
                    (n_common, is_same) > (best.n_common, *is_best_same)
                });
                if n_common > 0 && is_better {
                    let (document, session) = (document.clone(), session.clone());
                    best = Some((is_same, Nearest { document, session, n_common }));
                }
            }
        }
        Ok(best.map(|(_, nearest)| nearest))
    }

    /// Says that a document and one of its sessions were used: they are the last to go. In a
    /// library of a newer program nothing happens.
    pub fn touch(&self, id: Id, file: Option<Id>) -> Result<(), DocumentsError> {
        if self.is_read_only()? {
            return Ok(());
        }
        self.change(|manifest| {
            let turn = manifest.next_turn();
            let Some(document) = manifest.document_mut(id) else { return Ok(()) };
            (document.turn, document.used_unix_s) = (turn, now_unix_s());
            let used = document.sessions.iter_mut().find(|session| Some(session.file) == file);
            if let Some(session) = used {
                session.turn = turn;
            }
            Ok(())
        })
    }

    /// Calls a document so.
    ///
    /// # Errors
    /// [`DocumentsError::NameTaken`], [`DocumentsError::BadName`].
    pub fn rename(&self, id: Id, name: &str) -> Result<(), DocumentsError> {
        check_name(name)?;
        self.change(|manifest| {
            check_free(manifest, name, id)?;
            self.existing(manifest, id)?.name = name.to_owned();
            Ok(())
        })
    }

    /// Lets `new` take the place of `old`, of which it is a longer version: its name, its pin; and
    /// `old` goes.
    pub fn succeed(&self, old: Id, new: Id) -> Result<Freed, DocumentsError> {
        let gone = self.change(|manifest| {
            let at = manifest.documents.iter().position(|document| document.id == old);
            let gone = manifest.documents.remove(at.ok_or_else(|| not_found(old))?);
            let document = self.existing(manifest, new)?;
            document.name.clone_from(&gone.name);
            document.pinned |= gone.pinned;
            Ok(gone)
        })?;
        Ok(self.delete(&gone))
    }

    /// Says after how many seconds without use a document may go; `None`: never.
    ///
    /// # Errors
    /// [`DocumentsError::NotFound`], or what the system says.
    pub fn set_ttl(&self, id: Id, ttl_s: Option<u64>) -> Result<(), DocumentsError> {
        self.change(|manifest| {
            let missing = || DocumentsError::NotFound { word: id.short(), near: Vec::new() };
            manifest.document_mut(id).ok_or_else(missing)?.ttl_s = ttl_s;
            Ok(())
        })
    }

    /// Keeps the sessions of a document, however full the library is, or no longer.
    pub fn set_pinned(&self, id: Id, pinned: bool) -> Result<(), DocumentsError> {
        self.change(|manifest| {
            self.existing(manifest, id)?.pinned = pinned;
            Ok(())
        })
    }

    /// The most that sessions may take together; `None`: as much as the disk has. What is too much
    /// already goes at once.
    pub fn set_quota(&self, bytes: Option<u64>) -> Result<Vec<quota::Evicted>, DocumentsError> {
        let evicted = self.change(|manifest| {
            manifest.quota_bytes = bytes;
            // No document has this id: none is kept for its own sake.
            Ok(quota::evict(manifest, Id::of(b"")))
        })?;
        self.delete_sessions(evicted.iter().map(|evicted| evicted.file));
        Ok(evicted)
    }

    /// Bytes that this user may still write to the library, where the system says it.
    pub fn free_bytes(&self) -> Option<u64> {
        space::free_bytes(self.folder())
    }

    /// Whether a session of `bytes` may come, before a model reads for it.
    ///
    /// # Errors
    /// [`DocumentsError::OverQuota`], [`DocumentsError::NoSpace`].
    pub fn check_room(&self, document: &Document, bytes: u64) -> Result<(), DocumentsError> {
        self.check_room_of(document.id, &document.name, bytes)
    }

    /// As [`Documents::check_room`], for a document that may not be here yet.
    pub(crate) fn check_room_of(
        &self,
        id: Id,
        name: &str,
        bytes: u64,
    ) -> Result<(), DocumentsError> {
        let manifest = self.manifest()?;
        let pinned_bytes = quota::pinned_bytes(&manifest, id);
        if let Some(quota_bytes) = manifest.quota_bytes
            && pinned_bytes.saturating_add(bytes) > quota_bytes
        {
            let (name, needed_bytes) = (name.to_owned(), bytes);
            return Err(DocumentsError::OverQuota {
                name,
                needed_bytes,
                quota_bytes,
                pinned_bytes,
            });
        }
        let (needed_bytes, free_bytes) = (Some(bytes), space::free_bytes(self.folder()));
        if free_bytes.is_some_and(|free| free < bytes) {
            let folder = self.folder().to_owned();
            return Err(DocumentsError::NoSpace { folder, needed_bytes, free_bytes });
        }
        Ok(())
    }

    /// Removes a document: its text, its sessions and its entry.
    pub fn remove(&self, id: Id) -> Result<Freed, DocumentsError> {
        let document = self.change(|manifest| {
            let at = manifest.documents.iter().position(|document| document.id == id);
            let at = at.ok_or_else(|| not_found(id))?;
            Ok(manifest.documents.remove(at))
        })?;
        Ok(self.delete(&document))
    }

    /// The files of a document that is not listed any more.
    fn delete(&self, document: &Document) -> Freed {
        let mut freed = self.delete_sessions(document.sessions.iter().map(|s| s.file));
        freed.add(&self.folder.text(document.id));
        freed
    }

    /// Removes one session of a document, which keeps its text.
    pub fn remove_session(&self, id: Id, file: Id) -> Result<Freed, DocumentsError> {
        self.change(|manifest| {
            self.existing(manifest, id)?.sessions.retain(|session| session.file != file);
            Ok(())
        })?;
        Ok(self.delete_sessions([file]))
    }

    pub(super) fn manifest(&self) -> Result<Manifest, DocumentsError> {
        Manifest::read(&self.folder)
    }

    /// Changes the manifest under the lock of the library. Nothing is written where `make` fails.
    pub(super) fn change<T>(
        &self,
        make: impl FnOnce(&mut Manifest) -> Result<T, DocumentsError>,
    ) -> Result<T, DocumentsError> {
        let _lock = Lock::wait(&self.folder.lock())?;
        let mut manifest = self.manifest()?;
        manifest.check_writable(&self.folder)?;
        let before = manifest.clone();
        let made = make(&mut manifest)?;
        if manifest != before {
            manifest.write(&self.folder)?;
        }
        Ok(made)
    }

    fn existing<'a>(
        &self,
        manifest: &'a mut Manifest,
        id: Id,
    ) -> Result<&'a mut Document, DocumentsError> {
        manifest.document_mut(id).ok_or_else(|| not_found(id))
    }

    /// Files that no manifest names any more. One that another process holds (Windows) stays, and
    /// `check` finds it.
    pub(super) fn delete_sessions(&self, files: impl IntoIterator<Item = Id>) -> Freed {
        let mut freed = Freed::default();
        files.into_iter().for_each(|file| freed.add(&self.folder.session(file)));
        freed
    }

    /// Texts and sessions on the disk that `manifest` does not list. Only under the lock, or a
    /// change could be under way.
    pub(super) fn unlisted(&self, manifest: &Manifest) -> Vec<PathBuf> {
        let is_listed = |path: &Path| match id_of(path) {
            Some(id) if path.starts_with(self.folder.texts()) => manifest.document(id).is_some(),
            Some(id) => manifest.documents.iter().any(|d| d.has_file(id)),
            // Not ours, or a part: those are looked at elsewhere.
            None => true,
        };
        let folders = [self.folder.texts(), self.folder.sessions()];
        let entries = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        entries.flatten().map(|entry| entry.path()).filter(|path| !is_listed(path)).collect()
    }
}

impl Freed {
    /// Removes a file and counts it.
    pub(super) fn add(&mut self, path: &Path) {
        let bytes = fs::metadata(path).map_or(0, |found| found.len());
        if fs::remove_file(path).is_ok() {
            (self.n_files, self.bytes) = (self.n_files + 1, self.bytes + bytes);
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn not_found(id: Id) -> DocumentsError {
    DocumentsError::NotFound { word: id.short(), near: Vec::new() }
}

fn near(word: &str, documents: &[Document]) -> Vec<String> {
    let mut all: Vec<(f64, &str)> = documents
        .iter()
        .map(|document| {
            let is_part = document.name.to_lowercase().contains(&word.to_lowercase());
            let alike = strsim::jaro_winkler(word, &document.name);
            (if is_part { 1.0 } else { alike }, &*document.name)
        })
        .filter(|(alike, _)| *alike > 0.8)
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.iter().take(MAX_NEAR).map(|(_, name)| (*name).to_owned()).collect()
}

fn check_free(manifest: &Manifest, name: &str, id: Id) -> Result<(), DocumentsError> {
    if manifest.documents.iter().any(|document| document.name == name && document.id != id) {
        return Err(DocumentsError::NameTaken { name: name.to_owned() });
    }
    Ok(())
}

/// What the first source would be called.
fn name_of(sources: &[Source]) -> String {
    name_of_file(sources.first().map_or("", |source| &*source.name))
}

/// `name`, or with a number behind it.
fn free_name(manifest: &Manifest, name: &str) -> String {
    let is_free = |name: &String| manifest.documents.iter().all(|d| d.name != *name);
    let numbered = (2..).map(|n| format!("{name}-{n}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(is_free).expect("numbers do not end")
}
