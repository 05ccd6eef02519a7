//! Contexts on disk: sessions of the library, which outlive the server.
//!
//! They are opened and written on threads of their own: nobody waits for the disk but those who
//! need what is on it.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use longview_core::FileSource;
use longview_engine::{Engine, PrefillMode, Session, SessionFiles, fingerprint_digest};
use longview_library::documents::Facts as SessionFacts;
use longview_library::documents::{Documents, DocumentsError, Id, Nearest, SessionKey};
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;
use pollster::block_on;
use serde_json::json;
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::job::{Event, Job, KeptText, Summary};
use crate::keys::Scope;
use crate::texts::ModelFacts;

/// Files that are opened at the same time.
const MAX_OPENING: usize = 2;

/// The library with what the loaded model is called in it, and what is being read and written.
pub(super) struct Disk<B: Backend> {
    /// The library of each scope.
    libraries: Vec<Arc<Library>>,
    sender: Sender<Done<B>>,
    done: Receiver<Done<B>>,
    /// Files that are being opened.
    opening: Vec<(Scope, Id)>,
    n_saving: usize,
}

/// What threads need.
struct Library {
    documents: Documents,
    key: SessionKey,
    words: String,
    about: String,
    ctx_size: usize,
}

/// Who waits for a session to be written, with the place that they have until then.
pub(super) struct Waiter {
    pub(super) job: Job,
    pub(super) also: Vec<mpsc::Sender<Event>>,
    /// `None` where all have left.
    pub(super) summary: Option<Summary>,
}

/// What a thread has done.
pub(super) enum Done<B: Backend> {
    /// A file was opened, or could not be: that is as good as none.
    Opened { scope: Scope, file: Id, document: Id, session: Result<Box<Session<B>>, String> },
    /// A session was written. It comes back where nothing else goes on from it.
    Saved { session: Option<Box<Session<B>>>, waiter: Box<Waiter>, result: Result<(), ApiError> },
}

impl<B: Backend + 'static> Disk<B> {
    pub(super) fn new(
        libraries: Vec<Documents>,
        engine: &Engine<B>,
        model: &ModelFacts,
    ) -> Result<Self, ApiError> {
        let fingerprint = engine.fingerprint()?;
        let key = SessionKey {
            fingerprint: fingerprint_digest(fingerprint).into(),
            kv_type: engine.options().kv_dtype.to_string(),
            reading: model.reading(),
            policy: model.policy.text(),
            // That of each request takes its place.
            sparse: None,
        };
        let about = fingerprint.config.about.clone();
        let (words, ctx_size) = (model.words.clone(), engine.options().ctx_size);
        let library = |documents| {
            let (key, words, about) = (key.clone(), words.clone(), about.clone());
            Arc::new(Library { documents, key, words, about, ctx_size })
        };
        let libraries = libraries.into_iter().map(library).collect();
        let (sender, done) = channel();
        Ok(Self { libraries, sender, done, opening: Vec::new(), n_saving: 0 })
    }

    /// A session of the scope's library that was read as the request asks, with more tokens in
    /// common with its prompt than `n_known`.
    pub(super) fn nearest(&self, job: &Job, n_known: usize) -> Option<Nearest> {
        let library = self.library(job.scope)?;
        let key = library.key(job.how.prefill);
        let nearest = library.documents.nearest(&key, &job.ids, library.ctx_size).ok()??;
        (nearest.n_common > n_known).then_some(nearest)
    }

    fn library(&self, scope: Scope) -> Option<&Arc<Library>> {
        self.libraries.get(scope.index())
    }

    /// Whether this file of the scope's library is being opened.
    pub(super) fn is_opening(&self, scope: Scope, file: Id) -> bool {
        self.opening.contains(&(scope, file))
    }

    /// Whether one more may be opened now.
    pub(super) fn can_open(&self) -> bool {
        self.opening.len() < MAX_OPENING
    }

    pub(super) fn is_idle(&self) -> bool {
        self.opening.is_empty() && self.n_saving == 0
    }

    /// Opens a session on another thread. [`Disk::next_done`] has it then.
    pub(super) fn open(
        &mut self,
        scope: Scope,
        files: SessionFiles<B>,
        policy: &PolicyOptions,
        nearest: Nearest,
    ) -> Result<(), ApiError> {
        let library = self.library(scope).cloned().ok_or_else(no_library)?;
        let policy = policy.clone();
        let (file, document) = (nearest.session.file, nearest.document.id);
        self.begin("open", move || {
            let session = library.open(&files, &policy, &nearest).map_err(|e| e.to_string());
            if session.is_ok() {
                // A library that cannot be written to is one that can be read.
                let _ = library.documents.touch(document, Some(file));
            }
            Done::Opened { scope, file, document, session: session.map(Box::new) }
        })?;
        self.opening.push((scope, file));
        Ok(())
    }

    /// Writes what was read of a document, on another thread. `goes_on`: the session is a fork, and
    /// is of no use afterwards.
    pub(super) fn save(
        &mut self,
        files: SessionFiles<B>,
        mut session: Session<B>,
        goes_on: bool,
        waiter: Waiter,
    ) -> Result<(), ApiError> {
        let library = self.library(waiter.job.scope).cloned().ok_or_else(no_library)?;
        self.begin("save", move || {
            let n_document = waiter.job.ids.len();
            let result = match &waiter.job.document {
                Some(document) => library.save(&files, &mut session, document, n_document),
                None => Ok(()),
            };
            let session = (!goes_on).then(|| Box::new(session));
            Done::Saved { session, waiter: Box::new(waiter), result }
        })?;
        self.n_saving += 1;
        Ok(())
    }

    fn begin(
        &self,
        name: &str,
        work: impl FnOnce() -> Done<B> + Send + 'static,
    ) -> Result<(), ApiError> {
        let sender = self.sender.clone();
        let thread = thread::Builder::new().name(name.to_owned());
        let begun = thread.spawn(move || sender.send(work()));
        begun.map(|_| ()).map_err(|error| ApiError::internal(error.to_string()))
    }

    /// What was done since.
    pub(super) fn next_done(&mut self) -> Option<Done<B>> {
        let done = self.done.try_recv().ok()?;
        match &done {
            Done::Opened { scope, file, .. } => {
                self.opening.retain(|opening| *opening != (*scope, *file));
            }
            Done::Saved { .. } => self.n_saving -= 1,
        }
        Some(done)
    }
}

