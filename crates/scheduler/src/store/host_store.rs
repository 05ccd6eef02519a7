//! The host store: where all KV rows live.
//!
//! One array of KV rows `[Hkv, capacity, 2, Dh]` per layer, written once per token and read in
//! runs. The scheduler decides which row goes where; a store only holds. [`MappedStore`] keeps rows
//! where kernels can read them (plain memory for the CPU, pinned memory for CUDA); [`PlainStore`]
//! keeps them in memory that only the host sees, as a WGSL device or a browser needs it, and rows
//! travel through a staging buffer.

use std::ops::Range;
use std::sync::Arc;

use longview_core::{HeadId, LayerId};
use longview_ops::{Backend, ForkSpans, OpError, OpResult};

use super::host_bytes::{HostBytesMut, OpenBytes};
use super::layer_store::{LayerStore, MappedLayer, PlainLayer};
use super::segmented_bytes::SegmentedBytes;
use super::two_forms::{TwoForms, TwoFormsMut};
use crate::layout::{DeviceLayout, KvShape};

/// Rows of a layer that a fork may copy without having them shared before: they take no time.
const MOST_COPIED: usize = 1024;

/// Storage of KV rows on the host.
pub trait HostStore<B: Backend>: Send + Sync {
    /// Copies rows `rows` of one head into `out` (whole rows).
    fn read_rows(&self, layer: LayerId, head: HeadId, rows: Range<usize>, out: &mut [u8]);

    /// Overwrites rows from `start` with `bytes` (whole rows).
    fn write_rows(&mut self, layer: LayerId, head: HeadId, start: usize, bytes: &[u8]);

    /// Some layers, each for itself, in their order: to be filled by several threads at once. No
    /// kernel may be writing rows of these.
    fn layers_mut(&mut self, layers: Range<usize>) -> Vec<Box<dyn LayerStore + '_>>;

    /// The layer's rows as a buffer that kernels of the device read and write; `None` if they
    /// cannot.
    fn buffer(&self, layer: LayerId) -> Option<&B::Buffer>;

    /// Says that every layer will have so many rows soon, so that memory for these is taken in a
    /// way that suits. Others can be written all the same.
    fn expect(&mut self, _n_rows: usize) {}

    /// As [`HostStore::buffer`], to write rows `rows` of every head.
    fn buffer_mut(&mut self, layer: LayerId, rows: Range<usize>) -> Option<&mut B::Buffer>;

    /// Bytes reserved.
    fn size_bytes(&self) -> u64;

    /// A second store with the first `n_rows` rows of this one; each is written from now on without
    /// the other. Where memory can be shared until one of them writes there, it is.
    fn fork(&mut self, n_rows: usize) -> OpResult<Box<dyn HostStore<B>>>;

    /// Puts the first `n_rows` rows of a layer to where [`HostStore::fork`] shares them, so that it
    /// copies few of them. `false` where that has been done, or cannot be.
    fn share(&mut self, _layer: LayerId, _n_rows: usize) -> OpResult<bool> {
        Ok(false)
    }

    /// Bytes in memory that other stores have too.
    fn shared_bytes(&self) -> u64;

    /// Replaces row `start + i` by the former row `start + order[i]`; `scratch` is a buffer to
    /// reuse, of twice the rows' bytes. One read and one write, because where kernels use the rows
    /// each of them may have to wait.
    fn permute_rows(
        &mut self,
        place: RowRange,
        order: &[u32],
        row_bytes: usize,
        scratch: &mut Vec<u8>,
    ) {
        let n_bytes = order.len() * row_bytes;
        scratch.clear();
        scratch.resize(2 * n_bytes, 0);
        let (old, new) = scratch.split_at_mut(n_bytes);
        let RowRange { layer, head, start } = place;
        self.read_rows(layer, head, start..start + order.len(), old);
        for (row, from) in new.chunks_exact_mut(row_bytes).zip(order) {
            row.copy_from_slice(&old[*from as usize * row_bytes..][..row_bytes]);
        }
        self.write_rows(layer, head, start, new);
    }

