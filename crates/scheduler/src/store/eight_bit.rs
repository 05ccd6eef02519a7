//! A host store of rows of 8 bits, with the first and the most recent rows in full beside them.
//!
//! Every row is rounded to 8 bits when it is written ([`longview_core::kv8`]). The first rows and
//! the last ones are also kept as they were written, because every step attends to them, and
//! because decoded tokens are indexed by keys that nothing has rounded. A row that has left the
//! ring of recent rows, or has changed its place, has 8 bits from then on.

use std::ops::Range;
use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId, encode_f32_into, kv8};
use longview_ops::{Backend, DeviceBuffer, ForkSpans, OpError, OpResult};

use super::eight_bit_layer::{EightBitLayer, LayerForms, Scratch, exact_at, rounded_at};
use super::host_bytes::OpenBytes;
use super::host_memory::Memory;
use super::host_store::{Expected, HostStore, RoundedRows, RowRange, Unchanged};
use super::layer_store::LayerStore;
use super::segmented_bytes::SegmentedBytes;
use super::two_forms::{TwoForms, TwoFormsMut};
use crate::layout::{DeviceLayout, KvShape};

/// Where memory comes from.
enum Source<B: Backend> {
    Mapped(Arc<B>),
    Plain(OpenBytes),
}

impl<B: Backend> Clone for Source<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Mapped(backend) => Self::Mapped(Arc::clone(backend)),
            Self::Plain(open) => Self::Plain(*open),
        }
    }
}

impl<B: Backend> Source<B> {
    /// Zeroed memory of `len` elements; `None` where the device reads no host memory.
    fn open(&self, dtype: DType, len: usize, label: String) -> OpResult<Option<Memory<B>>> {
        match self {
            Self::Mapped(backend) => {
                let buffer = backend.alloc_host(dtype, len, &label)?;
                Ok(buffer.map(|buffer| Memory::Mapped(Arc::clone(backend), buffer)))
            }
            Self::Plain(open) => {
                let bytes = len * dtype.size();
                let none = OpError::OutOfMemory { backend: "host", label, bytes: bytes as u64 };
                open(bytes).map(|bytes| Some(Memory::Plain(bytes))).ok_or(none)
            }
        }
    }
}

/// Rows of 8 bits, and first and recent rows in full.
pub struct EightBitStore<B: Backend> {
    source: Source<B>,
    shape: KvShape,
    layout: DeviceLayout,
    layers: Vec<LayerForms<B>>,
    /// Of the rounded rows.
    unchanged: Unchanged,
    /// Of these too.
    expected: Expected,
    scratch: Scratch,
}

impl<B: Backend> EightBitStore<B> {
    /// Memory that kernels read. `Ok(None)` where the device reads no host memory, or no rows of 8
    /// bits.
    pub fn mapped(
        backend: &Arc<B>,
        shape: &KvShape,
        layout: DeviceLayout,
    ) -> OpResult<Option<Self>> {
        if !backend.capabilities().kv_dtypes.contains(&DType::Q8) {
            return Ok(None);
        }
        Self::opened(Source::Mapped(Arc::clone(backend)), shape, layout)
    }

    /// Memory that the host alone reads.
    pub fn plain(shape: &KvShape, layout: DeviceLayout) -> OpResult<Self> {
        Self::opened_by(shape, layout, SegmentedBytes::open)
    }

    /// Memory that the host alone reads, which `open` makes.
    pub fn opened_by(shape: &KvShape, layout: DeviceLayout, open: OpenBytes) -> OpResult<Self> {
        Ok(Self::opened(Source::Plain(open), shape, layout)?
            .expect("plain memory is there or fails"))
    }

