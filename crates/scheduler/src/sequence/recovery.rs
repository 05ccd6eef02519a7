//! A sequence that is cut back, or whose device was lost: what is derived from rows and positions
//! is made again.

use std::ops::Range;
use std::sync::Arc;

use longview_core::LayerId;
use longview_ops::Backend;

use super::coded_slots::Slots;
use super::kv_sequence::{CopyQueue, Readiness, Sequence};
use super::sparse_means::EXACT_TOKENS;
use crate::error::SchedulerError;
use crate::index::ClusterWorker;
use crate::layout::{LayerMode, PrefillMode};

impl<B: Backend> Sequence<B> {
    /// Cuts the sequence back to its first `n_tokens` tokens: a question is taken back, a cancelled
    /// step is undone. Clusters that hold later tokens are dissolved.
    pub async fn truncate(&mut self, n_tokens: usize) -> Result<(), SchedulerError> {
        let had_index = self.cut_rows(n_tokens).await?;
        if had_index { self.make_ready().await } else { Ok(()) }
    }

    /// [`Sequence::truncate`] without the index of what is left, where that has another one than
    /// the longer sequence had: whoever goes on with a prompt needs it at the end of that alone.
    /// [`Sequence::make_ready`] makes it, and has to be called before a step that goes through the
    /// policy. Where clusters alone are chosen it is made: it is kept, and serves whatever comes
    /// behind.
    ///
    /// # Errors
    /// As [`Sequence::truncate`].
    pub async fn cut(&mut self, n_tokens: usize) -> Result<(), SchedulerError> {
        self.begin_cut(n_tokens).await?;
        if self.is_behind() { self.make_ready().await } else { Ok(()) }
    }

    /// [`Sequence::cut`] in pieces: an index that it would make is left for
    /// [`Sequence::finish_prefill_piece`], which has to be called until it is done before more of a
    /// prompt is read. Until then [`Sequence::is_behind`].
    ///
    /// # Errors
    /// As [`Sequence::truncate`].
    pub async fn begin_cut(&mut self, n_tokens: usize) -> Result<(), SchedulerError> {
        let had_index = self.cut_rows(n_tokens).await?;
        let is_kept = self.policy.index.is_some_and(|index| index.keeps_runs());
        if had_index && is_kept && self.readiness == Readiness::PrefillUnfinished {
            self.readiness = Readiness::Behind;
        }
        Ok(())
    }

    /// Returns whether it had an index at its end: of a prompt that is being read none is made yet.
    async fn cut_rows(&mut self, n_tokens: usize) -> Result<bool, SchedulerError> {
        let n = n_tokens.min(self.n_tokens);
        self.ending = None;
        self.n_drafted = 0;
        if n <= EXACT_TOKENS {
            self.was_read = PrefillMode::Exact;
        }
        if n < self.n_tokens {
            self.writeback.clear();
        } else {
            self.bring_rows().await?;
        }
        if self.needs_rebuild() {
            return self.truncate_rows(n).await.map(|()| true);
        }
        self.forget_speculation();
        self.forget_tracked();
        self.drop_jobs().await?;
        self.shape.layers().for_each(|layer| self.leave_old_order(layer));
        let is_shorter = n < self.n_tokens;
        let had_ended = !self.known.is_prompt(self.n_tokens) || self.has_runs_of_prompt();
        let mut rebuild = false;
        for layer in self.shape.layers() {
            match self.layers[layer].mode() {
                LayerMode::Recall => rebuild |= self.truncate_index(layer, n).await?,
                LayerMode::Kept => self.truncate_kept(layer, n)?,
                LayerMode::Dense | LayerMode::Window | LayerMode::Local => {}
            }
            let state = &mut self.layers[layer];
            if let Some(queries) = &mut state.recorded.queries {
                queries.truncate(&*self.backend, n)?;
            }
            state.recorded.cut_sums(n);
            state.positions.iter_mut().for_each(|positions| positions.truncate(n));
        }
        self.n_tokens = n;
        self.known.cut(n);
        // A prompt that is cut has the index of the shorter one.
        rebuild |= is_shorter && self.known.is_prompt(n) && !self.has_runs_of_prompt();
        if rebuild {
            self.readiness = Readiness::PrefillUnfinished;
        }
        self.load_device()?;
        Ok(had_ended)
    }

