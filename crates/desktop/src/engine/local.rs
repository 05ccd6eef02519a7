//! The engine inside this process: a reader on the device that this machine has.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longview_core::{FileSource, HeadId, LayerId};
use longview_engine::{Engine, EngineOptions, MAX_CONTEXT, Memory, Progress, fingerprint_digest};
use longview_library::documents::{Documents, DocumentsError, Facts, Id, Reading, SessionKey};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_reader::{self as reader, Reader, ReaderError};
use longview_scheduler::{Fingerprint, PolicyOptions, Preset};
use longview_startup::{Device, DeviceChoice, DeviceOptions, embedded, with_device};
use pollster::block_on;

use super::contract::{
    Answer, AnswerStep, Attention, DocumentEngine, DocumentId, Failure, FailureKind, ModelInfo,
    Passage, Question, ReadPlan, ReadProgress, ReadState,
};
use super::worker::OpenEngine;

/// Tokens of a question and its answer for which a context has room.
const ROOM: usize = 1024;
/// Contexts are multiples of this.
const STEP: usize = 1024;
/// The least context: a model is loaded for it before there is a document.
const LEAST_CONTEXT: usize = 4096;
/// Tokens of a document that are read at a time: a pause or a stop is heard after each chunk.
const CHUNK: usize = 256;
/// Tokens of an answer at most. The embedded model's are one sentence.
const MOST_TOKENS: [usize; 2] = [512, 48];
/// No tokenizer makes fewer tokens than one of so many bytes of a text, so that one far too long is
/// refused before it is counted.
const MOST_TOKEN_BYTES: usize = 64;

/// Where the model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// It is inside the program.
    Embedded,
    /// A Hugging Face folder or a GGUF file.
    Path(PathBuf),
}

/// An engine of `source` on the device that is chosen as the command line chooses it. What it reads
/// of documents of `library` is kept there.
pub fn opener(source: ModelSource, device: DeviceChoice, library: Option<Documents>) -> OpenEngine {
    Arc::new(move || {
        // A device that is there and cannot be used is told by `longview doctor`.
        let device = Device::open(device, &DeviceOptions::default(), &mut |_| {});
        let device = device.map_err(|error| failure(FailureKind::EngineStopped, &error))?;
        let title = device.title();
        with_device!(device, backend => {
            let (source, library) = (source.clone(), library.clone());
            Ok(Box::new(Local::open(backend, source, title, library)?) as Box<dyn DocumentEngine>)
        })
    })
}

struct Local<B: Backend> {
    backend: Arc<B>,
    source: ModelSource,
    device: String,
    /// None only while a model is loaded for a longer context.
    reader: Option<Reader<B>>,
    text: Arc<str>,
    library: Option<Documents>,
    /// Tokens that the model was made for.
    limit: usize,
}

impl ModelSource {
    fn open(&self) -> Result<ModelFolder, Failure> {
        match self {
            Self::Embedded => embedded::open().map_err(|e| failure(FailureKind::Model, &e)),
            Self::Path(path) => {
                ModelFolder::open(path).map_err(|e| failure(FailureKind::Model, &e))
            }
        }
    }

    /// The model in words that open it again from any folder.
    fn words(&self) -> String {
        match self {
            Self::Embedded => self.name(),
            Self::Path(path) => {
                std::path::absolute(path).as_deref().unwrap_or(path).display().to_string()
            }
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Embedded => "needle".to_owned(),
            Self::Path(path) => {
                path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
        }
    }
}

impl<B: Backend> Local<B> {
    fn open(
        backend: Arc<B>,
        source: ModelSource,
        device: String,
        library: Option<Documents>,
    ) -> Result<Self, Failure> {
        let limit = source.open()?.config.max_position_embeddings.clamp(1, MAX_CONTEXT);
        let (reader, text) = (None, "".into());
        let mut local = Self { backend, source, device, reader, text, library, limit };
        local.ready()?;
        Ok(local)
    }

    /// The reader, loaded again if its context is shorter than `context`. What it had read is gone
    /// then.
    fn reader_for(&mut self, context: usize) -> Result<&mut Reader<B>, Failure> {
        let reader = match self.reader.take() {
            Some(reader) if reader.engine().options().ctx_size >= context => reader,
            before => {
                // Memory that both would need is free first.
                drop(before);
                let (backend, folder) = (Arc::clone(&self.backend), self.source.open()?);
                block_on(Reader::load(backend, folder, options(context), &mut |_, _| {}))
                    .map_err(refused)?
            }
        };
        Ok(self.reader.insert(reader))
    }

    fn ready(&mut self) -> Result<&mut Reader<B>, Failure> {
        self.reader_for(LEAST_CONTEXT.min(self.limit))
    }