    fn opened(source: Source<B>, shape: &KvShape, layout: DeviceLayout) -> OpResult<Option<Self>> {
        let mut layers = Vec::with_capacity(shape.n_layers);
        for layer in shape.layers() {
            let len = shape.n_kv_heads * shape.capacity * kv8::row_bytes(shape.head_dim);
            let label = format!("host KV of layer {layer}, 8 bits");
            let mut rounded = source.open(DType::Q8, len, label)?;
            if let Some(rounded) = &mut rounded {
                rounded.expect(&[]);
            }
            let (Some(rounded), Some(exact)) =
                (rounded, open_exact(&source, shape, &layout, layer)?)
            else {
                return Ok(None);
            };
            let held = vec![layout.sinks..layout.sinks; shape.n_kv_heads];
            layers.push(LayerForms { rounded, exact, held });
        }
        let (unchanged, expected) = (Unchanged::new(shape), Expected::default());
        let (shape, scratch) = (shape.clone(), Scratch::default());
        Ok(Some(Self { source, shape, layout, layers, unchanged, expected, scratch }))
    }

    /// A layer, to be written.
    fn layer(&mut self, layer: LayerId) -> EightBitLayer<'_, B> {
        let Self { shape, layout, layers, unchanged, .. } = self;
        let (forms, unchanged) = (&mut layers[layer], &mut unchanged.layers_mut()[layer]);
        EightBitLayer { shape, layout, forms, unchanged }
    }

    fn is_exact(&self, layer: LayerId, head: HeadId, row: usize) -> bool {
        row < self.layout.sinks || self.layers[layer].held[head].contains(&row)
    }
}

fn open_exact<B: Backend>(
    source: &Source<B>,
    shape: &KvShape,
    layout: &DeviceLayout,
    layer: LayerId,
) -> OpResult<Option<Memory<B>>> {
    let len = shape.n_kv_heads * layout.rows() * 2 * shape.head_dim;
    source.open(shape.kv_dtype, len, format!("first and recent KV of layer {layer}"))
}

impl<B: Backend> HostStore<B> for EightBitStore<B> {
    fn read_rows(&self, layer: LayerId, head: HeadId, rows: Range<usize>, out: &mut [u8]) {
        let (head_dim, dtype) = (self.shape.head_dim, self.shape.kv_dtype);
        let rounded_row = kv8::row_bytes(head_dim);
        let mut rounded = vec![0; rows.len() * rounded_row];
        let forms = &self.layers[layer];
        forms.rounded.read(rounded_at(&self.shape, head, rows.start), &mut rounded);
        let (mut numbers, mut bytes) = (vec![0.0; 2 * head_dim], Vec::with_capacity(out.len()));
        let encoded = rounded.chunks_exact(rounded_row);
        for ((row, encoded), out) in
            rows.zip(encoded).zip(out.chunks_exact_mut(self.shape.row_bytes()))
        {
            if self.is_exact(layer, head, row) {
                let at = exact_at(&self.shape, &self.layout, head, row);
                forms.exact.read(at, out);
                continue;
            }
            kv8::decode(encoded, &mut numbers);
            bytes.clear();
            encode_f32_into(dtype, &numbers, &mut bytes);
            out.copy_from_slice(&bytes);
        }
    }

    fn write_rows(&mut self, layer: LayerId, head: HeadId, start: usize, bytes: &[u8]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        self.layer(layer).write(&mut scratch, head, start, bytes);
        self.scratch = scratch;
    }

