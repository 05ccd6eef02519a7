//! Prompts on disk: what was read of a prompt that nobody named outlives its room in memory.
//!
//! A conversation whose room is needed is written, so that its next turn reads no more of it than
//! it would have; one that nobody has gone on from is not: where many prompts come that are never
//! asked again, each would be written. When the server ends all are, for after its start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longview_engine::{EngineError, Session, SessionFiles};
use longview_library::documents::{Document, Documents, DocumentsError, NewDocument, Source};
use longview_ops::Backend;
use pollster::block_on;
use tracing::warn;

use super::Worker;
use super::disk::{Disk, Library};
use super::kept::Gone;
use super::steps::guarded;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::texts::ModelFacts;

/// What the library calls a prompt's source.
const PROMPT: &str = "prompt";
/// Tokens that are worth a file, beyond those that the disk has.
const MIN_WRITTEN: usize = 1024;
/// Conversations that are written at the same time. Others whose room is needed are read again:
/// what is being written needs its memory until then.
const MAX_WRITING: usize = 2;
/// Time in which the writing of a further prompt may begin when the server ends.
const MOST_ENDING: Duration = Duration::from_secs(30);

impl<B: Backend + 'static> Worker<B> {
    /// Gives the memory of what is kept no more back, and writes what may come again.
    pub(super) fn let_go(&mut self) {
        for Gone { scope, session, may_come_again } in self.kept.take_gone() {
            let n_writing = self.disk.as_ref().map_or(0, Disk::n_saving);
            if may_come_again && n_writing < MAX_WRITING {
                self.write_prompts(vec![(scope, session)], None);
            }
        }
    }

    /// Writes what is kept, at the end of the server. `false` where there is nothing to write.
    pub(super) fn keep_prompts(&mut self) -> bool {
        let prompts = self.kept.take_prompts();
        !prompts.is_empty() && self.write_prompts(prompts, Some(Instant::now() + MOST_ENDING))
    }

    pub(super) fn prompts_written(&mut self, n_written: usize) {
        self.metrics.prompts_written.increment(n_written as u64);
        self.disk_changed();
    }

    /// Writes prompts on another thread, those that were used last first, until `end`. Where
    /// nothing can be written they are read again.
    fn write_prompts(&mut self, prompts: Vec<(Scope, Session<B>)>, end: Option<Instant>) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let mut all = Vec::new();
        for (scope, session) in prompts {
            let library = disk.library(scope).filter(|library| library.prompts.is_some());
            if let Some(library) = library
                && session.known_tokens() >= MIN_WRITTEN
            {
                all.push((Arc::clone(library), session));
            }
        }
        if all.is_empty() {
            return false;
        }
        let files = match self.engine.session_files() {
            Ok(files) => files,
            Err(error) => {
                warn!("prompts are not written: {error}");
                return false;
            }
        };
        let model = Arc::clone(&self.model);
        let begun = disk.save_prompts(move || {
            let mut n_written = 0;
            for (library, mut session) in all {
                if end.is_some_and(|end| Instant::now() >= end) {
                    break;
                }
                match guarded(|| library.save_prompt(&files, &mut session, &model)) {
                    Ok(is_written) => n_written += usize::from(is_written),
                    Err(error) => warn!("a prompt is not written: {}", error.json()),
                }
            }
            n_written
        });
        if let Err(error) = &begun {
            warn!("prompts are not written: {}", error.json());
        }
        begun.is_ok()
    }
}

impl Library {
    /// Writes what a session knows of its prompt, where the disk lacks much of that.
    fn save_prompt<B: Backend>(
        &self,
        files: &SessionFiles<B>,
        session: &mut Session<B>,
        model: &ModelFacts,
    ) -> Result<bool, ApiError> {
        let Some(prompts) = &self.prompts else { return Ok(false) };
        let (n_known, prefill) = (session.known_tokens(), session.sequence().prefill_mode());
        let known = &session.tokens()[..n_known];
        let n_there = self.nearest(prefill, known).map_or(0, |found| found.nearest.n_common);
        if n_known < n_there + MIN_WRITTEN {
            return Ok(false);
        }
        // Of what a policy computed, the file would not say that.
        if n_known < session.tokens().len() {
            block_on(session.truncate(n_known))?;
        }
        let text = model.tokenizer.decode(session.tokens(), false).map_err(EngineError::from)?;
        let source = Source { name: PROMPT.into(), kind: PROMPT.into(), bytes: 0, pages: None };
        let new = NewDocument { text: &text, name: None, sources: vec![source] };
        let document = prompts.add(new)?;
        let written = self.write_prompt(files, (prompts, &document), session, &text);
        if written.is_err() && document.sessions.is_empty() {
            prompts.remove(document.id)?;
        }
        written
    }

    fn write_prompt<B: Backend>(
        &self,
        files: &SessionFiles<B>,
        (prompts, document): (&Documents, &Document),
        session: &mut Session<B>,
        text: &str,
    ) -> Result<bool, ApiError> {
        // The file has an index and sums beside the rows.
        prompts.check_room(document, session.sequence().host_kv_bytes())?;
        let (n_tokens, key) = (session.tokens().len(), self.key(session.sequence().prefill_mode()));
        let building = match prompts.begin(document.id, &key) {
            // Another server writes the same: it will be there.
            Err(DocumentsError::InUse { .. }) => return Ok(false),
            begun => begun?,
        };
        self.write(files, &building, session, (text, n_tokens))?;
        prompts.remove_passed_prompts(document.id, &key, session.tokens())?;
        Ok(true)
    }
}
