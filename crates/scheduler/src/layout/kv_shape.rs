//! The dimensions of a sequence's KV.

use std::ops::Range;
use std::sync::Arc;

use longview_core::DType;

/// What a model and a context length fix about KV storage.
#[derive(Clone, Debug, PartialEq)]
pub struct KvShape {
    /// L.
    pub n_layers: usize,
    /// Hq.
    pub n_q_heads: usize,
    /// Hkv.
    pub n_kv_heads: usize,
    /// Dh.
    pub head_dim: usize,
    /// Storage of keys and values.
    pub kv_dtype: DType,
    /// Most tokens of a sequence.
    pub capacity: usize,
    /// Multiplies q . k.
    pub scale: f32,
    /// Radians by which each pair of a key's elements (`i` and `i + n`) turns from one position to
    /// the next; empty where keys do not turn.
    pub inv_freq: Arc<[f64]>,
}

impl KvShape {
    /// Bytes of one KV row: a key and a value.
    pub fn row_bytes(&self) -> usize {
        2 * self.head_dim * self.kv_dtype.size()
    }

    /// Elements of one layer's rows at full capacity.
    pub fn layer_elements(&self) -> usize {
        self.n_kv_heads * self.capacity * 2 * self.head_dim
    }

    /// Bytes of one layer's rows at full capacity.
    pub fn layer_bytes(&self) -> usize {
        self.layer_elements() * self.kv_dtype.size()
    }

    /// Bytes of K and V of one token over all layers.
    pub fn token_bytes(&self) -> usize {
        self.n_layers * self.n_kv_heads * self.row_bytes()
    }

    /// The bytes that rows of a head take in a layer's array.
    pub fn row_bytes_range(&self, head: usize, rows: Range<usize>) -> Range<usize> {
        assert!(rows.end <= self.capacity, "row {} of {}", rows.end, self.capacity);
        let row = self.row_bytes();
        let base = head * self.capacity;
        (base + rows.start) * row..(base + rows.end) * row
    }
}
