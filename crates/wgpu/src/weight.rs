//! Weights on the device, in shared chunks of memory: rows of packed words, whole vectors each, or
//! quantised rows in tiles.
//!
//! Weights of neighbouring layers share a buffer, so that one kernel can read several of them
//! through one binding. A matrix larger than a binding is split by rows, or by tiles.

use std::sync::Arc;

use longview_core::DType;
use longview_core::quant::{TILE_ROWS, Tiles};
use longview_ops::{Activations, Op, OpError, OpResult, WeightSource};

use crate::gpu::{Gpu, STORAGE_ALIGNMENT};
use crate::raw_buffer::RawBuffer;

/// Words of a vector load.
pub(crate) const VECTOR: usize = 4;
/// The least chunk of matrices, and of vectors, where nobody said how much will come.
const LEAST_CHUNK: [u64; 2] = [4 << 20, 64 << 10];
/// Bytes handed over at once: the staging of an upload stays small.
const UPLOAD_PIECE: usize = 4 << 20;

/// Rows of a weight in one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub raw: Arc<RawBuffer>,
    /// Word of the first row; a multiple of [`VECTOR`].
    pub word_offset: usize,
    pub first_row: usize,
    pub n_rows: usize,
}

/// Rows of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub dtype: DType,
    /// Words from one row to the next; a multiple of [`VECTOR`]. What fills a row up is 0.
    pub row_words: usize,
    /// Whether products round activations to bf16.
    pub is_rounding: bool,
}

impl Plain {
    /// How many elements lie in `words` words.
    pub fn elements_of(self, words: usize) -> usize {
        words * 4 / self.dtype.size()
    }
}

/// Quantised rows in tiles, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiled {
    pub tiles: Tiles,
    pub activations: Activations,
}

impl Tiled {
    /// Vectors of a tile, and those before its scales.
    pub fn vectors(self) -> [usize; 2] {
        [self.tiles.tile_bytes(), self.tiles.code_bytes()].map(|bytes| bytes / (4 * VECTOR))
    }
}

/// How the rows of a weight lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    Plain(Plain),
    Tiled(Tiled),
}

impl Layout {
    /// Bytes of what is never cut, and how many rows those are.
    fn piece(&self) -> (usize, usize) {
        match self {
            Self::Plain(plain) => (plain.row_words * 4, 1),
            Self::Tiled(tiled) => (tiled.tiles.tile_bytes(), TILE_ROWS),
        }
    }
}

/// A weight on the device.
#[derive(Debug)]
pub struct WgpuWeight {
    pub(crate) name: String,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) layout: Layout,
    pub(crate) shards: Vec<Shard>,
}

impl WgpuWeight {
    /// How its numbers lie; `None` where it is quantised.
    pub(crate) fn numbers(&self) -> Option<Plain> {
        match self.layout {
            Layout::Plain(plain) => Some(plain),
            Layout::Tiled(_) => None,
        }
    }

    /// As [`WgpuWeight::numbers`], of norms and biases, which are never quantised.
    pub(crate) fn plain(&self, op: Op) -> OpResult<Plain> {
        let is_quantised = || format!("weight {} is quantised, expected numbers", self.name);
        self.numbers().ok_or_else(|| OpError::shape(op, is_quantised()))
    }

    /// Fails with `op`'s shape error unless this is `n_rows x n_cols`.
    pub(crate) fn expect(&self, op: Op, n_rows: usize, n_cols: usize) -> OpResult<()> {
        if (self.n_rows, self.n_cols) == (n_rows, n_cols) {
            return Ok(());
        }
        let (name, r, c) = (&self.name, self.n_rows, self.n_cols);
        Err(OpError::shape(op, format!("weight {name} is {r} x {c}, expected {n_rows} x {n_cols}")))
    }

    /// Bytes that a kernel reads for the whole weight.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| self.shard_bytes(shard)).sum()
    }

    /// Bytes that a kernel reads for the rows of `shard`.
    pub(crate) fn shard_bytes(&self, shard: &Shard) -> u64 {
        let (bytes, rows) = self.layout.piece();
        (shard.n_rows.div_ceil(rows) * bytes) as u64
    }

    /// Where row `row` of `shard`, or the tile that it begins, lies in the shard's buffer.
    pub(crate) fn byte_of(&self, shard: &Shard, row: usize) -> u64 {
        let (bytes, rows) = self.layout.piece();
        (shard.word_offset * 4 + (row - shard.first_row) / rows * bytes) as u64
    }
}

/// Where the next weight goes.
pub(crate) struct WeightArena {
    chunk: Option<Arc<RawBuffer>>,
    used: u64,
    /// Bytes that are still to come, if somebody said so.
    expected: u64,
    least_chunk: u64,
}

