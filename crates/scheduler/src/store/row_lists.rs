//! The rows that each KV head attends in a step.

use longview_ops::{Backend, KvView, ListSpan, OpResult, ViewMut};

use super::upload_cache::UploadCache;

/// The rows that each KV head attends, on the host and on the device.
pub(crate) struct RowLists<B: Backend> {
    pub stride: usize,
    rows: Vec<u32>,
    n: Vec<u32>,
    /// Rows of each head that are attended first; all of them, unless the list was divided.
    n_first: Vec<u32>,
    n_rest: Vec<u32>,
    first: ListBuffers<B>,
    /// The others; only where lists are divided.
    rest: Option<ListBuffers<B>>,
}

/// One list of rows for each KV head on the device.
struct ListBuffers<B: Backend> {
    rows: UploadCache<B>,
    n: UploadCache<B>,
}

impl<B: Backend> ListBuffers<B> {
    fn new(backend: &B, n_kv_heads: usize, stride: usize) -> OpResult<Self> {
        Ok(Self {
            rows: UploadCache::new(backend, n_kv_heads, stride, "attended rows")?,
            n: UploadCache::new(backend, 1, n_kv_heads, "attended rows")?,
        })
    }

    fn span<'a>(&'a self, kv: KvView<'a, B>, q_index: usize, stride: usize) -> ListSpan<'a, B> {
        ListSpan {
            q_index: q_index as u32,
            kv,
            rows: self.rows.all(),
            n_rows: self.n.all(),
            weights: None,
            list_stride: stride as u32,
        }
    }
}

impl<B: Backend> RowLists<B> {
    /// Lists of up to `stride` rows a head; `divided` if some rows may have to be attended later.
    pub fn new(backend: &B, n_kv_heads: usize, stride: usize, divided: bool) -> OpResult<Self> {
        let stride = stride.max(1);
        let buffers = || ListBuffers::new(backend, n_kv_heads, stride);
        Ok(Self {
            stride,
            rows: vec![0; n_kv_heads * stride],
            n: vec![0; n_kv_heads],
            n_first: vec![0; n_kv_heads],
            n_rest: vec![0; n_kv_heads],
            first: buffers()?,
            rest: if divided { Some(buffers()?) } else { None },
        })
    }

    pub fn clear(&mut self) {
        self.n.fill(0);
        self.n_first.fill(u32::MAX);
    }

    /// What `head` has so far is attended first; what follows, later.
    pub fn divide(&mut self, head: usize) {
        self.n_first[head] = self.n[head];
    }

    pub fn push(&mut self, head: usize, row: usize) {
        let n = self.n[head] as usize;
        assert!(n < self.stride, "a head attends more than {} rows", self.stride);
        self.rows[head * self.stride + n] = row as u32;
        self.n[head] += 1;
    }

    pub fn head(&self, head: usize) -> &[u32] {
        &self.rows[head * self.stride..][..self.n[head] as usize]
    }

    pub fn counts(&self) -> &[u32] {
        &self.n
    }

    pub fn upload(&mut self, backend: &B) -> OpResult<()> {
        for (h, (n, first)) in self.n.iter().zip(&mut self.n_first).enumerate() {
            let at = h * self.stride;
            *first = (*first).min(*n);
            self.first.rows.put(backend, h, &self.rows[at..at + *first as usize])?;
        }
        self.first.n.put(backend, 0, &self.n_first)
    }

    /// Hands the second parts over.
    pub fn upload_rest(&mut self, backend: &B) -> OpResult<()> {
        let Some(rest) = &mut self.rest else { return Ok(()) };
        for (h, (n, first)) in self.n.iter().zip(&self.n_first).enumerate() {
            let at = h * self.stride;
            rest.rows.put(backend, h, &self.rows[at + *first as usize..at + *n as usize])?;
            self.n_rest[h] = n - first;
        }
        rest.n.put(backend, 0, &self.n_rest)
    }

    /// The lists on the device, to be added to.
    pub fn rows_mut(&mut self) -> ViewMut<'_, B> {
        self.first.rows.all_mut()
    }

    /// What the query at `q_index` attends first.
    pub fn first<'a>(&'a self, kv: KvView<'a, B>, q_index: usize) -> ListSpan<'a, B> {
        self.first.span(kv, q_index, self.stride)
    }

    /// What it attends later.
    pub fn rest<'a>(&'a self, kv: KvView<'a, B>, q_index: usize) -> Option<ListSpan<'a, B>> {
        self.rest.as_ref().map(|rest| rest.span(kv, q_index, self.stride))
    }
}
