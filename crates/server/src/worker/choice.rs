//! One answer while it is generated: a token is chosen, its text is sent, then it is computed.

use std::collections::BTreeMap;

use longview_engine::{
    CancelToken, Draft, Engine, EngineError, FinishReason, MAX_DRAFTED, Pace, Sampler,
    SamplingParams, Session, StopFilter,
};
use longview_model::tokenizer::{TokenStream, Tokenizer};
use longview_ops::Backend;
use longview_reader::{Attention, ContextMap};

use crate::asked::How;
use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::job::{Event, TokenProb};
use crate::look::{Seen, StepLook};
use crate::texts::ModelFacts;

/// An answer in the making.
pub(super) struct Choice<B: Backend> {
    pub(super) session: Session<B>,
    pub(super) index: usize,
    /// The token to compute next.
    pub(super) pending: u32,
    pub(super) n_generated: usize,
    /// Steps that computed a draft.
    pub(super) n_drafts: usize,
    pub(super) is_done: bool,
    pub(super) sampler: Sampler,
    /// Whether the choice of a token needs all logits.
    pub(super) needs_logits: bool,
    /// How much is drafted; nothing where the request wants none, and where steps are looked at,
    /// each of which is of one token then.
    pace: Option<Pace>,
    stream: TokenStream,
    filter: StopFilter,
    /// What the answer must be, as far as it came.
    constraint: Option<Constraint>,
    /// How often each token was generated.
    counts: BTreeMap<u32, u32>,
    /// Logits with penalties and biases.
    changed: Vec<f32>,
    /// Of tokens whose text is not out yet.
    probs: Vec<TokenProb>,
    /// Tokens that are not out yet, where they are wanted: they wait for no text.
    tokens: Vec<u32>,
    /// What the answer's tokens attended, where passages are wanted.
    attention: Option<Attention>,
    /// Hits and misses before the last step.
    counted: (u64, u64),
}

impl<B: Backend> Choice<B> {
    /// The answer `index` to what `session` has read.
    pub(super) fn new(
        mut session: Session<B>,
        index: usize,
        how: &How,
        model: &ModelFacts,
    ) -> Result<Self, EngineError> {
        // Each answer draws from a seed of its own.
        let seed = how.sampling.seed.wrapping_add(index as u64);
        session.cancel_with(CancelToken::default());
        let look = how.look.as_ref();
        session.look_at(look.and_then(|look| look.map));
        let document = look.and_then(|look| look.document.as_ref());
        let drafts = how.draft.unwrap_or(model.draft) == Draft::Lookup && look.is_none();
        Ok(Self {
            session,
            index,
            pending: 0,
            n_generated: 0,
            n_drafts: 0,
            is_done: false,
            sampler: Sampler::new(SamplingParams { seed, ..how.sampling }, model.vocab_size)?,
            needs_logits: how.needs_logits(),
            pace: drafts.then(Pace::default),
            stream: TokenStream::new(!how.keeps_special),
            filter: StopFilter::new(how.stop.iter().cloned()),
            constraint: how.constraint.clone(),
            counts: BTreeMap::new(),
            changed: Vec::new(),
            probs: Vec::new(),
            tokens: Vec::new(),
            attention: document.map(|document| Attention::new(document.n_tokens)),
            counted: (0, 0),
        })
    }

    /// What the next step computes: the token that was chosen, and a draft behind it where the
    /// engine has room for drafts.
    pub(super) fn next_ids(&mut self, engine: &Engine<B>) -> Vec<u32> {
        let mut ids = vec![self.pending];
        if let Some(pace) = self.pace.as_mut().filter(|_| engine.options().max_drafted > 0) {
            ids.extend(self.session.draft(self.pending, MAX_DRAFTED, pace));
        }
        self.n_drafts += usize::from(ids.len() > 1);
        ids
    }

    /// Has the next step traced where its attention is to be looked at, and has at most that many
    /// KV rows.
    pub(super) fn trace_if_due(&mut self, most_rows: u64) {
        if let Some(attention) = &self.attention {
            let is_due = attention.is_due_within(&self.session, most_rows);
            self.session.trace(is_due);
        }
    }

    /// Looks at the step that was just computed; what is said of it, where that was asked for.
    pub(super) fn look(&mut self, how: &How) -> Option<StepLook> {
        if let Some(attention) = &mut self.attention {
            attention.look(&self.session);
        }
        how.look.as_ref().filter(|look| look.tells_steps())?;
        let stats = self.session.stats();
        let (hits, misses) = (stats.hits, stats.misses);
        let before = std::mem::replace(&mut self.counted, (hits, misses));
        let mut places = Vec::new();
        self.session.sequence().token_places(&mut places);
        Some(StepLook {
            tokens: self.n_generated,
            hits: hits - before.0,
            misses: misses - before.1,
            map: (!places.is_empty()).then(|| ContextMap::of(&places)),
        })
    }

    /// What was seen of the answer, if the request looked at it.
    pub(super) fn seen(&self, how: &How) -> Option<Seen> {
        let look = how.look.as_ref()?;
        let quotes = |attention| look.document.as_ref().map(|d| d.quotes(attention));
        let sequence = self.session.sequence();
        Some(Seen {
            passages: self.attention.as_ref().and_then(quotes),
            hit_rate: self.session.stats().hit_rate(),
            device_bytes: sequence.device_kv_bytes(),
            host_bytes: sequence.host_kv_bytes(),
        })
    }

    /// The session, at which nobody looks any more.
    pub(super) fn into_session(mut self) -> Session<B> {
        self.session.trace(false);
        self.session.look_at(None);
        self.session
    }

