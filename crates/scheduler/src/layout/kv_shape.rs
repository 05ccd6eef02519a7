//! The dimensions of a sequence's KV.

use std::ops::Range;
use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId, kv8};

use super::device_layout::DeviceLayout;

/// How the host store keeps KV rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostRows {
    /// As they are attended.
    #[default]
    Plain,
    /// Rounded to 8 bits ([`longview_core::kv8`]), but for the first and the most recent ones.
    EightBits,
}

/// What a model and a context length fix about KV storage.
#[derive(Clone, Debug, PartialEq)]
pub struct KvShape {
    /// Transformer layers, L.
    pub n_layers: usize,
    /// Query heads of a layer, Hq; a multiple of the KV heads.
    pub n_q_heads: usize,
    /// Key and value heads of a layer, Hkv.
    pub n_kv_heads: usize,
    /// Numbers of a key and of a value, Dh.
    pub head_dim: usize,
    /// Storage of keys and values, as steps attend to the most recent ones.
    pub kv_dtype: DType,
    /// How the host store keeps them.
    pub host_rows: HostRows,
    /// Most tokens of a sequence.
    pub capacity: usize,
    /// Multiplies q . k.
    pub scale: f32,
    /// Radians by which each pair of a key's elements (`i` and `i + n`) turns from one position to
    /// the next; empty where keys do not turn.
    pub inv_freq: Arc<[f64]>,
    /// Tokens that a token sees in each layer, itself included; `None` for all. Empty where every
    /// layer sees all.
    pub windows: Arc<[Option<usize>]>,
}

impl KvShape {
    /// Tokens that a token of `layer` sees, itself included, where the model was trained with a
    /// window.
    pub fn window(&self, layer: LayerId) -> Option<usize> {
        self.windows.get(layer.index()).copied().flatten()
    }

    /// The rows of a device buffer of a layer with a window: a ring of as many.
    pub fn window_layout(&self, layer: LayerId) -> Option<DeviceLayout> {
        let ring = self.window(layer)?.min(self.capacity);
        Some(DeviceLayout { sinks: 0, ring, slots: 0 })
    }

    /// All layers.
    pub fn layers(&self) -> impl Iterator<Item = LayerId> + use<> {
        (0..self.n_layers).map(LayerId::new)
    }

    /// The KV heads of a layer.
    pub fn heads(&self) -> impl Iterator<Item = HeadId> + use<> {
        (0..self.n_kv_heads).map(HeadId::new)
    }

    /// The query heads that share a KV head.
    pub fn query_heads(&self, head: HeadId) -> Range<usize> {
        let group = self.n_q_heads / self.n_kv_heads;
        head.index() * group..(head.index() + 1) * group
    }

    /// Bytes of one KV row: a key and a value.
    pub fn row_bytes(&self) -> usize {
        2 * self.head_dim * self.kv_dtype.size()
    }

    /// Bytes of one KV row in the host store.
    pub fn host_row_bytes(&self) -> usize {
        match self.host_rows {
            HostRows::Plain => self.row_bytes(),
            HostRows::EightBits => kv8::row_bytes(self.head_dim),
        }
    }

    /// Bytes of the rows of a layer that a host store of rows of 8 bits keeps as they were written.
    pub fn exact_bytes(&self, layout: &DeviceLayout) -> usize {
        self.n_kv_heads * layout.rows() * self.row_bytes()
    }

    /// Elements of one layer's rows at full capacity.
    pub fn layer_elements(&self) -> usize {
        self.n_kv_heads * self.capacity * 2 * self.head_dim
    }

    /// Bytes of one layer's rows in the host store at full capacity.
    pub fn layer_bytes(&self) -> usize {
        self.n_kv_heads * self.capacity * self.host_row_bytes()
    }

    /// Bytes of K and V of one token in the host store, over all layers.
    pub fn token_bytes(&self) -> usize {
        self.n_layers * self.n_kv_heads * self.host_row_bytes()
    }

