//! How rows get into one layer of a host store of 8 bits ([`super::EightBitStore`]).

use std::ops::Range;

use longview_core::{HeadId, decode_f32_into, encode_f32, kv8};
use longview_ops::Backend;

use super::host_memory::Memory;
use super::layer_store::{LayerStore, RoundedLayer, scatter};
use crate::layout::{DeviceLayout, KvShape};

/// The rows of one layer.
pub(super) struct LayerForms<B: Backend> {
    pub rounded: Memory<B>,
    pub exact: Memory<B>,
    /// Rows of each head that are there in full, beside the first ones.
    pub held: Vec<Range<usize>>,
}

/// Memory to reuse: codes of rows, and the numbers of one.
#[derive(Default)]
pub(super) struct Scratch {
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

/// One layer, to be written.
pub(super) struct EightBitLayer<'a, B: Backend> {
    pub shape: &'a KvShape,
    pub layout: &'a DeviceLayout,
    pub forms: &'a mut LayerForms<B>,
    /// First rounded rows that did not change since the store was forked.
    pub unchanged: &'a mut usize,
}

/// Where the codes of a row are in a layer.
pub(super) fn rounded_at(shape: &KvShape, head: HeadId, row: usize) -> usize {
    assert!(row <= shape.capacity, "row {row} of {}", shape.capacity);
    (head.index() * shape.capacity + row) * kv8::row_bytes(shape.head_dim)
}

/// Where a row is in full, if it is.
pub(super) fn exact_at(shape: &KvShape, layout: &DeviceLayout, head: HeadId, row: usize) -> usize {
    (head.index() * layout.rows() + layout.row(row)) * shape.row_bytes()
}

impl<B: Backend> EightBitLayer<'_, B> {
    /// Rows from `start` on are about to change.
    pub fn changes_from(&mut self, start: usize) {
        *self.unchanged = start.min(*self.unchanged);
    }

    /// Rounds rows, and keeps first and last ones in full.
    pub fn write(&mut self, scratch: &mut Scratch, head: HeadId, start: usize, bytes: &[u8]) {
        let (shape, layout) = (self.shape, self.layout);
        let (head_dim, row_bytes) = (shape.head_dim, shape.row_bytes());
        let rounded_row = kv8::row_bytes(head_dim);
        let rows = start..start + bytes.len() / row_bytes;
        assert!(rows.end <= shape.capacity, "row {} of {}", rows.end, shape.capacity);
        let Scratch { bytes: rounded, numbers } = scratch;
        numbers.resize(2 * head_dim, 0.0);
        rounded.clear();
        rounded.resize(rows.len() * rounded_row, 0);
        let encoded = rounded.chunks_exact_mut(rounded_row);
        for ((row, encoded), bytes) in rows.clone().zip(encoded).zip(bytes.chunks_exact(row_bytes))
        {
            decode_f32_into(shape.kv_dtype, bytes, numbers);
            let (key, value) = numbers.split_at(head_dim);
            kv8::encode(key, value, encoded);
            // Of a run that is longer than the ring the last rows stay.
            if row < layout.sinks || row + layout.ring >= rows.end {
                self.forms.exact.write(exact_at(shape, layout, head, row), bytes);
            }
        }
        self.changes_from(start);
        self.forms.rounded.write(rounded_at(shape, head, start), rounded);
        self.hold(head, rows);
    }

    /// Notes that rows of a head were written in full.
    pub fn hold(&mut self, head: HeadId, rows: Range<usize>) {
        let held = &mut self.forms.held[head];
        // Rows behind a gap, or before what is held, begin anew; what follows them is gone.
        let follows = (held.start..=held.end).contains(&rows.start);
        let start = if follows { held.start } else { rows.start };
        *held = start.max(rows.end.saturating_sub(self.layout.ring))..rows.end;
    }

    /// Gives first rows that have changed their place the numbers of their codes.
    pub fn renew_first_rows(&mut self, head: HeadId, rows: impl Iterator<Item = usize>) {
        let first = self.layout.sinks;
        rows.filter(|row| *row < first).for_each(|row| self.renew_first_row(head, row));
    }

    fn renew_first_row(&mut self, head: HeadId, row: usize) {
        let head_dim = self.shape.head_dim;
        let (mut encoded, mut numbers) =
            (vec![0; kv8::row_bytes(head_dim)], vec![0.0; 2 * head_dim]);
        self.forms.rounded.read(rounded_at(self.shape, head, row), &mut encoded);
        kv8::decode(&encoded, &mut numbers);
        let bytes = encode_f32(self.shape.kv_dtype, &numbers);
        self.forms.exact.write(exact_at(self.shape, self.layout, head, row), &bytes);
    }
}

impl<B: Backend> LayerStore for EightBitLayer<'_, B> {
    fn write_rows(&mut self, head: HeadId, start: usize, bytes: &[u8]) {
        self.write(&mut Scratch::default(), head, start, bytes);
    }

    fn rounded(&mut self) -> Option<&mut dyn RoundedLayer> {
        Some(self)
    }
}

impl<B: Backend> RoundedLayer for EightBitLayer<'_, B> {
    fn write_codes(&mut self, head: HeadId, start: usize, bytes: &[u8]) {
        let rows = start..start + bytes.len() / kv8::row_bytes(self.shape.head_dim);
        assert!(rows.end <= self.shape.capacity, "row {} of {}", rows.end, self.shape.capacity);
        self.changes_from(start);
        self.forms.rounded.write(rounded_at(self.shape, head, start), bytes);
        self.forms.held[head] = rows.end..rows.end;
        self.renew_first_rows(head, rows);
    }

    fn scatter_codes(&mut self, head: HeadId, rows: &[u32], bytes: &[u8]) {
        let (Some(first), Some(last)) = (rows.iter().min(), rows.iter().max()) else { return };
        let (row_bytes, end) = (kv8::row_bytes(self.shape.head_dim), *last as usize + 1);
        let range = rounded_at(self.shape, head, 0)..rounded_at(self.shape, head, end);
        self.changes_from(*first as usize);
        match &mut self.forms.rounded {
            Memory::Mapped(backend, buffer) => {
                let all = backend.host_bytes_mut(buffer).expect("made by alloc_host");
                scatter(&mut all[range], rows, bytes);
            }
            Memory::Plain(all) => {
                for (row, bytes) in rows.iter().zip(bytes.chunks_exact(row_bytes)) {
                    all.write(range.start + *row as usize * row_bytes, bytes);
                }
            }
        }
        self.forms.held[head] = end..end;
        self.renew_first_rows(head, rows.iter().map(|row| *row as usize));
    }

    fn write_exact(&mut self, head: HeadId, start: usize, bytes: &[u8]) {
        let recent = self.forms.held[head].end.saturating_sub(self.layout.ring);
        for (row, bytes) in (start..).zip(bytes.chunks_exact(self.shape.row_bytes())) {
            if row < self.layout.sinks || row >= recent {
                self.forms.exact.write(exact_at(self.shape, self.layout, head, row), bytes);
            }
        }
    }

    fn hold_exact(&mut self, rows: Range<usize>) {
        for held in self.forms.held.iter_mut().filter(|held| held.end == rows.end) {
            held.start = rows.start.max(rows.end.saturating_sub(self.layout.ring));
        }
    }
}
