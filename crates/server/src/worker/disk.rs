//! Contexts on disk: sessions of the library, which outlive the server.
//!
//! They are opened and written on threads of their own: nobody waits for the disk but those who
//! need what is on it.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use longview_core::FileSource;
use longview_engine::{
    BegunChunk, CancelToken, ComingSession, Engine, PrefillMode, Session, SessionFiles,
    fingerprint_digest,
};
use longview_library::documents::Facts as SessionFacts;
use longview_library::documents::{
    BLOCK, Building, Documents, DocumentsError, Id, Nearest, Saved, SessionEntry, SessionKey,
};
use longview_library::shared::{Published, Share};
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;
use pollster::block_on;
use serde_json::json;
use tokio::sync::mpsc;
use tracing::warn;

use super::steps::guarded;
use crate::error::ApiError;
use crate::job::{Event, Job, KeptText, Summary};
use crate::keys::Scope;
use crate::kv_events::DiskSessions;
use crate::log;
use crate::metrics::Metrics;
use crate::texts::ModelFacts;

/// Files that are opened at the same time.
const MAX_OPENING: usize = 2;
/// Tokens that it must save to ask shared storage for them.
const MIN_FETCHED: usize = 2 * BLOCK;

/// How long a copy that failed waits until it is tried again, each time. Behind the last it is left
/// to the next request that brings the document.
const WAITS: [Duration; 4] = [
    Duration::from_secs(2),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(300),
];

/// The library with what the loaded model is called in it, and what is being read and written.
pub(super) struct Disk<B: Backend> {
    /// The library of each scope.
    libraries: Vec<Arc<Library>>,
    sender: Sender<Done<B>>,
    done: Receiver<Done<B>>,
    /// Files that are being opened.
    opening: Vec<(Scope, Id)>,
    n_saving: usize,
    /// Sessions on their way to shared storage.
    n_sending: Arc<AtomicUsize>,
}

/// What threads need.
pub(super) struct Library {
    pub(super) documents: Documents,
    /// Where prompts are kept.
    pub(super) prompts: Option<Documents>,
    share: Option<Share>,
    metrics: Arc<Metrics>,
    n_sending: Arc<AtomicUsize>,
    key: SessionKey,
    pub(super) words: String,
    pub(super) about: String,
    pub(super) ctx_size: usize,
}

/// A session that a prompt goes on from, and the library in which it is.
pub(super) struct Found {
    documents: Documents,
    pub(super) nearest: Nearest,
    /// Whether it was a prompt too.
    is_prompt: bool,
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
    /// A file was opened, or could not be: that is as good as none. `name`: the context that it
    /// is, if it is one.
    Opened { scope: Scope, file: Id, name: Option<Id>, session: Result<Box<Session<B>>, String> },
    /// Shared storage was asked for a prompt: a session came, or there is none.
    Fetched { scope: Scope, asked: Id, session: Result<Option<Fetched<B>>, String> },
    /// A session of shared storage of which some layers came: there is time to compute the prompt
    /// in these while others come. It goes back to `back`, or nothing does.
    Coming { coming: Box<ComingSession<B>>, back: Sender<Box<ComingSession<B>>> },
    /// A session was written. It comes back where nothing else goes on from it.
    Saved { session: Option<Box<Session<B>>>, waiter: Box<Waiter>, result: Result<(), ApiError> },
    /// Prompts were written, so many of them.
    Prompts { n_written: usize },
}

/// A session of shared storage.
pub(super) struct Fetched<B: Backend> {
    pub(super) document: Id,
    pub(super) session: Box<Session<B>>,
    /// What was computed of the prompt that asked for it.
    pub(super) begun: Option<BegunChunk>,
}

/// The libraries of all scopes, their prompts, and shared storage as each of them sees it.
pub(super) type Kept = (Vec<Documents>, Vec<Documents>, Vec<Share>);

