//! Weights on the device: rows of whole units of 16 bytes, so that any row is loaded as such, or
//! quantised rows in tiles.

use std::ops::Range;
use std::sync::Arc;

use longview_core::DType;
use longview_core::quant::{Order, Tiles};
use longview_ops::{Activations, Op, OpError, OpResult, QuantSource, WeightSource};

use crate::args::Address;
use crate::device::{Counted, Device};
use crate::driver::{Driver, Memory, Place};
use crate::queue::Queue;

/// What a thread loads at once.
pub(crate) const UNIT_BYTES: usize = 16;
/// Bytes of tiles that are made at once: the host never holds all of them.
const AT_ONCE: usize = 1 << 20;

/// Rows of numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    pub dtype: DType,
    /// Bytes from one row to the next; a multiple of [`UNIT_BYTES`]. What fills a row up is 0.
    pub row_bytes: usize,
    /// What products do to activations.
    pub activations: Activations,
}

impl Plain {
    /// Whether products of any number of rows round x to bf16.
    pub fn is_rounding(self) -> bool {
        self.activations.rounds_to_bf16(self.dtype)
    }

    /// Whether products must not round x, which tensor cores do.
    pub fn keeps_x(self) -> bool {
        self.dtype == DType::BF16 && self.activations == Activations::F32
    }

    /// Units from one row to the next.
    pub fn row_units(self) -> u32 {
        (self.row_bytes / UNIT_BYTES) as u32
    }
}

/// Quantised rows in tiles, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiled {
    pub tiles: Tiles,
    pub activations: Activations,
}

impl Tiled {
    /// Units of a tile, and those before its scales.
    pub fn units(self) -> [u32; 2] {
        let units = |bytes: usize| (bytes / UNIT_BYTES) as u32;
        [self.tiles.tile_bytes(), self.tiles.code_bytes()].map(units)
    }
}

/// How the rows of a weight lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows {
    Plain(Plain),
    Tiled(Tiled),
}

/// A weight on the device.
pub struct CudaWeight<D: Driver> {
    pub(crate) name: String,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) rows: Rows,
    memory: Counted<D>,
}

impl<D: Driver> std::fmt::Debug for CudaWeight<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, n_rows, n_cols, rows, .. } = self;
        write!(f, "CudaWeight({name}, {n_rows} x {n_cols}, {rows:?})")
    }
}

impl<D: Driver> CudaWeight<D> {
    /// Copies a weight to the device, and waits: it may be used on any queue after.
    pub(crate) fn load(
        device: &Arc<Device<D>>,
        queue: &Queue<D>,
        source: WeightSource,
    ) -> OpResult<Self> {
        check(&source)?;
        let WeightSource { name, dtype, n_rows, n_cols, bytes, activations } = source;
        let used = n_cols * dtype.size();
        let row_bytes = used.next_multiple_of(UNIT_BYTES);
        let n_bytes = n_rows * row_bytes;
        let memory = device.alloc(n_bytes as u64, &name)?;
        let rows = bytes.as_ref();
        queue.upload(Place::new(&memory.memory, 0), n_bytes, |range, out| {
            pad(rows, used, row_bytes, range, out);
        })?;
        queue.synchronize()?;
        let rows = Rows::Plain(Plain { dtype, row_bytes, activations });
        Ok(Self { name, n_rows, n_cols, rows, memory })
    }

