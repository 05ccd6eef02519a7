//! The residual estimate: attention to what a step left unread. Every cluster counts as its mean
//! key and its mean value, as often as it has tokens that were not taken.
//!
//! With c and v the means of a cluster's keys and values and n its unread tokens, it adds `n
//! e^(scale q.c) v` to the attention's numerator and `n e^(scale q.c)` to its denominator, merged
//! with what was attended by log-sum-exp. By Jensen's inequality that is never more than the mass
//! that is really there.

use longview_core::DType;
use longview_ops::{
    AttendList, Backend, ClusterRest, ClusterRestParams, ListSpan, OpResult, View, ViewMut,
};

use super::selector::Selector;
use crate::index::LayerIndex;
use crate::layout::{KvShape, LayerTensors, SelectionId, attend_params};

/// Buffers that the layers of a sequence share.
pub(crate) struct ResidualMeans<B: Backend> {
    /// U32 `[Hkv, capacity]`: tokens of each cluster that were not taken.
    rest: B::Buffer,
    /// U32 `[Hkv, capacity]`: every cluster's number.
    all: B::Buffer,
}

impl<B: Backend> ResidualMeans<B> {
    /// For indexes of up to `capacity` clusters.
    pub fn new(backend: &B, shape: &KvShape, capacity: usize) -> OpResult<Self> {
        let len = shape.n_kv_heads * capacity;
        let mut all = backend.alloc(DType::U32, len, "numbers of clusters")?;
        let numbers: Vec<u32> = (0..len).map(|i| (i % capacity) as u32).collect();
        backend.write(ViewMut::all(&mut all), bytemuck::cast_slice(&numbers))?;
        Ok(Self { rest: backend.alloc(DType::U32, len, "unread tokens")?, all })
    }

    /// Adds what the last selection left unread to the attention of the step's token `at.index`.
    pub fn attend(
        &mut self,
        backend: &B,
        shape: &KvShape,
        at: &Unread<'_, B>,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        // An index that keeps no values has nothing to stand for its clusters.
        let Some(pairs) = at.clusters.pairs() else { return Ok(()) };
        let [clusters, takes, n_selected] = at.selector.selection(at.selection);
        backend.cluster_rest(ClusterRest {
            p: ClusterRestParams {
                n_kv_heads: shape.n_kv_heads as u32,
                cluster_stride: at.clusters.capacity() as u32,
                max_selected: at.selector.max_selected() as u32,
            },
            sizes: at.clusters.sizes(),
            n_clusters: at.clusters.n_clusters(),
            clusters,
            takes,
            n_selected,
            rest: ViewMut::all(&mut self.rest),
        })?;
        let n_tokens = t.n_tokens(shape);
        backend.attend_list(AttendList {
            p: attend_params(shape, n_tokens, true),
            q: t.q,
            spans: &[ListSpan {
                q_index: at.index as u32,
                kv: pairs,
                rows: View::all(&self.all),
                n_rows: at.clusters.n_clusters(),
                weights: Some(View::all(&self.rest)),
                list_stride: at.clusters.capacity() as u32,
            }],
            out: t.out_mut(),
            lse: ViewMut::part(lse, 0, n_tokens * shape.n_q_heads),
        })
    }
}

/// The clusters of a layer, and what was selected of them for one token.
pub(crate) struct Unread<'a, B: Backend> {
    pub clusters: &'a LayerIndex<B>,
    pub selector: &'a Selector<B>,
    pub selection: SelectionId,
    /// The token among the step's.
    pub index: usize,
}

/// Bytes that [`ResidualMeans`] takes for indexes of up to `capacity` clusters.
pub(crate) fn residual_bytes(shape: &KvShape, capacity: usize) -> u64 {
    (2 * shape.n_kv_heads * capacity * DType::U32.size()) as u64
}
