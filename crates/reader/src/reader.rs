//! A model that has read a document and answers questions about it.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use longview_core::{HeadId, LayerId, RangeSource};
use longview_engine::{
    Engine, EngineError, EngineOptions, KvResidency, Progress, Sampler, SamplingParams, Session,
    SessionStep,
};
use longview_model::document::common_prefix;
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::TokenStream;
use longview_ops::Backend;
use longview_scheduler::{AttentionBound, PolicyOptions, SAMPLED_CONFIDENCE, SpanMode, Stats};
use serde::{Deserialize, Serialize};

use crate::attention::Attention;
use crate::error::ReaderError;
use crate::map::ContextMap;
use crate::passages::{Passage, TextPieces};
use crate::prompt;

/// Steps for which recalled rows stay on the device, at most, where a limit is given.
const MOST_CACHE_STEPS: usize = 16;

/// How much of a document was read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadState {
    /// Tokens read.
    pub tokens: usize,
    /// Tokens of the document.
    pub total: usize,
    /// Whether all are.
    pub complete: bool,
    /// Time of reading so far, or of opening.
    pub seconds: f64,
}

/// A question and how to answer it.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is asked.
    pub text: String,
    /// What a step attends.
    pub policy: PolicyOptions,
    /// Tokens of the answer at most.
    pub max_tokens: usize,
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// The layer and KV head to draw a map of.
    pub map: Option<(LayerId, HeadId)>,
}

/// What a step says. Tokens of the question are steps too, without text.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Text that became complete.
    pub text: &'a str,
    /// Tokens of the answer so far.
    pub tokens: usize,
    /// Steps a second so far, the question's included.
    pub tokens_per_s: f64,
    /// Rows recalled in this step that were on the device, over all layers and heads.
    pub hits: u64,
    /// Rows that were fetched.
    pub misses: u64,
    /// Bytes of the rows that were fetched.
    pub fetched_bytes: u64,
    /// Where the context's tokens stood, if it was asked for.
    pub map: Option<ContextMap>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model said so.
    End,
    /// All tokens that were asked for, or all that fit.
    Length,
    /// The caller said so.
    Stopped,
}

/// How much of the attention the steps of an answer left out at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// The bound that half of all choices do not exceed, as a share of the attention.
    pub median: f64,
    /// The bound that 99 of 100 choices do not exceed.
    pub most: f64,
    /// With which confidence each bound holds; 1 where it is certain.
    pub confidence: f64,
}

impl LeftOut {
    /// What the bounds say that a session's steps counted; `None` where its policy asks for none,
    /// or no step was counted.
    pub fn of<B: Backend>(session: &Session<B>) -> Option<Self> {
        let confidence = match session.policy().attention_bound {
            AttentionBound::Off => return None,
            AttentionBound::WorstCase => 1.0,
            AttentionBound::Sampled => SAMPLED_CONFIDENCE,
        };
        let bounds = &session.stats().bounds;
        Some(Self { median: bounds.median()?, most: bounds.of_most()?, confidence })
    }

    /// What holds of the choices of both.
    pub fn with(self, other: Self) -> Self {
        Self {
            median: self.median.max(other.median),
            most: self.most.max(other.most),
            confidence: self.confidence.min(other.confidence),
        }
    }
}

/// What a question gave: its text, and what the answer took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// What the model said.
    pub text: String,
    /// New tokens, without the question's.
    pub tokens: usize,
    /// Time from the question on.
    pub seconds: f64,
    /// Steps a second, the question's included.
    pub tokens_per_s: f64,
    /// Tokens that a KV head of a layer attended in a step, on average.
    pub attended: Option<f64>,
    /// Tokens of document, question and answer together.
    pub context: usize,
    /// Share of recalled rows that were on the device; none if nothing was recalled.
    pub hit_rate: Option<f64>,
    /// Bytes of rows that were fetched for it.
    pub fetched_bytes: u64,
    /// How much was left out at most, where the policy asks for bounds.
    pub left_out: Option<LeftOut>,
    /// Keys, values and index on the device.
    pub device_bytes: u64,
    /// Keys and values in host memory.
    pub host_bytes: u64,
    /// Why it ended.
    pub finish: Finish,
    /// What it attended to most, most first.
    pub passages: Vec<Passage>,
}