impl<B: Backend + 'static> Disk<B> {
    pub(super) fn new(
        (libraries, prompts, shares): Kept,
        engine: &Engine<B>,
        model: &ModelFacts,
        metrics: &Arc<Metrics>,
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
        let n_sending: Arc<AtomicUsize> = Arc::default();
        let library = |(i, documents)| {
            Arc::new(Library {
                documents,
                prompts: prompts.get(i).cloned(),
                share: shares.get(i).cloned(),
                metrics: Arc::clone(metrics),
                n_sending: Arc::clone(&n_sending),
                key: key.clone(),
                words: words.clone(),
                about: about.clone(),
                ctx_size,
            })
        };
        let libraries = libraries.into_iter().enumerate().map(library).collect();
        let (sender, done) = channel();
        Ok(Self { libraries, sender, done, opening: Vec::new(), n_saving: 0, n_sending })
    }

    /// What a prompt is called while shared storage is asked for it, if that may be worth it: much
    /// of it is not known in memory (`n_known` tokens are).
    pub(super) fn wanted_of_share(&self, job: &Job, n_known: usize) -> Option<Id> {
        let share = self.library(job.scope)?.share.as_ref()?;
        if !is_worth_fetching(job, n_known) || share.rests() {
            return None;
        }
        let first = job.ids[..BLOCK].iter().flat_map(|token| token.to_le_bytes());
        let first: Vec<u8> = first.collect();
        let sparse = job.how.prefill.inexact().unwrap_or_default();
        Some(Id::of_parts([&b"shared"[..], sparse.as_bytes(), &first]))
    }

    /// Asks shared storage for a session that a prompt begins with, and opens it while it comes.
    /// [`Disk::next_done`] has it then. `false` where the library has about as much.
    pub(super) fn fetch(
        &mut self,
        job: &Job,
        files: SessionFiles<B>,
        policy: &PolicyOptions,
        (asked, n_known): (Id, usize),
    ) -> Result<bool, ApiError> {
        let library = self.library(job.scope).cloned().ok_or_else(no_library)?;
        let n_here = self.nearest(job, n_known).map_or(n_known, |found| found.nearest.n_common);
        if !is_worth_fetching(job, n_here) {
            return Ok(false);
        }
        let (policy, scope, ids) = (policy.clone(), job.scope, job.ids.clone());
        let key = library.key(job.how.prefill);
        let sender = self.sender.clone();
        self.begin("fetch", move || {
            let asks = (&key, &ids[..], n_here);
            let session =
                told(|| library.fetch(&files, &policy, asks, &sender).map_err(|e| e.to_string()));
            Done::Fetched { scope, asked, session }
        })?;
        self.opening.push((scope, asked));
        Ok(true)
    }

    /// Whether sessions are on their way to shared storage.
    pub(super) fn is_sending(&self) -> bool {
        self.n_sending.load(Ordering::Acquire) > 0
    }

    /// A session of the scope's library, or of its prompts, that was read as the request asks, with
    /// more tokens in common with its prompt than `n_known`.
    pub(super) fn nearest(&self, job: &Job, n_known: usize) -> Option<Found> {
        let found = self.library(job.scope)?.nearest(job.how.prefill, &job.ids)?;
        (found.nearest.n_common > n_known).then_some(found)
    }

    /// The sessions of a scope's library that such requests go on from.
    pub(super) fn sessions(&self, scope: Scope, prefill: PrefillMode) -> Option<DiskSessions> {
        let library = self.library(scope)?;
        let (key, ctx_size) = (library.key(prefill), library.ctx_size);
        let libraries = [Some(&library.documents), library.prompts.as_ref()];
        let libraries = libraries.into_iter().flatten().cloned().collect();
        Some(DiskSessions { libraries, key, ctx_size })
    }

    pub(super) fn library(&self, scope: Scope) -> Option<&Arc<Library>> {
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
        found: Found,
    ) -> Result<(), ApiError> {
        let policy = policy.clone();
        let (file, document) = (found.nearest.session.file, found.nearest.document.id);
        self.begin("open", move || {
            let session = told(|| found.open(&files, &policy).map_err(|e| e.to_string()));
            if session.is_ok() {
                // A library that cannot be written to is one that can be read.
                let _ = found.documents.touch(document, Some(file));
            }
            let name = (!found.is_prompt).then_some(document);
            Done::Opened { scope, file, name, session: session.map(Box::new) }
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
            let result = guarded(|| match &waiter.job.document {
                Some(document) => library.save(&files, &mut session, document, n_document),
                None => Ok(()),
            });
            let session = (!goes_on).then(|| Box::new(session));
            Done::Saved { session, waiter: Box::new(waiter), result }
        })?;
        self.n_saving += 1;
        Ok(())
    }

    /// Writes prompts on another thread.
    pub(super) fn save_prompts(
        &mut self,
        work: impl FnOnce() -> usize + Send + 'static,
    ) -> Result<(), ApiError> {
        self.begin("prompts", move || Done::Prompts { n_written: work() })?;
        self.n_saving += 1;
        Ok(())
    }

    /// Sessions that are being written.
    pub(super) fn n_saving(&self) -> usize {
        self.n_saving
    }

    fn begin(
        &self,
        name: &str,
        work: impl FnOnce() -> Done<B> + Send + 'static,
    ) -> Result<(), ApiError> {
        let sender = self.sender.clone();
        let thread = thread::Builder::new().name(name.to_owned());
        let work = log::same(work);
        let begun = thread.spawn(move || {
            // A worker that has ended wants no result.
            let _ = sender.send(work());
        });
        begun.map(|_| ()).map_err(|error| ApiError::internal(error.to_string()))
    }

    /// What was done since.
    pub(super) fn next_done(&mut self) -> Option<Done<B>> {
        let done = self.done.try_recv().ok()?;
        match &done {
            Done::Opened { scope, file, .. } => {
                self.opening.retain(|opening| *opening != (*scope, *file));
            }
            Done::Fetched { scope, asked, .. } => {
                self.opening.retain(|opening| *opening != (*scope, *asked));
            }
            Done::Coming { .. } => {}
            Done::Saved { .. } | Done::Prompts { .. } => self.n_saving -= 1,
        }
        Some(done)
    }
}

