//! A stored tensor as the loader takes it: values of 16 or 32 bits, rows in the order of Hugging
//! Face. Blocks are made into values while they are read, a few at a time, so that a model is never
//! in memory twice.
//!
//! Quantised values become f16, rounded to the nearest, ties to even. A scale is itself an f16 and
//! is multiplied by a whole number of at most 8 bits, so f16 keeps every value to 2^-11 of itself
//! (bf16 would keep 2^-8); below 6e-5 the error is at most 3e-8. A value too large for f16, which
//! no model has, is an error rather than infinity.

use std::io;
use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use longview_core::{DType, RangeSource};

use super::dequantize::dequantize;
use super::types::GgmlType;
use crate::source::SharedSource;

/// Values that are made at once: a multiple of every block, and small beside a core's cache.
const TILE: usize = 4096;

/// The order of a tensor's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As Hugging Face has it.
    Same,
    /// Of each head of this many rows, those of even places come before those of odd ones.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
}

impl RowOrder {
    /// Where row `row` of Hugging Face is stored.
    pub(super) fn stored_row(self, row: usize) -> usize {
        match self {
            RowOrder::Same => row,
            RowOrder::Interleaved { head_dim } => {
                let (at, half) = (row % head_dim, head_dim / 2);
                row - at + at % half * 2 + at / half
            }
        }
    }
}

/// What Longview loads values of `ty` as.
pub(super) fn loaded_type(ty: GgmlType) -> DType {
    match ty {
        GgmlType::F32 => DType::F32,
        GgmlType::Bf16 => DType::BF16,
        _ => DType::F16,
    }
}

/// Whether f16 holds a number, or rounds it down to its largest one. A NaN is no number.
fn fits(value: f32) -> bool {
    value.abs() < 65_520.0
}

/// The values of a tensor as a file that is made while it is read.
pub(super) struct Rows {
    /// The file.
    pub source: SharedSource,
    /// The tensor's first byte in it.
    pub start: u64,
    pub ty: GgmlType,
    pub n_rows: usize,
    /// Values of a row.
    pub row_len: usize,
    pub order: RowOrder,
}

impl Rows {
    /// The blocks of whole rows, in the order of Hugging Face.
    pub(super) fn into_blocks(self) -> BlockRows {
        let row_bytes = self.row_len / self.ty.block_len() * self.ty.block_bytes();
        BlockRows { rows: self, row_bytes }
    }

    /// Bytes of a row as they are read here.
    fn row_bytes(&self) -> usize {
        self.row_len * loaded_type(self.ty).size()
    }

    /// The stored bytes of the values `values` of stored row `row`; whole blocks.
    fn stored(&self, row: usize, values: &Range<usize>) -> io::Result<Vec<u8>> {
        let bytes = |n: usize| n / self.ty.block_len() * self.ty.block_bytes();
        let at = row as u64 * bytes(self.row_len) as u64 + bytes(values.start) as u64;
        let mut blocks = vec![0; bytes(values.len())];
        self.source.read_at(self.start + at, &mut blocks)?;
        Ok(blocks)
    }

    /// Writes the bytes from `at` on of row `row` into `out`.
    fn read_row(&self, row: usize, at: usize, out: &mut [u8]) -> io::Result<()> {
        let row = self.order.stored_row(row);
        let size = loaded_type(self.ty).size();
        let (mut at, mut left) = (at, out);
        while !left.is_empty() {
            let first = at / size / TILE * TILE;
            let values = first..self.row_len.min(first + TILE);
            let tile = self.tile(row, &values)?;
            let from = at - first * size;
            let n = left.len().min(tile.len() - from);
            let (now, later) = left.split_at_mut(n);
            now.copy_from_slice(&tile[from..from + n]);
            (at, left) = (at + n, later);
        }
        Ok(())
    }

    /// The values of a tile, little-endian.
    fn tile(&self, row: usize, values: &Range<usize>) -> io::Result<Vec<u8>> {
        let blocks = self.stored(row, values)?;
        if matches!(self.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16) {
            return Ok(blocks);
        }
        let mut numbers = vec![0.0; values.len()];
        dequantize(self.ty, &blocks, &mut numbers);
        // All are compared: a search that stops at the first takes as long as all else together.
        if !numbers.iter().fold(true, |all, value| all & fits(*value)) {
            let (name, value) = (self.ty.name(), numbers.iter().find(|value| !fits(**value)));
            let value = value.copied().unwrap_or_default();
            return Err(io::Error::other(format!("a block of {name} holds {value}, beyond F16")));
        }
        let mut halves = vec![f16::ZERO; numbers.len()];
        halves.convert_from_f32_slice(&numbers);
        let mut bytes = vec![0; 2 * halves.len()];
        for (two, half) in bytes.as_chunks_mut().0.iter_mut().zip(&halves) {
            *two = half.to_le_bytes();
        }
        Ok(bytes)
    }
}

