//! A sequence under another policy: what the new one needs is checked, rows go back into token
//! order, and everything that is derived from them is made anew.

use longview_ops::Backend;

use super::kv_sequence::{Readiness, Sequence};
use super::layer_state::{Layer, LayerSetup};
use crate::error::SchedulerError;
use crate::eviction::SinkRotation;
use crate::layout::{LayerMode, SelectionId};
use crate::policy::Policy;
use crate::recall::{RecallMode, RecallPath, RecallSetup};
use crate::store::{RowLists, RowMover, RowRange};

/// What a policy lacks that was not in force in prefill.
pub(super) fn no_mass(policy: &Policy) -> SchedulerError {
    let what = "the attention of all queries of the prompt";
    SchedulerError::NoStatistics { policy: policy.preset, what }
}

/// As [`no_mass`].
pub(super) fn no_query_sums(policy: &Policy) -> SchedulerError {
    let what = "the sums of all queries (--importance last does without)";
    SchedulerError::NoStatistics { policy: policy.preset, what }
}

impl<B: Backend> Sequence<B> {
    /// Changes the policy. Rows are put back into token order where the new one needs that, and are
    /// indexed anew.
    ///
    /// # Errors
    /// What the new policy needs and cannot have: statistics, exact recall, memory, a device. The
    /// one before stays in force then.
    pub async fn set_policy(&mut self, policy: Policy) -> Result<(), SchedulerError> {
        self.check_recall(&policy)?;
        self.check_statistics(&policy)?;
        self.bring_rows().await?;
        let before = std::mem::replace(&mut self.policy, policy);
        let result = self.rebuild().await;
        if result.is_err() {
            self.policy = before;
            // If the device is lost this fails too, and is done when there is another.
            self.rebuild().await.ok();
        }
        result
    }

    /// Makes again what a failed change of the policy, or a failed end of a prefill, left undone.
    /// Nothing happens if nothing failed.
    ///
    /// # Errors
    /// As [`Sequence::set_policy`]: steps would fail likewise.
    pub async fn make_ready(&mut self) -> Result<(), SchedulerError> {
        match self.readiness {
            Readiness::Ready => Ok(()),
            Readiness::PrefillUnfinished => self.finish_prefill().await,
            Readiness::NeedsRebuild => self.rebuild().await,
        }
    }

    /// Makes all that the policy asks for from rows and positions.
    pub(super) async fn rebuild(&mut self) -> Result<(), SchedulerError> {
        self.drop_jobs().await?;
        self.readiness = Readiness::NeedsRebuild;
        self.layout = self.policy.device_layout(self.shape.capacity);
        self.sort_rows();
        self.adopt_policy()?;
        self.readiness = Readiness::PrefillUnfinished;
        self.finish_prefill().await
    }

    /// Puts rows back into token order where the policy needs that.
    pub(super) fn sort_rows(&mut self) {
        for layer in 0..self.layers.len() {
            if self.policy.layer_mode(layer) != LayerMode::Dense {
                self.restore_token_order(layer, 0);
            }
        }
    }

    /// Puts rows from `from` on back into token order.
    pub(super) fn restore_token_order(&mut self, layer: usize, from: usize) {
        let row_bytes = self.shape.row_bytes();
        let state = &mut self.layers[layer];
        if state.permuted_to <= from {
            return;
        }
        for (head, positions) in state.positions.iter_mut().enumerate() {
            let positions = &mut positions[from..state.permuted_to];
            self.order.clear();
            self.order.extend(0..positions.len() as u32);
            self.order.sort_unstable_by_key(|i| positions[*i as usize]);
            positions.sort_unstable();
            let place = RowRange { layer, head, start: from };
            self.store.permute_rows(place, &self.order, row_bytes, &mut self.bytes);
        }
        state.permuted_to = from;
    }

    /// Whether selections under `policy` may be made the way that the sequence was asked to.
    fn check_recall(&self, policy: &Policy) -> Result<(), SchedulerError> {
        if self.options.recall != RecallMode::Exact && !policy.allows_speculation() {
            return Err(SchedulerError::CannotSpeculate { policy: policy.preset });
        }
        Ok(())
    }

