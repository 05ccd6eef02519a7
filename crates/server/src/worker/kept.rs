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

use std::cmp::Reverse;

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
    /// What is kept no more. To give its memory back takes milliseconds, for which whoever has an
    /// answer need not wait.
    gone: Vec<Gone<B>>,
}

/// A session that is kept in memory no more.
pub(super) struct Gone<B: Backend> {
    pub(super) scope: Scope,
    pub(super) session: Session<B>,
    /// Whether its room was needed, and it may be asked for again: a conversation that went on.
    pub(super) may_come_again: bool,
}

struct Entry<B: Backend> {
    /// Who may know of it.
    scope: Scope,
    session: Session<B>,
    /// The context of the library that it is.
    name: Option<Id>,
    /// Several prompts begin with it.
    is_trunk: bool,
    /// How often a prompt went on from all of it and took its place.
    n_turns: u32,
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
        Self { entries: Vec::new(), most, n_layers, ctx_size, turn: 0, n_kept: 0, gone: Vec::new() }
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
            is_on_device: !entry.session.policy().residency.recalls()
                || entry.session.sequence().has_resident_rows(),
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
            (n_common, Reverse(rest), i)
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
                n_turns: 0,
                used: self.turn,
                serial: self.n_kept,
            });
        }
        let mut fork = engine.fork(&mut self.entries[i].session).await?;
        if fork.tokens().len() > n_known {
            fork.begin_cut(n_known).await?;
        }
        self.make_room();
        Ok(fork)
    }

    /// The session of entry `i`.
    pub(super) fn session(&mut self, i: usize) -> &mut Session<B> {
        &mut self.entries[i].session
    }

    /// Keeps a session, in place of those that it goes on from and that nobody else does.
    pub(super) fn keep(&mut self, scope: Scope, session: Session<B>, name: Option<Id>) {
        if session.tokens().is_empty() || self.most == 0 {
            return self.let_go(scope, session);
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
            return self.let_go(scope, session);
        }
        let is_replaced = |entry: &mut Entry<B>| {
            let is_old = entry.name.is_some() && entry.name == name;
            let goes_on = tokens.starts_with(entry.session.tokens());
            let is_passed = !entry.is_trunk && goes_on && entry.session.known_tokens() <= n_known;
            entry.is_of(scope, prefill) && (is_old || is_passed)
        };
        let replaced: Vec<_> = self.entries.extract_if(.., is_replaced).collect();
        let n_turns = replaced.iter().map(|entry| entry.n_turns + 1).max().unwrap_or(0);
        replaced.into_iter().for_each(|entry| self.let_go(scope, entry.session));
        let (is_trunk, used, serial) = (name.is_some(), self.turn, self.n_kept);
        self.add(Entry { scope, session, name, is_trunk, n_turns, used, serial });
        self.make_room();
    }

    /// Lets a session go that is of no use.
    pub(super) fn let_go(&mut self, scope: Scope, session: Session<B>) {
        self.gone.push(Gone { scope, session, may_come_again: false });
    }

    /// Keeps a session that came from the disk for a prompt that waits for it. Where no room is to
    /// be had, it is there until that prompt begins, or the next session comes.
    pub(super) fn hold(&mut self, scope: Scope, session: Session<B>, name: Option<Id>) {
        if self.most > 0 {
            return self.keep(scope, session, name);
        }
        self.make_room();
        self.turn += 1;
        let (used, serial) = (self.turn, self.n_kept);
        let (is_trunk, n_turns) = (true, 0);
        self.add(Entry { scope, session, name, is_trunk, n_turns, used, serial });
    }

    /// Lets all go.
    pub(super) fn clear(&mut self) {
        self.gone.clear();
        self.entries.clear();
    }

    /// Lets a removed context go, and what was said after it: what begins with its tokens.
    pub(super) fn forget(&mut self, scope: Scope, name: Id, ids: &[u32]) {
        let named = |entry: &&Entry<B>| entry.scope == scope && entry.name == Some(name);
        let found = self.entries.iter().find(named).map(|entry| entry.session.tokens().to_vec());
        let tokens = found.unwrap_or_else(|| ids.to_vec());
        if !tokens.is_empty() {
            self.entries.retain(|entry| {
                entry.scope != scope || !entry.session.tokens().starts_with(&tokens)
            });
        }
    }

    /// What is kept no more since the last call.
    pub(super) fn take_gone(&mut self) -> Vec<Gone<B>> {
        std::mem::take(&mut self.gone)
    }

    /// Lets the one go that was used longest ago, but for entry `but`: of the scope that has most,
    /// so that nobody's many prompts take the room of another's, and single answers before what
    /// several share. `false` where there is none.
    pub(super) fn make_less(&mut self, but: Option<usize>) -> bool {
        let n_of = |scope| self.entries.iter().filter(|entry| entry.scope == scope).count();
        let order = |i: &usize| {
            let entry = &self.entries[*i];
            (Reverse(n_of(entry.scope)), entry.is_trunk, entry.used)
        };
        let others = (0..self.entries.len()).filter(|i| Some(*i) != but);
        let Some(oldest) = others.min_by_key(order) else { return false };
        let Entry { scope, session, name, n_turns, .. } = self.entries.swap_remove(oldest);
        let may_come_again = name.is_none() && n_turns > 0;
        self.gone.push(Gone { scope, session, may_come_again });
        true
    }

    /// All sessions without a name, that which was used last first; those that others begin with
    /// are left out.
    pub(super) fn take_prompts(&mut self) -> Vec<(Scope, Session<B>)> {
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|entry| entry.name.is_none());
        entries.sort_by_key(|entry| Reverse(entry.used));
        let is_passed = |at: usize| {
            let Entry { scope, session, .. } = &entries[at];
            let (n, mode) = (session.known_tokens(), session.sequence().prefill_mode());
            let has_it = |(i, other): (usize, &Entry<B>)| {
                let n_other = other.session.known_tokens();
                i != at
                    && other.is_of(*scope, mode)
                    && (n_other, i) > (n, at)
                    && other.session.tokens().starts_with(&session.tokens()[..n])
            };
            entries.iter().enumerate().any(has_it)
        };
        let passed: Vec<bool> = (0..entries.len()).map(is_passed).collect();
        let kept = entries.into_iter().zip(passed).filter(|(_, is_passed)| !is_passed);
        kept.map(|(entry, _)| (entry.scope, entry.session)).collect()
    }

    /// Bytes that the sessions take, where one of so many tokens takes `bytes`.
    pub(super) fn bytes(&self, bytes: impl Fn(&Session<B>) -> u64) -> u64 {
        self.entries.iter().map(|entry| bytes(&entry.session)).sum()
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

    /// Lets go what there are too many of.
    fn make_room(&mut self) {
        while self.entries.len() > self.most && self.make_less(None) {}
    }
}