    /// Goes on with `backend` in place of a device that was lost.
    fn move_to(&mut self, backend: &Arc<B>) -> OpResult<()>;

    /// The layer's rows as buffers that kernels read, where there are two forms of them.
    fn two_forms(&self, _layer: LayerId) -> Option<TwoForms<'_, B>> {
        None
    }

    /// As [`HostStore::two_forms`], to write rows `rows` of every head, in both forms.
    fn two_forms_mut(
        &mut self,
        _layer: LayerId,
        _rows: Range<usize>,
    ) -> Option<TwoFormsMut<'_, B>> {
        None
    }

    /// The rows as this store keeps them for good, where that is not how they are attended.
    fn rounded(&self) -> Option<&dyn RoundedRows> {
        None
    }

    /// Kernels have written these rows of all heads, in both forms.
    fn note_written(&mut self, _layer: LayerId, _rows: Range<usize>) {}

    /// From now on the first and the last rows that `layout` has room for stay as they are written,
    /// where others do not.
    fn keep(&mut self, _layout: DeviceLayout) -> OpResult<()> {
        Ok(())
    }
}

/// Rows of 8 bits ([`longview_core::kv8`]), and which of them are there in full as well: what a
/// file keeps of them.
pub trait RoundedRows {
    /// Copies the codes of whole rows into `out`.
    fn read_codes(&self, layer: LayerId, head: HeadId, rows: Range<usize>, out: &mut [u8]);

    /// First rows and recent rows that every head has in full; some may be beyond the last token.
    fn exact_rows(&self, layer: LayerId) -> [Range<usize>; 2];
}

/// The start of a run of rows.
#[derive(Clone, Copy, Debug)]
pub struct RowRange {
    /// The layer whose array of rows it lies in.
    pub layer: LayerId,
    /// The KV head, whose rows follow each other.
    pub head: HeadId,
    /// The first row, counted from the head's own row 0.
    pub start: usize,
}

/// Rows in memory that both the host and the device's kernels address.
pub struct MappedStore<B: Backend> {
    backend: Arc<B>,
    layers: Vec<B::Buffer>,
    unchanged: Unchanged,
    expected: Expected,
    shape: KvShape,
}

impl<B: Backend> MappedStore<B> {
    /// Reserves all layers. `Ok(None)` where the device reads no host memory.
    pub fn new(backend: &Arc<B>, shape: &KvShape) -> OpResult<Option<Self>> {
        let mut layers = Vec::with_capacity(shape.n_layers);
        for layer in shape.layers() {
            match alloc_layer(&**backend, shape, layer)? {
                Some(buffer) => layers.push(buffer),
                None => return Ok(None),
            }
        }
        let (backend, unchanged) = (Arc::clone(backend), Unchanged::new(shape));
        let expected = Expected::default();
        Ok(Some(Self { backend, layers, unchanged, expected, shape: shape.clone() }))
    }
}

fn alloc_layer<B: Backend>(
    backend: &B,
    shape: &KvShape,
    layer: LayerId,
) -> OpResult<Option<B::Buffer>> {
    let label = format!("host KV of layer {layer}");
    let mut buffer = backend.alloc_host(shape.kv_dtype, shape.layer_elements(), &label)?;
    if let Some(buffer) = &mut buffer {
        backend.expect_host(buffer, &[]);
    }
    Ok(buffer)
}

impl<B: Backend> HostStore<B> for MappedStore<B> {
    fn read_rows(&self, layer: LayerId, head: HeadId, rows: Range<usize>, out: &mut [u8]) {
        let bytes = self.backend.host_bytes(&self.layers[layer]).expect("made by alloc_host");
        out.copy_from_slice(&bytes[self.shape.row_bytes_range(head, rows)]);
    }

