//! A prompt goes on in a session that is still on its way: its next tokens are computed layer by
//! layer, as layers come.
//!
//! The session is given out when all of its file was proved, and not before. What was computed in
//! its layers ends then, or is undone.

use std::sync::Arc;

use longview_core::TokenPos;
use longview_model::batch::{Batch, Span};
use longview_model::transformer::Halfway;
use longview_ops::Backend;
use longview_scheduler::{ComingSequence, SpanMode, StepSpan};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::CancelToken;
use crate::output::Output;
use crate::session::Session;
use crate::step::{Cancel, SchedulerAttention, SessionStep};

/// Tokens of a prompt behind a session, computed in the layers of it that were there.
#[derive(Clone, Debug)]
pub struct BegunChunk {
    ids: Vec<u32>,
    first: TokenPos,
    /// Tokens of the prompt behind these.
    remaining: usize,
    way: Halfway,
}

impl BegunChunk {
    /// What follows in a prompt that begins with all of `tokens`, but for its last token: what the
    /// model says behind that one is wanted, and a step of its own says it. `None` where nothing
    /// does, or the prompt begins otherwise.
    pub(crate) fn behind(tokens: &[u32], prompt: &[u32]) -> Option<Self> {
        let (_, rest) = prompt.strip_prefix(tokens)?.split_last()?;
        let (ids, first) = (rest.to_vec(), TokenPos(tokens.len() as u32));
        (!ids.is_empty()).then(|| Self { ids, first, remaining: 1, way: Halfway::default() })
    }

    /// Its tokens.
    pub fn n_tokens(&self) -> usize {
        self.ids.len()
    }

    /// Layers in which they are computed.
    pub fn n_layers(&self) -> usize {
        self.way.n_layers()
    }

    /// Leaves out the tokens behind the first `n`, before anything is computed.
    fn cut(&mut self, n: usize) {
        let n = n.min(self.ids.len());
        self.remaining += self.ids.len() - n;
        self.ids.truncate(n);
    }

    fn mode(&self) -> SpanMode {
        SpanMode::Exact { remaining: self.remaining }
    }
}

/// A session of which the first layers are there.
pub struct ComingSession<B: Backend> {
    pub(crate) sequence: ComingSequence<B>,
    pub(crate) chunk: BegunChunk,
}

impl<B: Backend> ComingSession<B> {
    /// Layers that are there.
    pub fn n_layers(&self) -> usize {
        self.sequence.n_layers()
    }
}

impl<B: Backend> Engine<B> {
    /// Computes the next tokens of the prompt in the layers that are there and in which they are
    /// not computed yet: at most `most` tokens, which the first call decides.
    ///
    /// # Errors
    /// If the device fails. The session must not be used then.
    pub async fn begin_chunk(
        &mut self,
        coming: &mut ComingSession<B>,
        most: usize,
    ) -> Result<(), EngineError> {
        let ComingSession { sequence, chunk } = coming;
        let (n_layers, fit) = (sequence.n_layers(), sequence.tokens_before_segment());
        let sequence = sequence.sequence();
        if !sequence.is_on(&self.backend) {
            return Err(EngineError::Cancelled);
        }
        if chunk.n_layers() == 0 {
            let unit = sequence.chunk_unit();
            let most = most.min(fit).min(self.workspace.max_tokens());
            // Groups of tokens end where they end without this.
            let end = (chunk.first.0 as usize + most) / unit * unit;
            match end.checked_sub(chunk.first.0 as usize) {
                Some(n) if n > 0 => chunk.cut(n),
                _ => return Ok(()),
            }
        }
        let (len, mode) = (chunk.ids.len(), chunk.mode());
        let span = StepSpan { sequence, start: 0, len, mode, is_read: false };
        let token = CancelToken::default();
        let mut attention = SchedulerAttention {
            spans: &mut [span],
            cancels: &mut [Cancel { part: 0, token }],
            n_live: 1,
            scratch: &mut self.scratch,
        };
        attention.check()?;
        let spans = [Span { start: 0, len, first_pos: chunk.first, n_wanted: 0 }];
        let batch = Batch { ids: &chunk.ids, spans: &spans };
        let (backend, ws, way) = (&*self.backend, &mut self.workspace, &mut chunk.way);
        let computed = self.model.forward_to(backend, ws, (&batch, way), &mut attention, n_layers);
        Ok(computed.await?)
    }

    /// Computes what was begun in the other layers: the session, which has come, has the tokens.
    ///
    /// # Errors
    /// If the device fails, or the session was cancelled. It is as it came then.
    pub async fn end_chunk(
        &mut self,
        session: &mut Session<B>,
        mut chunk: BegunChunk,
    ) -> Result<(), EngineError> {
        session.step_is_unfinished = true;
        if !session.sequence.is_on(&self.backend) || self.backend.is_lost() {
            self.revive().await?;
            session.restore_on(&self.backend).await?;
            return Err(EngineError::Cancelled);
        }
        let ended = self.end_layers(session, &mut chunk).await;
        if ended.is_err() {
            session.undo_unfinished().await?;
        }
        ended
    }

    async fn end_layers(
        &mut self,
        session: &mut Session<B>,
        chunk: &mut BegunChunk,
    ) -> Result<(), EngineError> {
        let token = session.cancel.clone();
        let mut part = SessionStep::with_output(session, &chunk.ids, chunk.mode(), Output::Nothing);
        let spans = [part.span(0)];
        let batch = Batch { ids: &chunk.ids, spans: &spans };
        let mut attention = SchedulerAttention {
            spans: &mut [part.sequence_span(0)],
            cancels: &mut [Cancel { part: 0, token }],
            n_live: 1,
            scratch: &mut self.scratch,
        };
        let (model, end) = (Arc::clone(&self.model), self.model.config().n_layers);
        let (backend, ws, way) = (&*self.backend, &mut self.workspace, &mut chunk.way);
        model.forward_to(backend, ws, (&batch, way), &mut attention, end).await?;
        attention.finish();
        self.collect(std::slice::from_mut(&mut part)).await
    }
}