impl Found {
    fn open<B: Backend>(
        &self,
        files: &SessionFiles<B>,
        policy: &PolicyOptions,
    ) -> Result<Session<B>, Box<dyn std::error::Error>> {
        let source = FileSource::open(&self.documents.session_path(&self.nearest.session))?;
        Ok(block_on(files.restore(&source, Some(policy)))?.session)
    }
}

/// What `work` says, also where it fails by a fault of the program: requests wait to be told.
fn told<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("a fault of the program".into()))
}

/// Whether a session from shared storage may save much reading, where so many tokens are known.
fn is_worth_fetching(job: &Job, n_known: usize) -> bool {
    job.ids.len() / BLOCK * BLOCK >= n_known + MIN_FETCHED
}

/// A copy under way, as long as this lives.
struct Sending(Arc<AtomicUsize>);

impl Sending {
    fn new(n: &Arc<AtomicUsize>) -> Self {
        n.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(n))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn no_library() -> ApiError {
    ApiError::internal("a scope has no library")
}

impl Library {
    /// A session of shared storage with more tokens in common with `ids` than `n_here`. It is read
    /// while it comes, and while a layer is waited for the engine computes `ids` in those before;
    /// the library gets it when all of it is there, and nobody waits for that.
    fn fetch<B: Backend>(
        self: &Arc<Self>,
        files: &SessionFiles<B>,
        policy: &PolicyOptions,
        (key, ids, n_here): (&SessionKey, &[u32], usize),
        engine: &Sender<Done<B>>,
    ) -> Result<Option<Fetched<B>>, Box<dyn std::error::Error>> {
        let Some(share) = &self.share else { return Ok(None) };
        let Some(found) = share.nearest(key, ids, self.ctx_size, n_here)? else { return Ok(None) };
        let incoming = share.fetch(&self.documents, &found)?;
        let mut compute = |coming| {
            let (back, computed) = channel();
            engine.send(Done::Coming { coming: Box::new(coming), back }).ok()?;
            computed.recv().ok().map(|coming| *coming)
        };
        let (beside, never) = ((ids, &mut compute as &mut _), CancelToken::default());
        let restored = files.restore_beside(&incoming, Some(policy), &never, beside);
        let (restored, begun) = block_on(restored)?;
        let (library, id) = (Arc::clone(self), found.document());
        let keep = move || {
            let kept = incoming.keep(&library.documents, &library.words, &library.about);
            if let Err(error) = kept {
                warn!("context {}: is not kept here: {error}", id.short());
            }
        };
        let _ = thread::Builder::new().name("keep".to_owned()).spawn(log::same(keep));
        let session = Box::new(restored.session);
        Ok(Some(Fetched { document: id, session, begun }))
    }

