//! Drafted tokens: a step may hold some behind the token that counts, computed on trial. Each is
//! computed as if all before it had been decoded one by one, so that one that is accepted has cost
//! nothing, and dropping the others leaves what decoding one by one would have left.
//!
//! What changes at a fixed number of tokens (clusters that begin to count, rows that are indexed at
//! last) cannot be taken back, so no drafted token may stand where that happens. What a row leaves
//! behind besides is its rows, positions and counters: rows behind the last token are never
//! attended, and where a ring has rows no more that an earlier token attends, they are loaded
//! again. Device caches may hold other rows afterwards, which costs fetches and changes nothing.

use longview_core::LayerId;
use longview_ops::Backend;

use super::kv_sequence::Sequence;
use crate::error::SchedulerError;
use crate::layout::{HostRows, LayerMode};
use crate::policy::{FLUSH_STEPS, Policy};
use crate::recall::RecallMode;

/// Fails where no step of a sequence under `policy` holds drafted tokens, with the reason.
///
/// # Errors
/// [`SchedulerError::CannotDraft`] or [`SchedulerError::CannotDraftSpeculatively`].
pub fn check_draft(
    policy: &Policy,
    recall: RecallMode,
    host_rows: HostRows,
) -> Result<(), SchedulerError> {
    let refuse = |why| Err(SchedulerError::CannotDraft { policy: policy.preset, why });
    match policy.why_no_draft() {
        Some(why) => refuse(why),
        None if recall != RecallMode::Exact => Err(SchedulerError::CannotDraftSpeculatively),
        // The host reads rows as they were written for as long as its store has them so, and that
        // is as long as no later row, also a drafted one, takes their place.
        None if host_rows == HostRows::EightBits && policy.reads_rows_on_host() => {
            refuse("reads rows of --kv-type q8 on the host")
        }
        None => Ok(()),
    }
}

impl<B: Backend> Sequence<B> {
    /// Fails where no step of this sequence holds drafted tokens: see [`check_draft`].
    ///
    /// # Errors
    /// As there.
    pub fn check_draft(&self) -> Result<(), SchedulerError> {
        check_draft(&self.policy, self.options.recall, self.shape.host_rows)
    }

    /// How many of `wanted` drafted tokens the next step may hold behind the token that counts: 0
    /// where [`Sequence::check_draft`] fails, and while somebody looks at each step.
    pub fn most_drafted(&self, wanted: usize) -> usize {
        if self.is_looked_at() || self.check_draft().is_err() || self.n_drafted > 0 {
            return 0;
        }
        let room = self.shape.capacity.saturating_sub(self.n_tokens + 1);
        // Rows of a step are on the device until it ends, and in the exact ring of a chunk.
        let rings = self.shape.layers().filter_map(|layer| self.step_ring(layer));
        let least = rings.chain([self.options.chunk]).min().unwrap_or(usize::MAX);
        let most = wanted.min(room).min(least.saturating_sub(1));
        let changes = |n: usize| self.shape.layers().any(|layer| self.changes_at(layer, n));
        // If the token that counts changes something, what follows from that is not known here.
        let calm = (0..=most).take_while(|ahead| !changes(self.n_tokens + ahead)).count();
        calm.saturating_sub(1)
    }

    /// Whether the next `len` tokens, which are drafted but for the first, may attend to `layer` in
    /// one call: each attends to all before it, where rows lie, and nothing is added to that.
    pub(super) fn attends_run(&self, layer: LayerId, len: usize) -> bool {
        let attends_all = match self.layers[layer].mode() {
            LayerMode::Dense => true,
            LayerMode::Recall => self.attends_all(layer, self.n_tokens + len),
            LayerMode::Local | LayerMode::Window | LayerMode::Kept => false,
        };
        attends_all
            && self.in_place()
            && self.exact.is_none()
            && !self.policy.residual.draws()
            && self.backend.capabilities().chunk_rows_are_alike
    }

    /// Rows of a ring on the device whose oldest row is still attended when the newest is written.
    fn step_ring(&self, layer: LayerId) -> Option<usize> {
        let state = &self.layers[layer];
        state.device.as_ref()?;
        match state.mode() {
            LayerMode::Local => Some(state.device_rows),
            LayerMode::Window => Some(self.layout.ring),
            LayerMode::Dense | LayerMode::Recall | LayerMode::Kept => None,
        }
    }

    /// Whether the index of `layer` may change in the step of the token behind `n` others.
    fn changes_at(&self, layer: LayerId, n: usize) -> bool {
        let (Some(index), state) = (self.policy.index, &self.layers[layer]) else { return false };
        if state.recall().is_none() {
            return false;
        }
        let full = self.policy.recent + index.window;
        let pending = n.saturating_sub(state.n_indexed);
        let is_due = pending + 1 >= full + FLUSH_STEPS;
        let waited = self.policy.attend_all > 0 && pending >= full;
        let is_submitted = state.n_submitted > state.n_indexed;
        (is_due || waited) && (is_submitted || !self.index_waits(layer, n + 1))
    }

    /// Drafted tokens of the last step that nobody has accepted.
    pub fn n_drafted(&self) -> usize {
        self.n_drafted
    }

    /// The next drafted token counts, as if it had been decoded by now. What a step leaves to be
    /// read ([`Sequence::writeback_parts`]) is to be read before.
    ///
    /// # Panics
    /// If there is none.
    pub fn accept_drafted(&mut self) {
        assert!(self.n_drafted > 0, "no drafted token is left");
        self.n_drafted -= 1;
        self.know_decoded();
        self.n_tokens += 1;
        if self.writeback.is_empty() {
            self.submit_windows();
        }
    }

    /// Forgets the drafted tokens that nobody has accepted.
    ///
    /// # Errors
    /// If the device refuses to load rows that they displaced.
    pub fn drop_drafted(&mut self) -> Result<(), SchedulerError> {
        let (n, dropped) = (self.n_tokens, self.n_drafted);
        if dropped == 0 {
            return Ok(());
        }
        for layer in self.shape.layers() {
            let positions = &mut self.layers[layer].positions;
            positions.iter_mut().for_each(|positions| positions.truncate(n));
            let Some(ring) = self.step_ring(layer) else { continue };
            let displaced = (n + dropped).saturating_sub(ring).min(n);
            self.load_rows(layer, self.window_start(layer, n)..displaced)?;
        }
        self.n_drafted = 0;
        Ok(())
    }
}
