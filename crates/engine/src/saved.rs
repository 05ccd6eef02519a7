//! Sessions in files: a document is read once, and asked on another day.

use std::io::Write;
use std::sync::Arc;

use longview_core::RangeSource;
use longview_ops::{ArgmaxParams, Backend};
use longview_scheduler::{
    Fingerprint, KvShape, Policy, PolicyOptions, PrefillMode, SaveOptions, SchedulerError,
    SequenceOptions, SessionContent, SessionFile, SessionFileError, append_sequence,
    restore_sequence_beside, save_sequence,
};

use crate::coming::{BegunChunk, ComingSession};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::CancelToken;
use crate::output::{MAX_CANDIDATES, Output};
use crate::policy::resolve_policy;
use crate::session::Session;

/// A session that was opened.
pub struct Restored<B: Backend> {
    /// As it was saved, or under another policy.
    pub session: Session<B>,
    /// What the caller of [`Engine::save`] gave along.
    pub note: Vec<u8>,
}

impl<B: Backend> Session<B> {
    /// What the policy in force was made of: what was asked for, and the model's depth.
    pub fn policy_options(&self) -> &PolicyOptions {
        &self.options
    }

    /// The engine's part of a file.
    fn content(&self, note: &[u8]) -> SessionContent {
        let said = &self.said;
        let (logits, ids): (&[f32], &[u32]) = match self.last {
            Output::Nothing => (&[], &[]),
            Output::Logits => (said.logits(), &[]),
            Output::Best => (&[], said.ids()),
            Output::Candidates(_) => (said.logits(), said.ids()),
        };
        SessionContent {
            tokens: self.tokens.clone(),
            owed: self.uncomputed,
            logits: logits.to_vec(),
            ids: ids.to_vec(),
            note: note.to_vec(),
        }
    }

    /// Takes the engine's part of a file over; `false` if a model of `n_vocab` tokens cannot have
    /// written it.
    fn take_content(&mut self, content: SessionContent, n_vocab: usize) -> bool {
        let SessionContent { tokens, owed, logits, ids, note: _ } = content;
        let last = match (logits.len(), ids.len()) {
            (0, 0) => Output::Nothing,
            (0, 1) => Output::Best,
            (n, 0) if n == n_vocab => Output::Logits,
            (n, k) if n == k && n <= MAX_CANDIDATES => Output::Candidates(k),
            _ => return false,
        };
        // The device marks what is most likely and no number.
        let ids_of = ids.iter().map(|id| id & !ArgmaxParams::NOT_FINITE);
        let mut all = tokens.iter().chain(&owed).copied().chain(ids_of);
        if all.any(|id| id as usize >= n_vocab) {
            return false;
        }
        self.tokens.extend_from_slice(&tokens);
        (self.uncomputed, self.last) = (owed, last);
        self.said.set(&logits, &ids);
        true
    }
}

impl<B: Backend> Engine<B> {
    /// Writes a session with everything that [`Engine::restore`] needs to go on from here, without
    /// prefill and without clustering: tokens, keys and values, index, what prefill recorded, what
    /// the model said last. In order and without seeking. `note` is the caller's own, and comes
    /// back.
    ///
    /// The session goes on as if it had not been saved.
    ///
    /// # Errors
    /// If `out` refuses: what was written of the file is then of no use.
    pub async fn save(
        &mut self,
        session: &mut Session<B>,
        note: &[u8],
        out: &mut dyn Write,
    ) -> Result<(), EngineError> {
        self.settle(session).await?;
        write(self.fingerprint()?, session, note, out).await
    }

    /// Writes what a session has and `file` has not to `out`, which stands at
    /// [`SessionFile::append_at`]. Should the write end half way, the file opens as it did before.
    /// `Ok(false)`, with nothing written, where the file has to be written as a whole:
    /// [`append_sequence`] says when.
    ///
    /// # Errors
    /// If `out` refuses, or the file cannot be read.
    pub async fn append(
        &mut self,
        session: &mut Session<B>,
        note: &[u8],
        file: &SessionFile<'_>,
        out: &mut dyn Write,
    ) -> Result<bool, EngineError> {
        self.settle(session).await?;
        let content = session.content(note);
        let Session { sequence, options, .. } = session;
        let how = SaveOptions::new(self.fingerprint()?, options);
        Ok(append_sequence(sequence, &how, &content, file, out).await?)
    }