    fn write_rows(&mut self, layer: LayerId, head: HeadId, start: usize, bytes: &[u8]) {
        let n_rows = start + bytes.len() / self.shape.row_bytes();
        let range = self.shape.row_bytes_range(head, start..n_rows);
        self.unchanged.written(layer, start);
        let all = self.backend.host_bytes_mut(&mut self.layers[layer]).expect("made by alloc_host");
        all[range].copy_from_slice(bytes);
    }

    fn layers_mut(&mut self, range: Range<usize>) -> Vec<Box<dyn LayerStore + '_>> {
        let Self { backend, layers, unchanged, shape, .. } = self;
        let layer = |(buffer, unchanged)| -> Box<dyn LayerStore> {
            let bytes = backend.host_bytes_mut(buffer).expect("made by alloc_host");
            Box::new(MappedLayer { shape, bytes, unchanged })
        };
        let unchanged = &mut unchanged.layers_mut()[range.clone()];
        layers[range].iter_mut().zip(unchanged).map(layer).collect()
    }

    fn buffer(&self, layer: LayerId) -> Option<&B::Buffer> {
        Some(&self.layers[layer])
    }

    fn expect(&mut self, n_rows: usize) {
        if let Some(more) = self.expected.more(&self.shape, n_rows) {
            let spans = self.shape.row_spans(more, 2 * self.shape.head_dim);
            self.layers.iter_mut().for_each(|layer| self.backend.expect_host(layer, &spans));
        }
    }

    fn buffer_mut(&mut self, layer: LayerId, rows: Range<usize>) -> Option<&mut B::Buffer> {
        self.unchanged.written(layer, rows.start);
        Some(&mut self.layers[layer])
    }

    fn size_bytes(&self) -> u64 {
        self.shape.n_layers as u64 * self.shape.layer_bytes() as u64
    }

    fn fork(&mut self, n_rows: usize) -> OpResult<Box<dyn HostStore<B>>> {
        let Self { backend, layers, unchanged, shape, .. } = self;
        let width = 2 * shape.head_dim;
        let fork_layer = |(layer, buffer): (LayerId, &mut B::Buffer)| {
            let (used, written) = unchanged.spans(shape, layer, n_rows, width);
            let spans = ForkSpans { used: &used, written: &written };
            let fork = backend.fork_host(buffer, spans, &format!("host KV of layer {layer}"))?;
            Ok(fork.expect("made by alloc_host"))
        };
        let layers = shape.layers().zip(layers).map(fork_layer).collect::<OpResult<Vec<_>>>()?;
        *unchanged = Unchanged::up_to(shape, n_rows);
        let (backend, unchanged) = (Arc::clone(backend), unchanged.clone());
        let expected = Expected(n_rows);
        Ok(Box::new(Self { backend, layers, unchanged, expected, shape: shape.clone() }))
    }

    fn share(&mut self, layer: LayerId, n_rows: usize) -> OpResult<bool> {
        let Self { backend, layers, unchanged, shape, .. } = self;
        let put = |spans: ForkSpans<'_>| backend.share_host(&mut layers[layer], spans);
        unchanged.share(shape, layer, (n_rows, 2 * shape.head_dim), put)
    }

    fn shared_bytes(&self) -> u64 {
        self.layers.iter().map(|buffer| self.backend.shared_host_bytes(buffer)).sum()
    }

    /// Memory that kernels address belongs to the device that they run on, so the rows move to
    /// memory of the new one, layer by layer: what is left of the old one may go.
    fn move_to(&mut self, backend: &Arc<B>) -> OpResult<()> {
        if Arc::ptr_eq(&self.backend, backend) {
            return Ok(());
        }
        for (layer, buffer) in self.shape.layers().zip(&mut self.layers) {
            let mut moved = alloc_layer(&**backend, &self.shape, layer)?.ok_or_else(|| {
                let reason = "the device that replaces it reads no host memory".into();
                OpError::DeviceLost { backend: backend.name(), reason }
            })?;
            let spans = self.shape.row_spans(0..self.expected.0, 2 * self.shape.head_dim);
            backend.expect_host(&mut moved, &spans);
            let from = self.backend.host_bytes(buffer).expect("made by alloc_host");
            let to = backend.host_bytes_mut(&mut moved).expect("made by alloc_host");
            to.copy_from_slice(from);
            *buffer = moved;
        }
        self.backend = Arc::clone(backend);
        self.unchanged = Unchanged::new(&self.shape);
        Ok(())
    }
}