    /// Dissolves the units of a layer that hold tokens from `n` on, or that would lie in the recent
    /// window. Returns whether more rows are left without an index than the device has room for.
    async fn truncate_index(&mut self, layer: LayerId, n: usize) -> Result<bool, SchedulerError> {
        let recall = self.layers[layer].recall_mut();
        if let Some(keys) = recall.and_then(|recall| recall.prompt_keys.as_mut()) {
            keys.truncate(n);
        }
        // The new last tokens are the recent window: no cluster may hold them.
        self.cut_index(layer, n.saturating_sub(self.policy.recent)).await?;
        Ok(n.saturating_sub(self.layers[layer].n_indexed) > self.policy.ring_rows())
    }

    fn truncate_kept(&mut self, layer: LayerId, n: usize) -> Result<(), SchedulerError> {
        let state = &mut self.layers[layer];
        state.n_indexed = state.n_indexed.min(n);
        state.n_submitted = state.n_indexed;
        let pending = n - state.n_indexed;
        if let Some(kept) = state.kept_mut() {
            kept.truncate(&*self.backend, n, pending)?;
        }
        Ok(())
    }

    /// Cuts rows and positions, and makes the rest anew.
    async fn truncate_rows(&mut self, n: usize) -> Result<(), SchedulerError> {
        for layer in self.shape.layers() {
            self.restore_token_order(layer, 0);
            let state = &mut self.layers[layer];
            if let Some(queries) = &mut state.recorded.queries {
                queries.truncate(&*self.backend, n)?;
            }
            state.recorded.cut_sums(n);
            state.positions.iter_mut().for_each(|positions| positions.truncate(n));
        }
        self.n_tokens = n;
        self.known.cut(n);
        self.rebuild().await
    }

    /// Fills device rows from the host store: all rows of dense layers, those in the window of
    /// layers that have one, sinks and ring of the others. Cached clusters stay where they are.
    pub(super) fn load_device(&mut self) -> Result<(), SchedulerError> {
        self.forget_speculation();
        let n = self.n_tokens;
        for layer in self.shape.layers() {
            if self.layers[layer].device.is_none() {
                continue;
            }
            match self.layers[layer].mode() {
                LayerMode::Dense => self.load_rows(layer, 0..n)?,
                LayerMode::Local => self.load_rows(layer, self.window_start(layer, n)..n)?,
                LayerMode::Recall if self.layers[layer].resident.is_some() => {
                    self.load_stale(layer)?;
                }
                LayerMode::Window | LayerMode::Recall => {
                    let sinks = self.layout.sinks.min(n);
                    self.load_rows(layer, 0..sinks)?;
                    self.load_rows(layer, self.window_start(layer, n)..n)?;
                }
                LayerMode::Kept => {
                    self.load_rows(layer, self.window_start(layer, n)..n)?;
                    self.load_kept(layer)?;
                }
            }
        }
        Ok(())
    }

    /// Carries rows to their places on the device, as many at a time as the lists have room for.
    pub(super) fn load_rows(
        &mut self,
        layer: LayerId,
        rows: Range<usize>,
    ) -> Result<(), SchedulerError> {
        self.copies.join(&self.backend)?;
        let mut row = rows.start;
        while row < rows.end {
            let (segment, to) = self.layers[layer].place_of(self.device_row(layer, row));
            let mut end = rows.end.min(row + self.mover.stride());
            if !self.layers[layer].device_rest.is_empty() {
                // All rows, in their order: these are in one buffer.
                end = end.min(row + self.layers[layer].device_rows - to);
            }
            self.mover.clear();
            for head in self.shape.heads() {
                for r in row..end {
                    let (_, to) = self.layers[layer].place_of(self.device_row(layer, r));
                    self.mover.push(head, r, to);
                }
            }
            let Self { backend, shape, store, mover, layers, .. } = self;
            let Some(device) = layers[layer].segment_mut(segment) else { return Ok(()) };
            mover.load(&**backend, shape, &**store, layer, device)?;
            row = end;
        }
        Ok(())
    }