    /// The context for so many tokens, if the model was made for it.
    fn context(&self, tokens: usize) -> Result<usize, Failure> {
        let limit = self.limit;
        if tokens + ROOM > limit {
            return Err(too_long(&tokens.to_string(), limit));
        }
        Ok((tokens + ROOM).next_multiple_of(STEP).max(LEAST_CONTEXT).min(limit))
    }

    /// What was read, kept in the library if the document is there.
    fn keep(&mut self, state: &reader::ReadState) -> ReadState {
        let kept = self.library.clone().map(|library| self.keep_in(&library, state.total));
        let (tokens, total, seconds) = (state.tokens, state.total, state.seconds);
        let not_kept = kept.and_then(Result::err);
        ReadState { tokens, total, seconds, was_kept: false, not_kept }
    }

    fn keep_in(&mut self, library: &Documents, n_document: usize) -> Result<(), Failure> {
        let id = Id::of(self.text.as_bytes());
        if library.get(id).map_err(|error| not_kept(&error))?.is_none() {
            return Ok(());
        }
        let (model, text) = (self.source.words(), Arc::clone(&self.text));
        let reader = self.ready()?;
        let key = session_key(reader)?;
        let building = library.begin(id, &key).map_err(|error| not_kept(&error))?;
        let mut writer = building.writer().map_err(|error| not_kept(&error))?;
        // The command line asks about such a session by the text in its note.
        let note = serde_json::json!({ "document": &*text }).to_string();
        if let Err(error) = block_on(reader.save(note.as_bytes(), &mut writer)) {
            let space = writer.space_error();
            return Err(space.map_or_else(|| refused(error), |space| not_kept(&space)));
        }
        let about = fingerprint(reader)?.config.about.clone();
        let facts = Facts {
            tokens: reader.tokens(),
            n_document,
            context: reader.engine().options().ctx_size,
            model: &model,
            about: &about,
            preset: Preset::DEFAULT.info().name,
        };
        building.commit(writer, &facts).map(|_| ()).map_err(|error| not_kept(&error))
    }
}

impl<B: Backend> DocumentEngine for Local<B> {
    fn model(&self) -> ModelInfo {
        let config = self.reader.as_ref().map(|reader| reader.engine().model().config());
        ModelInfo {
            name: self.source.name(),
            device: self.device.clone(),
            is_embedded: self.source == ModelSource::Embedded,
            n_layers: config.map_or(1, |config| config.n_layers),
            n_kv_heads: config.map_or(1, |config| config.n_kv_heads),
        }
    }

    fn plan(&mut self, text: &str) -> Result<ReadPlan, Failure> {
        let limit = self.limit;
        if text.len() / MOST_TOKEN_BYTES > limit {
            return Err(too_long(&format!("more than {limit}"), limit));
        }
        let tokens = self.ready()?.count_tokens(text).map_err(refused)?;
        let context = self.context(tokens)?;
        let folder = self.source.open()?;
        let plan = Engine::plan(&*self.backend, &folder, &options(context), &policy());
        let plan = plan.map_err(|error| refused(error.into()))?;
        let capabilities = self.backend.capabilities();
        let host =
            if capabilities.unified_memory { None } else { longview_cpu::available_memory() };
        let memory = Memory { device: capabilities.memory_bytes, host };
        Ok(ReadPlan {
            tokens,
            context,
            host_bytes: plan.host_bytes(),
            device_bytes: plan.device_bytes(),
            is_unified: plan.unified,
            short_of: plan.shortage(memory).map(|shortage| shortage.available),
        })
    }

    fn open(&mut self, text: &Arc<str>) -> Result<Option<ReadState>, Failure> {
        let Some(library) = self.library.clone() else { return Ok(None) };
        let document = library.get(Id::of(text.as_bytes())).map_err(|error| not_kept(&error))?;
        let Some(document) = document.filter(|document| !document.sessions.is_empty()) else {
            return Ok(None);
        };
        let tokens = self.ready()?.count_tokens(text).map_err(refused)?;
        let context = self.context(tokens)?;
        // Positions of some models depend on the context, and what was kept with them.
        let key = session_key(self.reader_for(context)?)?;
        let policy_text = Some(&*key.policy);
        let found = document.session_of(key.fingerprint, policy_text);
        let Some(session) = found.filter(|session| session.key.has_rows_of(&key)) else {
            return Ok(None);
        };
        // Another process may have removed it.
        let Ok(source) = FileSource::open(&library.session_path(session)) else { return Ok(None) };
        let reader = self.reader_for(context)?;
        let state = block_on(reader.open(&source, text, &policy())).map_err(refused)?;
        self.text = Arc::clone(text);
        let _ = library.touch(document.id, Some(session.file));
        let (tokens, total, seconds) = (state.tokens, state.total, state.seconds);
        Ok(Some(ReadState { tokens, total, seconds, was_kept: true, not_kept: None }))
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
        let reader = self.reader_for(context)?;
        let mut pace = Pace::new(hear);
        let state = block_on(reader.read(text, &policy(), &mut |p| pace.hear(p)));
        Ok(self.keep(&state.map_err(refused)?))
    }

