//! A sequence under another policy: what the new one needs is checked, rows go back into token
//! order, and everything that is derived from them is made anew.

use std::ops::Range;

use longview_core::{HeadId, LayerId};
use longview_ops::Backend;

use super::coded_slots::{CodedSlots, n_coded_slots};
use super::exact_rows::has_device_rows;
use super::kv_sequence::{Readiness, Sequence};
use super::layer_state::{Indexes, Layer, LayerSetup};
use super::options::SequenceOptions;
use super::resident_rows::has_resident_rows;
use super::sparse_means;
use crate::error::SchedulerError;
use crate::eviction::SinkRotation;
use crate::layout::{LayerMode, SelectionId};
use crate::policy::Policy;
use crate::recall::{RecallMode, RecallPath, RecallSetup};
use crate::store::{RowLists, RowMover, RowRange};

/// Fewest rows that go back into token order at a time.
const SORTED_ROWS: usize = 4096;

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
        self.set_policy_and_residency(policy, self.options.resident_rows).await
    }

    /// [`Sequence::set_policy`], with all rows of layers that recall on the device from then on, or
    /// not ([`SequenceOptions::resident_rows`]).
    ///
    /// # Errors
    /// As there, and where nothing may be resident: steps that recall ahead.
    pub async fn set_policy_and_residency(
        &mut self,
        policy: Policy,
        resident_rows: bool,
    ) -> Result<(), SchedulerError> {
        let before = (self.policy.clone(), self.options.resident_rows);
        self.begin_change(policy, resident_rows).await?;
        let result = self.finish_prefill().await;
        if result.is_err() {
            self.go_back_to(before).await;
        }
        result
    }

    /// [`Sequence::set_policy`] of a prompt that goes on, in pieces: the order of rows and the
    /// index are left for [`Sequence::finish_prefill_piece`], which has to be called until it is
    /// done before more is read. Until then [`Sequence::is_behind`].
    ///
    /// # Errors
    /// As there. What shows only as the index is made is an error of its pieces, and the new policy
    /// stays in force.
    pub async fn begin_policy(&mut self, policy: Policy) -> Result<(), SchedulerError> {
        self.begin_change(policy, self.options.resident_rows).await
    }

    /// Nothing changes where something is refused.
    async fn begin_change(
        &mut self,
        policy: Policy,
        resident_rows: bool,
    ) -> Result<(), SchedulerError> {
        SequenceOptions { resident_rows, ..self.options }.check()?;
        self.check_recall(&policy)?;
        sparse_means::check(&policy, &self.options)?;
        self.check_statistics(&policy)?;
        self.bring_rows().await?;
        let resident_before = std::mem::replace(&mut self.options.resident_rows, resident_rows);
        let before = (std::mem::replace(&mut self.policy, policy), resident_before);
        let result = self.begin_rebuild().await;
        if result.is_err() {
            self.go_back_to(before).await;
        } else {
            self.readiness = Readiness::Behind;
        }
        result
    }

    async fn go_back_to(&mut self, before: (Policy, bool)) {
        (self.policy, self.options.resident_rows) = before;
        // If the device is lost this fails too, and is done when there is another.
        self.rebuild().await.ok();
    }

    /// Makes again what a failed change of the policy, or a failed end of a prefill, left undone.
    /// Nothing happens if nothing failed.
    ///
    /// # Errors
    /// As [`Sequence::set_policy`]: steps would fail likewise.
    pub async fn make_ready(&mut self) -> Result<(), SchedulerError> {
        match self.readiness {
            Readiness::Ready => Ok(()),
            Readiness::PrefillUnfinished | Readiness::Behind => self.finish_prefill().await,
            Readiness::NeedsRebuild => self.rebuild().await,
        }
    }

    /// Makes all that the policy asks for from rows and positions.
    pub(super) async fn rebuild(&mut self) -> Result<(), SchedulerError> {
        self.begin_rebuild().await?;
        self.finish_prefill().await
    }

    /// [`Sequence::rebuild`] but for the order of rows and the index.
    async fn begin_rebuild(&mut self) -> Result<(), SchedulerError> {
        self.drop_jobs().await?;
        self.readiness = Readiness::NeedsRebuild;
        self.layout = self.policy.device_layout(self.shape.capacity);
        for layer in self.layers.iter_mut().filter(|layer| layer.permuted_to > 0) {
            layer.old_order = Some((0, 0));
        }
        self.adopt_policy()?;
        self.readiness = Readiness::PrefillUnfinished;
        Ok(())
    }

    /// Puts rows back into token order, also where the policy attends to all of them: sums of
    /// attention have the bits of their order.
    pub(super) fn sort_rows(&mut self) {
        for layer in self.shape.layers() {
            self.restore_token_order(layer, 0);
        }
    }

    /// Puts rows that have the order of a policy before back into token order.
    pub(super) fn leave_old_order(&mut self, layer: LayerId) {
        if self.layers[layer].old_order.is_some() {
            self.restore_token_order(layer, 0);
        }
    }

    /// A piece of [`Sequence::leave_old_order`]; `false` where nothing was left to do.
    pub(super) fn leave_old_order_piece(&mut self, layer: LayerId) -> bool {
        let Some((head, start)) = self.layers[layer].old_order else { return false };
        let (n_rows, n_heads) = (self.layers[layer].permuted_to, self.shape.n_kv_heads);
        let end = self.sort_run(layer, HeadId::new(head), start..n_rows, SORTED_ROWS);
        let state = &mut self.layers[layer];
        state.old_order = match (head + 1, end) {
            (_, end) if end < n_rows => Some((head, end)),
            (next, _) if next < n_heads => Some((next, 0)),
            _ => None,
        };
        if state.old_order.is_none() {
            state.permuted_to = 0;
        }
        true
    }

    /// Puts rows from `from` on back into token order.
    pub(super) fn restore_token_order(&mut self, layer: LayerId, from: usize) {
        let state = &mut self.layers[layer];
        if from == 0 {
            state.old_order = None;
        }
        let n_rows = state.permuted_to;
        if n_rows <= from {
            return;
        }
        for head in self.shape.heads() {
            let mut at = from;
            while at < n_rows {
                at = self.sort_run(layer, head, at..n_rows, SORTED_ROWS);
            }
        }
        self.layers[layer].permuted_to = from;
    }

    /// Puts the first rows of `rows` into token order, behind which no earlier token comes: `least`
    /// of them or more, where there are as many. An index orders the rows of each of its runs among
    /// themselves, so they are seldom many more. Returns the row behind them.
    fn sort_run(
        &mut self,
        layer: LayerId,
        head: HeadId,
        rows: Range<usize>,
        least: usize,
    ) -> usize {
        let start = rows.start;
        let positions = &mut self.layers[layer].positions[head][rows];
        let (mut last, mut len) = (0, positions.len());
        for (i, position) in positions.iter().enumerate() {
            last = last.max(*position as usize);
            if i + 1 >= least && last == start + i {
                len = i + 1;
                break;
            }
        }
        let positions = &mut positions[..len];
        if !positions.is_sorted() {
            self.order.clear();
            self.order.extend(0..len as u32);
            self.order.sort_unstable_by_key(|i| positions[*i as usize]);
            positions.sort_unstable();
            let (place, row_bytes) = (RowRange { layer, head, start }, self.shape.row_bytes());
            self.store.permute_rows(place, &self.order, row_bytes, &mut self.bytes);
            self.layers[layer].rows_changed(start..start + len);
        }
        start + len
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
        for (layer, Layer { recorded, .. }) in self.shape.layers().zip(&self.layers) {
            let mode = policy.layer_mode(&self.shape, layer);
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
        self.adopt_layers(std::iter::repeat_with(|| None))?;
        self.alloc_shared()
    }

    /// What layers have of the policy for themselves: `forked` are the indexes that they go on
    /// with, where they do not begin with empty ones.
    pub(super) fn adopt_layers(
        &mut self,
        forked: impl IntoIterator<Item = Option<Indexes<B>>>,
    ) -> Result<(), SchedulerError> {
        self.ending = None;
        self.forget_tracked();
        self.check_recall(&self.policy)?;
        self.make_exact_rows()?;
        let has_two_forms = self.exact.is_some();
        let in_place = self.in_place();
        let (on_device, resident) = (self.chooses_on_device(), self.has_resident_rows());
        let host_caches = !in_place && !on_device && !resident;
        let (backend, shape, policy) = (&*self.backend, &self.shape, &self.policy);
        let mut selection = SelectionId(0);
        for ((layer, state), forked) in shape.layers().zip(&mut self.layers).zip(forked) {
            let own_rows = has_two_forms && has_device_rows(policy.layer_mode(shape, layer));
            let in_place = in_place && !own_rows;
            let coded_slots = n_coded_slots(shape, policy, &self.options, layer);
            let max_buffer_bytes = self.options.max_buffer_bytes;
            let setup = LayerSetup {
                layer,
                selection,
                in_place,
                host_caches,
                on_device,
                resident,
                coded_slots,
                max_buffer_bytes,
            };
            state.adopt(backend, shape, policy, &setup, forked)?;
            selection.0 += usize::from(state.recall().is_some());
        }
        Ok(())
    }

    /// Whether the device looks up hits and misses itself, and the host knows no selection.
    pub fn uses_device_cache(&self) -> bool {
        self.options.device_cache
            && !self.in_place()
            && !self.has_resident_rows()
            && self.options.recall == RecallMode::Exact
            && self.kernels_read_store()
            && !self.policy.needs_host_choice()
    }

    /// Whether all rows of layers that recall lie on the device.
    pub fn has_resident_rows(&self) -> bool {
        has_resident_rows(&self.shape, &self.policy, &self.options)
    }

    /// Whether the host learns what was selected after a step at the earliest, and no layer waits
    /// for it.
    pub(super) fn chooses_on_device(&self) -> bool {
        let lists_itself = self.has_resident_rows() && !self.policy.needs_host_choice();
        lists_itself || self.uses_device_cache()
    }

    /// Whether kernels read rows of the host store as the slots of a device cache have them.
    fn kernels_read_store(&self) -> bool {
        let reads_codes = self.options.eight_bit_slots && self.kernels_write_two_forms();
        reads_codes || self.store.buffer(LayerId(0)).is_some()
    }

    /// Lists, staging and jobs for the policy, which layers share.
    pub(super) fn alloc_shared(&mut self) -> Result<(), SchedulerError> {
        let window = self.layout.sinks + self.layout.ring;
        let kept = self.layers.iter().filter_map(Layer::kept).flat_map(|kept| &kept.capacity);
        let kept = kept.max().map_or(0, |k| k + self.policy.recent);
        let budget = self.policy.most_attended().min(self.shape.capacity);
        // No token is attended twice.
        let attended = budget.max(window).max(kept).min(self.shape.capacity);
        let divided = self.options.recall != RecallMode::Exact;
        self.lists = RowLists::new(&*self.backend, self.shape.n_kv_heads, attended, divided)?;
        let moved = if self.in_place() && self.exact.is_none() {
            1
        } else {
            self.options.tile.max(self.options.chunk).max(attended)
        };
        let mapped = self.store.buffer(LayerId(0)).is_some();
        self.mover = RowMover::new(&*self.backend, &self.shape, moved, mapped)?;
        let has_coded = self.layers.iter().any(|layer| layer.slots.is_some());
        let coded = || {
            let mapped = self.kernels_write_two_forms();
            CodedSlots::new(&*self.backend, &self.shape, attended, (divided, mapped))
        };
        self.coded = has_coded.then(coded).transpose()?;
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
            on_device: self.chooses_on_device(),
            resident: self.has_resident_rows(),
        };
        self.recall = Some(RecallPath::new(backend, shape, policy, &setup)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longview_core::HeadId;

    use super::super::fixture::{
        TestSequence, blocks, check_rows, clusters, end_in_pieces, full, heavy_hitters, host_rows,
        in_place, indexes, made, on_device, options, policy, prefilled, shape, streaming,
    };
    use super::super::options::{HostStoreKind, Placement};
    use super::*;
    use crate::policy::{AttentionBound, Importance, Preset};
    use crate::store::fixture::row;

    #[test]
    fn rows_from_a_place_on_go_back_into_token_order() {
        let mut sequence = prefilled(in_place(full()), 8);
        // Each head has an order of its own, which is not its own inverse.
        for (head, order) in shape().heads().zip([[0, 1, 3, 4, 2, 5], [1, 0, 4, 2, 5, 3]]) {
            let (place, row_bytes) = (RowRange { layer: LayerId(1), head, start: 0 }, 32);
            sequence.store.permute_rows(place, &order, row_bytes, &mut Vec::new());
            sequence.layers[1].positions[head][..6].copy_from_slice(&order);
        }
        sequence.layers[1].permuted_to = 6;
        check_rows(&sequence);
        sequence.restore_token_order(LayerId(1), 2);
        assert_eq!(sequence.layers[1].positions[0], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sequence.layers[1].positions[1], [1, 0, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sequence.layers[1].permuted_to, 2);
        check_rows(&sequence);
        sequence.restore_token_order(LayerId(1), 2);
        assert_eq!(sequence.layers[1].positions[1][..2], [1, 0], "nothing is left to do");
        sequence.restore_token_order(LayerId(1), 0);
        assert_eq!(sequence.layers[1].positions[1], [0, 1, 2, 3, 4, 5, 6, 7]);
        let want: Vec<f32> = (0..8).flat_map(|r| row(LayerId(1), HeadId(1), r)).collect();
        assert_eq!(host_rows(&sequence, LayerId(1), HeadId(1)), want);
    }

    #[test]
    fn rows_go_back_as_far_as_they_were_moved_among_themselves() {
        let mut sequence = prefilled(in_place(full()), 8);
        let (order, row_bytes) = ([1, 0, 2, 4, 3, 5], 32);
        let place = RowRange { layer: LayerId(1), head: HeadId(0), start: 0 };
        sequence.store.permute_rows(place, &order, row_bytes, &mut Vec::new());
        sequence.layers[1].positions[0][..6].copy_from_slice(&order);
        let mut sort = |rows| {
            let behind = sequence.sort_run(LayerId(1), HeadId(0), rows, 2);
            check_rows(&sequence);
            (behind, sequence.layers[1].positions[0][..6].to_vec())
        };
        assert_eq!(sort(0..6), (2, vec![0, 1, 2, 4, 3, 5]));
        assert_eq!(sort(2..6), (5, vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(sort(5..6), (6, vec![0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn rows_leave_the_order_of_a_policy_before_in_pieces() {
        let mut want = prefilled(in_place(clusters()), 20);
        pollster::block_on(want.set_policy(blocks())).unwrap();
        let begun = || {
            let mut begun = prefilled(in_place(clusters()), 20);
            pollster::block_on(begun.begin_policy(blocks())).unwrap();
            assert!(begun.layers.iter().all(|layer| layer.old_order == Some((0, 0))));
            assert!(begun.layers.iter().all(|layer| layer.permuted_to == 18));
            check_rows(&begun);
            begun
        };
        let mut sequence = begun();
        let mut n_pieces = 0;
        while sequence.layers[0].old_order.is_some() {
            pollster::block_on(sequence.finish_prefill_piece(false)).unwrap();
            n_pieces += 1;
            check_rows(&sequence);
        }
        assert_eq!(n_pieces, 1 + 2, "one for each head");
        assert_eq!(sequence.layers[1].old_order, Some((0, 0)), "its turn comes");
        end_in_pieces(&mut sequence);
        assert_eq!(indexes(&sequence), indexes(&want));
        check_rows(&sequence);
        // A cut in between puts all of them back first.
        let mut cut = begun();
        for _ in 0..2 {
            pollster::block_on(cut.finish_prefill_piece(false)).unwrap();
        }
        pollster::block_on(cut.truncate(15)).unwrap();
        assert!(cut.layers.iter().all(|layer| layer.old_order.is_none()));
        check_rows(&cut);
        pollster::block_on(cut.make_ready()).unwrap();
        pollster::block_on(want.truncate(15)).unwrap();
        assert_eq!(indexes(&cut), indexes(&want));
    }

    #[test]
    fn a_policy_that_is_begun_is_the_one_that_was_set() {
        for policy in [clusters(), blocks()] {
            let mut want = prefilled(in_place(full()), 20);
            pollster::block_on(want.set_policy(policy.clone())).unwrap();
            let mut begun = prefilled(in_place(full()), 20);
            pollster::block_on(begun.begin_policy(policy.clone())).unwrap();
            assert!(begun.is_behind() && begun.layers[1].n_indexed == 1);
            assert!(end_in_pieces(&mut begun) > 2 && !begun.is_behind());
            assert_eq!(indexes(&begun), indexes(&want));
            // A step makes what is left.
            let mut other = prefilled(in_place(full()), 20);
            pollster::block_on(other.begin_policy(policy)).unwrap();
            pollster::block_on(other.make_ready()).unwrap();
            assert_eq!(indexes(&other), indexes(&want));
        }
    }

    #[test]
    fn a_policy_that_attends_to_everything_has_rows_in_token_order() {
        for store in [HostStoreKind::Auto, HostStoreKind::Plain] {
            let mut sequence = prefilled(on_device(clusters(), store), 20);
            assert_eq!(sequence.layers[0].n_indexed, 18);
            assert_eq!(sequence.layers[0].permuted_to, 18);
            check_rows(&sequence);
            pollster::block_on(sequence.set_policy(full())).unwrap();
            assert_eq!((sequence.layers[0].permuted_to, sequence.layers[0].n_indexed), (0, 0));
            check_rows(&sequence);
            pollster::block_on(sequence.set_policy(streaming())).unwrap();
            assert_eq!((sequence.layers[1].permuted_to, sequence.layers[1].n_indexed), (0, 2));
            check_rows(&sequence);
            pollster::block_on(sequence.set_policy(clusters())).unwrap();
            assert_eq!(sequence.layers[1].n_indexed, 18, "indexed anew");
            check_rows(&sequence);
        }
    }

    #[test]
    fn a_policy_that_needs_what_no_prefill_recorded_is_refused_and_changes_nothing() {
        let by_local_queries = policy(Preset::Infllm, 16, |o| {
            (o.sinks, o.recent, o.window, o.block_size) = (Some(1), Some(2), Some(2), Some(2));
            (o.representative_num, o.importance) = (Some(1), Some(Importance::Local));
        });
        let mut sequence = prefilled(in_place(streaming()), 10);
        for wanted in [heavy_hitters(), by_local_queries] {
            let refused = pollster::block_on(sequence.set_policy(wanted));
            assert!(matches!(refused, Err(SchedulerError::NoStatistics { .. })), "{refused:?}");
            assert_eq!(sequence.policy, streaming());
            assert_eq!(sequence.readiness, Readiness::Ready);
        }
        // A prompt of recent tokens alone is kept whole.
        let mut short = prefilled(in_place(streaming()), 4);
        pollster::block_on(short.set_policy(heavy_hitters())).unwrap();
        let mut longer = prefilled(in_place(streaming()), 5);
        assert!(longer.check_statistics(&heavy_hitters()).is_err());
        assert!(pollster::block_on(longer.set_policy(heavy_hitters())).is_err());
    }

    /// No prefill summed keys, which shows only when the index is made.
    #[test]
    fn a_change_that_fails_on_the_way_is_taken_back() {
        let loki = policy(Preset::Loki, 16, |o| {
            (o.sinks, o.recent, o.window, o.rank) = (Some(1), Some(2), Some(2), Some(4));
        });
        let mut sequence = prefilled(in_place(streaming()), 10);
        let refused = pollster::block_on(sequence.set_policy(loki));
        assert!(matches!(refused, Err(SchedulerError::NoStatistics { .. })), "{refused:?}");
        assert_eq!(sequence.policy, streaming());
        assert_eq!(sequence.readiness, Readiness::Ready);
        assert_eq!(sequence.layers[0].mode(), LayerMode::Window);
    }

    fn speculative() -> SequenceOptions {
        let recall = RecallMode::Speculative { gate: 0.5 };
        SequenceOptions { recall, ..options(Placement::Device, HostStoreKind::Auto) }
    }

    #[test]
    fn a_choice_that_the_host_must_see_is_not_speculated_on() {
        let mut sequence = made(clusters(), speculative());
        let bounded = Policy { attention_bound: AttentionBound::WorstCase, ..clusters() };
        let refused = pollster::block_on(sequence.set_policy(bounded.clone()));
        assert!(matches!(refused, Err(SchedulerError::CannotSpeculate { .. })), "{refused:?}");
        assert_eq!(sequence.policy, clusters());
        let mut exact = on_device(clusters(), HostStoreKind::Auto);
        pollster::block_on(exact.set_policy(bounded)).unwrap();
    }

    #[test]
    fn the_device_looks_rows_up_only_where_it_can_and_the_host_need_not_see() {
        let cached = |options: SequenceOptions| SequenceOptions { device_cache: true, ..options };
        let device = options(Placement::Device, HostStoreKind::Auto);
        assert!(made(clusters(), cached(device)).uses_device_cache());
        assert!(!made(clusters(), device).uses_device_cache(), "nobody asked");
        let plain = options(Placement::Device, HostStoreKind::Plain);
        assert!(!made(clusters(), cached(plain)).uses_device_cache(), "rows it cannot read");
        let unified = options(Placement::InPlace, HostStoreKind::Auto);
        assert!(!made(clusters(), cached(unified)).uses_device_cache(), "nothing to fetch");
        assert!(!made(clusters(), cached(speculative())).uses_device_cache());
        let bounded = Policy { attention_bound: AttentionBound::WorstCase, ..clusters() };
        assert!(!made(bounded, cached(device)).uses_device_cache());
    }

    #[test]
    fn caches_of_the_host_are_there_where_the_host_looks_rows_up() {
        let caches = |options| made(clusters(), options).layers[1].recall().unwrap().caches.len();
        let device = options(Placement::Device, HostStoreKind::Auto);
        assert_eq!(caches(device), 2);
        assert_eq!(caches(SequenceOptions { device_cache: true, ..device }), 0);
        assert_eq!(caches(options(Placement::InPlace, HostStoreKind::Auto)), 0);
    }

    #[test]
    fn lists_hold_what_a_head_may_attend_and_moves_what_a_tile_has() {
        let strides = |sequence: &TestSequence| (sequence.lists.stride, sequence.mover.stride());
        // Two first tokens and three last ones; in place nothing is moved.
        assert_eq!(strides(&in_place(streaming())), (5, 1));
        // A tile has four rows, fewer than a head attends.
        assert_eq!(strides(&on_device(streaming(), HostStoreKind::Auto)), (5, 5));
        let wide = SequenceOptions {
            tile: 7,
            chunk: 6,
            ..options(Placement::Device, HostStoreKind::Auto)
        };
        assert_eq!(strides(&made(streaming(), wide)), (5, 7));
        assert_eq!(strides(&in_place(clusters())), (16, 1));
        // A head that keeps more than the mean attends it all, with the recent ones.
        let mut sequence = on_device(heavy_hitters(), HostStoreKind::Auto);
        assert_eq!(strides(&sequence), (8, 8));
        sequence.layers[1].kept_mut().unwrap().capacity[1] = 9;
        sequence.alloc_shared().unwrap();
        assert_eq!(strides(&sequence), (13, 13));
    }

    #[test]
    fn selections_are_numbered_by_the_layers_that_recall() {
        let backend = std::sync::Arc::new(longview_ops::ReferenceBackend::new());
        let shape = crate::layout::KvShape { n_layers: 3, ..shape() };
        let policy = Policy { dense_layers: 1, ..clusters() };
        let options = options(Placement::InPlace, HostStoreKind::Auto);
        let deep = Sequence::new(&backend, shape, policy, options).unwrap();
        let selection = |layer: LayerId| deep.layers[layer].recall().map(|r| r.selection);
        assert_eq!(selection(LayerId(0)), None, "it attends to everything");
        assert_eq!(selection(LayerId(1)), Some(SelectionId(0)));
        assert_eq!(selection(LayerId(2)), Some(SelectionId(1)));
        assert!(deep.recall.is_some());
        assert!(in_place(streaming()).recall.is_none());
    }
}
