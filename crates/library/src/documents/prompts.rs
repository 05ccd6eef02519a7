//! A library of prompts: documents that nobody named, each with what a model has read of it.
//!
//! Beside the documents that people keep, a server keeps prompts, so that they are not read again
//! after a restart. Nobody lists these. So one goes when another begins with all of it, when its
//! session went for lack of room, and when a document that is in it is removed.

use super::entry::{Document, SessionKey};
use super::error::DocumentsError;
use super::id::Id;
use super::prefix::{BLOCK, Chain};
use super::store::{Documents, Freed, now_unix_s};

/// Seconds in which a prompt that has no session may get one: another thread writes it.
const WRITING_S: u64 = 600;

impl Documents {
    /// Removes prompts that are of no use beside `id`, whose session of `key` has `tokens`: those
    /// whose session has no whole block that it has not, and those that have lost theirs.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_passed_prompts(
        &self,
        id: Id,
        key: &SessionKey,
        tokens: &[u32],
    ) -> Result<Freed, DocumentsError> {
        let (chain, now) = (Chain::of(tokens), now_unix_s());
        self.remove_prompts(|document| {
            let may_come = document.sessions.is_empty()
                && document.used_unix_s.saturating_add(WRITING_S) > now;
            let is_passed = document.sessions.iter().all(|session| {
                session.key == *key
                    && session.n_tokens <= tokens.len()
                    && session.chain.common(&chain) == whole_blocks(session.n_tokens)
            });
            Ok(document.id != id && is_passed && !may_come)
        })
    }

    /// Removes prompts in which a document is: those that begin with its `tokens`, and those in
    /// which its `text` is, if it has one.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_prompts_with(
        &self,
        tokens: &[u32],
        text: Option<&str>,
    ) -> Result<Freed, DocumentsError> {
        let (chain, n_whole) = (Chain::of(tokens), whole_blocks(tokens.len()));
        self.remove_prompts(|document| {
            let begins = |n_common: usize| n_whole > 0 && n_common == n_whole;
            let mut sessions = document.sessions.iter();
            if sessions.any(|session| begins(session.chain.common(&chain))) {
                return Ok(true);
            }
            let Some(text) = text else { return Ok(false) };
            // One whose own text is damaged may have it.
            Ok(self.text(document.id).map_or(true, |prompt| prompt.contains(text)))
        })
    }

    /// Removes prompts that begin with `tokens`, and those with which `tokens` begin.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_prompts_like(&self, tokens: &[u32]) -> Result<Freed, DocumentsError> {
        let (chain, n_whole) = (Chain::of(tokens), whole_blocks(tokens.len()));
        self.remove_prompts(|document| {
            let is_like = |n_tokens: usize, n_common: usize| {
                n_common > 0 && n_common == n_whole.min(whole_blocks(n_tokens))
            };
            let mut sessions = document.sessions.iter();
            Ok(sessions.any(|s| is_like(s.n_tokens, s.chain.common(&chain))))
        })
    }

    fn remove_prompts(
        &self,
        goes: impl Fn(&Document) -> Result<bool, DocumentsError>,
    ) -> Result<Freed, DocumentsError> {
        let mut freed = Freed::default();
        for document in self.list()? {
            if !goes(&document)? {
                continue;
            }
            match self.remove(document.id) {
                Ok(more) => {
                    freed.n_files += more.n_files;
                    freed.bytes += more.bytes;
                }
                // Another process was first.
                Err(DocumentsError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(freed)
    }
}

fn whole_blocks(n_tokens: usize) -> usize {
    n_tokens / BLOCK * BLOCK
}
