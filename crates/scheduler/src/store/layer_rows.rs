//! The rows of one layer in the host store, as the mechanisms read them: as numbers on the host,
//! or where kernels reach them.

use std::ops::Range;
use std::sync::Arc;

use longview_core::{HeadId, LayerId, decode_f32_into};
use longview_ops::{Backend, KvView, OpResult};

use super::host_store::HostStore;
use super::row_mover::{DeviceRows, RowMover};
use crate::layout::KvShape;

/// The rows of one layer.
pub(crate) struct LayerRows<'a, B: Backend> {
    pub shape: &'a KvShape,
    pub store: &'a dyn HostStore<B>,
    pub layer: LayerId,
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
    pub fn key(&self, head: HeadId, row: usize) -> Vec<f32> {
        let mut key = vec![0.0; self.shape.head_dim];
        self.keys(head, row..row + 1, &mut Vec::new(), &mut key);
        key
    }

    /// Keys of rows, F32 `[n, Dh]`, into `keys`; `bytes` is memory to reuse.
    pub fn keys(&self, head: HeadId, rows: Range<usize>, bytes: &mut Vec<u8>, keys: &mut [f32]) {
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
        head: HeadId,
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

    fn read(&self, head: HeadId, rows: Range<usize>, bytes: &mut Vec<u8>) {
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
        self.load_some(rows, |_, _| true, device)
    }

    /// Carries those of rows `rows` that are wanted of a head to the first rows of `device`, each
    /// to its place among `rows`.
    pub fn load_some(
        &mut self,
        rows: Range<usize>,
        wanted: impl Fn(HeadId, usize) -> bool,
        device: DeviceRows<'_, B>,
    ) -> OpResult<()> {
        let LayerRows { shape, store, layer } = self.rows;
        self.mover.clear();
        for head in shape.heads() {
            for row in rows.clone().filter(|row| wanted(head, *row)) {
                self.mover.push(head, row, row - rows.start);
            }
        }
        self.mover.load(&**self.backend, shape, store, layer, device)
    }
}

#[cfg(test)]
mod tests {
    use longview_core::{DType, encode_f32};
    use longview_ops::ReferenceBackend;

    use super::super::fixture::{floats, full_stores, read_floats, row, shape};
    use super::super::host_store::PlainStore;
    use super::*;

    #[test]
    fn keys_and_values_are_those_of_the_layer_the_head_and_the_rows() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for store in full_stores(&backend, &shape) {
            let rows = LayerRows { shape: &shape, store: &*store, layer: LayerId(1) };
            assert_eq!(rows.key(HeadId(1), 3), row(LayerId(1), HeadId(1), 3)[..4]);
            // Memory to reuse that is too long must not be read beyond the rows.
            let (mut bytes, mut keys) = (vec![1; 1000], vec![0.0; 8]);
            rows.keys(HeadId(0), 6..8, &mut bytes, &mut keys);
            assert_eq!(
                keys,
                [&row(LayerId(1), HeadId(0), 6)[..4], &row(LayerId(1), HeadId(0), 7)[..4]].concat()
            );
            let mut values = Vec::new();
            rows.each_value(HeadId(1), 2..5, &mut bytes, |value| values.push(value.to_vec()));
            assert_eq!(values, [2, 3, 4].map(|r| row(LayerId(1), HeadId(1), r)[4..].to_vec()));
        }
    }

    #[test]
    fn half_precision_rows_have_half_the_bytes() {
        let shape = KvShape { kv_dtype: DType::F16, ..shape() };
        let mut store = PlainStore::new(&shape).unwrap();
        let bytes = encode_f32(DType::F16, &[1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0]);
        HostStore::<ReferenceBackend>::write_rows(&mut store, LayerId(0), HeadId(1), 2, &bytes);
        let rows: LayerRows<'_, ReferenceBackend> =
            LayerRows { shape: &shape, store: &store, layer: LayerId(0) };
        assert_eq!(rows.key(HeadId(1), 2), [1.0, 2.0, 3.0, 4.0]);
        rows.each_value(HeadId(1), 2..3, &mut Vec::new(), |v| {
            assert_eq!(v, [-1.0, -2.0, -3.0, -4.0])
        });
        assert_eq!(rows.key(HeadId(1), 1), [0.0; 4]);
    }

    #[test]
    fn kernels_see_all_rows_of_a_mapped_layer() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let [mapped, plain] = full_stores(&backend, &shape);
        let view =
            LayerRows { shape: &shape, store: &*mapped, layer: LayerId(1) }.kernel_view().unwrap();
        assert_eq!((view.offset, view.head_stride), (0, 8));
        let rows = read_floats(&backend, view.buffer);
        assert_eq!(rows[(8 + 2) * 8..][..8], row(LayerId(1), HeadId(1), 2));
        assert!(
            LayerRows { shape: &shape, store: &*plain, layer: LayerId(1) }.kernel_view().is_none()
        );
    }

    #[test]
    fn rows_of_every_head_are_carried_to_the_first_rows_of_a_buffer() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for (store, mapped) in full_stores(&backend, &shape).iter().zip([true, false]) {
            let mut mover = RowMover::new(&*backend, &shape, 3, mapped).unwrap();
            mover.push(HeadId(0), 7, 7);
            let mut buffer = floats(&backend, &[9.0; 2 * 4 * 8]);
            let rows = LayerRows { shape: &shape, store: &**store, layer: LayerId(0) };
            let mut reader = RowReader { backend: &backend, rows, mover: &mut mover, tile: 3 };
            reader.load(3..6, DeviceRows { buffer: &mut buffer, head_stride: 4 }).unwrap();
            let head = |h| {
                [row(LayerId(0), h, 3), row(LayerId(0), h, 4), row(LayerId(0), h, 5), [9.0; 8]]
                    .concat()
            };
            assert_eq!(read_floats(&backend, &buffer), [head(HeadId(0)), head(HeadId(1))].concat());
        }
    }
}
