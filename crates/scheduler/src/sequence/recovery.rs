//! A sequence that is cut back, or whose device was lost: what is derived from rows and positions
//! is made again.

use std::ops::Range;
use std::sync::Arc;

use longview_ops::Backend;

use super::kv_sequence::{CopyQueue, Readiness, Sequence};
use super::layer_state::LayerState;
use crate::error::SchedulerError;
use crate::index::ClusterWorker;
use crate::layout::LayerMode;

impl<B: Backend> Sequence<B> {
    /// Cuts the sequence back to its first `n_tokens` tokens: a question is taken back, a cancelled
    /// step is undone. Clusters that hold later tokens are dissolved.
    pub async fn truncate(&mut self, n_tokens: usize) -> Result<(), SchedulerError> {
        let n = n_tokens.min(self.n_tokens);
        if n < self.n_tokens {
            self.writeback.clear();
        } else {
            self.bring_rows().await?;
        }
        if self.needs_rebuild() {
            return self.truncate_rows(n).await;
        }
        self.forget_speculation();
        self.forget_tracked();
        self.drop_jobs().await?;
        let mut rebuild = false;
        for layer in 0..self.layers.len() {
            match self.layers[layer].mode() {
                LayerMode::Recall => rebuild |= self.truncate_index(layer, n).await?,
                LayerMode::Kept => {
                    self.truncate_permuted(layer, n);
                    self.truncate_kept(layer, n)?;
                }
                LayerMode::Dense | LayerMode::Window => self.truncate_permuted(layer, n),
            }
            let state = &mut self.layers[layer];
            if let Some(queries) = &mut state.recorded.queries {
                queries.truncate(&*self.backend, n)?;
            }
            state.positions.iter_mut().for_each(|positions| positions.truncate(n));
        }
        self.n_tokens = n;
        if rebuild { self.finish_prefill().await } else { self.load_device() }
    }

    /// Dissolves the units of a layer that hold tokens from `n` on, or that would lie in the recent
    /// window. Returns whether more rows are left without an index than the device has room for.
    async fn truncate_index(&mut self, layer: usize, n: usize) -> Result<bool, SchedulerError> {
        let state = &mut self.layers[layer];
        let indexed_before = state.n_indexed;
        let LayerState::Recall(recall) = &mut state.state else { return Ok(false) };
        // The new last tokens are the recent window: no cluster may hold them.
        let kept = n.saturating_sub(self.policy.recent);
        state.n_indexed = recall.index.truncate(&*self.backend, kept, self.policy.sinks)?;
        state.n_submitted = state.n_indexed;
        recall.forget_selection();
        // With two stages the caches hold tokens: `cut_tokens`.
        if recall.tokens.is_none() {
            recall.resize_caches();
        }
        let (indexed, selection) = (state.n_indexed, recall.selection);
        self.restore_token_order(layer, indexed);
        self.cut_tokens(layer).await?;
        if let Some(path) = self.recall.as_mut().filter(|_| indexed < indexed_before) {
            path.forget_cached(&*self.backend, selection)?;
        }
        Ok(n.saturating_sub(indexed) > self.policy.ring_rows())
    }

    /// Rows that a policy before put out of token order, in a layer without an index.
    fn truncate_permuted(&mut self, layer: usize, n: usize) {
        if self.layers[layer].permuted_to > n {
            self.restore_token_order(layer, 0);
        }
    }

    fn truncate_kept(&mut self, layer: usize, n: usize) -> Result<(), SchedulerError> {
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
        for layer in 0..self.layers.len() {
            self.restore_token_order(layer, 0);
            let state = &mut self.layers[layer];
            if let Some(queries) = &mut state.recorded.queries {
                queries.truncate(&*self.backend, n)?;
            }
            state.positions.iter_mut().for_each(|positions| positions.truncate(n));
        }
        self.n_tokens = n;
        self.rebuild().await
    }

    /// Fills device rows from the host store: all rows of dense layers, sinks and ring of the
    /// others. Cached clusters stay where they are.
    pub(super) fn load_device(&mut self) -> Result<(), SchedulerError> {
        self.forget_speculation();
        let n = self.n_tokens;
        for layer in 0..self.layers.len() {
            if self.layers[layer].device.is_none() {
                continue;
            }
            match self.layers[layer].mode() {
                LayerMode::Dense => self.load_rows(layer, 0..n)?,
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
    fn load_rows(&mut self, layer: usize, rows: Range<usize>) -> Result<(), SchedulerError> {
        self.copies.join(&self.backend)?;
        let mut row = rows.start;
        while row < rows.end {
            let end = rows.end.min(row + self.mover.stride());
            self.mover.clear();
            for head in 0..self.shape.n_kv_heads {
                for r in row..end {
                    self.mover.push(head, r, self.device_row(layer, r));
                }
            }
            let Self { backend, shape, store, mover, layers, .. } = self;
            let Some(device) = layers[layer].device_rows_mut() else { return Ok(()) };
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
        self.backend = Arc::clone(backend);
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
                layer.device = Some(layer.alloc_device(&**backend, &self.shape)?);
            }
            if let Some(recall) = layer.recall_mut() {
                recall.restore(&**backend)?;
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
