//! A small shape, rows whose numbers say where they belong, and devices for the tests of the rooms
//! that move rows.

use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId, decode_f32, encode_f32};
use longview_ops::{Backend, Capabilities, DeviceBuffer, ReferenceBackend, Storage, View, ViewMut};

use super::{HostStore, MappedStore, PlainStore};
use crate::layout::{HostRows, KvShape};

/// Two layers of two KV heads, keys of width 4 in full precision, eight rows.
pub(crate) fn shape() -> KvShape {
    KvShape {
        n_layers: 2,
        n_q_heads: 4,
        n_kv_heads: 2,
        head_dim: 4,
        kv_dtype: DType::F32,
        host_rows: HostRows::default(),
        capacity: 8,
        scale: 0.5,
        inv_freq: Arc::from([]),
        windows: [].into(),
    }
}

/// Key and value of a row: layer, head and row are its thousands, hundreds and ones, the element
/// its first decimal, and values are negative.
pub(crate) fn row(layer: LayerId, head: HeadId, row: usize) -> [f32; 8] {
    let place = (1000 * (layer.index() + 1) + 100 * head.index() + row) as f32;
    std::array::from_fn(|i| {
        let element = place + (i % 4) as f32 / 10.0;
        if i < 4 { element } else { -element }
    })
}

/// A store of each kind, with [`row`] in every row.
pub(crate) fn full_stores(
    backend: &Arc<ReferenceBackend>,
    shape: &KvShape,
) -> [Box<dyn HostStore<ReferenceBackend>>; 2] {
    empty_stores(backend, shape).map(|mut store| {
        fill(&mut *store, shape);
        store
    })
}

/// A store of each kind, all zeros: the first is mapped, the second plain.
pub(crate) fn empty_stores(
    backend: &Arc<ReferenceBackend>,
    shape: &KvShape,
) -> [Box<dyn HostStore<ReferenceBackend>>; 2] {
    let mapped = MappedStore::new(backend, shape).unwrap().unwrap();
    [Box::new(mapped), Box::new(PlainStore::new(shape).unwrap())]
}

/// Writes [`row`] to every row, one at a time.
pub(crate) fn fill(store: &mut dyn HostStore<ReferenceBackend>, shape: &KvShape) {
    for layer in shape.layers() {
        for head in shape.heads() {
            for r in 0..shape.capacity {
                let bytes = encode_f32(shape.kv_dtype, &row(layer, head, r));
                store.write_rows(layer, head, r, &bytes);
            }
        }
    }
}

/// Rows of a head, as numbers.
pub(crate) fn stored(
    store: &dyn HostStore<ReferenceBackend>,
    shape: &KvShape,
    layer: LayerId,
    head: HeadId,
) -> Vec<f32> {
    let mut bytes = vec![0; shape.capacity * shape.row_bytes()];
    store.read_rows(layer, head, 0..shape.capacity, &mut bytes);
    decode_f32(shape.kv_dtype, &bytes)
}

/// A buffer with these numbers.
pub(crate) fn floats(backend: &ReferenceBackend, values: &[f32]) -> Buffer {
    let mut buffer = backend.alloc(DType::F32, values.len(), "test").unwrap();
    backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(values)).unwrap();
    buffer
}

/// A buffer with these words.
pub(crate) fn words(backend: &ReferenceBackend, values: &[u32]) -> Buffer {
    let mut buffer = backend.alloc(DType::U32, values.len(), "test").unwrap();
    backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(values)).unwrap();
    buffer
}

/// The numbers in a buffer.
pub(crate) fn read_floats(backend: &ReferenceBackend, buffer: &Buffer) -> Vec<f32> {
    let mut out = vec![0.0f32; buffer.len()];
    let bytes = bytemuck::cast_slice_mut(&mut out);
    pollster::block_on(backend.read(View::all(buffer), bytes)).unwrap();
    out
}

/// The words of a view.
pub(crate) fn read_words(backend: &ReferenceBackend, view: View<'_, ReferenceBackend>) -> Vec<u32> {
    let mut out = vec![0u32; view.len];
    pollster::block_on(backend.read(view, bytemuck::cast_slice_mut(&mut out))).unwrap();
    out
}

/// A device whose kernels do not read host memory.
pub(crate) fn separate_device() -> ReferenceBackend {
    let capabilities = ReferenceBackend::new().capabilities().clone();
    ReferenceBackend::with_capabilities(Capabilities {
        reads_host_memory: false,
        unified_memory: false,
        ..capabilities
    })
}

/// A buffer of the reference device.
pub(crate) type Buffer = <ReferenceBackend as Storage>::Buffer;
