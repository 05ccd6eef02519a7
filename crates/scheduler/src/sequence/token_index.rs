//! The index of single tokens: the space in which they are compared, and those of the second stage,
//! which follow what is clustered.

use std::sync::Arc;

use longview_core::LayerId;
use longview_ops::{Backend, Distance};

use super::kv_sequence::Sequence;
use crate::error::SchedulerError;
use crate::index::{
    ClusterJob, ClusterTask, LayerProjection, LowRankDecode, TaskKind, projection::Projections,
};
use crate::policy::{INDEX_SEGMENT, TokenConfig};

impl<B: Backend> Sequence<B> {
    /// At the end of a prompt of which rows up to `end` are indexed: forgets a space that was made
    /// when less of it was there, and the tokens in it, so that both are what they would be had the
    /// prompt been read at once.
    pub(super) async fn drop_old_projection(
        &mut self,
        layer: LayerId,
        end: usize,
    ) -> Result<(), SchedulerError> {
        let first = self.policy.sinks;
        let state = &mut self.layers[layer];
        let n_summed = state.recorded.n_summed;
        let Some(recall) = state.recall_mut() else { return Ok(()) };
        let Some(projection) = &recall.projection else { return Ok(()) };
        let has_stages = recall.tokens.is_some();
        let units_of = if has_stages { INDEX_SEGMENT.min(end - first) } else { 0 };
        // Factors that follow every step are those of an answer by now.
        let is_new = projection.low_rank.is_none() && recall.projected == (n_summed, units_of);
        if is_new {
            return Ok(());
        }
        recall.projection = None;
        if let Some(tokens) = &mut recall.tokens {
            tokens.truncate(&*self.backend, first, first)?;
            recall.follow_tokens(&*self.backend, first)?;
            recall.resize_caches();
            return Ok(());
        }
        self.cut_index(layer, first).await
    }

    /// The space in which the layer's tokens are compared, and an index of that width, unless it
    /// has one.
    pub(super) async fn make_projection(
        &mut self,
        layer: LayerId,
        tokens: &TokenConfig,
    ) -> Result<(), SchedulerError> {
        if self.layers[layer].recall().is_none_or(|recall| recall.projection.is_some()) {
            return Ok(());
        }
        let backend = Arc::clone(&self.backend);
        let (gram_q, gram_k) = self.layers[layer].recorded.sums(&*backend).await?;
        if gram_k.iter().all(|x| *x == 0.0) {
            let (policy, what) = (self.policy.preset, "the sums of q q^T and k k^T");
            return Err(SchedulerError::NoStatistics { policy, what });
        }
        if !gram_q.iter().chain(&gram_k).all(|x| x.is_finite()) {
            // The steps towards a decomposition of what is no number would never end.
            return Err(SchedulerError::NonFinite);
        }
        let made = Projections::new(tokens, &gram_q, &gram_k, self.shape.head_dim);
        let low_rank =
            tokens.adapts.then(|| LowRankDecode::new(&made, &gram_q, &gram_k, self.shape.head_dim));
        let rank = made.rank;
        let projection = LayerProjection::new(&*backend, made, low_rank)?;
        let state = &mut self.layers[layer];
        let n_summed = state.recorded.n_summed;
        if let Some(recall) = state.recall_mut() {
            recall.set_projection(&*backend, &self.shape, &self.policy, rank, projection)?;
            recall.projected = (n_summed, 0);
        }
        self.reserve_jobs()
    }

    /// Brings the second stage's index of tokens up to what is clustered.
    pub(super) async fn extend_tokens(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        while self.extend_by_segment(layer).await? {}
        Ok(())
    }

    /// [`Sequence::extend_tokens`] by a segment at most; returns whether there was anything to do.
    pub(super) async fn extend_by_segment(
        &mut self,
        layer: LayerId,
    ) -> Result<bool, SchedulerError> {
        let first = self.policy.sinks;
        let state = &self.layers[layer];
        let Some(recall) = state.recall() else { return Ok(false) };
        let (Some(tokens), Some(projection)) = (&recall.tokens, &recall.projection) else {
            return Ok(false);
        };
        let start = first + tokens.n_used(0);
        let n = INDEX_SEGMENT.min(state.n_indexed.saturating_sub(start));
        if n == 0 {
            return Ok(false);
        }
        let mut job = Box::new(ClusterJob::new(ClusterTask {
            layer,
            row_start: start,
            kind: TaskKind::Tokens(tokens.width()),
            n_kv_heads: self.shape.n_kv_heads,
            n_points: n,
            n_clusters: n,
            head_dim: self.shape.head_dim,
            distance: Distance::default(),
            iterations: 0,
            max_cluster: usize::MAX,
            seed: 0,
            is_grouped: false,
        }));
        job.projection = Some(Arc::clone(&projection.w_k));
        self.give_keys(&mut job);
        self.worker.submit(job);
        let taken = self.worker.take(&*self.backend, layer).await?;
        let Some(mut job) = taken else { return Ok(false) };
        let Some(recall) = self.layers[layer].recall_mut() else { return Ok(false) };
        if let Some(tokens) = &mut recall.tokens {
            // The first keys say how large the numbers of later ones are.
            if let Some(projection) = &mut recall.projection
                && tokens.n_used(0) == 0
            {
                projection.fit_codes(&*self.backend, &self.shape, &mut job.heads)?;
                recall.projected.1 = n;
            }
            tokens.append(&*self.backend, start, start + n, &job.heads)?;
        }
        recall.follow_tokens(&*self.backend, first)?;
        recall.resize_caches();
        Ok(true)
    }

    /// In a cut: drops tokens behind the last one that is clustered, and adds those that lack.
    pub(super) async fn cut_tokens(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let (first, n_indexed) = (self.policy.sinks, self.layers[layer].n_indexed);
        if let Some(recall) = self.layers[layer].recall_mut()
            && let Some(tokens) = &mut recall.tokens
        {
            tokens.truncate(&*self.backend, n_indexed, first)?;
            recall.follow_tokens(&*self.backend, first)?;
            recall.resize_caches();
        }
        self.extend_tokens(layer).await
    }
}
