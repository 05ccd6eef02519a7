//! Contexts that stay in memory: what a request begins with is looked for here before it is read.
//!
//! A session that is cut in the middle of what its index covers is indexed anew. So where two
//! prompts part, a session that ends there is kept as well (a trunk): the next prompt that begins
//! so goes on from it and indexes nothing again.
//!
//! What a request says does not depend on what was known: of an answer no token is gone on from
//! that was computed through a policy, and of a prompt none whose statistics are not those of its
//! beginning ([`longview_scheduler::Sequence::known`]).
//!
//! What was read sparsely serves nobody who asks for exact, nor the other way round: an answer does
//! not depend on what others asked for.

use longview_engine::{Engine, PrefillMode, Session, resolve_policy};
use longview_library::documents::Id;
use longview_ops::Backend;
use longview_scheduler::PromptLength;

use crate::error::ApiError;
use crate::job::Job;
use crate::keys::Scope;
use crate::kv_events::KeptTokens;
use crate::texts::common_prefix;

/// Tokens that are worth a session of their own.
pub(super) const MIN_SHARED: usize = 256;
/// Tokens at the end of a session that are cut off without an index being made again: they are
/// among its recent ones.
const LOOSE_END: usize = 64;

/// The sessions, each with what makes it worth keeping.
pub(super) struct Kept<B: Backend> {
    entries: Vec<Entry<B>>,
    most: usize,
    /// Layers of the model and tokens of the context: what policies of requests are made for.
    n_layers: usize,
    ctx_size: usize,
    turn: u64,
    /// Sessions that were kept so far.
    n_kept: u64,
}

struct Entry<B: Backend> {
    /// Who may know of it.
    scope: Scope,
    session: Session<B>,
    /// The context of the library that it is.
    name: Option<Id>,
    /// Several prompts begin with it.
    is_trunk: bool,
    used: u64,
    /// How many were kept before it.
    serial: u64,
}

impl<B: Backend> Entry<B> {
    /// Whether requests of `scope` may go on from it whose prompts are read so.
    fn is_of(&self, scope: Scope, prefill: PrefillMode) -> bool {
        self.scope == scope && self.session.sequence().prefill_mode() == prefill
    }
}

impl<B: Backend> Kept<B> {
    pub(super) fn new(most: usize, (n_layers, ctx_size): (usize, usize)) -> Self {
        Self { entries: Vec::new(), most, n_layers, ctx_size, turn: 0, n_kept: 0 }
    }

    /// As many of the first `n` tokens of a session as the job goes on from.
    pub(super) fn known_to(&self, job: &Job, session: &Session<B>, n: usize) -> usize {
        let Ok((_, policy)) = resolve_policy(&job.how.policy, self.n_layers, self.ctx_size) else {
            return 0;
        };
        let len = job.ids.len();
        let most = len.saturating_add(job.how.max_tokens.unwrap_or(0));
        session.sequence().known(&policy, n, PromptLength { len, most })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn n_tokens(&self) -> usize {
        self.entries.iter().map(|entry| entry.session.tokens().len()).sum()
    }

    /// What requests of a scope go on from that are read so.
    pub(super) fn tokens_of(
        &self,
        scope: Scope,
        prefill: PrefillMode,
    ) -> impl Iterator<Item = KeptTokens<'_>> + Clone {
        let own = self.entries.iter().filter(move |entry| entry.is_of(scope, prefill));
        own.map(|entry| KeptTokens {
            serial: entry.serial,
            tokens: entry.session.tokens(),
            is_on_device: !entry.session.policy().residency.recalls(),
        })
    }

    /// The session of the job's scope, read as it asks, from most of whose tokens its prompt goes
    /// on, and how many.
    pub(super) fn nearest(&self, job: &Job) -> (Option<usize>, usize) {
        let (ids, scope, prefill) = (&job.ids, job.scope, job.how.prefill);
        let common = |(i, entry): (usize, &Entry<B>)| {
            let n_common = common_prefix(entry.session.tokens(), ids);
            // What the model says behind the last token is wanted, so that is computed anew.
            let n_common = n_common.min(ids.len().saturating_sub(1));
            let n_common = self.known_to(job, &entry.session, n_common);
            // Of equals the one of which least has to be cut off.
            let rest = entry.session.tokens().len() - n_common;
            (n_common, std::cmp::Reverse(rest), i)
        };
        let own = |(_, entry): &(usize, &Entry<B>)| entry.is_of(scope, prefill);
        let own = self.entries.iter().enumerate().filter(own);
        match own.map(common).max() {
            Some((n_common, _, i)) if n_common > 0 => (Some(i), n_common),
            _ => (None, 0),
        }
    }

    /// Most tokens that a session of the job's scope has in common with its prompt, whether the
    /// prompt goes on from all of them or not.
    pub(super) fn most_common(&self, job: &Job) -> usize {
        let own = self.entries.iter().filter(|entry| entry.is_of(job.scope, job.how.prefill));
        own.map(|entry| common_prefix(entry.session.tokens(), &job.ids)).max().unwrap_or(0)
    }

