//! Sessions that go on from one context: a document is read once, and asked many questions side by
//! side.

use longview_ops::Backend;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::Session;

impl<B: Backend> Engine<B> {
    /// A second session with the tokens of `session`, under its policy, that goes on without it:
    /// each says what it would have said alone, to the bit. Keys and values in host memory are
    /// shared until one of the two writes there, which on Linux, or where rows are sent to the
    /// device, costs no copy of them; index, device memory, counters and times are the fork's own,
    /// and so is its cancel token.
    ///
    /// Under speculative recall the first step of the fork recalls exactly.
    ///
    /// # Errors
    /// If the device refuses, or there is no memory.
    pub async fn fork(&mut self, session: &mut Session<B>) -> Result<Session<B>, EngineError> {
        self.settle(session).await?;
        let sequence = session.sequence.fork().await?;
        let n_vocab = self.model.config().vocab_size;
        let mut fork = Session::new(sequence, session.options.clone(), n_vocab);
        fork.tokens.extend_from_slice(&session.tokens);
        fork.said.set(session.said.logits(), session.said.ids());
        (fork.uncomputed, fork.last) = (session.uncomputed, session.last);
        Ok(fork)
    }

    /// A piece of what [`Engine::fork`] of `session` does first, so that others have their steps in
    /// between: see [`Sequence::share_piece`](longview_scheduler::Sequence::share_piece). `false`
    /// where none is left.
    ///
    /// # Errors
    /// As there.
    pub async fn share_piece(&mut self, session: &mut Session<B>) -> Result<bool, EngineError> {
        self.settle(session).await?;
        Ok(session.sequence.share_piece().await?)
    }
}
