//! A copy of one layer's rows in token order, where clusters have put them out of it.

use longview_core::DType;
use longview_ops::{Backend, KvGather, KvGatherParams, KvView, OpResult, View, ViewMut};

use crate::layout::KvShape;

/// Rows of one layer in token order, made when they are first needed.
pub(super) struct OrderedRows<B: Backend> {
    /// `[Hkv, stride, 2, Dh]`.
    pub rows: B::Buffer,
    pub stride: usize,
    /// How many rows each head has, then where they lie and which tokens they are, of all heads.
    lists: B::Buffer,
    packed: Vec<u32>,
}

impl<B: Backend> OrderedRows<B> {
    /// Room for `n_rows` rows of each head, and for as many again where the context has them.
    pub fn new(backend: &B, shape: &KvShape, n_rows: usize) -> OpResult<Self> {
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
    pub fn copy(
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
