//! The engine inside this process: a reader on the device that this machine has.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longview_core::{FileSource, HeadId, LayerId};
use longview_engine::{
    Engine, EngineOptions, KvResidency, MAX_CONTEXT, Memory, Progress, resolve_policy,
};
use longview_library::documents::{Documents, DocumentsError, Id, Reading, SessionKey};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_reader::{self as reader, Answer, Reader, ReaderError};
use longview_scheduler::{PolicyOptions, Preset};
use longview_server::{Offers, Turn, Turns};
use longview_startup::keeper::{KEEP_EVERY, KeepPace, Keeper, Text, session_key};
use longview_startup::{Device, DeviceOptions, embedded, template, with_device};
use pollster::block_on;

use super::contract::{
    AnswerStep, Attention, DocumentEngine, DocumentId, Failure, FailureKind, Machine, ModelInfo,
    Parts, Question, ReadPlan, ReadProgress, ReadState,
};
use super::server;
use super::serving::{Host, Published, Serve};
use super::setup::{EngineSetup, Engines, ModelSource};
use crate::refusals;

/// Tokens of a question and its answer for which a context has room.
const ROOM: usize = 1024;
/// Contexts are multiples of this.
const STEP: usize = 1024;
/// The least context: a model is loaded for it before there is a document.
const LEAST_CONTEXT: usize = 4096;
/// Contexts for the prompts of other programs, of which memory holds the first.
const SERVED_CONTEXTS: [usize; 3] = [32_768, 16_384, 8192];
/// Tokens of a document that are read at a time: a pause or a stop is heard after each chunk.
const CHUNK: usize = 256;
/// How long one submit to a device of WGSL takes at most: the window draws between two of them, and
/// has a frame every 16 ms.
const SUBMIT_LIMIT: Duration = Duration::from_millis(12);
/// Tokens of an answer at most. The embedded model's are one sentence.
const MOST_TOKENS: [usize; 2] = [512, 48];
/// No tokenizer makes fewer tokens than one of so many bytes of a text, so that one far too long is
/// refused before it is counted.
const MOST_TOKEN_BYTES: usize = 64;

/// How engines of this process differ between the program and its tests.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Where documents are kept; none if the system has no place for it.
    pub library: Option<Documents>,
    /// Whether chat templates run in a process of their own, which needs a program that calls
    /// [`template::serve`] first.
    pub templates_apart: bool,
    /// What is read is kept after so much time.
    pub keep_every: Duration,
    /// What serves the library to other programs, if that is wanted.
    pub host: Option<Host>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { library: None, templates_apart: false, keep_every: KEEP_EVERY, host: None }
    }
}

/// Engines on the device that a setup names, which is chosen as the command line chooses it. What
/// they read of documents of the library is kept there.
pub fn engines(options: LocalOptions) -> Engines {
    Arc::new(move |setup: &EngineSetup| {
        let (setup, local) = (setup.clone(), options.clone());
        Arc::new(move || {
            // A device that is there and cannot be used is told by `longview doctor`.
            let mut devices = DeviceOptions::default();
            devices.cpu.threads = threads(longview_cpu::physical_cores());
            devices.wgpu.submit_limit = Some(SUBMIT_LIMIT);
            let device = Device::open(setup.device, &devices, &mut |_| {});
            let device = device.map_err(|error| failure(FailureKind::NoDevice, &error))?;
            let title = device.title();
            with_device!(device, backend => {
                let local = Local::open(backend, setup.clone(), title, local.clone())?;
                Ok(Box::new(local) as Box<dyn DocumentEngine>)
            })
        })
    })
}

/// Threads beside a window, which has a core for itself where there is more than one.
fn threads(cores: usize) -> usize {
    cores.saturating_sub(1).max(1)
}

struct Local<B: Backend> {
    backend: Arc<B>,
    setup: EngineSetup,
    device: String,
    /// As they were before the model was loaded.
    machine: Machine,
    /// None only while a model is loaded for a longer context.
    reader: Option<Reader<B>>,
    text: Arc<str>,
    options: LocalOptions,
    /// Tokens that the model was made for.
    limit: usize,
    /// The least context.
    least: usize,
    /// Turns at the device, which a server has too.
    turns: Turns,
    offers: Offers<B>,
    published: Option<Published>,
}