    fn layers_mut(&mut self, range: Range<usize>) -> Vec<Box<dyn LayerStore + '_>> {
        let Self { shape, layout, layers, unchanged, .. } = self;
        let layer = |(forms, unchanged)| -> Box<dyn LayerStore> {
            Box::new(EightBitLayer { shape, layout, forms, unchanged })
        };
        let unchanged = &mut unchanged.layers_mut()[range.clone()];
        layers[range].iter_mut().zip(unchanged).map(layer).collect()
    }

    fn buffer(&self, _layer: LayerId) -> Option<&B::Buffer> {
        None
    }

    fn expect(&mut self, n_rows: usize) {
        if let Some(more) = self.expected.more(&self.shape, n_rows) {
            let spans = self.shape.row_spans(more, kv8::row_bytes(self.shape.head_dim));
            self.layers.iter_mut().for_each(|layer| layer.rounded.expect(&spans));
        }
    }

    fn buffer_mut(&mut self, _layer: LayerId, _rows: Range<usize>) -> Option<&mut B::Buffer> {
        None
    }

    fn size_bytes(&self) -> u64 {
        self.shape.n_layers as u64
            * (self.shape.layer_bytes() + self.shape.exact_bytes(&self.layout)) as u64
    }

    /// Rounded rows are shared. Those in full are few, and a ring changes all the time.
    fn fork(&mut self, n_rows: usize) -> OpResult<Box<dyn HostStore<B>>> {
        let Self { source, shape, layout, layers: forms, unchanged, .. } = self;
        let row_bytes = kv8::row_bytes(shape.head_dim);
        let n_exact = shape.n_kv_heads * layout.rows() * 2 * shape.head_dim;
        let mut layers = Vec::with_capacity(shape.n_layers);
        for (layer, forms) in shape.layers().zip(forms) {
            let label = || format!("host KV of layer {layer}");
            let (used, written) = unchanged.spans(shape, layer, n_rows, row_bytes);
            let spans = ForkSpans { used: &used, written: &written };
            let rounded = forms.rounded.fork(spans, DType::Q8.size(), label())?;
            let mut own =
                open_exact(source, shape, layout, layer)?.expect("as those of the origin");
            let mut bytes = vec![0; n_exact * shape.kv_dtype.size()];
            forms.exact.read(0, &mut bytes);
            own.write(0, &bytes);
            layers.push(LayerForms { rounded, exact: own, held: forms.held.clone() });
        }
        *unchanged = Unchanged::up_to(shape, n_rows);
        Ok(Box::new(Self {
            source: source.clone(),
            shape: shape.clone(),
            layout: *layout,
            layers,
            unchanged: unchanged.clone(),
            expected: Expected(n_rows),
            scratch: Scratch::default(),
        }))
    }

    fn share(&mut self, layer: LayerId, n_rows: usize) -> OpResult<bool> {
        let Self { shape, layers, unchanged, .. } = self;
        let put = |spans: ForkSpans<'_>| layers[layer].rounded.share(spans);
        unchanged.share(shape, layer, (n_rows, kv8::row_bytes(shape.head_dim)), put)
    }

    fn shared_bytes(&self) -> u64 {
        self.layers.iter().map(|forms| forms.rounded.shared_bytes()).sum()
    }

    /// Rows keep their codes; those that were there in full no longer are.
    fn permute_rows(
        &mut self,
        place: RowRange,
        order: &[u32],
        _row_bytes: usize,
        scratch: &mut Vec<u8>,
    ) {
        let RowRange { layer, head, start } = place;
        let row_bytes = kv8::row_bytes(self.shape.head_dim);
        let n_bytes = order.len() * row_bytes;
        scratch.clear();
        scratch.resize(2 * n_bytes, 0);
        let (old, new) = scratch.split_at_mut(n_bytes);
        let at = rounded_at(&self.shape, head, start);
        let mut rows = self.layer(layer);
        rows.changes_from(start);
        rows.forms.rounded.read(at, old);
        for (row, from) in new.chunks_exact_mut(row_bytes).zip(order) {
            row.copy_from_slice(&old[*from as usize * row_bytes..][..row_bytes]);
        }
        rows.forms.rounded.write(at, new);
        let held = &mut rows.forms.held[head];
        let first = held.start.max(start + order.len());
        *held = first..held.end.max(first);
        let moved = order.iter().enumerate().filter(|(i, from)| *i != **from as usize);
        rows.renew_first_rows(head, moved.map(|(i, _)| start + i));
    }

    fn move_to(&mut self, backend: &Arc<B>) -> OpResult<()> {
        match &self.source {
            Source::Plain(_) => return Ok(()),
            Source::Mapped(old) if Arc::ptr_eq(old, backend) => return Ok(()),
            Source::Mapped(_) => {}
        }
        let source = Source::Mapped(Arc::clone(backend));
        for (layer, forms) in self.shape.layers().zip(&mut self.layers) {
            for memory in [&mut forms.rounded, &mut forms.exact] {
                let Some(buffer) = memory.buffer() else { continue };
                let (dtype, len) = (buffer.dtype(), buffer.len());
                let lacking = || {
                    let reason = "the device that replaces it reads no host memory".into();
                    OpError::DeviceLost { backend: backend.name(), reason }
                };
                let label = format!("host KV of layer {layer}");
                let mut moved = source.open(dtype, len, label)?.ok_or_else(lacking)?;
                let mut bytes = vec![0; len * dtype.size()];
                memory.read(0, &mut bytes);
                moved.write(0, &bytes);
                *memory = moved;
            }
        }
        self.source = source;
        self.unchanged = Unchanged::new(&self.shape);
        Ok(())
    }

    fn two_forms(&self, layer: LayerId) -> Option<TwoForms<'_, B>> {
        let forms = &self.layers[layer];
        let first_exact = forms.held.iter().map(|held| held.start).max().unwrap_or(0);
        Some(TwoForms {
            rounded: forms.rounded.buffer()?,
            exact: forms.exact.buffer()?,
            layout: self.layout,
            first_exact,
        })
    }

    fn two_forms_mut(&mut self, layer: LayerId, rows: Range<usize>) -> Option<TwoFormsMut<'_, B>> {
        self.unchanged.written(layer, rows.start);
        let layout = self.layout;
        let LayerForms { rounded, exact, .. } = &mut self.layers[layer];
        Some(TwoFormsMut { rounded: rounded.buffer_mut()?, exact: exact.buffer_mut()?, layout })
    }

    fn note_written(&mut self, layer: LayerId, rows: Range<usize>) {
        for head in self.shape.heads() {
            self.layer(layer).hold(head, rows.clone());
        }
    }

    fn rounded(&self) -> Option<&dyn RoundedRows> {
        Some(self)
    }

    fn keep(&mut self, layout: DeviceLayout) -> OpResult<()> {
        if layout == self.layout {
            return Ok(());
        }
        let lacking = || OpError::OutOfMemory {
            backend: "host",
            label: "first and recent KV".into(),
            bytes: self.shape.exact_bytes(&layout) as u64,
        };
        let row_bytes = self.shape.row_bytes();
        let (mut row_of, mut made) = (vec![0; row_bytes], Vec::with_capacity(self.layers.len()));
        // All before any is put in force: memory may run out on the way.
        for layer in self.shape.layers() {
            let mut exact =
                open_exact(&self.source, &self.shape, &layout, layer)?.ok_or_else(lacking)?;
            let mut held = Vec::with_capacity(self.shape.n_kv_heads);
            for (head, before) in self.shape.heads().zip(&self.layers[layer].held) {
                let start = before.start.max(before.end.saturating_sub(layout.ring));
                let recent = start..before.end.max(start);
                let first = 0..layout.sinks.min(self.shape.capacity);
                for row in first.chain(recent.clone()) {
                    self.read_rows(layer, head, row..row + 1, &mut row_of);
                    let at = (head.index() * layout.rows() + layout.row(row)) * row_bytes;
                    exact.write(at, &row_of);
                }
                held.push(recent);
            }
            made.push((exact, held));
        }
        for (forms, (exact, held)) in self.layers.iter_mut().zip(made) {
            (forms.exact, forms.held) = (exact, held);
        }
        self.layout = layout;
        Ok(())
    }
}