    fn read_on(
        &mut self,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure> {
        let reader = self.ready()?;
        let mut pace = Pace::new(hear);
        let state = block_on(reader.read_on(&mut |p| pace.hear(p)));
        Ok(self.keep(&state.map_err(refused)?))
    }

    fn ask(
        &mut self,
        question: &Question,
        hear: &mut dyn FnMut(AnswerStep) -> ControlFlow<()>,
    ) -> Result<Answer, Failure> {
        let is_embedded = self.source == ModelSource::Embedded;
        let asked = reader::Question {
            text: question.text.clone(),
            policy: match question.attention {
                Attention::Budget(tokens) => policy().with_budget(tokens),
                Attention::Full => PolicyOptions::new(Preset::Full),
            },
            max_tokens: MOST_TOKENS[usize::from(is_embedded)],
            temperature: 0.0,
            map: Some((LayerId::new(question.map.0), HeadId::new(question.map.1))),
        };
        let text = Arc::clone(&self.text);
        let reader = self.ready()?;
        let answer = block_on(reader.ask(&asked, &mut |step| {
            hear(AnswerStep {
                text: step.text.to_owned(),
                tokens: step.tokens,
                tokens_per_s: step.tokens_per_s,
                map: step.map.clone(),
            })
        }));
        let answer = answer.map_err(refused)?;
        Ok(Answer {
            passages: passages(&text, &answer.passages),
            text: answer.text,
            tokens: answer.tokens,
            tokens_per_s: answer.tokens_per_s,
            attended: answer.attended,
            context: answer.context,
            hit_rate: answer.hit_rate,
            device_bytes: answer.device_bytes,
            host_bytes: answer.host_bytes,
            finish: answer.finish,
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

fn options(ctx_size: usize) -> EngineOptions {
    EngineOptions { ctx_size, chunk_size: CHUNK, ..EngineOptions::default() }
}

fn policy() -> PolicyOptions {
    PolicyOptions::new(Preset::DEFAULT)
}

/// What keys and values of this model depend on, and the index beside them.
fn session_key<B: Backend>(reader: &Reader<B>) -> Result<SessionKey, Failure> {
    let engine = reader.engine();
    Ok(SessionKey {
        fingerprint: fingerprint_digest(fingerprint(reader)?).into(),
        kv_type: engine.options().kv_dtype.to_string(),
        reading: if engine.chat().is_some() { Reading::Chat } else { Reading::Plain },
        policy: policy().text(),
    })
}

fn fingerprint<B: Backend>(reader: &Reader<B>) -> Result<&Fingerprint, Failure> {
    reader.engine().fingerprint().map_err(|error| refused(error.into()))
}

fn not_kept(error: &DocumentsError) -> Failure {
    failure(FailureKind::NotKept, error)
}

/// Passages by their bytes: the reader counts in UTF-16, as the page does.
fn passages(text: &str, found: &[reader::Passage]) -> Vec<Passage> {
    let mut wanted: Vec<usize> = found.iter().flat_map(|p| [p.start, p.end]).collect();
    wanted.sort_unstable();
    let mut bytes = Vec::with_capacity(wanted.len());
    let mut units = 0;
    for (at, c) in text.char_indices() {
        while wanted.get(bytes.len()).is_some_and(|unit| *unit <= units) {
            bytes.push(at);
        }
        units += c.len_utf16();
    }
    bytes.resize(wanted.len(), text.len());
    let byte = |unit: usize| bytes[wanted.partition_point(|w| *w < unit)];
    let place = |p: &reader::Passage| -> Range<usize> { byte(p.start)..byte(p.end) };
    found.iter().map(|p| Passage { place: place(p), weight: p.weight }).collect()
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
    failure(kind, &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_found_behind_characters_of_any_width() {
        let text = "é😀. The key is 42. 終";
        let units = |part: &str| text[..text.find(part).unwrap()].encode_utf16().count();
        let start = units("The");
        let found = [
            reader::Passage { start, end: units(" 終"), weight: 0.5 },
            reader::Passage { start: units("終"), end: units("終") + 1, weight: 0.1 },
        ];
        let shown: Vec<&str> = passages(text, &found).into_iter().map(|p| &text[p.place]).collect();
        assert_eq!(shown, ["The key is 42.", "終"]);
    }
}