/// A turn at the device, which others get whenever the window is told something.
struct Turned<'a> {
    turns: &'a Turns,
    turn: RefCell<Option<Turn>>,
}

impl<'a> Turned<'a> {
    fn take(turns: &'a Turns) -> Self {
        Self { turns, turn: RefCell::new(Some(turns.take())) }
    }

    /// Does something that may take long, and computes nothing.
    fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        drop(self.turn.take());
        let done = work();
        self.turn.replace(Some(self.turns.take()));
        done
    }
}

impl<B: Backend + 'static> Local<B> {
    fn open(
        backend: Arc<B>,
        setup: EngineSetup,
        device: String,
        options: LocalOptions,
    ) -> Result<Self, Failure> {
        let capabilities = backend.capabilities();
        let is_unified = capabilities.unified_memory;
        let machine = Machine {
            device_bytes: setup.device_memory.or(capabilities.memory_bytes),
            host_bytes: if is_unified { None } else { longview_cpu::available_memory() },
            is_unified,
        };
        let mut local = Self {
            backend,
            setup,
            device,
            machine,
            reader: None,
            text: "".into(),
            options,
            limit: 0,
            least: LEAST_CONTEXT,
            turns: Turns::default(),
            offers: Offers::default(),
            published: None,
        };
        let folder = local.folder()?;
        local.limit = folder.config.max_position_embeddings.clamp(1, MAX_CONTEXT);
        if local.setup.serves {
            local.least = local.served_context(&folder);
        }
        drop(folder);
        local.ready()?;
        Ok(local)
    }

    /// The context for prompts of other programs: as long as memory allows, within reason.
    fn served_context(&self, folder: &ModelFolder) -> usize {
        let fits = |context: &usize| {
            let options = self.engine_options(*context);
            let plan = Engine::plan(&*self.backend, folder, &options, &self.setup.policy());
            let Machine { device_bytes, host_bytes, .. } = self.machine;
            let memory = Memory { device: device_bytes, host: host_bytes };
            plan.is_ok_and(|plan| plan.shortage(memory).is_none())
        };
        let mut contexts = SERVED_CONTEXTS.into_iter().map(|context| context.min(self.limit));
        contexts.find(fits).unwrap_or(LEAST_CONTEXT)
    }

    fn folder(&self) -> Result<ModelFolder, Failure> {
        open_folder(&self.setup.model, self.options.templates_apart)
    }

    /// Tells the host that there is a model to serve with. Without a library there is nothing to
    /// serve.
    fn publish(&mut self) {
        let (Some(host), Some(library)) = (&self.options.host, &self.options.library) else {
            return;
        };
        let Some(reader) = &self.reader else { return };
        let parts = Arc::new(server::Parts {
            share: reader.engine().share(),
            setup: self.setup.clone(),
            library: library.clone(),
            turns: self.turns.clone(),
            offers: self.offers.clone(),
        });
        let (model, is_apart) = (self.setup.model.clone(), self.options.templates_apart);
        let start = move |serve: &Serve| parts.start(serve, open_folder(&model, is_apart)?);
        self.published = Some(host.publish(Arc::new(start)));
    }

    /// Waits until no server has the model. Nobody may wait for this thread's turn then.
    fn withdraw(&mut self) {
        withdraw(self.options.host.as_ref(), &mut self.published);
        self.offers.clear();
    }

    /// Offers what was read of the document to the server: keys and values are in memory once, as
    /// long as both attend by the same policy.
    fn offer(&mut self) -> Option<()> {
        let (host, policy) = (self.options.host.as_ref()?, self.setup.policy());
        self.offers.clear();
        if !host.has_server_over(self.published?) {
            return None;
        }
        let reader = self.reader.as_mut().filter(|r| r.state().is_some_and(|s| s.complete))?;
        let id = Id::of(self.text.as_bytes());
        let _turn = self.turns.take();
        let (engine, session) = reader.session().ok()?;
        let (n_layers, context) = (engine.model().config().n_layers, engine.options().ctx_size);
        let (_, wanted) = resolve_policy(&policy, n_layers, context).ok()?;
        // Under another one it would be indexed anew, and copied for that.
        if *session.policy() != wanted {
            return None;
        }
        // Where there is no memory for it the server opens what is in the library.
        let fork = block_on(engine.fork(session)).ok()?;
        self.offers.put(id, fork);
        Some(())
    }

    fn engine_options(&self, ctx_size: usize) -> EngineOptions {
        let device_memory = self.setup.device_memory;
        EngineOptions {
            ctx_size,
            chunk_size: CHUNK,
            device_memory,
            kv_residency: KvResidency::Auto,
            ..EngineOptions::default()
        }
    }

    /// The reader, loaded again if its context is shorter than `context`. What it had read is gone
    /// then.
    fn reader_for(&mut self, context: usize) -> Result<&mut Reader<B>, Failure> {
        let reader = match self.reader.take() {
            Some(reader) if reader.engine().options().ctx_size >= context => reader,
            before => {
                // Memory that both would need is free first; a server has the weights too.
                self.withdraw();
                drop(before);
                let (backend, folder) = (Arc::clone(&self.backend), self.folder()?);
                let options = self.engine_options(context);
                let loaded = block_on(Reader::load(backend, folder, options, &mut |_, _| {}));
                self.reader = Some(loaded.map_err(refused)?);
                self.publish();
                return self.reader.as_mut().ok_or_else(no_reader);
            }
        };
        Ok(self.reader.insert(reader))
    }

    fn ready(&mut self) -> Result<&mut Reader<B>, Failure> {
        self.reader_for(self.least.min(self.limit))
    }

    /// The context for so many tokens, if the model was made for it.
    fn context(&self, tokens: usize) -> Result<usize, Failure> {
        let limit = self.limit;
        if tokens + ROOM > limit {
            return Err(too_long(&tokens.to_string(), limit));
        }
        Ok((tokens + ROOM).next_multiple_of(STEP).max(self.least).min(limit))
    }
}