    /// Goes on with `backend` after the device was lost: everything that was on the old one is made
    /// again from the host. Jobs of the clustering worker are forgotten and submitted again; rows
    /// of a token that had not reached the host are gone, so cut the sequence back by it first or
    /// compute it again.
    pub fn recover(&mut self, backend: &Arc<B>) -> Result<(), SchedulerError> {
        let lost = std::mem::replace(&mut self.backend, Arc::clone(backend));
        self.ending = None;
        self.forget_means();
        self.copies = CopyQueue::new(backend, &self.options);
        self.store.move_to(backend)?;
        self.writeback.clear();
        self.worker = ClusterWorker::new(backend, self.options.overlap, 2 * self.shape.n_layers);
        for layer in &mut self.layers {
            layer.recorded.restore(&**backend, &self.shape)?;
            layer.n_submitted = layer.n_indexed;
            if self.readiness == Readiness::NeedsRebuild {
                continue;
            }
            if let Some(kept) = layer.kept_mut() {
                kept.restore(&**backend, &self.shape, self.layout.ring)?;
            }
            if layer.device.is_some() {
                let n = 1 + layer.device_rest.len();
                layer.alloc_segments(&**backend, &self.shape, n)?;
            }
            if let Some(slots) = &mut layer.slots {
                *slots = Slots::new(&**backend, &self.shape, slots.n)?;
            }
            if let Some(recall) = layer.recall_mut() {
                recall.restore(&*lost, &**backend, self.policy.sinks)?;
            }
        }
        if self.readiness == Readiness::NeedsRebuild {
            return Ok(());
        }
        self.alloc_shared()?;
        self.load_device()
    }

    fn forget_speculation(&mut self) {
        if let Some(path) = &mut self.recall {
            path.forget_speculation();
        }
    }
}

#[cfg(test)]
mod tests {
    use longview_core::HeadId;
    use longview_ops::ReferenceBackend;

    use super::super::fixture::{
        self, TestSequence, blocks, check_rows, clusters, end_in_pieces, full, heavy_hitters,
        in_place, indexes, inject, on_device, prefilled, streaming,
    };
    use super::super::layer_state::SelectedAt;
    use super::super::options::HostStoreKind;
    use super::*;
    use crate::store::fixture::{read_floats, row};

    const STORES: [HostStoreKind; 2] = [HostStoreKind::Auto, HostStoreKind::Plain];

    fn truncate(sequence: &mut TestSequence, n: usize) {
        pollster::block_on(sequence.truncate(n)).unwrap();
    }

    fn device(sequence: &TestSequence, layer: LayerId) -> Vec<f32> {
        read_floats(&sequence.backend, sequence.layers[layer].device.as_ref().unwrap())
    }

    /// The rows of these tokens, of both heads one after the other.
    fn tokens(layer: LayerId, tokens: &[usize]) -> Vec<f32> {
        fixture::shape()
            .heads()
            .flat_map(|h| tokens.iter().flat_map(move |t| row(layer, h, *t)))
            .collect()
    }

    /// Behind two first tokens is a ring of three: row r lies in its (r - 2) % 3-th place.
    #[test]
    fn first_and_last_tokens_are_put_where_attention_looks_for_them() {
        for store in STORES {
            let mut sequence = prefilled(on_device(streaming(), store), 9);
            assert_eq!(device(&sequence, LayerId(1)), tokens(LayerId(1), &[0, 1, 8, 6, 7]));
            truncate(&mut sequence, 7);
            assert_eq!(device(&sequence, LayerId(1)), tokens(LayerId(1), &[0, 1, 5, 6, 4]));
            assert_eq!(sequence.n_tokens(), 7);
            check_rows(&sequence);
            truncate(&mut sequence, 100);
            assert_eq!(sequence.n_tokens(), 7, "there are no more");
        }
    }

    #[test]
    fn a_dense_layer_has_all_rows_on_the_device() {
        for store in STORES {
            let sequence = prefilled(on_device(full(), store), 9);
            let all = device(&sequence, LayerId(0));
            for (head, rows) in fixture::shape().heads().zip(all.chunks_exact(24 * 8)) {
                let want: Vec<f32> = (0..9).flat_map(|t| row(LayerId(0), head, t)).collect();
                assert_eq!(rows[..9 * 8], want);
                assert_eq!(rows[9 * 8..], [0.0; 15 * 8]);
            }
        }
    }

    #[test]
    fn a_fresh_device_gets_what_the_lost_one_had() {
        for store in STORES {
            for policy in [full(), streaming(), clusters()] {
                let mut sequence = prefilled(on_device(policy, store), 12);
                let before = [device(&sequence, LayerId(0)), device(&sequence, LayerId(1))];
                let positions = sequence.layers[1].positions.clone();
                let fresh = Arc::new(ReferenceBackend::new());
                sequence.recover(&fresh).unwrap();
                assert!(sequence.is_on(&fresh));
                assert_eq!([device(&sequence, LayerId(0)), device(&sequence, LayerId(1))], before);
                assert_eq!(sequence.layers[1].positions, positions);
                check_rows(&sequence);
            }
        }
    }