    /// As [`CudaWeight::load`], of blocks, which become tiles.
    pub(crate) fn load_quantised(
        device: &Arc<Device<D>>,
        queue: &Queue<D>,
        source: QuantSource,
    ) -> OpResult<Self> {
        source.check()?;
        let QuantSource { name, ty, n_rows, n_cols, blocks, activations } = source;
        let tiles = Tiles { ty, n_rows, n_cols, order: Order::Apart };
        let tile_bytes = tiles.tile_bytes();
        let memory = device.alloc((tiles.count() * tile_bytes) as u64, &name)?;
        let n_at_once = (AT_ONCE / tile_bytes.max(1)).max(1);
        let mut bytes = Vec::new();
        for first in (0..tiles.count()).step_by(n_at_once) {
            bytes.resize(n_at_once.min(tiles.count() - first) * tile_bytes, 0);
            for (i, tile) in bytes.chunks_exact_mut(tile_bytes).enumerate() {
                tiles.pack(blocks.as_ref(), first + i, tile);
            }
            let to = Place::new(&memory.memory, (first * tile_bytes) as u64);
            queue.upload(to, bytes.len(), |range, out| out.copy_from_slice(&bytes[range]))?;
        }
        queue.synchronize()?;
        let rows = Rows::Tiled(Tiled { tiles, activations });
        Ok(Self { name, n_rows, n_cols, rows, memory })
    }

    /// Where its first row is.
    pub(crate) fn address(&self) -> Address {
        Address(self.memory.memory.address())
    }

    /// How its numbers lie: of norms and biases, which are never quantised.
    pub(crate) fn plain(&self, op: Op) -> OpResult<Plain> {
        match self.rows {
            Rows::Plain(plain) => Ok(plain),
            Rows::Tiled(_) => {
                let what = format!("weight {} is quantised, expected numbers", self.name);
                Err(OpError::shape(op, what))
            }
        }
    }

    /// Fails with `op`'s shape error unless this is `n_rows x n_cols`.
    pub(crate) fn expect(&self, op: Op, n_rows: usize, n_cols: usize) -> OpResult<()> {
        if (self.n_rows, self.n_cols) == (n_rows, n_cols) {
            return Ok(());
        }
        let (name, r, c) = (&self.name, self.n_rows, self.n_cols);
        Err(OpError::shape(op, format!("weight {name} is {r} x {c}, expected {n_rows} x {n_cols}")))
    }
}

/// The type and the byte count of a weight.
fn check(source: &WeightSource) -> OpResult<()> {
    let WeightSource { name, dtype, n_rows, n_cols, bytes, .. } = source;
    let found = bytes.len();
    let fail = |what: String| Err(OpError::Weight { name: name.clone(), what });
    if !dtype.is_float() {
        return fail(format!("{dtype} is no type of weights"));
    }
    let expected = n_rows * n_cols * dtype.size();
    if found != expected {
        return fail(format!("{found} bytes for {n_rows} x {n_cols} {dtype}, expected {expected}"));
    }
    Ok(())
}

/// Bytes `range` of rows that are filled up with zeros from `used` to `row_bytes` bytes.
fn pad(rows: &[u8], used: usize, row_bytes: usize, range: Range<usize>, out: &mut [u8]) {
    if used == row_bytes {
        return out.copy_from_slice(&rows[range]);
    }
    let mut at = range.start;
    let mut out = out;
    while at < range.end {
        let (row, column) = (at / row_bytes, at % row_bytes);
        let (part, rest) = out.split_at_mut((row_bytes - column).min(range.end - at));
        let n_used = used.saturating_sub(column).min(part.len());
        part[..n_used].copy_from_slice(&rows[row * used + column.min(used)..][..n_used]);
        part[n_used..].fill(0);
        at += part.len();
        out = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::pad;

    #[test]
    fn rows_are_filled_up_wherever_a_piece_is_cut() {
        let rows: Vec<u8> = (1..=15).collect();
        let whole = [1, 2, 3, 4, 5, 0, 0, 0, 6, 7, 8, 9, 10, 0, 0, 0, 11, 12, 13, 14, 15, 0, 0, 0];
        for start in 0..24 {
            for end in start..=24 {
                let mut out = vec![99; end - start];
                pad(&rows, 5, 8, start..end, &mut out);
                assert_eq!(out, whole[start..end], "{start}..{end}");
            }
        }
    }
}