impl<B: Backend> RoundedRows for EightBitStore<B> {
    fn read_codes(&self, layer: LayerId, head: HeadId, rows: Range<usize>, out: &mut [u8]) {
        let at = rounded_at(&self.shape, head, rows.start);
        self.layers[layer].rounded.read(at, out);
    }

    fn exact_rows(&self, layer: LayerId) -> [Range<usize>; 2] {
        let held = &self.layers[layer].held;
        let start = held.iter().map(|held| held.start).max().unwrap_or(0);
        let end = held.iter().map(|held| held.end).min().unwrap_or(0);
        [0..self.layout.sinks, start..end.max(start)]
    }
}

#[cfg(test)]
mod tests {
    use longview_ops::ReferenceBackend;

    use super::super::fixture::{row, shape, stored};
    use super::super::layer_store::RoundedLayer;
    use super::*;
    use crate::layout::HostRows;

    type Store = EightBitStore<ReferenceBackend>;

    const LAYER: LayerId = LayerId(1);
    const HEAD: HeadId = HeadId(1);

    fn eight_bits() -> KvShape {
        KvShape { host_rows: HostRows::EightBits, ..shape() }
    }

    /// One of each kind of memory, with one first row and three recent ones.
    fn stores() -> [Store; 2] {
        let (backend, layout) = (Arc::new(ReferenceBackend::new()), layout(1, 3));
        let mapped = Store::mapped(&backend, &eight_bits(), layout).unwrap().unwrap();
        [mapped, Store::plain(&eight_bits(), layout).unwrap()]
    }