    #[test]
    fn a_window_that_was_being_indexed_on_the_lost_device_is_not_waited_for() {
        let mut sequence = prefilled(on_device(clusters(), HostStoreKind::Auto), 12);
        sequence.layers[0].n_submitted += 2;
        sequence.layers[0].recall_mut().unwrap().selected_at =
            Some(SelectedAt { n_tokens: 12, n_indexed: 10 });
        sequence.recover(&Arc::new(ReferenceBackend::new())).unwrap();
        assert_eq!((sequence.layers[0].n_submitted, sequence.layers[0].n_indexed), (10, 10));
        assert_eq!(sequence.layers[0].recall().unwrap().selected_at, None);
    }

    #[test]
    fn an_index_that_was_stopped_is_made_later() {
        let mut sequence = in_place(clusters());
        inject(&mut sequence, 20);
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(true));
        sequence.stop_with(Arc::clone(&stop));
        let stopped = pollster::block_on(sequence.finish_prefill());
        assert!(matches!(stopped, Err(SchedulerError::Stopped)), "{stopped:?}");
        assert_eq!(sequence.readiness, Readiness::PrefillUnfinished);
        stop.store(false, std::sync::atomic::Ordering::Relaxed);
        pollster::block_on(sequence.make_ready()).unwrap();
        let made = prefilled(in_place(clusters()), 20);
        for (layer, like) in sequence.layers.iter().zip(&made.layers) {
            assert_eq!(layer.n_indexed, like.n_indexed);
            assert_eq!(layer.positions, like.positions);
        }
        check_rows(&sequence);
    }

    /// Of 20 tokens the first is a sink and two are recent, so rows 1 to 17 are in one batch.
    #[test]
    fn a_cut_dissolves_clusters_of_later_tokens() {
        let mut sequence = prefilled(in_place(clusters()), 20);
        sequence.layers[1].recall_mut().unwrap().selected_at =
            Some(SelectedAt { n_tokens: 20, n_indexed: 18 });
        truncate(&mut sequence, 4);
        for layer in &sequence.layers {
            assert_eq!((layer.n_indexed, layer.n_submitted, layer.permuted_to), (1, 1, 1));
            assert_eq!(layer.recall().unwrap().index.n_used(0), 0);
            assert_eq!(layer.recall().unwrap().selected_at, None);
            // Behind the sink is less than a window and the recent rows, in token order.
            assert_eq!(layer.positions[1], [0, 1, 2, 3]);
        }
        check_rows(&sequence);
    }

    #[test]
    fn a_prompt_that_is_cut_or_goes_on_has_the_index_of_one_that_was_read_at_once() {
        for policy in [blocks(), clusters()] {
            for n in 1..=24 {
                let want = prefilled(in_place(policy.clone()), n);
                let want = indexes(&want);
                let mut cut = prefilled(in_place(policy.clone()), 24);
                truncate(&mut cut, n);
                assert_eq!(indexes(&cut), want, "cut to {n}");
                check_rows(&cut);
                // Clusters alone are those of the beginning: the next test.
                let is_same = policy.index.is_some_and(|index| !index.keeps_runs());
                for before in (1..n).filter(|_| is_same) {
                    let begun = prefilled(in_place(policy.clone()), before);
                    let longer = prefilled(begun, n - before);
                    assert_eq!(indexes(&longer), want, "{n} behind {before}");
                }
            }
        }
    }

    /// A document is clustered once for all questions that follow: a known beginning keeps its
    /// clusters where they alone are chosen, whether a prompt goes on or parts from another one.
    #[test]
    fn clusters_alone_stay_where_a_prompt_goes_on_or_is_cut_behind_them() {
        let runs = |sequence: &TestSequence| -> Vec<usize> {
            sequence.layers[1].recall().unwrap().index.run_ends().collect()
        };
        let begun = || prefilled(in_place(clusters()), 12);
        assert_eq!(runs(&begun()), [10]);
        // Less than a window behind them waits for more.
        assert_eq!(runs(&prefilled(begun(), 1)), [10]);
        assert_eq!(runs(&prefilled(begun(), 7)), [10, 17]);
        let cuts: [fn(&mut TestSequence, usize); 2] =
            [truncate, |sequence, n| pollster::block_on(sequence.cut(n)).unwrap()];
        for cut in cuts {
            let mut longer = prefilled(begun(), 7);
            cut(&mut longer, 12);
            assert_eq!(runs(&longer), [10]);
            assert_eq!(runs(&prefilled(longer, 9)), [10, 19]);
            // A shorter beginning has no run that ends before it: one is made, which stays.
            let mut shorter = begun();
            cut(&mut shorter, 11);
            assert_eq!(runs(&shorter), [9]);
            assert_eq!(indexes(&shorter), indexes(&prefilled(in_place(clusters()), 11)));
            assert_eq!(runs(&prefilled(shorter, 8)), [9, 17]);
        }
    }

    #[test]
    fn a_cut_in_pieces_is_that_of_one_go() {
        for n in 1..=24 {
            let mut want = prefilled(in_place(clusters()), 24);
            pollster::block_on(want.cut(n)).unwrap();
            let mut cut = prefilled(in_place(clusters()), 24);
            pollster::block_on(cut.begin_cut(n)).unwrap();
            // Clusters of so few rows are none, or those that the longer one had.
            assert_eq!(cut.is_behind(), (5..24).contains(&n), "{n}");
            end_in_pieces(&mut cut);
            assert!(!cut.is_behind());
            assert_eq!(indexes(&cut), indexes(&want), "cut to {n}");
            check_rows(&cut);
        }
        let mut blocks = prefilled(in_place(blocks()), 24);
        pollster::block_on(blocks.begin_cut(11)).unwrap();
        assert!(!blocks.is_behind(), "the end of the longer prompt makes its blocks");
    }

    #[test]
    fn a_cut_that_leaves_more_than_the_ring_holds_is_indexed_anew() {
        let mut sequence = prefilled(in_place(clusters()), 20);
        truncate(&mut sequence, 19);
        for layer in &sequence.layers {
            assert_eq!((layer.n_indexed, layer.n_submitted), (17, 17));
            assert!(layer.recall().unwrap().index.n_used(1) > 0);
        }
        check_rows(&sequence);
    }

    #[test]
    fn a_cut_among_rows_that_a_policy_before_permuted_finds_them_sorted() {
        let mut sequence = prefilled(in_place(clusters()), 20);
        pollster::block_on(sequence.set_policy(full())).unwrap();
        truncate(&mut sequence, 7);
        assert_eq!(sequence.layers[0].permuted_to, 0);
        assert_eq!(sequence.layers[0].positions[1], [0, 1, 2, 3, 4, 5, 6]);
        check_rows(&sequence);
    }

    /// Ten tokens, of which both heads keep some of the first six; rings of six, then the pool.
    fn keeping(store: HostStoreKind) -> TestSequence {
        let mut sequence = on_device(heavy_hitters(), store);
        inject(&mut sequence, 10);
        for layer in &mut sequence.layers {
            (layer.n_indexed, layer.n_submitted) = (6, 6);
            let scores = [5.0, 1.0, 4.0, 0.0, 3.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
            layer.kept_mut().unwrap().choose(&scores, 6);
        }
        sequence
    }

    #[test]
    fn rows_that_are_kept_lie_behind_the_rings() {
        for store in STORES {
            let mut sequence = keeping(store);
            truncate(&mut sequence, 9);
            assert_eq!(sequence.layers[1].n_indexed, 6);
            let rows = device(&sequence, LayerId(1));
            let ring = |h: HeadId| {
                [row(LayerId(1), h, 6), row(LayerId(1), h, 7), row(LayerId(1), h, 8), [0.0; 8]]
                    .concat()
            };
            for h in fixture::shape().heads() {
                assert_eq!(
                    rows[h.index() * 6 * 8..][..4 * 8],
                    ring(h),
                    "the ring begins again at row 6"
                );
            }
            let best = [[0, 2, 4, 5], [5, 4, 3, 2]];
            let pool: Vec<f32> = fixture::shape()
                .heads()
                .flat_map(|h| best[h].into_iter().flat_map(move |t| row(LayerId(1), h, t)))
                .collect();
            assert_eq!(rows[12 * 8..], pool);
        }
    }

    #[test]
    fn a_cut_lets_go_of_kept_rows_behind_it() {
        for store in STORES {
            let mut sequence = keeping(store);
            truncate(&mut sequence, 4);
            for layer in &sequence.layers {
                assert_eq!((layer.n_indexed, layer.n_submitted), (4, 4));
                let kept: Vec<Vec<u32>> = layer
                    .kept()
                    .unwrap()
                    .rows
                    .iter()
                    .map(|rows| rows.iter().map(|kept| kept.row).collect())
                    .collect();
                assert_eq!(kept, [[0, 2], [3, 2]]);
            }
            check_rows(&sequence);
        }
    }

    #[test]
    fn a_sequence_without_buffers_is_cut_and_made_anew() {
        let mut sequence = prefilled(in_place(clusters()), 20);
        sequence.readiness = Readiness::NeedsRebuild;
        truncate(&mut sequence, 15);
        assert_eq!(sequence.readiness, Readiness::Ready);
        assert_eq!(sequence.layers[1].n_indexed, 13);
        check_rows(&sequence);
    }
}