/// Of each layer, the first rows that nobody has written since the store was forked, or made by a
/// fork: a fork shares them as they are.
#[derive(Clone, Debug)]
pub(super) struct Unchanged(Vec<usize>);

impl Unchanged {
    /// Of a store that no fork has seen.
    pub fn new(shape: &KvShape) -> Self {
        Self::up_to(shape, 0)
    }

    /// Of a store of `n_rows` rows that was just forked.
    pub fn up_to(shape: &KvShape, n_rows: usize) -> Self {
        Self(vec![n_rows; shape.n_layers])
    }

    /// Rows from `start` on are about to change.
    pub fn written(&mut self, layer: LayerId, start: usize) {
        self.0[layer] = self.0[layer].min(start);
    }

    /// The same number of each layer.
    pub fn layers_mut(&mut self) -> &mut [usize] {
        &mut self.0
    }

    /// Lets `put` share the first `n_rows` rows of a layer, `width` elements each, where a fork
    /// would copy many of them. Returns whether it did.
    pub fn share(
        &mut self,
        shape: &KvShape,
        layer: LayerId,
        (n_rows, width): (usize, usize),
        put: impl FnOnce(ForkSpans<'_>) -> OpResult<bool>,
    ) -> OpResult<bool> {
        if self.0[layer] + MOST_COPIED >= n_rows {
            return Ok(false);
        }
        let (used, written) = self.spans(shape, layer, n_rows, width);
        let is_shared = put(ForkSpans { used: &used, written: &written })?;
        if is_shared {
            self.0[layer] = n_rows;
        }
        Ok(is_shared)
    }

    /// Spans of elements, `width` a row, of the first `n_rows` rows of a layer: all of them, and
    /// those that somebody may have written.
    pub fn spans(
        &self,
        shape: &KvShape,
        layer: LayerId,
        n_rows: usize,
        width: usize,
    ) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        let written = self.0[layer].min(n_rows)..n_rows;
        (shape.row_spans(0..n_rows, width), shape.row_spans(written, width))
    }
}

/// The first rows of every layer that memory was asked for, or that are shared with others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected(pub usize);

impl Expected {
    /// The rows that are expected as well from now on, where a layer will have `n_rows`.
    pub fn more(&mut self, shape: &KvShape, n_rows: usize) -> Option<Range<usize>> {
        let (before, n_rows) = (self.0, n_rows.min(shape.capacity));
        self.0 = before.max(n_rows);
        (n_rows > before).then_some(before..n_rows)
    }
}

/// Rows in memory that only the host addresses.
pub struct PlainStore {
    layers: Vec<Box<dyn HostBytesMut>>,
    shape: KvShape,
}

impl PlainStore {
    /// Reserves all layers.
    pub fn new(shape: &KvShape) -> OpResult<Self> {
        Self::opened_by(shape, SegmentedBytes::open)
    }

    /// Reserves all layers, each by a call of `open`.
    pub fn opened_by(shape: &KvShape, open: OpenBytes) -> OpResult<Self> {
        let mut layers = Vec::with_capacity(shape.n_layers);
        for layer in shape.layers() {
            layers.push(open(shape.layer_bytes()).ok_or_else(|| OpError::OutOfMemory {
                backend: "host",
                label: format!("host KV of layer {layer}"),
                bytes: shape.layer_bytes() as u64,
            })?);
        }
        Ok(Self { layers, shape: shape.clone() })
    }
}