    /// The bytes that rows of a head take in a layer's array.
    pub fn row_bytes_range(&self, head: HeadId, rows: Range<usize>) -> Range<usize> {
        assert!(rows.end <= self.capacity, "row {} of {}", rows.end, self.capacity);
        let row = self.row_bytes();
        let base = head.index() * self.capacity;
        (base + rows.start) * row..(base + rows.end) * row
    }

    /// Where rows of every head lie in a layer's array, for rows of `width` elements or bytes.
    pub fn row_spans(&self, rows: Range<usize>, width: usize) -> Vec<Range<usize>> {
        assert!(rows.end <= self.capacity, "row {} of {}", rows.end, self.capacity);
        let bases = (0..self.n_kv_heads).map(|head| head * self.capacity);
        bases.map(|base| (base + rows.start) * width..(base + rows.end) * width).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> KvShape {
        KvShape {
            n_layers: 3,
            n_q_heads: 4,
            n_kv_heads: 2,
            head_dim: 4,
            kv_dtype: DType::F16,
            host_rows: HostRows::default(),
            capacity: 10,
            scale: 0.5,
            inv_freq: Vec::new().into(),
            windows: [].into(),
        }
    }

    #[test]
    fn rows_of_every_head_lie_in_a_span_each() {
        assert_eq!(shape().row_spans(3..5, 16), [48..80, 208..240]);
    }

    #[test]
    fn sizes_count_keys_and_values_of_kv_heads() {
        let shape = shape();
        assert_eq!(shape.row_bytes(), 2 * 4 * 2);
        assert_eq!(shape.layer_elements(), 2 * 10 * 8);
        assert_eq!(shape.layer_bytes(), 2 * 10 * 16);
        assert_eq!(shape.token_bytes(), 3 * 2 * 16);
    }

    #[test]
    fn the_host_may_keep_rows_of_8_bits() {
        let shape = KvShape { head_dim: 64, host_rows: HostRows::EightBits, ..shape() };
        assert_eq!((shape.row_bytes(), shape.host_row_bytes()), (256, 136));
        assert_eq!(shape.layer_bytes(), 2 * 10 * 136);
        assert_eq!(shape.token_bytes(), 3 * 2 * 136);
        let layout = DeviceLayout { sinks: 1, ring: 3, slots: 0 };
        assert_eq!(shape.exact_bytes(&layout), 2 * 4 * 256);
    }

    #[test]
    fn a_layer_with_a_window_has_a_ring_of_it() {
        let shape = KvShape { windows: [Some(4), None, Some(64)].into(), ..shape() };
        let windows = [0, 1, 2].map(|layer| shape.window(LayerId(layer)));
        assert_eq!(windows, [Some(4), None, Some(64)]);
        let ring = |layer| shape.window_layout(LayerId(layer)).map(|layout| layout.ring);
        assert_eq!([ring(0), ring(1), ring(2)], [Some(4), None, Some(10)], "no more than tokens");
        assert_eq!(self::shape().window(LayerId(0)), None);
    }

    #[test]
    fn every_query_head_has_one_kv_head() {
        let shape = shape();
        assert_eq!(shape.layers().collect::<Vec<_>>(), [LayerId(0), LayerId(1), LayerId(2)]);
        let groups: Vec<_> = shape.heads().map(|head| shape.query_heads(head)).collect();
        assert_eq!(groups, [0..2, 2..4]);
    }

    #[test]
    fn a_heads_rows_follow_the_whole_capacity_of_the_heads_before() {
        let shape = shape();
        assert_eq!(shape.row_bytes_range(HeadId(0), 2..5), 32..80);
        assert_eq!(shape.row_bytes_range(HeadId(1), 2..5), 192..240);
        assert_eq!(shape.row_bytes_range(HeadId(1), 9..10), 304..320, "up to the end of the layer");
    }

    #[test]
    #[should_panic(expected = "row 11 of 10")]
    fn a_row_beyond_the_capacity_is_not_the_next_heads() {
        shape().row_bytes_range(HeadId(0), 9..11);
    }
}