    /// A session that goes on from the first `n_known` tokens of entry `i`; `n_common` tokens of
    /// what is kept and of its prompt are the same. It may be behind
    /// ([`longview_scheduler::Sequence::is_behind`]). While answers wait no trunk is made, because
    /// its index is made in one go.
    pub(super) async fn fork(
        &mut self,
        engine: &mut Engine<B>,
        i: usize,
        (n_known, n_common): (usize, usize),
        answers_wait: bool,
    ) -> Result<Session<B>, ApiError> {
        self.turn += 1;
        self.entries[i].used = self.turn;
        let scope = self.entries[i].scope;
        let whole = self.entries[i].session.tokens().len();
        let mut i = i;
        // Where the prompt parts from others further on, whoever comes next goes on from this one.
        let parts_here = n_known + LOOSE_END >= n_common;
        let is_inside = n_known >= MIN_SHARED && n_known + LOOSE_END < whole;
        if is_inside && parts_here && !answers_wait {
            let mut trunk = engine.fork(&mut self.entries[i].session).await?;
            trunk.truncate(n_known).await?;
            engine.settle(&mut trunk).await?;
            i = self.add(Entry {
                scope,
                session: trunk,
                name: None,
                is_trunk: true,
                used: self.turn,
                serial: self.n_kept,
            });
        }
        let mut fork = engine.fork(&mut self.entries[i].session).await?;
        if fork.tokens().len() > n_known {
            fork.begin_cut(n_known).await?;
        }
        drop(self.make_room());
        Ok(fork)
    }

    /// The session of entry `i`.
    pub(super) fn session(&mut self, i: usize) -> &mut Session<B> {
        &mut self.entries[i].session
    }

    /// Keeps a session, in place of those that it goes on from and that nobody else does. Returns
    /// those that are kept no more: to give their memory back takes milliseconds, for which whoever
    /// has an answer need not wait.
    pub(super) fn keep(
        &mut self,
        scope: Scope,
        session: Session<B>,
        name: Option<Id>,
    ) -> Vec<Session<B>> {
        if session.tokens().is_empty() || self.most == 0 {
            return vec![session];
        }
        self.turn += 1;
        let tokens = session.tokens();
        let prefill = session.sequence().prefill_mode();
        let own = |entry: &&Entry<B>| entry.is_of(scope, prefill);
        let mut entries = self.entries.iter().filter(own);
        let n_known = session.known_tokens();
        let has_as_much = |other: &Session<B>| other.known_tokens() >= n_known;
        let is_known = entries
            .any(|entry| entry.session.tokens().starts_with(tokens) && has_as_much(&entry.session));
        if is_known && name.is_none() {
            return vec![session];
        }
        let is_replaced = |entry: &mut Entry<B>| {
            let is_old = entry.name.is_some() && entry.name == name;
            let goes_on = tokens.starts_with(entry.session.tokens());
            let is_passed = !entry.is_trunk && goes_on && entry.session.known_tokens() <= n_known;
            entry.is_of(scope, prefill) && (is_old || is_passed)
        };
        let replaced = self.entries.extract_if(.., is_replaced);
        let mut gone: Vec<_> = replaced.map(|entry| entry.session).collect();
        let (is_trunk, used, serial) = (name.is_some(), self.turn, self.n_kept);
        self.add(Entry { scope, session, name, is_trunk, used, serial });
        gone.extend(self.make_room());
        gone
    }

    /// Keeps a session that came from the disk for a prompt that waits for it. Where no room is to
    /// be had, it is there until that prompt begins, or the next session comes.
    pub(super) fn hold(&mut self, scope: Scope, session: Session<B>, name: Id) {
        if self.most > 0 {
            return drop(self.keep(scope, session, Some(name)));
        }
        drop(self.make_room());
        self.turn += 1;
        let (used, serial) = (self.turn, self.n_kept);
        self.add(Entry { scope, session, name: Some(name), is_trunk: true, used, serial });
    }

    /// Lets all go.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Lets a removed context go, and what was said after it.
    pub(super) fn forget(&mut self, scope: Scope, name: Id) {
        let found =
            self.entries.iter().find(|entry| entry.scope == scope && entry.name == Some(name));
        let Some(tokens) = found.map(|entry| entry.session.tokens().to_vec()) else { return };
        self.entries
            .retain(|entry| entry.scope != scope || !entry.session.tokens().starts_with(&tokens));
    }

    /// Lets go what a slot held, and what it went on from; contexts of the library stay, and what
    /// shares no more than its beginning.
    pub(super) fn erase(&mut self, scope: Scope, tokens: &[u32]) {
        let is_of = |held: &[u32]| held.starts_with(tokens) || tokens.starts_with(held);
        self.entries.retain(|entry| {
            entry.scope != scope || entry.name.is_some() || !is_of(entry.session.tokens())
        });
    }

    fn add(&mut self, entry: Entry<B>) -> usize {
        self.n_kept += 1;
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// The one that was used longest ago goes, single answers before what several share.
    fn make_room(&mut self) -> Vec<Session<B>> {
        let mut gone = Vec::new();
        while self.entries.len() > self.most {
            let order = |i: &usize| (self.entries[*i].is_trunk, self.entries[*i].used);
            let Some(oldest) = (0..self.entries.len()).min_by_key(order) else { break };
            gone.push(self.entries.swap_remove(oldest).session);
        }
        gone
    }
}
