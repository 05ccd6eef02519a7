//! The rows of one layer in a host store, apart from those of all others.
//!
//! A file is opened layer by layer, and several threads take layers at once: each of them fills the
//! rows of its own.

use std::ops::Range;

use longview_core::HeadId;

use super::host_bytes::HostBytesMut;
use crate::layout::KvShape;

/// The rows of one layer, to be filled.
pub trait LayerStore: Send {
    /// Overwrites rows from `start` on with `bytes` (whole rows).
    fn write_rows(&mut self, head: HeadId, start: usize, bytes: &[u8]);

    /// Overwrites the rows `rows` of one head, one after the other, with `bytes`.
    fn scatter_rows(&mut self, head: HeadId, rows: &[u32], bytes: &[u8]) {
        let row_bytes = bytes.len() / rows.len().max(1);
        for (row, bytes) in rows.iter().zip(bytes.chunks_exact(row_bytes.max(1))) {
            self.write_rows(head, *row as usize, bytes);
        }
    }

    /// The rows as the store keeps them for good, where that is not how they are attended.
    fn rounded(&mut self) -> Option<&mut dyn RoundedLayer> {
        None
    }
}

/// Rows of 8 bits ([`longview_core::kv8`]), and which of them are there in full as well.
pub trait RoundedLayer {
    /// Overwrites rows from `start` on with codes; none of them is there in full then, but for
    /// first rows, which are what their codes say.
    fn write_codes(&mut self, head: HeadId, start: usize, bytes: &[u8]);

    /// As [`RoundedLayer::write_codes`], of the rows `rows`, one after the other.
    fn scatter_codes(&mut self, head: HeadId, rows: &[u32], bytes: &[u8]);

    /// Rows in full, as far as there is room for them; their codes stay.
    fn write_exact(&mut self, head: HeadId, start: usize, bytes: &[u8]);

    /// Says that these rows of all heads were given in full. They count if they are the last ones.
    fn hold_exact(&mut self, rows: Range<usize>);
}

/// Copies rows, which follow each other in `bytes`, to those places of `all`.
pub(super) fn scatter(all: &mut [u8], rows: &[u32], bytes: &[u8]) {
    let row_bytes = bytes.len() / rows.len().max(1);
    for (row, bytes) in rows.iter().zip(bytes.chunks_exact(row_bytes.max(1))) {
        all[*row as usize * row_bytes..][..row_bytes].copy_from_slice(bytes);
    }
}

/// A layer of a [`super::MappedStore`].
pub(super) struct MappedLayer<'a> {
    pub shape: &'a KvShape,
    /// `[Hkv, capacity, 2, Dh]`.
    pub bytes: &'a mut [u8],
    /// First rows that did not change since the store was forked.
    pub unchanged: &'a mut usize,
}

impl LayerStore for MappedLayer<'_> {
    fn write_rows(&mut self, head: HeadId, start: usize, bytes: &[u8]) {
        let rows = start..start + bytes.len() / self.shape.row_bytes();
        *self.unchanged = start.min(*self.unchanged);
        self.bytes[self.shape.row_bytes_range(head, rows)].copy_from_slice(bytes);
    }

    fn scatter_rows(&mut self, head: HeadId, rows: &[u32], bytes: &[u8]) {
        let Some(first) = rows.iter().min() else { return };
        *self.unchanged = (*first as usize).min(*self.unchanged);
        let of_head = self.shape.row_bytes_range(head, 0..self.shape.capacity);
        scatter(&mut self.bytes[of_head], rows, bytes);
    }
}

/// A layer of a [`super::PlainStore`].
pub(super) struct PlainLayer<'a> {
    pub shape: &'a KvShape,
    pub bytes: &'a mut dyn HostBytesMut,
}

impl LayerStore for PlainLayer<'_> {
    fn write_rows(&mut self, head: HeadId, start: usize, bytes: &[u8]) {
        let rows = start..start + bytes.len() / self.shape.row_bytes();
        self.bytes.write(self.shape.row_bytes_range(head, rows).start, bytes);
    }
}
