//! What the tests of this room share: small shapes, rows in a host store, and numbers in and out of
//! the reference device.

use longview_core::{DType, HeadId, LayerId, encode_f32};
use longview_ops::reference::{RefBuffer, ReferenceBackend};
use longview_ops::{Backend, View, ViewMut};

use crate::layout::{HostRows, KvShape};
use crate::store::{HostStore, PlainStore};

/// The device of all tests.
pub(super) type R = ReferenceBackend;

/// One layer of F32 rows, with scores that are plain inner products.
pub(super) fn shape(n_q_heads: usize, n_kv_heads: usize, head_dim: usize) -> KvShape {
    KvShape {
        n_layers: 1,
        n_q_heads,
        n_kv_heads,
        head_dim,
        kv_dtype: DType::F32,
        host_rows: HostRows::default(),
        capacity: 8,
        scale: 1.0,
        inv_freq: Vec::new().into(),
        windows: [].into(),
    }
}

/// A store whose row `row` of head `head` has that key, and a value of -1.
pub(super) fn store_of(shape: &KvShape, key: impl Fn(HeadId, usize) -> Vec<f32>) -> PlainStore {
    let mut store = PlainStore::new(shape).unwrap();
    fill(&mut store, shape, key);
    store
}

/// Writes all rows of a store.
pub(super) fn fill(
    store: &mut dyn HostStore<R>,
    shape: &KvShape,
    key: impl Fn(HeadId, usize) -> Vec<f32>,
) {
    for head in shape.heads() {
        for row in 0..shape.capacity {
            let mut numbers = key(head, row);
            numbers.resize(2 * shape.head_dim, -1.0);
            store.write_rows(LayerId(0), head, row, &encode_f32(shape.kv_dtype, &numbers));
        }
    }
}

/// F32 numbers on the device.
pub(super) fn upload(backend: &R, numbers: &[f32]) -> RefBuffer {
    let mut buffer = backend.alloc(DType::F32, numbers.len(), "numbers").unwrap();
    backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(numbers)).unwrap();
    buffer
}

/// F32 numbers from the device.
pub(super) fn floats(backend: &R, view: View<'_, R>) -> Vec<f32> {
    let mut out = vec![0.0; view.len];
    pollster::block_on(backend.read(view, bytemuck::cast_slice_mut(&mut out))).unwrap();
    out
}

/// U32 numbers from the device.
pub(super) fn words(backend: &R, view: View<'_, R>) -> Vec<u32> {
    let mut out = vec![0; view.len];
    pollster::block_on(backend.read(view, bytemuck::cast_slice_mut(&mut out))).unwrap();
    out
}