    /// Whether `policy` could have what it wants to know of all queries of the prompt: only a
    /// prefill under it records that.
    fn check_statistics(&self, policy: &Policy) -> Result<(), SchedulerError> {
        let n = self.n_tokens;
        if n == 0 {
            return Ok(());
        }
        for (i, Layer { recorded, .. }) in self.layers.iter().enumerate() {
            let mode = policy.layer_mode(i);
            if let (LayerMode::Recall, Some(window)) = (mode, policy.local_window()) {
                let known = recorded.queries.as_ref();
                if known.is_none_or(|known| !known.serves(window) || known.covered() != n) {
                    return Err(no_query_sums(policy));
                }
            }
            let needs_mass = mode == LayerMode::Kept && policy.residency.records_all_attention();
            // A prompt of recent tokens alone is kept whole.
            let has_mass = recorded.mass.is_some() && recorded.mass_rows >= n;
            if needs_mass && n > policy.recent && !has_mass {
                return Err(no_mass(policy));
            }
        }
        Ok(())
    }

    /// Buffers, index and caches for the policy; rows and positions stay.
    pub(super) fn adopt_policy(&mut self) -> Result<(), SchedulerError> {
        self.forget_tracked();
        self.check_recall(&self.policy)?;
        let in_place = self.in_place();
        let host_caches = !in_place && !self.uses_device_cache();
        let (backend, shape, policy) = (&*self.backend, &self.shape, &self.policy);
        let mut selection = SelectionId(0);
        for (layer, state) in self.layers.iter_mut().enumerate() {
            let setup = LayerSetup { layer, selection, in_place, host_caches };
            state.adopt(backend, shape, policy, &setup)?;
            selection.0 += usize::from(state.recall().is_some());
        }
        self.alloc_shared()
    }

    /// Whether the device looks up hits and misses itself, and the host knows no selection.
    pub fn uses_device_cache(&self) -> bool {
        self.options.device_cache
            && !self.in_place()
            && self.options.recall == RecallMode::Exact
            && self.store.buffer(0).is_some()
            && !self.policy.needs_host_choice()
    }

    /// Lists, staging and jobs for the policy, which layers share.
    pub(super) fn alloc_shared(&mut self) -> Result<(), SchedulerError> {
        let window = self.layout.sinks + self.layout.ring;
        let kept = self.layers.iter().filter_map(Layer::kept).flat_map(|kept| &kept.capacity);
        let kept = kept.max().map_or(0, |k| k + self.policy.recent);
        let budget = self.policy.most_attended().min(self.shape.capacity);
        let attended = budget.max(window).max(kept);
        let divided = self.options.recall != RecallMode::Exact;
        self.lists = RowLists::new(&*self.backend, self.shape.n_kv_heads, attended, divided)?;
        let moved = if self.in_place() {
            1
        } else {
            self.options.tile.max(self.options.chunk).max(attended)
        };
        let mapped = self.store.buffer(0).is_some();
        self.mover = RowMover::new(&*self.backend, &self.shape, moved, mapped)?;
        self.alloc_recall()?;
        self.reserve_jobs()
    }

    /// What layers that recall select with, or what attends first tokens at other positions.
    fn alloc_recall(&mut self) -> Result<(), SchedulerError> {
        (self.recall, self.sink_rotation) = (None, None);
        let (backend, shape, policy) = (&*self.backend, &self.shape, &self.policy);
        if policy.rotates_sinks(shape) {
            self.sink_rotation = Some(SinkRotation::new(backend, shape, policy)?);
        }
        let mut indexes = self.layers.iter().filter_map(Layer::recall).map(|recall| &recall.index);
        let Some(index) = indexes.next() else { return Ok(()) };
        let setup = RecallSetup {
            n_layers: 1 + indexes.count(),
            capacity: index.capacity(),
            mode: self.options.recall,
            in_place: self.in_place(),
            on_device: self.uses_device_cache(),
        };
        self.recall = Some(RecallPath::new(backend, shape, policy, &setup)?);
        Ok(())
    }
}