    /// Writes what a prompt that is being read ([`Engine::prefill_part`]) has so far, so that
    /// little is lost should the program be killed: to `before` (`out` stands at its
    /// [`SessionFile::append_at`]) what that has not, else all of it. The prompt goes on as if this
    /// had not been. There is no index in the file: who opens it makes one.
    ///
    /// # Errors
    /// As [`Engine::append`], whose `Ok(false)` this returns too.
    pub async fn save_unfinished(
        &mut self,
        session: &mut Session<B>,
        note: &[u8],
        before: Option<&SessionFile<'_>>,
        out: &mut dyn Write,
    ) -> Result<bool, EngineError> {
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        let content = session.content(note);
        let Session { sequence, options, .. } = session;
        let whole = SaveOptions::new(self.fingerprint()?, options);
        let how = SaveOptions { rows_alone: true, ..whole };
        match before {
            Some(file) => Ok(append_sequence(sequence, &how, &content, file, out).await?),
            None => {
                save_sequence(sequence, &how, &content, out).await?;
                Ok(true)
            }
        }
    }

    /// Opens a session that [`Engine::save`] wrote, on any device. Its rows go piece by piece to
    /// host memory; a session is given out when all of it was compared with its digests.
    ///
    /// Under its own policy (`None`, or the same one) the session is as it was: decode continues to
    /// the bit on the backend that saved it. Under another policy its rows are indexed anew, where
    /// [`Session::set_policy`] allows that. What is not in the file begins anew: counters and
    /// times, the device cache, and the last step's choice of speculative recall.
    ///
    /// # Errors
    /// [`EngineError::Session`] if the file is not whole, or was made with another model,
    /// tokenizer, RoPE or type of rows, or is longer than the context.
    pub async fn restore(
        &mut self,
        source: &dyn RangeSource,
        policy: Option<&PolicyOptions>,
    ) -> Result<Restored<B>, EngineError> {
        self.restore_until(source, policy, &CancelToken::default()).await
    }

    /// [`Engine::restore`], which `cancel` ends between two layers, or two iterations of an index
    /// that has to be made.
    ///
    /// # Errors
    /// As there, and [`EngineError::Cancelled`].
    pub async fn restore_until(
        &mut self,
        source: &dyn RangeSource,
        policy: Option<&PolicyOptions>,
        cancel: &CancelToken,
    ) -> Result<Restored<B>, EngineError> {
        self.revive().await?;
        self.session_files()?.restore_until(source, policy, cancel).await
    }

    /// What opens and writes sessions without the engine, as it is now: on another thread, while
    /// this one computes.
    ///
    /// # Errors
    /// As [`Engine::fingerprint`].
    pub fn session_files(&self) -> Result<SessionFiles<B>, EngineError> {
        Ok(SessionFiles {
            backend: Arc::clone(self.backend()),
            shape: self.shape(),
            layout: self.layout(),
            fingerprint: self.fingerprint()?.clone(),
            n_vocab: self.model.config().vocab_size,
        })
    }
}

/// What uses a session that comes. `None` ends its coming.
pub type Compute<'a, B> = dyn FnMut(ComingSession<B>) -> Option<ComingSession<B>> + 'a;

/// Opens and writes sessions of an engine beside it. A device that is lost meanwhile fails what is
/// being opened, and costs a session that was opened nothing.
pub struct SessionFiles<B: Backend> {
    backend: Arc<B>,
    shape: KvShape,
    layout: SequenceOptions,
    fingerprint: Fingerprint,
    n_vocab: usize,
}

impl<B: Backend> SessionFiles<B> {
    /// The same for sessions whose prompts are read so. A file of a text that was read sparsely is
    /// opened for sparse prefill alone.
    #[must_use]
    pub fn with_prefill(mut self, prefill: PrefillMode) -> Self {
        self.layout.prefill = prefill;
        self
    }

