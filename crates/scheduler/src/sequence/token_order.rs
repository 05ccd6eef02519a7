//! Rows that clusters have put out of token order, as a prompt that goes on attends to them: copied
//! into token order, so that the sums of its attention have the order, and the bits, that they would
//! have if all of it had been read at once.
//!
//! The copy is of one layer at a time, and takes a few percent of the attention of a whole chunk. The
//! rows themselves stay where they are: forks share them, and clusters need them so.

use longview_core::DType;
use longview_ops::{Backend, KvGather, KvGatherParams, KvView, OpResult, View, ViewMut};

use super::kv_sequence::Sequence;
use super::prefill::{Chunk, Run};
use super::scratch::StepScratch;
use crate::layout::{KvShape, LayerTensors};

/// Rows of one layer in token order, made when they are first needed.
pub(super) struct OrderedRows<B: Backend> {
    /// `[Hkv, stride, 2, Dh]`.
    rows: B::Buffer,
    stride: usize,
    /// How many rows each head has, then where they lie and which tokens they are, of all heads.
    lists: B::Buffer,
    packed: Vec<u32>,
}

impl<B: Backend> OrderedRows<B> {
    /// Room for `n_rows` rows of each head, and for as many again where the context has them.
    fn new(backend: &B, shape: &KvShape, n_rows: usize) -> OpResult<Self> {
        let stride = n_rows.next_power_of_two().min(shape.capacity).max(n_rows);
        let h = shape.n_kv_heads;
        let elements = h * stride * 2 * shape.head_dim;
        Ok(Self {
            rows: backend.alloc(shape.kv_dtype, elements, "rows in token order")?,
            stride,
            lists: backend.alloc(DType::U32, h + 2 * h * stride, "rows and their tokens")?,
            packed: Vec::with_capacity(h + 2 * h * n_rows),
        })
    }

    /// Copies the rows `from`, of which `positions` says which tokens they are.
    fn copy(
        &mut self,
        backend: &B,
        shape: &KvShape,
        from: KvView<'_, B>,
        positions: &[Vec<u32>],
    ) -> OpResult<()> {
        let n_rows = positions.first().map_or(0, Vec::len);
        let (h, list) = (shape.n_kv_heads, shape.n_kv_heads * n_rows);
        self.packed.clear();
        self.packed.extend(std::iter::repeat_n(n_rows as u32, h));
        (0..h).for_each(|_| self.packed.extend(0..n_rows as u32));
        positions.iter().for_each(|head| self.packed.extend_from_slice(head));
        let all = ViewMut::part(&mut self.lists, 0, self.packed.len());
        backend.write(all, bytemuck::cast_slice(&self.packed))?;
        backend.kv_gather(KvGather {
            p: KvGatherParams {
                n_kv_heads: h as u32,
                head_dim: shape.head_dim as u32,
                list_stride: n_rows as u32,
                dst_head_stride: self.stride as u32,
            },
            src: from,
            src_rows: View::part(&self.lists, h, list),
            dst_rows: View::part(&self.lists, h + list, list),
            n_rows: View::part(&self.lists, 0, h),
            dst: &mut self.rows,
        })
    }
}

impl Chunk {
    /// Attention over all rows so far, the chunk's own included, in token order.
    pub(super) fn attend_in_token_order<B: Backend>(
        &self,
        sequence: &Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> OpResult<()> {
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let positions = &sequence.layers[self.layer].positions;
        let n_rows = positions.first().map_or(0, Vec::len);
        if scratch.ordered.as_ref().is_none_or(|ordered| ordered.stride < n_rows) {
            // The old one is freed first.
            scratch.ordered = None;
            scratch.ordered = Some(OrderedRows::new(backend, shape, n_rows)?);
        }
        let Some(ordered) = &mut scratch.ordered else { return Ok(()) };
        ordered.copy(backend, shape, sequence.attended_rows(self.layer), positions)?;
        let run = Run {
            kv: KvView::new(&ordered.rows, ordered.stride),
            rows: 0..n_rows,
            diagonal: self.position(sequence) as i32,
            window: None,
            accumulate: false,
        };
        self.attend_run(backend, shape, &mut scratch.lse, t, run)
    }
}