fn no_library() -> ApiError {
    ApiError::internal("a scope has no library")
}

impl Library {
    /// What sessions are called whose text was read so.
    fn key(&self, prefill: PrefillMode) -> SessionKey {
        SessionKey { sparse: prefill.inexact(), ..self.key.clone() }
    }

    fn open<B: Backend>(
        &self,
        files: &SessionFiles<B>,
        policy: &PolicyOptions,
        nearest: &Nearest,
    ) -> Result<Session<B>, Box<dyn std::error::Error>> {
        let source = FileSource::open(&self.documents.session_path(&nearest.session))?;
        Ok(block_on(files.restore(&source, Some(policy)))?.session)
    }

    /// A session that is there with as much stays.
    fn save<B: Backend>(
        &self,
        files: &SessionFiles<B>,
        session: &mut Session<B>,
        document: &KeptText,
        n_document: usize,
    ) -> Result<(), ApiError> {
        let key = self.key(session.sequence().prefill_mode());
        let building = match self.documents.begin(document.id, &key) {
            // Another program writes the same: it will be there.
            Err(DocumentsError::InUse { .. }) => return Ok(()),
            begun => begun?,
        };
        let before = building.before().map_or(0, |before| before.n_tokens);
        if before >= session.tokens().len() {
            return Ok(());
        }
        let mut writer = building.writer()?;
        let note = json!({ "document": document.text }).to_string();
        let written = block_on(files.save(session, note.as_bytes(), &mut writer));
        let written = written.map_err(ApiError::from);
        let internal = |error: std::io::Error| ApiError::internal(error.to_string());
        let written = written.and_then(|()| writer.flush().map_err(internal));
        if let Err(error) = written {
            return Err(writer.space_error().map_or(error, Into::into));
        }
        let facts = SessionFacts {
            tokens: session.tokens(),
            n_document,
            context: self.ctx_size,
            model: &self.words,
            about: &self.about,
            preset: session.policy().preset.name(),
        };
        building.commit(writer, &facts)?;
        Ok(())
    }
}
