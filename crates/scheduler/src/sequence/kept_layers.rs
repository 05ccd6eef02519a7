//! Layers that keep rows for the attention they received: what they keep at the end of a prompt,
//! and when they choose again.

use std::sync::Arc;

use longview_core::LayerId;
use longview_ops::{Backend, View};

use super::kv_sequence::Sequence;
use super::layer_state::LayerState;
use super::policy_change::no_mass;
use crate::error::SchedulerError;
use crate::eviction::{Kept, ObservedToken, RechooseWindow, group_means, head_capacities};
use crate::index::{Observation, Observer, Observers};
use crate::layout::{LayerMode, LayerTensors};
use crate::policy::{HeadBudgets, KeptConfig, Statistic};
use crate::store::{DeviceRows, LayerRows, RowReader};

impl<B: Backend> Sequence<B> {
    /// At the end of a prompt: chooses what the layer keeps.
    pub(super) async fn keep_prompt(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let Some(config) = self.policy.residency.kept() else { return Ok(()) };
        let end = self.n_tokens.saturating_sub(self.policy.recent);
        let mean = self.policy.kept(&self.shape, layer);
        // The sums of decode begin with those of the prompt, where all queries count.
        let mut mass = None;
        let scores = match config.statistic {
            _ if end == 0 => Vec::new(),
            Statistic::LastQueries(queries) => {
                let KeptConfig { kernel, pool, order, .. } = config;
                let how = Observation { queries, kernel, pool, order };
                self.observe(layer, &how, 0..end).await?
            }
            Statistic::AllQueries => {
                let all = self.all_mass(layer).await?;
                let scores = group_means(&self.shape, &all, end);
                mass = Some(all);
                scores
            }
        };
        let capacity = match self.policy.budget.heads {
            // A prompt that fits is kept whole, and says nothing about what decode will need.
            HeadBudgets::Ada { safeguard, .. } if end > mean => {
                head_capacities(&scores, end, mean, safeguard)
            }
            _ => vec![mean.min(self.shape.capacity); self.shape.n_kv_heads],
        };
        let backend = Arc::clone(&self.backend);
        let mut kept = Kept::new(&*backend, &self.shape, capacity, self.layout.ring)?;
        kept.choose(&scores, end);
        if let Some(mass) = mass {
            kept.carry_mass(&*backend, &self.shape, &mass, end..self.n_tokens)?;
        }
        self.stats.evictions += (end * self.shape.n_kv_heads - kept.n_kept()) as u64;
        let state = &mut self.layers[layer];
        (state.n_indexed, state.n_submitted) = (end, end);
        Ok(state.set_kept(&*backend, &self.shape, kept)?)
    }

    /// What every row received from all queries of the prompt, `[Hq, capacity]`.
    async fn all_mass(&self, layer: LayerId) -> Result<Vec<f32>, SchedulerError> {
        let state = &self.layers[layer];
        let n_rows = state.positions[0].len().min(self.n_tokens);
        let mass = state.recorded.read_mass(&*self.backend, &self.shape, n_rows).await?;
        mass.ok_or_else(|| no_mass(&self.policy))
    }

    /// In a decode step: a full window of new tokens is chosen from.
    pub(super) async fn rechoose(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let Some(config) = self.policy.residency.kept() else { return Ok(()) };
        let (first, n) = (self.layers[layer].n_indexed, self.n_tokens);
        let recent = self.policy.recent;
        if n < first + recent + config.window {
            return Ok(());
        }
        let window = RechooseWindow { leaving: first..n - recent, recent };
        let places = self.kept_places();
        let backend = Arc::clone(&self.backend);
        let (state, mover) = (&mut self.layers[layer], &mut self.mover);
        let Some(kept) = state.kept_mut() else { return Ok(()) };
        let evicted = kept.rechoose(&*backend, &config, &places, &window, mover).await?;
        self.stats.evictions += evicted as u64;
        (state.n_indexed, state.n_submitted) = (n - recent, n - recent);
        if let Some(buffer) = &mut state.device {
            let pool = DeviceRows { buffer, head_stride: 0 };
            mover.load(&*backend, &self.shape, &*self.store, layer, pool)?;
        }
        Ok(())
    }

    /// Lists what a decoded token attends in a layer that keeps rows.
    pub(super) fn list_kept(&mut self, layer: LayerId) {
        let n_rows = self.n_tokens + 1;
        let pending = self.window_start(layer, n_rows)..n_rows;
        let (places, recent) = (self.kept_places(), self.policy.recent);
        if let Some(kept) = self.layers[layer].kept() {
            kept.list(&places, &pending, recent, &mut self.lists);
        }
    }

    /// After a layer's attention: adds what the query of token `index` gave to every row that may
    /// be chosen.
    pub(super) fn measure(
        &mut self,
        layer: LayerId,
        index: usize,
        t: &LayerTensors<'_, B>,
        lse: View<'_, B>,
    ) -> Result<(), SchedulerError> {
        let n_rows = self.n_tokens + 1;
        let pending = self.window_start(layer, n_rows)..n_rows;
        let places = self.kept_places();
        // Taken out, because attention reads the layer's device rows meanwhile.
        let state = std::mem::replace(&mut self.layers[layer].state, LayerState::Window);
        let LayerState::Kept(mut kept) = state else {
            self.layers[layer].state = state;
            return Ok(());
        };
        let state = &self.layers[layer];
        let rows = match &state.device {
            Some(buffer) => Some(longview_ops::KvView::new(buffer, 0)),
            None => self.rows(layer).kernel_view(),
        };
        let result = match rows {
            Some(rows) => {
                let observed = ObservedToken { t, index, lse, rows };
                kept.0.measure(&*self.backend, &self.shape, &places, &pending, &observed)
            }
            None => Ok(()),
        };
        self.layers[layer].state = LayerState::Kept(kept);
        Ok(result?)
    }

    /// Fills the pool of a layer from the host store.
    pub(super) fn load_kept(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let places = self.kept_places();
        let rows = LayerRows { shape: &self.shape, store: &*self.store, layer };
        let (state, mover) = (&mut self.layers[layer], &mut self.mover);
        if let (LayerState::Kept(kept), Some(device)) = (&state.state, &mut state.device) {
            kept.0.load(&*self.backend, rows, &places, mover, device)?;
        }
        Ok(())
    }

    /// Whether a layer keeps rows by the attention of all queries, which prefill must record.
    pub(super) fn records_mass(&self, layer: LayerId) -> bool {
        self.layers[layer].mode() == LayerMode::Kept
            && self.policy.residency.records_all_attention()
    }

    /// In prefill: adds the attention that a chunk of `len` tokens, from token `start` of the step
    /// on, gave to every row so far.
    pub(super) fn record_mass(
        &mut self,
        layer: LayerId,
        t: &LayerTensors<'_, B>,
        lse: View<'_, B>,
        chunk: std::ops::Range<usize>,
    ) -> Result<(), SchedulerError> {
        let n = self.n_tokens;
        let reader = RowReader {
            backend: &self.backend,
            rows: LayerRows { shape: &self.shape, store: &*self.store, layer },
            mover: &mut self.mover,
            tile: self.options.tile,
        };
        let n_rows = n + chunk.len();
        let observers = Observers { q: t.q, lse, range: chunk, diagonal: n };
        let recorded = &mut self.layers[layer].recorded;
        Ok(Observer::new(reader)?.record_mass(recorded, &observers, n_rows)?)
    }
}