impl<B: Backend + 'static> DocumentEngine for Local<B> {
    fn model(&self) -> ModelInfo {
        let config = self.reader.as_ref().map(|reader| reader.engine().model().config());
        ModelInfo {
            name: self.setup.model.name(),
            device: self.device.clone(),
            is_embedded: self.setup.model == ModelSource::Embedded,
            n_layers: config.map_or(1, |config| config.n_layers),
            n_kv_heads: config.map_or(1, |config| config.n_kv_heads),
            machine: self.machine,
        }
    }

    fn plan(&mut self, text: &str) -> Result<ReadPlan, Failure> {
        let limit = self.limit;
        if text.len() / MOST_TOKEN_BYTES > limit {
            return Err(too_long(&format!("more than {limit}"), limit));
        }
        let tokens = self.ready()?.count_tokens(text).map_err(refused)?;
        let context = self.context(tokens)?;
        let folder = self.folder()?;
        let (options, policy) = (self.engine_options(context), self.setup.policy());
        let plan = Engine::plan(&*self.backend, &folder, &options, &policy);
        let plan = plan.map_err(|error| refused(error.into()))?;
        let Machine { device_bytes, is_unified, .. } = self.machine;
        let host = if is_unified { None } else { longview_cpu::available_memory() };
        let shortage = plan.shortage(Memory { device: device_bytes, host });
        let (weights, device_rows) = (plan.weight_bytes, plan.kv.device_kv_bytes());
        let (host_rows, host_index) = (plan.kv.host_kv_bytes, plan.kv.host_index_bytes);
        let share = tokens as f64 / context as f64;
        Ok(ReadPlan {
            tokens,
            context,
            parts: Parts {
                weights,
                device_rows,
                buffers: plan.device_bytes() - weights - device_rows,
                host_rows,
                host_index,
                disk: (host_rows as f64 * share) as u64,
            },
            is_unified: plan.unified,
            short_of: shortage.map(|shortage| shortage.available),
            disk_free: self.options.library.as_ref().and_then(Documents::free_bytes),
        })
    }

    fn open(&mut self, text: &Arc<str>, file: Option<&Path>) -> Result<Option<ReadState>, Failure> {
        let opened = match (self.open_kept(text)?, file) {
            (None, Some(file)) => self.open_file(text, file).map(Some)?,
            (opened, _) => opened,
        };
        self.offer();
        Ok(opened)
    }

    fn read(
        &mut self,
        _document: DocumentId,
        text: &Arc<str>,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure> {
        let tokens = self.ready()?.count_tokens(text).map_err(refused)?;
        let context = self.context(tokens)?;
        self.text = Arc::clone(text);
        self.reader_for(context)?;
        let is_begun = self.begin_with_what_is_known(context);
        self.read_in_parts(is_begun, hear)
    }

    fn read_on(
        &mut self,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure> {
        self.read_in_parts(true, hear)
    }

    fn ask(
        &mut self,
        question: &Question,
        hear: &mut dyn FnMut(AnswerStep) -> ControlFlow<()>,
    ) -> Result<Answer, Failure> {
        let is_embedded = self.setup.model == ModelSource::Embedded;
        let policy = self.setup.policy();
        let asked = reader::Question {
            text: question.text.clone(),
            policy: match question.attention {
                Attention::Budget(tokens) => policy.with_budget(tokens),
                Attention::Full => PolicyOptions::new(Preset::Full),
            },
            max_tokens: MOST_TOKENS[usize::from(is_embedded)],
            temperature: 0.0,
            map: Some((LayerId::new(question.map.0), HeadId::new(question.map.1))),
        };
        let turns = self.turns.clone();
        let reader = self.ready()?;
        let turned = Turned::take(&turns);
        let answer = block_on(reader.ask(&asked, &mut |step| {
            let step = AnswerStep {
                text: step.text.to_owned(),
                tokens: step.tokens,
                tokens_per_s: step.tokens_per_s,
                hits: step.hits,
                misses: step.misses,
                fetched_bytes: step.fetched_bytes,
                map: step.map.clone(),
            };
            turned.aside(|| hear(step))
        }));
        answer.map_err(refused)
    }

    fn share(&mut self) {
        self.offer();
    }
}

impl<B: Backend + 'static> Local<B> {
    /// What the library has of a document.
    fn open_kept(&mut self, text: &Arc<str>) -> Result<Option<ReadState>, Failure> {
        let Some(library) = self.options.library.clone() else { return Ok(None) };
        let document = library.get(Id::of(text.as_bytes())).map_err(not_kept)?;
        let Some(document) = document.filter(|document| !document.sessions.is_empty()) else {
            return Ok(None);
        };
        // Whoever has read it has counted it.
        let words = self.setup.model.words();
        let ours = document.sessions.iter().filter(|session| session.model == words);
        let tokens = match ours.map(|session| session.n_document).max() {
            Some(counted) => counted,
            None => self.ready()?.count_tokens(text).map_err(refused)?,
        };
        let context = self.context(tokens)?;
        // Positions of some models depend on the context, and what was kept with them.
        let policy = self.setup.policy();
        let key = key_of(self.reader_for(context)?, policy.text())?;
        let Some(session) = document.session_of(&key) else { return Ok(None) };
        // Another process may have removed it.
        let Ok(source) = FileSource::open(&library.session_path(session)) else { return Ok(None) };
        let reader = self.reader_for(context)?;
        let opened = if session.is_complete() {
            block_on(reader.open_whole(&source, text, session.n_document, &policy))
        } else {
            block_on(reader.open(&source, text, &policy))
        };
        let state = opened.map_err(refused)?;
        self.text = Arc::clone(text);
        let _ = library.touch(document.id, Some(session.file));
        let (tokens, total, seconds) = (state.tokens, state.total, state.seconds);
        Ok(Some(ReadState { tokens, total, seconds, was_kept: true, not_kept: None }))
    }

    /// What a session file has of a document. It goes into the library, as if it had been read now.
    fn open_file(&mut self, text: &Arc<str>, file: &Path) -> Result<ReadState, Failure> {
        let named = |failure: Failure| {
            let message = format!("{}: {}", file.display(), failure.message);
            // That another model wrote it says nothing of this one.
            let is_of_model = failure.kind == FailureKind::Model;
            let kind = if is_of_model { FailureKind::File } else { failure.kind };
            Failure { kind, message }
        };
        let tokens = self.ready()?.count_tokens(text).map_err(refused)?;
        let context = self.context(tokens)?;
        let policy = self.setup.policy();
        let source = FileSource::open(file);
        let source = source.map_err(|error| named(failure(FailureKind::File, &error)))?;
        let reader = self.reader_for(context)?;
        let opened = block_on(reader.open(&source, text, &policy));
        let state = opened.map_err(|error| named(refused(error)))?;
        self.text = Arc::clone(text);
        let library = self.options.library.clone();
        let kept = library.as_ref().map(|library| {
            let words = self.setup.model.words();
            let shelf = Shelf { library, text, words, policy: policy.clone() };
            shelf.keep(self.ready()?, &mut None, false)
        });
        let (tokens, total, seconds) = (state.tokens, state.total, state.seconds);
        let not_kept = kept.and_then(Result::err);
        Ok(ReadState { tokens, total, seconds, was_kept: true, not_kept })
    }

    /// Begins with the session of the library that has most of the text's first tokens: of this
    /// document as far as it was read, or of a shorter one that it begins with. Whether there is
    /// one; what cannot be used is read anew.
    fn begin_with_what_is_known(&mut self, context: usize) -> bool {
        let Some(library) = self.options.library.clone() else { return false };
        let (text, policy) = (Arc::clone(&self.text), self.setup.policy());
        let Some(reader) = self.reader.as_mut() else { return false };
        let Ok(key) = key_of(reader, policy.text()) else { return false };
        let Ok(ids) = reader.document_tokens(&text) else { return false };
        let Ok(Some(near)) = library.nearest(&key, &ids, context) else { return false };
        let source = FileSource::open(&library.session_path(&near.session));
        let Ok(source) = source else { return false };
        block_on(reader.begin_with(&source, &text, &policy)).is_ok_and(|state| state.tokens > 0)
    }

    /// Reads, and keeps from time to time what was read.
    fn read_in_parts(
        &mut self,
        is_begun: bool,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure> {
        let (text, policy) = (Arc::clone(&self.text), self.setup.policy());
        if !is_begun {
            block_on(self.ready()?.begin(&text, &policy)).map_err(refused)?;
        }
        let library = self.options.library.clone();
        let shelf = library.as_ref().map(|library| Shelf {
            library,
            text: &text,
            words: self.setup.model.words(),
            policy: policy.clone(),
        });
        let mut keeper = None;
        let mut due = KeepPace::new(self.options.keep_every, Instant::now());
        let turns = self.turns.clone();
        let turned = Turned::take(&turns);
        let mut hear = |progress| turned.aside(|| hear(progress));
        let mut pace = Pace::new(&mut hear);
        let mut state = loop {
            let mut is_stopped = false;
            let mut heard = |progress: Progress| {
                let flow = pace.hear(progress);
                is_stopped = flow.is_break();
                let is_due = shelf.is_some() && due.is_due(Instant::now());
                if is_due { ControlFlow::Break(()) } else { flow }
            };
            let reader = self.ready()?;
            let state = block_on(reader.read_part(&mut heard)).map_err(refused)?;
            if is_stopped || state.complete {
                break state;
            }
            let begin = Instant::now();
            // What fails here is told at the end, where it matters.
            if turned.aside(|| {
                shelf.as_ref().is_some_and(|s| s.keep(reader, &mut keeper, true).is_err())
            }) {
                due.stop();
            }
            pace.paused += begin.elapsed();
            due.kept(begin.elapsed(), Instant::now());
        };
        let reader = self.ready()?;
        if !state.complete {
            state = block_on(reader.end_part()).map_err(refused)?;
        }
        drop(turned);
        let kept = shelf.as_ref().map(|shelf| shelf.keep(reader, &mut keeper, false));
        let (tokens, total, seconds) = (state.tokens, state.total, state.seconds);
        let not_kept = kept.and_then(Result::err);
        drop(keeper);
        self.offer();
        Ok(ReadState { tokens, total, seconds, was_kept: false, not_kept })
    }
}

impl<B: Backend> Drop for Local<B> {
    fn drop(&mut self) {
        // A server must not keep the memory that the next engine needs.
        withdraw(self.options.host.as_ref(), &mut self.published);
    }
}

fn withdraw(host: Option<&Host>, published: &mut Option<Published>) {
    if let (Some(host), Some(published)) = (host, published.take()) {
        host.withdraw(published);
    }
}

fn open_folder(model: &ModelSource, templates_apart: bool) -> Result<ModelFolder, Failure> {
    let opened = match model.path() {
        None => return embedded::open().map_err(|e| failure(FailureKind::Model, &e)),
        Some(path) if templates_apart => template::open_folder(path),
        Some(path) => ModelFolder::open(path),
    };
    opened.map_err(|error| failure(FailureKind::Model, &error))
}

fn no_reader() -> Failure {
    let message = "the model is not loaded".to_owned();
    Failure { kind: FailureKind::Other, message }
}

/// Where in the library the document stands that is being read.
struct Shelf<'a> {
    library: &'a Documents,
    text: &'a str,
    /// The model.
    words: String,
    policy: PolicyOptions,
}

