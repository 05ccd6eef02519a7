//! The decode loop: choose a token, show its text, compute it.

use std::ops::ControlFlow;

use longview_model::tokenizer::TokenStream;
use longview_ops::Backend;
use serde::Serialize;
use smallvec::SmallVec;

use crate::draft::{Draft, MAX_DRAFTED, Pace};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::output::Output;
use crate::sampler::{Sampler, SamplingParams};
use crate::session::Session;
use crate::stop::StopFilter;

/// How much to generate and how.
#[derive(Clone, Debug, Default)]
pub struct GenerationParams {
    /// Most new tokens; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// Choice of tokens.
    pub sampling: SamplingParams,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Go on after tokens that end an answer.
    pub ignore_eos: bool,
    /// Whether steps compute tokens on trial, and which. They never change what is generated. The
    /// engine must have room for them: [`EngineOptions::max_drafted`].
    ///
    /// [`EngineOptions::max_drafted`]: crate::EngineOptions::max_drafted
    pub draft: Draft,
}

/// Why generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its answer with this token.
    Eos(u32),
    /// A stop string appeared.
    Stop(String),
    /// The most tokens asked for.
    Length,
    /// No further token has room in the context.
    ContextFull,
    /// The caller broke off.
    Cancelled,
}

/// What was generated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Generation {
    /// New tokens, without the one that ended the answer.
    pub ids: Vec<u32>,
    /// Their text up to a stop string; empty for a model without tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// Text on its way out.
struct TextOut {
    stream: TokenStream,
    filter: StopFilter,
    text: String,
}

impl<B: Backend> Engine<B> {
    /// Generates from where the session is. `on_text` gets each piece of text as it is complete
    /// (never part of a character, never part of a stop string) and may break off.
    ///
    /// # Errors
    /// If nothing was computed to continue from, drafts are asked for where there can be none, or
    /// the model fails; the session keeps all complete steps.
    pub async fn generate(
        &mut self,
        session: &mut Session<B>,
        params: &GenerationParams,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        if params.draft != Draft::Off {
            session.check_draft()?;
        }
        let mut sampler = Sampler::new(params.sampling, self.model.config().vocab_size)?;
        let mut out = TextOut {
            stream: TokenStream::new(true),
            filter: StopFilter::new(params.stop.iter().cloned()),
            text: String::new(),
        };
        let mut ids = Vec::new();
        let finish_reason =
            self.decode_loop(session, params, &mut sampler, &mut ids, &mut out, on_text);
        let finish_reason = finish_reason.await?;
        if !matches!(finish_reason, FinishReason::Stop(_)) {
            self.finish_text(&mut out, on_text)?;
        }
        Ok(Generation { ids, text: out.text, finish_reason })
    }

    async fn decode_loop(
        &mut self,
        session: &mut Session<B>,
        params: &GenerationParams,
        sampler: &mut Sampler,
        ids: &mut Vec<u32>,
        out: &mut TextOut,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<FinishReason, EngineError> {
        let output = params.sampling.output();
        let mut pace = Pace::default();
        loop {
            if params.max_tokens.is_some_and(|most| ids.len() >= most) {
                return Ok(FinishReason::Length);
            }
            if let Some(id) = session.uncomputed {
                if session.n_tokens() > session.sequence.shape().capacity {
                    return Ok(FinishReason::ContextFull);
                }
                let draft = match params.draft {
                    Draft::Off => SmallVec::new(),
                    Draft::Lookup => {
                        // The step says what follows each: of the last token wanted, nothing.
                        let wanted = params.max_tokens.map_or(usize::MAX, |most| most - ids.len());
                        session.draft(id, MAX_DRAFTED.min(wanted - 1), &mut pace)
                    }
                };
                match self.decode(session, id, &draft, output).await {
                    Err(EngineError::Cancelled) => return Ok(FinishReason::Cancelled),
                    result => result?,
                }
            }
            let id = sampler.next_token(session)?;
            if !params.ignore_eos && self.eos_ids.contains(&id) {
                return Ok(FinishReason::Eos(id));
            }
            session.uncomputed = Some(id);
            session.last = Output::Nothing;
            ids.push(id);
            if let Some(reason) = self.show(id, out, on_text)? {
                return Ok(reason);
            }
        }
    }

    /// Shows the text that `id` completes.
    fn show(
        &self,
        id: u32,
        out: &mut TextOut,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Option<FinishReason>, EngineError> {
        let Some(tokenizer) = self.tokenizer() else { return Ok(None) };
        let piece = out.stream.push(tokenizer, id)?;
        let shown = out.text.len();
        let stop = out.filter.push(&piece, &mut out.text).map(str::to_owned);
        let new = &out.text[shown..];
        let flow = if new.is_empty() { ControlFlow::Continue(()) } else { on_text(new) };
        Ok(match (stop, flow) {
            (Some(stop), _) => Some(FinishReason::Stop(stop)),
            (None, ControlFlow::Break(())) => Some(FinishReason::Cancelled),
            (None, ControlFlow::Continue(())) => None,
        })
    }

    fn finish_text(
        &self,
        out: &mut TextOut,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let Some(tokenizer) = self.tokenizer() else { return Ok(()) };
        let rest = out.stream.finish(tokenizer)?;
        let shown = out.text.len();
        if out.filter.push(&rest, &mut out.text).is_none() {
            out.filter.finish(&mut out.text);
        }
        if out.text.len() > shown {
            // Generation has ended: breaking off changes nothing.
            let _ = on_text(&out.text[shown..]);
        }
        Ok(())
    }
}