    fn layout(sinks: usize, ring: usize) -> DeviceLayout {
        DeviceLayout { sinks, ring, slots: 0 }
    }

    fn write(store: &mut Store, rows: Range<usize>) {
        let numbers: Vec<f32> = rows.clone().flat_map(|r| row(LAYER, HEAD, r)).collect();
        store.write_rows(LAYER, HEAD, rows.start, bytemuck::cast_slice(&numbers));
    }

    fn rounded(r: usize) -> Vec<f32> {
        let (numbers, mut bytes) = (row(LAYER, HEAD, r), vec![0; kv8::row_bytes(4)]);
        kv8::encode(&numbers[..4], &numbers[4..], &mut bytes);
        let mut out = vec![0.0; 8];
        kv8::decode(&bytes, &mut out);
        out
    }

    /// Rows that are as written; the others are as rounded.
    #[track_caller]
    fn check(store: &Store, tokens: &[usize], exact: &[usize]) {
        let all = stored(store, &eight_bits(), LAYER, HEAD);
        for (place, (got, token)) in all.chunks_exact(8).zip(tokens).enumerate() {
            let is_exact = exact.contains(&place);
            let want = if is_exact { row(LAYER, HEAD, *token).to_vec() } else { rounded(*token) };
            assert_eq!(got, want, "row {place}");
            assert_ne!(rounded(*token), row(LAYER, HEAD, *token), "a row that rounding changes");
        }
    }

