//! New rows on their way to a host store that kernels do not write.
//!
//! A decoded token's row is written on the device. Where the host store is mapped, a gather carries
//! it there in the same step. Where it is not, a read per layer would stop the device as often; so
//! the step only notes where the rows lie, and one read at its end, together with the token that
//! the caller waits for anyway, brings all of them.

use longview_ops::{Backend, View};
use smallvec::SmallVec;

use super::host_store::HostStore;
use crate::layout::KvShape;

/// Views of the device and where their bytes go.
pub type ReadParts<'a, B> = SmallVec<[(View<'a, B>, &'a mut [u8]); 8]>;

/// Rows of the last token that the host does not have yet.
#[derive(Debug, Default)]
pub(crate) struct Writeback {
    /// The device row in each layer, in the order of the layers.
    rows: Vec<usize>,
    /// The token's row in the host store; `None` while its step is not finished.
    token: Option<usize>,
    bytes: Vec<u8>,
}

/// The device rows of one layer, as a writeback reads them.
pub(crate) struct WritebackSource<'a, B: Backend> {
    pub buffer: &'a B::Buffer,
    pub head_stride: usize,
}

impl Writeback {
    pub fn with_layers(n_layers: usize) -> Self {
        Self { rows: Vec::with_capacity(n_layers), token: None, bytes: Vec::new() }
    }

    /// Notes the row of the next layer.
    pub fn push(&mut self, row: usize) {
        self.rows.push(row);
    }

    /// The step has ended: the rows are those of `token`.
    pub fn finish_step(&mut self, token: usize) {
        self.token = Some(token);
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.token = None;
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row of the token whose step has ended and whose rows are not on the host.
    pub fn finished_token(&self) -> Option<usize> {
        self.token.filter(|_| !self.is_empty())
    }

    /// What has to be read of the layers' device rows.
    pub fn read_parts<'a, B: Backend>(
        &'a mut self,
        shape: &KvShape,
        layers: impl Iterator<Item = WritebackSource<'a, B>>,
    ) -> ReadParts<'a, B> {
        let (d, row_bytes, heads) = (shape.head_dim, shape.row_bytes(), shape.n_kv_heads);
        self.bytes.resize(self.rows.len() * heads * row_bytes, 0);
        let mut rest = self.bytes.as_mut_slice();
        let mut parts = ReadParts::<B>::new();
        for (layer, row) in layers.zip(&self.rows) {
            for head in 0..heads {
                let (out, next) = std::mem::take(&mut rest).split_at_mut(row_bytes);
                let at = (head * layer.head_stride + row) * 2 * d;
                parts.push((View::part(layer.buffer, at, 2 * d), out));
                rest = next;
            }
        }
        parts
    }

    /// Writes what was read to the store, and begins anew.
    pub fn write<B: Backend>(&mut self, shape: &KvShape, store: &mut dyn HostStore<B>) {
        let (row_bytes, heads) = (shape.row_bytes(), shape.n_kv_heads);
        if let Some(row) = self.finished_token() {
            for (i, bytes) in self.bytes.chunks_exact(row_bytes).enumerate() {
                store.write_rows(i / heads, i % heads, row, bytes);
            }
        }
        self.clear();
    }
}
