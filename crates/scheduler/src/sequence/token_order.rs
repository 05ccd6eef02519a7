//! The order of tokens among rows that clusters have put out of it.
//!
//! A prompt that goes on attends to its past in this order, so that the sums of its attention have
//! the order, and the bits, that they would have if all of it had been read at once. Nothing is
//! copied: kernels read rows where a list says they lie. The list is made anew for each layer of a
//! chunk, which is little beside the attention of a whole chunk.

use longview_core::DType;
use longview_ops::{Backend, OpResult, RowOrder, View, ViewMut};

/// Where each token's row lies, for each KV head.
pub(super) struct TokenOrder<B: Backend> {
    /// U32 `[Hkv, stride]`.
    rows: B::Buffer,
    stride: usize,
    /// Of one head.
    head: Vec<u32>,
}

impl<B: Backend> TokenOrder<B> {
    /// Room for `n_rows` rows of each head, and for as many again where the context has them.
    pub fn new(backend: &B, n_heads: usize, (n_rows, capacity): (usize, usize)) -> OpResult<Self> {
        let stride = n_rows.next_power_of_two().min(capacity).max(n_rows);
        let rows = backend.alloc(DType::U32, n_heads * stride, "rows by token")?;
        Ok(Self { rows, stride, head: Vec::with_capacity(stride) })
    }

    /// Rows that a list has room for.
    pub fn room(&self) -> usize {
        self.stride
    }

    /// Lists the rows of which `positions` says which tokens they are.
    pub fn set(&mut self, backend: &B, positions: &[Vec<u32>]) -> OpResult<()> {
        for (head, positions) in positions.iter().enumerate() {
            self.head.clear();
            self.head.resize(positions.len(), 0);
            for (row, token) in positions.iter().enumerate() {
                self.head[*token as usize] = row as u32;
            }
            let view = ViewMut::part(&mut self.rows, head * self.stride, self.head.len());
            backend.write(view, bytemuck::cast_slice(&self.head))?;
        }
        Ok(())
    }

    pub fn view(&self) -> RowOrder<'_, B> {
        RowOrder { rows: View::all(&self.rows), stride: self.stride as u32 }
    }
}