    #[test]
    fn first_and_recent_rows_are_as_they_were_written() {
        for mut store in stores() {
            write(&mut store, 0..2);
            check(&store, &[0, 1], &[0, 1]);
            write(&mut store, 2..3);
            write(&mut store, 3..7);
            check(&store, &[0, 1, 2, 3, 4, 5, 6], &[0, 4, 5, 6]);
            write(&mut store, 7..8);
            check(&store, &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 5, 6, 7]);
        }
    }

    /// After a cut the rows that the ring still has stay, and those that it gave up do not return.
    #[test]
    fn rows_behind_a_cut_are_written_again() {
        for mut store in stores() {
            write(&mut store, 0..8);
            write(&mut store, 6..7);
            check(&store, &[0, 1, 2, 3, 4, 5, 6], &[0, 5, 6]);
            write(&mut store, 2..4);
            check(&store, &[0, 1, 2, 3], &[0, 2, 3]);
            write(&mut store, 4..5);
            check(&store, &[0, 1, 2, 3, 4], &[0, 2, 3, 4]);
        }
    }

    #[test]
    fn rows_that_change_their_place_are_rounded_from_then_on() {
        for mut store in stores() {
            write(&mut store, 0..8);
            let (place, mut scratch) =
                (RowRange { layer: LAYER, head: HEAD, start: 3 }, Vec::new());
            store.permute_rows(place, &[2, 0, 1], 32, &mut scratch);
            check(&store, &[0, 1, 2, 5, 3, 4, 6, 7], &[0, 6, 7]);
            let all = RowRange { start: 0, ..place };
            store.permute_rows(all, &[0, 1, 2, 4, 5, 3, 6, 7], 32, &mut scratch);
            check(&store, &[0, 1, 2, 3, 4, 5, 6, 7], &[0]);
            // The first row moves as well.
            store.permute_rows(all, &[1, 0, 2, 3, 4, 5, 6, 7], 32, &mut scratch);
            check(&store, &[1, 0, 2, 3, 4, 5, 6, 7], &[]);
        }
    }

    /// What a file keeps of a store makes the same store again.
    #[test]
    fn codes_and_full_rows_make_the_same_rows_again() {
        for (mut store, mut again) in stores().into_iter().zip(stores()) {
            write(&mut store, 0..8);
            assert_eq!(store.exact_rows(LAYER)[0], 0..1);
            let recent = store.layers[LAYER].held[HEAD].clone();
            assert_eq!(recent, 5..8);
            let mut codes = vec![0; 8 * kv8::row_bytes(4)];
            store.read_codes(LAYER, HEAD, 0..8, &mut codes);
            let (first, second) = codes.split_at(3 * kv8::row_bytes(4));
            again.layer(LAYER).write_codes(HEAD, 0, first);
            again.layer(LAYER).write_codes(HEAD, 3, second);
            for rows in [0..1, recent.clone()] {
                let mut exact = vec![0; rows.len() * eight_bits().row_bytes()];
                store.read_rows(LAYER, HEAD, rows.clone(), &mut exact);
                // In two pieces.
                let (one, rest) = exact.split_at(eight_bits().row_bytes());
                again.layer(LAYER).write_exact(HEAD, rows.start, one);
                again.layer(LAYER).write_exact(HEAD, rows.start + 1, rest);
                again.layer(LAYER).hold_exact(rows);
            }
            check(&again, &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 5, 6, 7]);
            assert_eq!(again.layers[LAYER].held[HEAD], recent);
        }
    }

    /// A first row whose full form no file has is what its codes say.
    #[test]
    fn codes_alone_make_rounded_rows() {
        for (mut store, mut again) in stores().into_iter().zip(stores()) {
            write(&mut store, 0..8);
            let mut codes = vec![0; 8 * kv8::row_bytes(4)];
            store.read_codes(LAYER, HEAD, 0..8, &mut codes);
            again.layer(LAYER).write_codes(HEAD, 0, &codes);
            check(&again, &[0, 1, 2, 3, 4, 5, 6, 7], &[]);
            // Rows that are not the last ones have no place in the ring.
            again.layer(LAYER).hold_exact(4..6);
            assert_eq!(again.layers[LAYER].held[HEAD], 8..8);
        }
    }

    #[test]
    fn another_layout_keeps_what_it_has_room_for() {
        for mut store in stores() {
            write(&mut store, 0..8);
            HostStore::<ReferenceBackend>::keep(&mut store, layout(2, 2)).unwrap();
            // Row 1 was rounded when it became a first row.
            check(&store, &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 6, 7]);
            write(&mut store, 5..6);
            check(&store, &[0, 1, 2, 3, 4, 5], &[0, 5]);
            HostStore::<ReferenceBackend>::keep(&mut store, layout(0, 6)).unwrap();
            check(&store, &[0, 1, 2, 3, 4, 5], &[5]);
        }
    }

    #[test]
    fn kernels_read_the_mapped_one_alone() {
        let [mut mapped, mut plain] = stores();
        write(&mut mapped, 0..8);
        write(&mut plain, 0..8);
        assert!(HostStore::<ReferenceBackend>::two_forms(&plain, LAYER).is_none());
        let forms = mapped.two_forms(LAYER).unwrap();
        assert_eq!((forms.rounded.dtype(), forms.rounded.len()), (DType::Q8, 2 * 8 * 12));
        assert_eq!((forms.exact.dtype(), forms.exact.len()), (DType::F32, 2 * 4 * 8));
        // The other head has no rows yet.
        assert_eq!(forms.first_exact, 5);
        let narrow = ReferenceBackend::new().capabilities().clone();
        let kv_dtypes = vec![DType::F32];
        let narrow =
            ReferenceBackend::with_capabilities(longview_ops::Capabilities { kv_dtypes, ..narrow });
        let lacking = Store::mapped(&Arc::new(narrow), &eight_bits(), layout(1, 3)).unwrap();
        assert!(lacking.is_none(), "no kernel reads them");
    }

    #[test]
    fn rows_outlive_the_device() {
        for mut store in stores() {
            write(&mut store, 0..8);
            store.move_to(&Arc::new(ReferenceBackend::new())).unwrap();
            check(&store, &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 5, 6, 7]);
        }
    }
}
