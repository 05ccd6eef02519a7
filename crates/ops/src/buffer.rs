//! Views of device buffers: what descriptors hold.

use longview_core::DType;

/// What every device buffer can say without the device.
pub trait DeviceBuffer {
    /// Type of the elements.
    fn dtype(&self) -> DType;

    /// Number of elements.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes taken.
    fn size_bytes(&self) -> u64 {
        (self.len() * self.dtype().size()) as u64
    }
}

/// The kinds of memory that a backend has: what views and descriptors speak of, whatever the
/// backend can compute.
pub trait Storage: Sized + 'static {
    /// Device memory with a data type and a length.
    type Buffer: DeviceBuffer + Send + Sync;
    /// A weight in whatever layout the backend likes.
    type Weight: Send + Sync;
}

/// A run of elements of a buffer, to be read. Offsets count elements; a kernel gets them as a
/// parameter, so any offset is allowed.
pub struct View<'a, B: Storage> {
    /// Where the elements lie.
    pub buffer: &'a B::Buffer,
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

impl<B: Storage> Clone for View<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Storage> Copy for View<'_, B> {}

impl<'a, B: Storage> View<'a, B> {
    /// The whole buffer.
    pub fn all(buffer: &'a B::Buffer) -> Self {
        Self { buffer, offset: 0, len: buffer.len() }
    }

    /// `len` elements from `offset`.
    pub fn part(buffer: &'a B::Buffer, offset: usize, len: usize) -> Self {
        Self { buffer, offset, len }
    }

    /// Whether the run lies inside the buffer.
    pub fn in_bounds(&self) -> bool {
        self.offset.checked_add(self.len).is_some_and(|end| end <= self.buffer.len())
    }
}

/// A run of elements of a buffer, to be written. Elements outside the run are never touched.
pub struct ViewMut<'a, B: Storage> {
    /// Where the elements lie.
    pub buffer: &'a mut B::Buffer,
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

impl<'a, B: Storage> ViewMut<'a, B> {
    /// The whole buffer.
    pub fn all(buffer: &'a mut B::Buffer) -> Self {
        let len = buffer.len();
        Self { buffer, offset: 0, len }
    }

    /// `len` elements from `offset`.
    pub fn part(buffer: &'a mut B::Buffer, offset: usize, len: usize) -> Self {
        Self { buffer, offset, len }
    }

    /// Whether the run lies inside the buffer.
    pub fn in_bounds(&self) -> bool {
        self.offset.checked_add(self.len).is_some_and(|end| end <= self.buffer.len())
    }
}

/// An array of KV rows `[Hkv, head_stride, 2, Dh]`: row r of KV head h starts at element
/// `offset + (h * head_stride + r) * n`, where n = 2 Dh but for rows of 8 bits
/// ([`DType::kv_row_len`]). With a stride of 0 that is a pool, where every head may name any row.
pub struct KvView<'a, B: Storage> {
    /// The buffer, of a KV data type.
    pub buffer: &'a B::Buffer,
    /// Element of row 0 of head 0.
    pub offset: usize,
    /// Rows from one head to the next.
    pub head_stride: usize,
}

impl<B: Storage> Clone for KvView<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Storage> Copy for KvView<'_, B> {}

impl<'a, B: Storage> KvView<'a, B> {
    /// Rows from the start of `buffer`.
    pub fn new(buffer: &'a B::Buffer, head_stride: usize) -> Self {
        Self { buffer, offset: 0, head_stride }
    }

    /// Elements of a row.
    pub fn row_len(&self, head_dim: usize) -> usize {
        self.buffer.dtype().kv_row_len(head_dim)
    }

    /// Rows that a list may name are below this.
    pub fn row_limit(&self, head_dim: usize) -> usize {
        match self.head_stride {
            0 => self.buffer.len().saturating_sub(self.offset) / self.row_len(head_dim).max(1),
            stride => stride,
        }
    }

    /// Whether rows `0..n_rows` of all heads lie inside the buffer.
    pub fn holds(&self, n_kv_heads: usize, head_dim: usize, n_rows: usize) -> bool {
        if self.head_stride == 0 {
            return self.offset <= self.buffer.len() && n_rows <= self.row_limit(head_dim);
        }
        let rows = n_kv_heads.saturating_sub(1) * self.head_stride + n_rows;
        n_rows <= self.head_stride
            && self.offset + rows * self.row_len(head_dim) <= self.buffer.len()
    }
}