    /// Chooses the next token from what was computed last, and gives out what is to be sent. After
    /// the end of the answer it is done; before, `pending` is to be computed.
    pub(super) fn advance(
        &mut self,
        engine: &Engine<B>,
        tokenizer: &Tokenizer,
        how: &How,
        out: &mut Vec<Event>,
    ) -> Result<(), ApiError> {
        if how.max_tokens.is_some_and(|most| self.n_generated >= most) {
            return self.end(tokenizer, FinishReason::Length, out);
        }
        let id = self.choose(how)?;
        // An answer in a form of its own ends where that does, whatever is ignored.
        let may_end = !how.ignore_eos || self.constraint.is_some();
        if may_end && engine.eos_ids().contains(&id) {
            return self.end(tokenizer, FinishReason::Eos(id), out);
        }
        let is_complete = match &mut self.constraint {
            Some(constraint) => constraint.take(id)?,
            None => false,
        };
        self.n_generated += 1;
        *self.counts.entry(id).or_default() += 1;
        self.tokens.extend(how.returns_tokens.then_some(id));
        let piece = self.stream.push(tokenizer, id).map_err(EngineError::from)?;
        let mut text = String::new();
        let stop = self.filter.push(&piece, &mut text).map(str::to_owned);
        self.send(text, out);
        if let Some(stop) = stop {
            return self.end(tokenizer, FinishReason::Stop(stop), out);
        }
        if is_complete {
            return self.end(tokenizer, FinishReason::Eos(id), out);
        }
        self.pending = id;
        let most = how.max_tokens.unwrap_or(usize::MAX);
        let room = engine.options().ctx_size;
        if self.n_generated >= most || self.session.tokens().len() >= room {
            return self.end(tokenizer, FinishReason::Length, out);
        }
        Ok(())
    }

    fn choose(&mut self, how: &How) -> Result<u32, ApiError> {
        if !how.needs_logits() {
            return Ok(self.sampler.next_token(&self.session)?);
        }
        let logits = self.session.logits();
        if logits.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        self.changed.clear();
        self.changed.extend_from_slice(logits);
        for (id, n) in &self.counts {
            self.changed[*id as usize] -= how.presence + how.frequency * *n as f32;
        }
        for (id, bias) in &how.bias {
            self.changed[*id as usize] += bias;
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(&mut self.changed)?;
        }
        let id = self.sampler.sample(&self.changed, self.session.tokens())?;
        if let Some(n_top) = how.logprobs {
            self.probs.push(match self.sampler.drawn_from().filter(|_| how.is_after_sampling) {
                Some(from) => drawn_of(id, from, n_top),
                None if how.is_after_sampling => drawn_of(id, &[(1.0, id)], n_top),
                None => prob_of(id, self.session.logits(), n_top),
            });
        }
        Ok(id)
    }

    fn send(&mut self, text: String, out: &mut Vec<Event>) {
        // Probabilities go with the text of their tokens; some may be left after the last text.
        let has_probs = self.is_done && !self.probs.is_empty();
        if text.is_empty() && self.tokens.is_empty() && !has_probs {
            return;
        }
        let (logprobs, tokens) =
            (std::mem::take(&mut self.probs), std::mem::take(&mut self.tokens));
        out.push(Event::Piece { choice: self.index, text, logprobs, tokens, timings: None });
    }

    /// Nothing more is generated: what was held back is sent, and why it ended.
    fn end(
        &mut self,
        tokenizer: &Tokenizer,
        reason: FinishReason,
        out: &mut Vec<Event>,
    ) -> Result<(), ApiError> {
        self.is_done = true;
        let (reason, stop) = match reason {
            FinishReason::Stop(text) => {
                self.send(String::new(), out);
                ("stop", Some(text))
            }
            reason => {
                let rest = self.stream.finish(tokenizer).map_err(EngineError::from)?;
                let mut text = String::new();
                if self.filter.push(&rest, &mut text).is_none() {
                    self.filter.finish(&mut text);
                }
                self.send(text, out);
                let is_end = matches!(reason, FinishReason::Eos(_));
                (if is_end { "stop" } else { "length" }, None)
            }
        };
        out.push(Event::Finished { choice: self.index, reason, stop });
        Ok(())
    }
}

/// The logarithm of a token's probability, as the model says it, and those of the likeliest.
fn prob_of(id: u32, logits: &[f32], n_top: usize) -> TokenProb {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    let log_sum = f64::from(top) + sum.ln();
    let logprob = |id: u32| (f64::from(logits[id as usize]) - log_sum) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let n_top = n_top.min(order.len());
    if n_top > 0 {
        order.select_nth_unstable_by(n_top - 1, by_logit);
    }
    order.truncate(n_top);
    order.sort_unstable_by(by_logit);
    let top = order.into_iter().map(|id| (id, logprob(id))).collect();
    TokenProb { id, logprob: logprob(id), top, is_drawn: false }
}

/// The probability of a token among those that it was drawn from, the likeliest of which come
/// first. What cannot be drawn is not among them.
fn drawn_of(id: u32, from: &[(f32, u32)], n_top: usize) -> TokenProb {
    let own = from.iter().find(|(_, known)| *known == id);
    let likely = from.iter().take_while(|(p, _)| *p > 0.0).take(n_top);
    let top = likely.map(|(p, id)| (*id, *p)).collect();
    TokenProb { id, logprob: own.map_or(0.0, |(p, _)| *p), top, is_drawn: true }
}