impl<'a> Shelf<'a> {
    /// Keeps what was read, if the document is in the library: it may come there while it is read,
    /// and a keeper is made when it has.
    fn keep<'k, B: Backend>(
        &'k self,
        reader: &mut Reader<B>,
        keeper: &mut Option<Keeper<'k>>,
        is_part: bool,
    ) -> Result<(), Failure> {
        let id = Id::of(self.text.as_bytes());
        let n_tokens = reader.state().map_or(0, |state| state.total);
        let document = self.library.get(id).map_err(not_kept)?;
        if let Some(document) = document.filter(|_| keeper.is_none()) {
            let engine = reader.engine();
            let plan = engine.kv_plan(&self.policy).map_err(|error| refused(error.into()))?;
            let share = n_tokens as f64 / engine.options().ctx_size.max(1) as f64;
            let needed = (plan.host_kv_bytes as f64 * share) as u64;
            self.library.check_room(&document, needed).map_err(not_kept)?;
            let key = key_of(reader, self.policy.text())?;
            let building = self.library.begin(id, &key).map_err(not_kept)?;
            let text = Text { text: self.text, n_tokens, model: &self.words };
            *keeper = Some(Keeper::new(self.library, building, text));
        }
        let Some(keeper) = keeper else { return Ok(()) };
        let (engine, session) = reader.session().map_err(refused)?;
        let kept =
            if is_part { keeper.keep_part(engine, session) } else { keeper.keep(engine, session) };
        kept.map(drop).map_err(|error| Failure {
            kind: FailureKind::NotKept,
            message: refusals::keeping(&error, self.library.folder()),
        })
    }
}

