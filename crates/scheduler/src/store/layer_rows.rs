//! The rows of one layer in the host store, as the mechanisms read them: as numbers on the host,
//! or where kernels reach them.

use std::ops::Range;
use std::sync::Arc;

use longview_core::decode_f32_into;
use longview_ops::{Backend, KvView, OpResult};

use super::host_store::HostStore;
use super::row_mover::{DeviceRows, RowMover};
use crate::layout::KvShape;

/// The rows of one layer.
pub(crate) struct LayerRows<'a, B: Backend> {
    pub shape: &'a KvShape,
    pub store: &'a dyn HostStore<B>,
    pub layer: usize,
}

impl<B: Backend> Clone for LayerRows<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for LayerRows<'_, B> {}

impl<'a, B: Backend> LayerRows<'a, B> {
    /// Where kernels read the store: all rows.
    pub fn kernel_view(&self) -> Option<KvView<'a, B>> {
        let rows = self.store.buffer(self.layer)?;
        Some(KvView::new(rows, self.shape.capacity))
    }

    /// The key of one row, F32 `[Dh]`.
    pub fn key(&self, head: usize, row: usize) -> Vec<f32> {
        let mut key = vec![0.0; self.shape.head_dim];
        self.keys(head, row..row + 1, &mut Vec::new(), &mut key);
        key
    }

    /// Keys of rows, F32 `[n, Dh]`, into `keys`; `bytes` is memory to reuse.
    pub fn keys(&self, head: usize, rows: Range<usize>, bytes: &mut Vec<u8>, keys: &mut [f32]) {
        let row_bytes = self.shape.row_bytes();
        self.read(head, rows, bytes);
        let halves = bytes.chunks_exact(row_bytes).map(|row| &row[..row_bytes / 2]);
        for (key, out) in halves.zip(keys.chunks_exact_mut(self.shape.head_dim)) {
            decode_f32_into(self.shape.kv_dtype, key, out);
        }
    }

    /// Calls `take` with the value of each row, F32 `[Dh]`; `bytes` is memory to reuse.
    pub fn each_value(
        &self,
        head: usize,
        rows: Range<usize>,
        bytes: &mut Vec<u8>,
        mut take: impl FnMut(&[f32]),
    ) {
        let row_bytes = self.shape.row_bytes();
        self.read(head, rows, bytes);
        let mut value = vec![0.0; self.shape.head_dim];
        for row in bytes.chunks_exact(row_bytes) {
            decode_f32_into(self.shape.kv_dtype, &row[row_bytes / 2..], &mut value);
            take(&value);
        }
    }

    fn read(&self, head: usize, rows: Range<usize>, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.resize(rows.len() * self.shape.row_bytes(), 0);
        self.store.read_rows(self.layer, head, rows, bytes);
    }
}

/// The rows of one layer, with what carries them to the device where kernels do not read the store.
pub(crate) struct RowReader<'a, B: Backend> {
    pub backend: &'a Arc<B>,
    pub rows: LayerRows<'a, B>,
    pub mover: &'a mut RowMover<B>,
    /// Most rows that are carried at a time.
    pub tile: usize,
}

impl<B: Backend> RowReader<'_, B> {
    /// Carries rows `rows` of every head to the first rows of `device`.
    pub fn load(&mut self, rows: Range<usize>, device: DeviceRows<'_, B>) -> OpResult<()> {
        let LayerRows { shape, store, layer } = self.rows;
        self.mover.clear();
        for head in 0..shape.n_kv_heads {
            rows.clone().enumerate().for_each(|(to, from)| self.mover.push(head, from, to));
        }
        self.mover.load(&**self.backend, shape, store, layer, device)
    }
}