    /// Copies a session that was read to its end to shared storage, on another thread. A document
    /// with a time after which it goes stays on this machine. A copy that fails is tried again; who
    /// waits for copies to end does not wait for that.
    fn send(self: &Arc<Self>, document: Id, session: SessionEntry) {
        if self.share.is_none() || !session.is_complete() {
            return;
        }
        let sending = Sending::new(&self.n_sending);
        let library = Arc::downgrade(self);
        let send = move || {
            let mut waits = WAITS.into_iter();
            let mut sending = Some(sending);
            loop {
                // A server that has ended has no library.
                let Some(this) = library.upgrade() else { return };
                sending.get_or_insert_with(|| Sending::new(&this.n_sending));
                let wait = waits.next();
                if this.send_now(document, &session, wait) {
                    return;
                }
                let Some(wait) = wait else { return };
                drop((sending.take(), this));
                thread::sleep(wait);
            }
        };
        // Without a thread the next request that brings the document sends it.
        let _ = thread::Builder::new().name("send".to_owned()).spawn(log::same(send));
    }

    /// Whether there is nothing left to send; else it is tried again after `wait`, if there is one.
    fn send_now(&self, id: Id, session: &SessionEntry, wait: Option<Duration>) -> bool {
        let Some(share) = &self.share else { return true };
        let stays = |document: longview_library::documents::Document| document.ttl_s.is_some();
        if self.documents.get(id).is_ok_and(|document| document.is_none_or(stays)) {
            return true;
        }
        match share.publish(&self.documents, id, session) {
            Ok(published) => {
                let is_sent = matches!(published, Published::Sent(_));
                self.metrics.shared.sent.increment(u64::from(is_sent));
                true
            }
            Err(error) => {
                self.metrics.shared.failed.increment(1);
                let again = wait.map(|wait| format!("; it is tried again in {} s", wait.as_secs()));
                let again = again.unwrap_or_default();
                warn!("context {}: is not shared: {error}{again}", id.short());
                false
            }
        }
    }

    /// What sessions are called whose text was read so.
    pub(super) fn key(&self, prefill: PrefillMode) -> SessionKey {
        SessionKey { sparse: prefill.inexact(), ..self.key.clone() }
    }

    /// The session with most tokens in common with `ids`, of contexts and prompts that were read
    /// so.
    pub(super) fn nearest(&self, prefill: PrefillMode, ids: &[u32]) -> Option<Found> {
        let key = self.key(prefill);
        let of = |documents: &Documents, is_prompt| {
            let nearest = documents.nearest(&key, ids, self.ctx_size).ok()??;
            Some(Found { documents: documents.clone(), nearest, is_prompt })
        };
        let context = of(&self.documents, false);
        let prompt = self.prompts.as_ref().and_then(|prompts| of(prompts, true));
        // Of equals the context: it is indexed as its document is, and has a name.
        [prompt, context].into_iter().flatten().max_by_key(|found| found.nearest.n_common)
    }

    /// A session that is there with as much stays.
    fn save<B: Backend>(
        self: &Arc<Self>,
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
        if let Some(before) = building.before()
            && before.n_tokens >= session.tokens().len()
        {
            // It may have been read before anything was shared.
            self.send(document.id, before.clone());
            return Ok(());
        }
        let saved = self.write(files, &building, session, (&document.text, n_document))?;
        self.send(document.id, saved.session);
        Ok(())
    }

    /// Writes a session of a text of `n_document` tokens.
    pub(super) fn write<B: Backend>(
        &self,
        files: &SessionFiles<B>,
        building: &Building<'_>,
        session: &mut Session<B>,
        (text, n_document): (&str, usize),
    ) -> Result<Saved, ApiError> {
        let mut writer = building.writer()?;
        let note = json!({ "document": text }).to_string();
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
        Ok(building.commit(writer, &facts)?)
    }
}