/// Where keys and values are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// Keys, values and index on the device.
    pub device_bytes: u64,
    /// Keys and values in host memory.
    pub host_bytes: u64,
}

/// A document and what the session holds of it.
struct Document<B: Backend> {
    text: String,
    ids: Vec<u32>,
    /// Where its passages are, once somebody asked.
    pieces: Option<TextPieces>,
    session: Session<B>,
    policy: PolicyOptions,
    /// Where the rows were put when it got this policy.
    kv_residency: KvResidency,
    /// Time of the calls that read it.
    reading: Duration,
}

/// A model, and the document that it has read.
pub struct Reader<B: Backend> {
    engine: Engine<B>,
    document: Option<Document<B>>,
    /// Bytes of keys, values and index that may be on the device.
    limit: Option<u64>,
    /// Whether all rows are to lie on the device where the limit allows it.
    prefers_device: bool,
}

/// What the steps of an answer are counted from.
#[derive(Default)]
struct Count {
    begin: Duration,
    steps: usize,
    hits: u64,
    misses: u64,
    fetched_bytes: u64,
}

impl<B: Backend> Reader<B> {
    /// Loads a model; `progress` hears the bytes of weights that are done and all of them.
    ///
    /// # Errors
    /// What is wrong with the model's files, the options or the device.
    pub async fn load(
        backend: Arc<B>,
        folder: ModelFolder,
        options: EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ReaderError> {
        folder.tokenizer()?;
        let policy = PolicyOptions::new(longview_scheduler::Preset::DEFAULT);
        let engine = Engine::load_with(backend, folder, options, &policy, progress)?;
        let prefers_device = engine.options().kv_residency == KvResidency::Device;
        let mut reader = Self { engine, document: None, limit: None, prefers_device };
        reader.wait().await?;
        Ok(reader)
    }

    /// Waits for the device, which tells what went wrong with what it was given.
    async fn wait(&mut self) -> Result<(), ReaderError> {
        let backend = self.engine.backend();
        let word = backend.alloc(longview_core::DType::U32, 1, "a word to wait for");
        let word = word.map_err(EngineError::from)?;
        let read = backend.read(longview_ops::View::all(&word), &mut [0; 4]).await;
        Ok(read.map_err(EngineError::from)?)
    }

    /// The engine that reads and answers.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// Allows keys, values and index that many bytes on the device, or any number. Policies that
    /// recall then have all rows there, if the model was loaded so and there is room, or else keep
    /// what was recalled there for as many steps as there is room for.
    pub fn limit_device_bytes(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Tokens of a text by itself.
    pub fn count_tokens(&self, text: &str) -> Result<usize, ReaderError> {
        let specials = longview_model::tokenizer::Specials::AsWritten;
        Ok(prompt::tokenizer(&self.engine)?.encode(text, specials)?.len())
    }

    /// The tokens that were read of the document.
    pub fn tokens(&self) -> &[u32] {
        self.document.as_ref().map_or(&[], |document| document.session.tokens())
    }

    /// The document's text; empty if there is none.
    pub fn text(&self) -> &str {
        self.document.as_ref().map_or("", |document| &document.text)
    }

    /// Where keys and values are.
    pub fn memory(&self) -> Memory {
        self.document.as_ref().map_or_else(Memory::default, Document::memory)
    }

    /// Reads a document in place of the one before. `progress` may break off: what was read is
    /// kept, and can be asked about.
    pub async fn read(
        &mut self,
        text: &str,
        policy: &PolicyOptions,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<ReadState, ReaderError> {
        self.begin(text, policy).await?;
        self.read_on(progress).await
    }

    /// Takes a document in place of the one before. Nothing of it is read yet.
    pub async fn begin(&mut self, text: &str, policy: &PolicyOptions) -> Result<(), ReaderError> {
        if text.trim().is_empty() {
            return Err(ReaderError::EmptyDocument);
        }
        let ids = prompt::document_ids(&self.engine, text)?;
        let (tokens, context) = (ids.len(), self.engine.options().ctx_size);
        if tokens >= context {
            return Err(ReaderError::DocumentTooLong { tokens, context });
        }
        let fitted = self.fitted(policy)?;
        self.document = None;
        self.engine.revive().await?;
        let session = self.engine.session(&fitted)?;
        let kv_residency = self.engine.options().kv_residency;
        self.document = Some(Document::new(text, ids, session, (fitted, kv_residency)));
        Ok(())
    }

    /// Reads what is left of the document. `progress` may break off: what was read is kept, and can
    /// be asked about.
    pub async fn read_on(
        &mut self,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<ReadState, ReaderError> {
        let state = self.read_part(progress).await?;
        if state.complete { Ok(state) } else { self.end_part().await }
    }

    /// Reads what is left of the document, but after a break it is not yet ready to be asked about:
    /// what was read may be kept ([`Engine::save_unfinished`]), then either this call goes on as if
    /// it had not been broken off, or [`Reader::end_part`] ends it there.
    pub async fn read_part(
        &mut self,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<ReadState, ReaderError> {
        let Self { engine, document, .. } = self;
        let document = document.as_mut().ok_or(ReaderError::NoDocument)?;
        let begin = engine.backend().now();
        let (done, total) = (document.session.tokens().len(), document.ids.len());
        let mut heard =
            |p: Progress| progress(Progress { done: done + p.done, total, before: done, ..p });
        let result = if done < total {
            let rest = &document.ids[done..];
            engine.prefill_part(&mut document.session, rest, &mut heard).await.map(|_| ())
        } else {
            // The device may have been lost when all was read and not yet indexed.
            engine.settle(&mut document.session).await
        };
        document.reading += engine.backend().now().saturating_sub(begin);
        result?;
        Ok(document.state())
    }

    /// Ends reading where [`Reader::read_part`] was broken off: what was read can be asked about.
    pub async fn end_part(&mut self) -> Result<ReadState, ReaderError> {
        let Self { engine, document, .. } = self;
        let document = document.as_mut().ok_or(ReaderError::NoDocument)?;
        let begin = engine.backend().now();
        let ended = engine.finish_prefill(&mut document.session).await;
        document.reading += engine.backend().now().saturating_sub(begin);
        ended?;
        Ok(document.state())
    }

    /// How much of the document was read; none if there is no document.
    pub fn state(&self) -> Option<ReadState> {
        self.document.as_ref().map(Document::state)
    }

    /// The engine and the document's session, for whoever keeps what was read.
    ///
    /// # Errors
    /// If there is no document.
    pub fn session(&mut self) -> Result<(&mut Engine<B>, &mut Session<B>), ReaderError> {
        let document = self.document.as_mut().ok_or(ReaderError::NoDocument)?;
        Ok((&mut self.engine, &mut document.session))
    }

    /// Writes what was read of the document, in order and in pieces, so that [`Reader::open`] goes
    /// on from there. `note` is JSON for whoever else opens the file.
    ///
    /// # Errors
    /// If there is no document, or `out` refuses: what it took is then of no use.
    pub async fn save(&mut self, note: &[u8], out: &mut dyn Write) -> Result<(), ReaderError> {
        let Self { engine, document, .. } = self;
        let document = document.as_mut().ok_or(ReaderError::NoDocument)?;
        Ok(engine.save(&mut document.session, note, out).await?)
    }

    /// Opens what [`Reader::save`] wrote, or the command line, of the same text: without prefill,
    /// and under the policy that it was saved under without clustering.
    ///
    /// # Errors
    /// If the file is not whole, or was made with another model or of another text. The document
    /// before is kept then.
    pub async fn open(
        &mut self,
        source: &dyn RangeSource,
        text: &str,
        policy: &PolicyOptions,
    ) -> Result<ReadState, ReaderError> {
        self.go_on_from(source, text, policy, None, is_of_it).await
    }

    /// As [`Reader::open`], where whoever kept the session says that it holds all `total` tokens of
    /// this very text: they are not made again, which for a long text takes longer than to open it.
    /// A session of another length is opened as there. Should it be of another text after all, a
    /// question finds that and goes on from what both have in common.
    ///
    /// # Errors
    /// As there.
    pub async fn open_whole(
        &mut self,
        source: &dyn RangeSource,
        text: &str,
        total: usize,
        policy: &PolicyOptions,
    ) -> Result<ReadState, ReaderError> {
        self.go_on_from(source, text, policy, Some(total), is_of_it).await
    }

    /// Begins to read `text` with what a saved session has of its first tokens, be it of this text
    /// or of another one that begins likewise; [`Reader::read_on`] reads the rest.
    ///
    /// # Errors
    /// If the file is not whole, or was made with another model. The document before is kept then.
    pub async fn begin_with(
        &mut self,
        source: &dyn RangeSource,
        text: &str,
        policy: &PolicyOptions,
    ) -> Result<ReadState, ReaderError> {
        let context = self.engine.options().ctx_size;
        let fits = |_, _, total: usize| {
            if total >= context {
                return Err(ReaderError::DocumentTooLong { tokens: total, context });
            }
            Ok(())
        };
        self.go_on_from(source, text, policy, None, fits).await
    }

    /// A document of which a saved session has the first tokens: all of them, if it has so many as
    /// `whole`. `check` gets how many of them are its own, how many the session has, and how many
    /// there are.
    async fn go_on_from(
        &mut self,
        source: &dyn RangeSource,
        text: &str,
        policy: &PolicyOptions,
        whole: Option<usize>,
        check: impl FnOnce(usize, usize, usize) -> Result<(), ReaderError>,
    ) -> Result<ReadState, ReaderError> {
        let begin = self.engine.backend().now();
        let fitted = self.fitted(policy)?;
        let mut session = self.engine.restore(source, Some(&fitted)).await?.session;
        let ids = if whole == Some(session.tokens().len()) {
            session.tokens().to_vec()
        } else {
            prompt::document_ids(&self.engine, text)?
        };
        let (tokens, total) = (common_prefix(session.tokens(), &ids), ids.len());
        check(tokens, session.tokens().len(), total)?;
        if session.n_tokens() > tokens {
            session.truncate(tokens).await?;
        }
        let kv_residency = self.engine.options().kv_residency;
        self.document = Some(Document::new(text, ids, session, (fitted, kv_residency)));
        let seconds = self.engine.backend().now().saturating_sub(begin).as_secs_f64();
        Ok(ReadState { tokens, total, complete: tokens == total, seconds })
    }

    /// The tokens of a text as a document: those that [`Reader::read`] would read.
    pub fn document_tokens(&self, text: &str) -> Result<Vec<u32>, ReaderError> {
        prompt::document_ids(&self.engine, text)
    }

    /// Answers a question from what was read of the document: the question goes in through the
    /// policy, token by token, the answer is decoded, and both are taken back. `step` hears every
    /// token and may end the answer.
    ///
    /// # Errors
    /// After a lost device the document is kept: the next call opens the device again.
    pub async fn ask(
        &mut self,
        question: &Question,
        step: &mut dyn FnMut(&Step<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, ReaderError> {
        let text = question.text.trim();
        let fitted = self.fitted(&question.policy)?;
        let Self { engine, document, .. } = self;
        let document = document.as_mut().ok_or(ReaderError::NoDocument)?;
        let ids = document.question_ids(engine, text).await?;
        let n_read = document.session.tokens().len();
        let context = engine.options().ctx_size;
        if n_read + ids.len() >= context {
            let (prompt, used) = (ids.len(), n_read);
            return Err(EngineError::PromptTooLong { prompt, used, context }.into());
        }
        let n_heads = engine.model().config().n_kv_heads;
        let n_layers = engine.model().config().n_layers;
        if let Some((layer, head)) = question.map
            && (layer.index() >= n_layers || head.index() >= n_heads)
        {
            return Err(ReaderError::NoSuchHead { layer, head, n_layers, n_kv_heads: n_heads });
        }
        let kv_residency = engine.options().kv_residency;
        if document.policy != fitted || document.kv_residency != kv_residency {
            engine.set_policy(&mut document.session, &fitted).await?;
            (document.policy, document.kv_residency) = (fitted, kv_residency);
        }
        document.session.look_at(question.map);
        let answer = document.answer(engine, question, &ids, step).await;
        document.session.trace(false);
        document.session.look_at(None);
        // What fails here fails again when it matters, with the device open again.
        let back = document.session.truncate(n_read).await;
        let answer = answer?;
        back?;
        Ok(answer)
    }

    /// The policy with as much on the device as the limit allows: all rows, where the reader
    /// prefers that, or as long a cache. Rows of sessions that are made next lie there.
    fn fitted(&mut self, policy: &PolicyOptions) -> Result<PolicyOptions, ReaderError> {
        if self.prefers_device {
            self.engine.set_kv_residency(KvResidency::Device);
        }
        let Some(limit) = self.limit else { return Ok(policy.clone()) };
        if self.prefers_device {
            if self.engine.kv_plan(policy)?.device_kv_bytes() <= limit {
                return Ok(policy.clone());
            }
            self.engine.set_kv_residency(KvResidency::Host);
        }
        let mut fitted = policy.clone();
        let may_vary = fitted.preset.info().options.contains(&"cache-steps");
        let steps = match fitted.cache_steps {
            None if may_vary => (1..=MOST_CACHE_STEPS).rev().map(Some).collect(),
            given => vec![given],
        };
        let mut needed = 0;
        for steps in steps {
            fitted.cache_steps = steps;
            needed = self.engine.kv_plan(&fitted)?.device_kv_bytes();
            if needed <= limit {
                return Ok(fitted);
            }
        }
        let policy = policy.preset.info().name.to_owned();
        Err(ReaderError::CacheTooSmall { policy, needed, limit })
    }
}

/// Whether a session that has `saved` tokens, of which `common` begin a document of `total`, is of
/// that document.
fn is_of_it(common: usize, saved: usize, total: usize) -> Result<(), ReaderError> {
    if common < total && common < saved {
        return Err(ReaderError::OtherDocument);
    }
    Ok(())
}

impl<B: Backend> Document<B> {
    fn new(
        text: &str,
        ids: Vec<u32>,
        session: Session<B>,
        (policy, kv_residency): (PolicyOptions, KvResidency),
    ) -> Self {
        let (text, reading) = (text.to_owned(), Duration::ZERO);
        Self { text, ids, pieces: None, session, policy, kv_residency, reading }
    }

    fn state(&self) -> ReadState {
        let (tokens, total) = (self.session.tokens().len(), self.ids.len());
        let seconds = self.reading.as_secs_f64();
        ReadState { tokens, total, complete: tokens == total, seconds }
    }

    fn memory(&self) -> Memory {
        let sequence = self.session.sequence();
        Memory { device_bytes: sequence.device_kv_bytes(), host_bytes: sequence.host_kv_bytes() }
    }

    /// The tokens that follow those of the document. Where a question changes how the document's
    /// end is divided into tokens, the session is cut back to what stays.
    async fn question_ids(
        &mut self,
        engine: &Engine<B>,
        question: &str,
    ) -> Result<Vec<u32>, ReaderError> {
        let all = prompt::with_question(engine, &self.text, question)?;
        let common = common_prefix(&all, &self.ids);
        if common < self.ids.len() {
            self.ids.truncate(common);
            if self.session.tokens().len() > common {
                self.session.truncate(common).await?;
            }
        }
        Ok(all[common..].to_vec())
    }

    async fn answer(
        &mut self,
        engine: &mut Engine<B>,
        question: &Question,
        ids: &[u32],
        on_step: &mut dyn FnMut(&Step<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, ReaderError> {
        let params = SamplingParams { temperature: question.temperature, ..Default::default() };
        let mut sampler = Sampler::new(params, engine.model().config().vocab_size)?;
        self.session.reset_stats();
        let mut count = Count { begin: engine.backend().now(), ..Count::default() };
        let mut attention = Attention::new(self.ids.len());
        let mut stream = TokenStream::new(true);
        let (mut text, mut n, mut finish) = (String::new(), 0, None);
        for (i, id) in ids.iter().enumerate() {
            // The last token of a question is the first that looks for the answer.
            self.session.trace(i + 1 == ids.len());
            self.step(engine, &sampler, *id).await?;
            attention.look(&self.session);
            let step = count.step(engine, &self.session, "", 0);
            if on_step(&step).is_break() {
                finish = Some(Finish::Stopped);
                break;
            }
        }
        while finish.is_none() {
            if n >= question.max_tokens || self.session.n_tokens() >= engine.options().ctx_size {
                finish = Some(Finish::Length);
                break;
            }
            let id = sampler.next_token(&self.session)?;
            if engine.eos_ids().contains(&id) {
                finish = Some(Finish::End);
                break;
            }
            n += 1;
            let piece = stream.push(prompt::tokenizer(engine)?, id)?;
            text += &piece;
            self.session.trace(attention.is_due());
            self.step(engine, &sampler, id).await?;
            attention.look(&self.session);
            if on_step(&count.step(engine, &self.session, &piece, n)).is_break() {
                finish = Some(Finish::Stopped);
            }
        }
        let rest = stream.finish(prompt::tokenizer(engine)?)?;
        if !rest.is_empty() {
            text += &rest;
            // The answer has ended: to stop it changes nothing.
            let _ = on_step(&count.step(engine, &self.session, &rest, n));
        }
        let seconds = engine.backend().now().saturating_sub(count.begin).as_secs_f64();
        let Memory { device_bytes, host_bytes } = self.memory();
        Ok(Answer {
            text,
            tokens: n,
            seconds,
            tokens_per_s: count.steps as f64 / seconds.max(1e-9),
            attended: self.session.stats().mean_attended(),
            context: self.session.n_tokens(),
            hit_rate: self.session.stats().hit_rate(),
            fetched_bytes: self.session.stats().fetched_bytes,
            left_out: LeftOut::of(&self.session),
            device_bytes,
            host_bytes,
            finish: finish.unwrap_or(Finish::Length),
            passages: self.passages(engine, &attention)?,
        })
    }

    async fn step(
        &mut self,
        engine: &mut Engine<B>,
        sampler: &Sampler,
        id: u32,
    ) -> Result<(), EngineError> {
        let ids = [id];
        let step = SessionStep::new(&mut self.session, &ids, SpanMode::Policy);
        engine.step(&mut [step.for_sampler(sampler)]).await
    }

    fn passages(
        &mut self,
        engine: &Engine<B>,
        attention: &Attention,
    ) -> Result<Vec<Passage>, ReaderError> {
        let pieces = match self.pieces.take() {
            Some(pieces) => pieces,
            None => {
                let places = prompt::places(engine, &self.text, self.ids.len())?;
                TextPieces::new(&self.text, &places)
            }
        };
        Ok(self.pieces.insert(pieces).passages(attention.mass()))
    }
}

impl Count {
    /// What to say of the step that has just ended.
    fn step<'a, B: Backend>(
        &mut self,
        engine: &Engine<B>,
        session: &Session<B>,
        text: &'a str,
        tokens: usize,
    ) -> Step<'a> {
        let Stats { steps, hits, misses, fetched_bytes, .. } = session.stats();
        let seconds = engine.backend().now().saturating_sub(self.begin).as_secs_f64();
        self.steps = *steps as usize;
        let mut places = Vec::new();
        session.sequence().token_places(&mut places);
        let step = Step {
            text,
            tokens,
            tokens_per_s: self.steps as f64 / seconds.max(1e-9),
            hits: hits - self.hits,
            misses: misses - self.misses,
            fetched_bytes: fetched_bytes - self.fetched_bytes,
            map: (!places.is_empty()).then(|| ContextMap::of(&places)),
        };
        (self.hits, self.misses, self.fetched_bytes) = (*hits, *misses, *fetched_bytes);
        step
    }
}