    /// As [`Engine::save`], of a session that is settled: a fork of one that goes on is.
    ///
    /// # Errors
    /// As there.
    pub async fn save(
        &self,
        session: &mut Session<B>,
        note: &[u8],
        out: &mut dyn Write,
    ) -> Result<(), EngineError> {
        write(&self.fingerprint, session, note, out).await
    }

    /// As [`Engine::restore`].
    ///
    /// # Errors
    /// As there.
    pub async fn restore(
        &self,
        source: &dyn RangeSource,
        policy: Option<&PolicyOptions>,
    ) -> Result<Restored<B>, EngineError> {
        self.restore_until(source, policy, &CancelToken::default()).await
    }

    async fn restore_until(
        &self,
        source: &dyn RangeSource,
        policy: Option<&PolicyOptions>,
        cancel: &CancelToken,
    ) -> Result<Restored<B>, EngineError> {
        let (restored, _) =
            self.restore_beside(source, policy, cancel, (&[], &mut |_| None)).await?;
        Ok(restored)
    }

    /// [`SessionFiles::restore`] of a file that is on its way, for a prompt that goes on behind it.
    /// `compute` gets the session while layers of it are waited for, and gives it back: there is
    /// time for [`Engine::begin_chunk`]. What was begun of the prompt comes beside the session, for
    /// [`Engine::end_chunk`]. Where the device holds rows of its own, and where the prompt does not
    /// begin with all of the session, nothing is begun.
    ///
    /// # Errors
    /// As there, and [`EngineError::Cancelled`] where `compute` gives nothing back.
    pub async fn restore_beside(
        &self,
        source: &dyn RangeSource,
        policy: Option<&PolicyOptions>,
        cancel: &CancelToken,
        (prompt, compute): (&[u32], &mut Compute<'_, B>),
    ) -> Result<(Restored<B>, Option<BegunChunk>), EngineError> {
        let file = SessionFile::open(source)?;
        let (shape, header) = (self.shape.clone(), file.header());
        header.check(&self.fingerprint, &shape)?;
        let (options, policy) = match policy {
            Some(options) => resolve_policy(options, shape.n_layers, shape.capacity)?,
            // What depends on the context stays as it was when the session was saved.
            None => {
                let options = header.policy_options()?;
                let policy = Policy::resolve(&options, header.context)?;
                (options, policy)
            }
        };
        let mut file = file.read()?;
        file.stop_with(cancel.flag());
        let mut content = file.content()?;
        let mut chunk = match content.owed {
            None => BegunChunk::behind(&content.tokens, prompt),
            Some(_) => None,
        };
        let how = (shape, policy, self.layout);
        let mut meanwhile = |sequence| {
            let Some(begun) = chunk.take() else { return Ok(sequence) };
            let coming = compute(ComingSession { sequence, chunk: begun });
            let coming = coming.ok_or(SchedulerError::Stopped)?;
            chunk = Some(coming.chunk);
            Ok(coming.sequence)
        };
        let backend = &self.backend;
        let sequence = restore_sequence_beside(backend, how, &mut file, &mut meanwhile).await?;
        let mut session = Session::new(sequence, options, self.n_vocab);
        let note = std::mem::take(&mut content.note);
        if !session.take_content(content, self.n_vocab) {
            let what = "its tokens are not of this model's vocabulary";
            return Err(SessionFileError::Inconsistent(what).into());
        }
        let begun = chunk.filter(|chunk| chunk.n_layers() > 0);
        Ok((Restored { session, note }, begun))
    }
}

async fn write<B: Backend>(
    fingerprint: &Fingerprint,
    session: &mut Session<B>,
    note: &[u8],
    out: &mut dyn Write,
) -> Result<(), EngineError> {
    let content = session.content(note);
    let Session { sequence, options, .. } = session;
    let how = SaveOptions::new(fingerprint, options);
    Ok(save_sequence(sequence, &how, &content, out).await?)
}
