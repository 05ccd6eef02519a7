//! Attention to what a step left unread, estimated: every cluster counts as its mean key and its
//! mean value, as often as it has tokens that were not taken.
//!
//! With c and v the means of a cluster's keys and values and n its unread tokens, it adds `n
//! e^(scale q.c) v` to the attention's numerator and `n e^(scale q.c)` to its denominator, merged
//! with what was attended by log-sum-exp. By Jensen's inequality that is never more than the mass
//! that is really there.

use longview_core::DType;
use longview_ops::{
    AttendList, Backend, ClusterRest, ClusterRestParams, ListSpan, OpResult, View, ViewMut,
};

use crate::index::LayerIndex;
use crate::layer::LayerMode;
use crate::sequence::Sequence;
use crate::shape::KvShape;
use crate::step::{LayerTensors, attend_params, reborrow};

/// Buffers that the layers of a sequence share.
pub(crate) struct Tail<B: Backend> {
    /// U32 `[Hkv, capacity]`: tokens of each cluster that were not taken.
    rest: B::Buffer,
    /// U32 `[Hkv, capacity]`: every cluster's number.
    all: B::Buffer,
}

impl<B: Backend> Tail<B> {
    /// For indexes of up to `capacity` clusters.
    pub fn new(backend: &B, shape: &KvShape, capacity: usize) -> OpResult<Self> {
        let len = shape.n_kv_heads * capacity;
        let mut all = backend.alloc(DType::U32, len, "numbers of clusters")?;
        let numbers: Vec<u32> = (0..len).map(|i| (i % capacity) as u32).collect();
        backend.write(ViewMut::all(&mut all), bytemuck::cast_slice(&numbers))?;
        Ok(Self { rest: backend.alloc(DType::U32, len, "unread tokens")?, all })
    }

    fn count(
        &mut self,
        backend: &B,
        index: &LayerIndex<B>,
        n_kv_heads: usize,
        (max_selected, [clusters, takes, n_selected]): (usize, [View<'_, B>; 3]),
    ) -> OpResult<()> {
        backend.cluster_rest(ClusterRest {
            p: ClusterRestParams {
                n_kv_heads: n_kv_heads as u32,
                cluster_stride: index.capacity() as u32,
                max_selected: max_selected as u32,
            },
            sizes: index.sizes(),
            n_clusters: index.n_clusters(),
            clusters,
            takes,
            n_selected,
            rest: ViewMut::all(&mut self.rest),
        })
    }
}

/// Bytes that [`Tail`] takes for indexes of up to `capacity` clusters.
pub(crate) fn tail_bytes(shape: &KvShape, capacity: usize) -> u64 {
    (2 * shape.n_kv_heads * capacity * DType::U32.size()) as u64
}

impl<B: Backend> Sequence<B> {
    /// Adds what the last choice of `layer` left unread to the attention of the step's token
    /// `index`.
    pub(crate) fn attend_tail(
        &mut self,
        layer: usize,
        index: usize,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        let slot = self.selection_slot(layer);
        let Self { backend, shape, policy, layers, selector, tail: Some(tail), .. } = self else {
            return Ok(());
        };
        let (backend, state) = (&**backend, &layers[layer]);
        if state.mode != LayerMode::Recall {
            return Ok(());
        }
        let clusters = state.index.as_ref().expect("recall layers have an index");
        let selector = selector.as_mut().expect("a recall policy has a selector");
        if policy.mass.is_some() {
            selector.put_back(backend, slot)?;
        }
        let selection = (selector.max_selected(), selector.selection(slot));
        tail.count(backend, clusters, shape.n_kv_heads, selection)?;
        let n_tokens = t.q.len / (shape.n_q_heads * shape.head_dim);
        backend.attend_list(AttendList {
            p: attend_params(shape, n_tokens, true),
            q: t.q,
            spans: &[ListSpan {
                q_index: index as u32,
                kv: clusters.pairs().expect("the policy keeps the clusters' values"),
                rows: View::all(&tail.all),
                n_rows: clusters.n_clusters(),
                weights: Some(View::all(&tail.rest)),
                list_stride: clusters.capacity() as u32,
            }],
            out: reborrow(&mut t.out),
            lse: ViewMut::part(lse, 0, n_tokens * shape.n_q_heads),
        })
    }
}