impl RangeSource for Rows {
    fn size(&self) -> u64 {
        self.n_rows as u64 * self.row_bytes() as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        if at.checked_add(out.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let row_bytes = self.row_bytes();
        let mut row = (at / row_bytes as u64) as usize;
        let mut from = (at % row_bytes as u64) as usize;
        let mut left = out;
        while !left.is_empty() {
            let n = left.len().min(row_bytes - from);
            let (now, later) = left.split_at_mut(n);
            self.read_row(row, from, now)?;
            (row, from, left) = (row + 1, 0, later);
        }
        Ok(())
    }
}

/// The blocks of a matrix, its rows in the order of Hugging Face.
pub(super) struct BlockRows {
    rows: Rows,
    row_bytes: usize,
}

impl RangeSource for BlockRows {
    fn size(&self) -> u64 {
        (self.rows.n_rows * self.row_bytes) as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        if at.checked_add(out.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut row = (at / self.row_bytes as u64) as usize;
        let mut from = (at % self.row_bytes as u64) as usize;
        let mut left = out;
        while !left.is_empty() {
            let n = left.len().min(self.row_bytes - from);
            let (now, later) = left.split_at_mut(n);
            let stored = self.rows.order.stored_row(row) * self.row_bytes + from;
            self.rows.source.read_at(self.rows.start + stored as u64, now)?;
            (row, from, left) = (row + 1, 0, later);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// `n_rows` rows of Q8_0 with the value `row + column / 32` and a scale of 1.
    fn rows(n_rows: usize, row_len: usize, order: RowOrder) -> Rows {
        let mut bytes = vec![0xee; 3];
        for row in 0..n_rows {
            for block in 0..row_len / 32 {
                bytes.extend(f16::ONE.to_le_bytes());
                bytes.extend([(row + block) as u8; 32]);
            }
        }
        Rows { source: Arc::new(bytes), start: 3, ty: GgmlType::Q8_0, n_rows, row_len, order }
    }

    fn values(rows: &Rows) -> Vec<f32> {
        let mut bytes = vec![0; rows.size() as usize];
        rows.read_at(0, &mut bytes).unwrap();
        bytes.chunks(2).map(|two| f16::from_le_bytes([two[0], two[1]]).to_f32()).collect()
    }

    #[test]
    fn rows_of_each_head_go_back_to_their_places() {
        // As the converter puts them: w.reshape(n_heads, 2, head_dim / 2, n).swapaxes(1, 2).
        let (head_dim, n_heads) = (6, 2);
        let mut converted = Vec::new();
        for head in 0..n_heads {
            for i in 0..head_dim / 2 {
                for half in 0..2 {
                    converted.push(head * head_dim + half * head_dim / 2 + i);
                }
            }
        }
        assert_eq!(converted[..6], [0, 3, 1, 4, 2, 5]);
        let order = RowOrder::Interleaved { head_dim };
        for row in 0..n_heads * head_dim {
            assert_eq!(converted[order.stored_row(row)], row);
        }
        let read = values(&rows(12, 32, order));
        let first: Vec<f32> = read.chunks(32).map(|row| row[0]).collect();
        assert_eq!(first, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 6.0, 8.0, 10.0, 7.0, 9.0, 11.0]);
    }

    #[test]
    fn any_run_of_bytes_can_be_read() {
        for (n_rows, row_len) in [(5, 64), (2, TILE + 32)] {
            let rows = rows(n_rows, row_len, RowOrder::Same);
            let mut all = vec![0; rows.size() as usize];
            rows.read_at(0, &mut all).unwrap();
            let step = all.len() / 97;
            for at in (0..all.len()).step_by(step.max(1)) {
                for len in [0, 1, 2, 129, all.len() - at] {
                    let mut some = vec![0; len.min(all.len() - at)];
                    rows.read_at(at as u64, &mut some).unwrap();
                    assert_eq!(some, all[at..at + some.len()], "{len} bytes at {at}");
                }
            }
            assert!(rows.read_at(1, &mut all).is_err());
            assert!(rows.read_at(u64::MAX, &mut [0; 2]).is_err());
        }
    }

    #[test]
    fn what_f16_does_not_hold_is_an_error() {
        let mut bytes = f16::MAX.to_le_bytes().to_vec();
        bytes.extend([1; 32]);
        let order = RowOrder::Same;
        let mut rows = Rows {
            source: Arc::new(bytes.clone()),
            start: 0,
            ty: GgmlType::Q8_0,
            n_rows: 1,
            row_len: 32,
            order,
        };
        assert_eq!(values(&rows), [65_504.0; 32]);
        bytes[20] = 2;
        rows.source = Arc::new(bytes);
        let error = rows.read_at(0, &mut [0; 64]).unwrap_err().to_string();
        assert_eq!(error, "a block of Q8_0 holds 131008, beyond F16");
    }
}