impl WeightArena {
    pub fn of_matrices() -> Self {
        Self { chunk: None, used: 0, expected: 0, least_chunk: LEAST_CHUNK[0] }
    }

    pub fn of_vectors() -> Self {
        Self { least_chunk: LEAST_CHUNK[1], ..Self::of_matrices() }
    }

    /// About `bytes` in `n` weights will come: chunks are made for them, and not for more.
    pub fn expect(&mut self, bytes: u64, n: usize) {
        self.expected += bytes + n as u64 * STORAGE_ALIGNMENT;
    }

    /// Places for `n_rows` rows: as few buffers as bindings allow.
    pub fn place(
        &mut self,
        gpu: &Gpu,
        name: &str,
        n_rows: usize,
        layout: &Layout,
    ) -> OpResult<Vec<Shard>> {
        let (piece_bytes, piece_rows) = layout.piece();
        let most = gpu.max_storage_bytes();
        let rows_per_chunk = (most as usize / piece_bytes.max(1)).max(1) * piece_rows;
        let mut shards = Vec::new();
        let mut first_row = 0;
        while first_row < n_rows {
            let rows = rows_per_chunk.min(n_rows - first_row);
            let bytes = rows.div_ceil(piece_rows) * piece_bytes;
            let (raw, at) = self.reserve(gpu, name, bytes as u64, most)?;
            let word_offset = (at / 4) as usize;
            shards.push(Shard { raw, word_offset, first_row, n_rows: rows });
            first_row += rows;
        }
        Ok(shards)
    }

    fn reserve(
        &mut self,
        gpu: &Gpu,
        name: &str,
        bytes: u64,
        most: u64,
    ) -> OpResult<(Arc<RawBuffer>, u64)> {
        let bytes = bytes.next_multiple_of(STORAGE_ALIGNMENT);
        let to_come = self.expected;
        self.expected = to_come.saturating_sub(bytes);
        if let Some(chunk) = self.chunk.as_ref().filter(|chunk| self.used + bytes <= chunk.size) {
            let at = self.used;
            self.used += bytes;
            return Ok((Arc::clone(chunk), at));
        }
        let size = if to_come > 0 { to_come } else { self.least_chunk };
        let size = size.min(most).max(bytes);
        let chunk = Arc::new(gpu.storage(size, name)?);
        self.chunk = Some(Arc::clone(&chunk));
        self.used = bytes;
        Ok((chunk, 0))
    }
}

/// How rows of `n_cols` numbers lie.
pub(crate) fn plain(
    name: &str,
    dtype: DType,
    n_cols: usize,
    activations: Activations,
) -> OpResult<Plain> {
    if !dtype.is_float() {
        let what = format!("{dtype} is no type of weights");
        return Err(OpError::Weight { name: name.to_owned(), what });
    }
    let row_words = (n_cols * dtype.size()).div_ceil(4).next_multiple_of(VECTOR);
    Ok(Plain { dtype, row_words, is_rounding: activations.rounds_to_bf16(dtype) })
}

/// Checks the byte count.
pub(crate) fn check_size(source: &WeightSource) -> OpResult<()> {
    let WeightSource { name, dtype, n_rows, n_cols, bytes, .. } = source;
    let (found, expected) = (bytes.len(), n_rows * n_cols * dtype.size());
    if found == expected {
        return Ok(());
    }
    let what = format!("{found} bytes for {n_rows} x {n_cols} {dtype}, expected {expected}");
    Err(OpError::Weight { name: name.clone(), what })
}

impl WgpuWeight {
    /// Its rows in runs that are handed over at once: where they go, the first one of the weight,
    /// and how many.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&Shard, usize, usize)> {
        let (bytes, rows) = self.layout.piece();
        let at_once = (UPLOAD_PIECE / bytes.max(1)).max(1) * rows;
        self.shards.iter().flat_map(move |shard| {
            let firsts = (0..shard.n_rows).step_by(at_once);
            firsts.map(move |i| (shard, shard.first_row + i, at_once.min(shard.n_rows - i)))
        })
    }
}

impl Plain {
    /// `rows` of `n_cols` numbers as they lie on the device: filled up to whole vectors, in
    /// `padded`, where they need it.
    pub fn padded<'a>(self, n_cols: usize, rows: &'a [u8], padded: &'a mut Vec<u8>) -> &'a [u8] {
        let (from, to) = (n_cols * self.dtype.size(), self.row_words * 4);
        if from == to || from == 0 {
            return rows;
        }
        padded.clear();
        padded.resize(rows.len() / from * to, 0);
        for (row, out) in rows.chunks_exact(from).zip(padded.chunks_exact_mut(to)) {
            out[..from].copy_from_slice(row);
        }
        padded
    }
}