impl<B: Backend> HostStore<B> for PlainStore {
    fn read_rows(&self, layer: LayerId, head: HeadId, rows: Range<usize>, out: &mut [u8]) {
        self.layers[layer].read(self.shape.row_bytes_range(head, rows).start, out);
    }

    fn write_rows(&mut self, layer: LayerId, head: HeadId, start: usize, bytes: &[u8]) {
        let rows = start..start + bytes.len() / self.shape.row_bytes();
        self.layers[layer].write(self.shape.row_bytes_range(head, rows).start, bytes);
    }

    fn layers_mut(&mut self, range: Range<usize>) -> Vec<Box<dyn LayerStore + '_>> {
        let mut layers: Vec<Box<dyn LayerStore + '_>> = Vec::with_capacity(range.len());
        for bytes in &mut self.layers[range] {
            layers.push(Box::new(PlainLayer { shape: &self.shape, bytes: &mut **bytes }));
        }
        layers
    }

    fn buffer(&self, _layer: LayerId) -> Option<&B::Buffer> {
        None
    }

    fn buffer_mut(&mut self, _layer: LayerId, _rows: Range<usize>) -> Option<&mut B::Buffer> {
        None
    }

    fn size_bytes(&self) -> u64 {
        self.shape.n_layers as u64 * self.shape.layer_bytes() as u64
    }

    fn fork(&mut self, n_rows: usize) -> OpResult<Box<dyn HostStore<B>>> {
        let used = self.shape.row_spans(0..n_rows, self.shape.row_bytes());
        let fork_layer = |(layer, bytes): (LayerId, &dyn HostBytesMut)| {
            bytes.fork(&used).ok_or_else(|| OpError::OutOfMemory {
                backend: "host",
                label: format!("host KV of layer {layer}"),
                bytes: self.shape.layer_bytes() as u64,
            })
        };
        let all = self.layers.iter().map(|bytes| &**bytes);
        let layers = self.shape.layers().zip(all).map(fork_layer);
        let layers = layers.collect::<OpResult<Vec<_>>>()?;
        Ok(Box::new(Self { layers, shape: self.shape.clone() }))
    }

    fn shared_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.shared_bytes()).sum()
    }

    fn move_to(&mut self, _backend: &Arc<B>) -> OpResult<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longview_core::encode_f32;
    use longview_ops::ReferenceBackend;

    use super::super::fixture::{empty_stores, full_stores, row, separate_device, shape, stored};
    use super::*;

    #[test]
    fn every_row_has_a_place_of_its_own() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for store in full_stores(&backend, &shape) {
            for layer in shape.layers() {
                for head in shape.heads() {
                    let want: Vec<f32> = (0..8).flat_map(|r| row(layer, head, r)).collect();
                    assert_eq!(stored(&*store, &shape, layer, head), want);
                }
            }
        }
    }

    #[test]
    fn a_run_of_rows_is_written_and_read_where_it_begins() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for mut store in empty_stores(&backend, &shape) {
            let bytes = encode_f32(
                shape.kv_dtype,
                &[row(LayerId(1), HeadId(1), 5), row(LayerId(1), HeadId(1), 6)].concat(),
            );
            store.write_rows(LayerId(1), HeadId(1), 5, &bytes);
            let mut want = vec![0.0; 64];
            want[40..48].copy_from_slice(&row(LayerId(1), HeadId(1), 5));
            want[48..56].copy_from_slice(&row(LayerId(1), HeadId(1), 6));
            assert_eq!(stored(&*store, &shape, LayerId(1), HeadId(1)), want);
            for (layer, head) in [(0, 0), (0, 1), (1, 0)] {
                let others = stored(&*store, &shape, LayerId(layer), HeadId(head));
                assert_eq!(others, [0.0; 64], "{layer} {head}");
            }
            let mut one = vec![0; shape.row_bytes()];
            store.read_rows(LayerId(1), HeadId(1), 6..7, &mut one);
            assert_eq!(one, encode_f32(shape.kv_dtype, &row(LayerId(1), HeadId(1), 6)));
        }
    }

    /// Rows 2, 3, 4 become the former rows 4, 2, 3: an order that is not its own inverse.
    #[test]
    fn permuted_rows_come_from_where_the_order_says() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for mut store in full_stores(&backend, &shape) {
            let (place, mut scratch) =
                (RowRange { layer: LayerId(1), head: HeadId(0), start: 2 }, vec![7; 3]);
            store.permute_rows(place, &[2, 0, 1], shape.row_bytes(), &mut scratch);
            let order = [0, 1, 4, 2, 3, 5, 6, 7];
            let want: Vec<f32> =
                order.iter().flat_map(|r| row(LayerId(1), HeadId(0), *r)).collect();
            assert_eq!(stored(&*store, &shape, LayerId(1), HeadId(0)), want);
            let others: Vec<f32> = (0..8).flat_map(|r| row(LayerId(1), HeadId(1), r)).collect();
            assert_eq!(
                stored(&*store, &shape, LayerId(1), HeadId(1)),
                others,
                "another head stays"
            );
        }
    }

    #[test]
    fn rows_are_expected_once() {
        let (shape, mut expected) = (shape(), Expected::default());
        assert_eq!(expected.more(&shape, 3), Some(0..3));
        assert_eq!((expected.more(&shape, 2), expected.0), (None, 3));
        assert_eq!(expected.more(&shape, 100), Some(3..8), "no more than there is room for");
    }

    #[test]
    fn kernels_read_the_mapped_store_alone() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let [mapped, plain] = empty_stores(&backend, &shape);
        assert!(mapped.buffer(LayerId(1)).is_some() && plain.buffer(LayerId(1)).is_none());
        // Two layers of two heads of eight rows of eight numbers of four bytes.
        assert_eq!([mapped.size_bytes(), plain.size_bytes()], [1024, 1024]);
        let separate = Arc::new(separate_device());
        assert!(MappedStore::new(&separate, &shape).unwrap().is_none());
    }

    #[test]
    fn rows_outlive_the_device_that_they_were_mapped_for() {
        let (old, shape) = (Arc::new(ReferenceBackend::new()), shape());
        for mut store in full_stores(&old, &shape) {
            store.move_to(&Arc::new(ReferenceBackend::new())).unwrap();
            let want: Vec<f32> = (0..8).flat_map(|r| row(LayerId(1), HeadId(1), r)).collect();
            assert_eq!(stored(&*store, &shape, LayerId(1), HeadId(1)), want);
        }
    }

    #[test]
    fn a_mapped_store_stays_where_it_is_if_the_new_device_cannot_read_it() {
        let (old, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let [mut mapped, mut plain] = full_stores(&old, &shape);
        let separate = Arc::new(separate_device());
        let refused = mapped.move_to(&separate);
        assert!(matches!(refused, Err(OpError::DeviceLost { .. })), "{refused:?}");
        plain.move_to(&separate).unwrap();
        let want: Vec<f32> = (0..8).flat_map(|r| row(LayerId(0), HeadId(1), r)).collect();
        assert_eq!(stored(&*mapped, &shape, LayerId(0), HeadId(1)), want);
    }

    #[test]
    fn a_layer_without_memory_is_named() {
        let none: OpenBytes = |_| None;
        let refused = PlainStore::opened_by(&shape(), none).err();
        let Some(OpError::OutOfMemory { label, bytes, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((label.as_str(), bytes), ("host KV of layer 0", 512));
    }

    #[test]
    #[should_panic(expected = "row 9 of 8")]
    fn a_row_behind_the_capacity_is_not_the_next_heads_first() {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let [_, mut plain] = empty_stores(&backend, &shape);
        plain.write_rows(LayerId(0), HeadId(0), 7, &vec![0; 2 * shape.row_bytes()]);
    }
}
