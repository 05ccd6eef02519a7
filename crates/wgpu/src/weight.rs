//! Weights on the device: rows of packed words, whole vectors each, in shared chunks of memory.
//!
//! Weights of neighbouring layers share a buffer, so that one kernel can read several of them
//! through one binding. A matrix larger than a binding is split by rows.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{Op, OpError, OpResult, WeightSource};

use crate::buffer::RawBuffer;
use crate::gpu::Gpu;

/// Words of a vector load.
pub(crate) const VECTOR: usize = 4;
/// The first chunk; later ones double.
const FIRST_CHUNK: u64 = 4 << 20;
/// Bytes handed over at once: the staging of an upload stays small.
pub(crate) const UPLOAD_PIECE: usize = 16 << 20;

/// Rows of a weight in one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub raw: Arc<RawBuffer>,
    /// Word of the first row; a multiple of [`VECTOR`].
    pub word_offset: usize,
    pub first_row: usize,
    pub n_rows: usize,
}

/// A weight on the device.
#[derive(Debug)]
pub struct WgpuWeight {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    /// Words from one row to the next; a multiple of [`VECTOR`]. What fills a row up is 0.
    pub(crate) row_words: usize,
    pub(crate) shards: Vec<Shard>,
}

impl WgpuWeight {
    /// Fails with `op`'s shape error unless this is `n_rows x n_cols`.
    pub(crate) fn expect(&self, op: Op, n_rows: usize, n_cols: usize) -> OpResult<()> {
        if (self.n_rows, self.n_cols) == (n_rows, n_cols) {
            return Ok(());
        }
        let (name, r, c) = (&self.name, self.n_rows, self.n_cols);
        Err(OpError::shape(op, format!("weight {name} is {r} x {c}, expected {n_rows} x {n_cols}")))
    }

    /// How many elements lie in `words` words.
    pub(crate) fn elements_of(&self, words: usize) -> usize {
        words * 4 / self.dtype.size()
    }

    /// Bytes that a kernel reads for the whole weight.
    pub(crate) fn size_bytes(&self) -> u64 {
        (self.n_rows * self.row_words * 4) as u64
    }
}

/// Where the next weight goes.
#[derive(Default)]
pub(crate) struct WeightArena {
    chunk: Option<Arc<RawBuffer>>,
    used: u64,
    next_size: u64,
}

impl WeightArena {
    /// Places for `n_rows` rows of `row_words` words: as few buffers as bindings allow.
    pub fn place(
        &mut self,
        gpu: &Gpu,
        name: &str,
        n_rows: usize,
        row_words: usize,
    ) -> OpResult<Vec<Shard>> {
        let row_bytes = (row_words * 4) as u64;
        let most = gpu.limits.max_storage_buffer_binding_size.min(gpu.limits.max_buffer_size);
        let rows_per_chunk = (most / row_bytes.max(1)).max(1) as usize;
        let mut shards = Vec::new();
        let mut first_row = 0;
        while first_row < n_rows {
            let rows = rows_per_chunk.min(n_rows - first_row);
            let (raw, at) = self.reserve(gpu, name, rows as u64 * row_bytes, most)?;
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
        // Whole vectors, and the alignment that a binding may need one day.
        let bytes = bytes.next_multiple_of(256);
        if let Some(chunk) = self.chunk.as_ref().filter(|chunk| self.used + bytes <= chunk.size) {
            let at = self.used;
            self.used += bytes;
            return Ok((Arc::clone(chunk), at));
        }
        let size = self.next_size.max(FIRST_CHUNK).max(bytes).min(most.max(bytes));
        self.next_size = (size * 2).min(most);
        let chunk = Arc::new(gpu.storage(size, name)?);
        self.chunk = Some(Arc::clone(&chunk));
        self.used = bytes;
        Ok((chunk, 0))
    }
}

/// Checks the byte count and says how many words a row takes.
pub(crate) fn row_words(source: &WeightSource) -> OpResult<usize> {
    let WeightSource { name, dtype, n_rows, n_cols, bytes } = source;
    let fail = |what: String| Err(OpError::Weight { name: name.clone(), what });
    if !dtype.is_float() {
        return fail(format!("{dtype} is no type of weights"));
    }
    let expected = n_rows * n_cols * dtype.size();
    if bytes.len() != expected {
        let found = bytes.len();
        return fail(format!("{found} bytes for {n_rows} x {n_cols} {dtype}, expected {expected}"));
    }
    Ok((n_cols * dtype.size()).div_ceil(4).next_multiple_of(VECTOR))
}