/// The speed of reading without the time in which a person paused it.
struct Pace<'a> {
    hear: &'a mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    paused: Duration,
}

impl<'a> Pace<'a> {
    fn new(hear: &'a mut dyn FnMut(ReadProgress) -> ControlFlow<()>) -> Self {
        Self { hear, paused: Duration::ZERO }
    }

    fn hear(&mut self, progress: Progress) -> ControlFlow<()> {
        let elapsed = progress.elapsed.saturating_sub(self.paused);
        let progress = Progress { elapsed, ..progress };
        let begin = Instant::now();
        let flow = (self.hear)(ReadProgress {
            done: progress.done,
            total: progress.total,
            tokens_per_s: progress.tokens_per_s(),
            left_s: progress.eta().as_secs_f64(),
        });
        self.paused += begin.elapsed();
        flow
    }
}

/// What keys and values of this model depend on, and the index beside them.
fn key_of<B: Backend>(reader: &Reader<B>, policy: String) -> Result<SessionKey, Failure> {
    let engine = reader.engine();
    let reading = if engine.chat().is_some() { Reading::Chat } else { Reading::Plain };
    session_key(engine, reading, policy).map_err(|error| refused(error.into()))
}

fn not_kept(error: DocumentsError) -> Failure {
    Failure { kind: FailureKind::NotKept, message: refusals::documents(&error) }
}

fn too_long(tokens: &str, limit: usize) -> Failure {
    let message = format!(
        "the document has {tokens} tokens, and the model was made for {limit}, of which {ROOM} are \
         for a question and its answer"
    );
    Failure { kind: FailureKind::TooLong, message }
}

fn failure(kind: FailureKind, error: &dyn std::error::Error) -> Failure {
    Failure { kind, message: error.to_string() }
}

fn refused(error: ReaderError) -> Failure {
    let kind = match error.code() {
        "device-lost" => FailureKind::DeviceLost,
        "out-of-memory" => FailureKind::OutOfMemory,
        "context-too-long" => FailureKind::TooLong,
        "bad-model" | "wrong-model" => FailureKind::Model,
        "bad-input" => FailureKind::BadInput,
        _ => FailureKind::Other,
    };
    Failure { kind, message: refusals::reader(&error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_a_core_for_itself_where_there_are_two() {
        assert_eq!([1, 2, 3, 16].map(threads), [1, 1, 2, 15]);
    }
}
