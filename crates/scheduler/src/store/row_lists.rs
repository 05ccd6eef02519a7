//! The rows that each KV head attends in a step.

use longview_core::HeadId;
use longview_ops::{Backend, KvView, ListSpan, OpResult, View, ViewMut};

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
    pub fn divide(&mut self, head: HeadId) {
        self.n_first[head] = self.n[head];
    }

    pub fn push(&mut self, head: HeadId, row: usize) {
        let n = self.n[head] as usize;
        assert!(n < self.stride, "a head attends more than {} rows", self.stride);
        self.rows[head.index() * self.stride + n] = row as u32;
        self.n[head] += 1;
    }

    /// Adds many rows of a head at once.
    pub fn extend(&mut self, head: HeadId, rows: impl ExactSizeIterator<Item = usize>) {
        let n = self.n[head] as usize;
        let end = n + rows.len();
        assert!(end <= self.stride, "a head attends more than {} rows", self.stride);
        let to = &mut self.rows[head.index() * self.stride..][n..end];
        to.iter_mut().zip(rows).for_each(|(to, row)| *to = row as u32);
        self.n[head] = end as u32;
    }

    pub fn head(&self, head: HeadId) -> &[u32] {
        &self.rows[head.index() * self.stride..][..self.n[head] as usize]
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

    /// The lists on the device with how many rows each has, to be added to.
    pub fn rows_to_add_to(&mut self) -> (View<'_, B>, ViewMut<'_, B>) {
        let ListBuffers { rows, n } = &mut self.first;
        (n.all(), rows.all_mut())
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

#[cfg(test)]
mod tests {
    use longview_ops::ReferenceBackend;

    use super::super::fixture::{floats, read_words};
    use super::*;

    /// Head 0 attends rows 4 and 1, head 1 rows 2, 7 and 5.
    fn listed(backend: &ReferenceBackend, divided: bool) -> RowLists<ReferenceBackend> {
        let mut lists = RowLists::new(backend, 2, 4, divided).unwrap();
        lists.clear();
        for (head, row) in [(1, 2), (0, 4), (1, 7), (0, 1), (1, 5)] {
            lists.push(HeadId(head), row);
        }
        lists
    }

    /// The rows of each head that a span names.
    fn named(backend: &ReferenceBackend, span: &ListSpan<'_, ReferenceBackend>) -> [Vec<u32>; 2] {
        let (rows, n) = (read_words(backend, span.rows), read_words(backend, span.n_rows));
        let stride = span.list_stride as usize;
        [0, 1].map(|h| rows[h * stride..][..n[h] as usize].to_vec())
    }

    #[test]
    fn each_head_has_its_rows_in_the_order_in_which_they_came() {
        let backend = ReferenceBackend::new();
        let mut lists = listed(&backend, false);
        assert_eq!((lists.head(HeadId(0)), lists.head(HeadId(1))), (&[4, 1][..], &[2, 7, 5][..]));
        assert_eq!(lists.counts(), [2, 3]);
        lists.upload(&backend).unwrap();
        let kv = floats(&backend, &[0.0; 8]);
        let span = lists.first(KvView::new(&kv, 0), 6);
        assert_eq!(named(&backend, &span), [vec![4, 1], vec![2, 7, 5]]);
        assert_eq!(span.q_index, 6);
        assert!(span.weights.is_none());
        assert!(lists.rest(KvView::new(&kv, 0), 6).is_none(), "nothing is attended later");
        lists.upload_rest(&backend).unwrap();
    }

    #[test]
    fn a_divided_list_is_attended_in_two_parts() {
        let backend = ReferenceBackend::new();
        let mut lists = RowLists::new(&backend, 2, 4, true).unwrap();
        lists.clear();
        lists.push(HeadId(0), 4);
        lists.divide(HeadId(0));
        lists.push(HeadId(0), 1);
        lists.push(HeadId(0), 3);
        lists.push(HeadId(1), 2);
        lists.push(HeadId(1), 7);
        lists.upload(&backend).unwrap();
        lists.upload_rest(&backend).unwrap();
        let kv = floats(&backend, &[0.0; 8]);
        let first = lists.first(KvView::new(&kv, 0), 0);
        assert_eq!(named(&backend, &first), [vec![4], vec![2, 7]], "head 1 is not divided");
        let rest = lists.rest(KvView::new(&kv, 0), 0).unwrap();
        assert_eq!(named(&backend, &rest), [vec![1, 3], vec![]]);
        assert_eq!(lists.head(HeadId(0)), [4, 1, 3], "the host has both parts");
    }

    #[test]
    fn a_new_list_knows_nothing_of_the_one_before() {
        let backend = ReferenceBackend::new();
        let mut lists = listed(&backend, true);
        lists.divide(HeadId(0));
        lists.divide(HeadId(1));
        lists.upload(&backend).unwrap();
        lists.clear();
        assert_eq!(lists.counts(), [0, 0]);
        for row in [9, 8, 7] {
            lists.push(HeadId(0), row);
        }
        lists.upload(&backend).unwrap();
        lists.upload_rest(&backend).unwrap();
        let kv = floats(&backend, &[0.0; 8]);
        let first = lists.first(KvView::new(&kv, 0), 0);
        assert_eq!(named(&backend, &first), [vec![9, 8, 7], vec![]], "the division is forgotten");
        let rest = lists.rest(KvView::new(&kv, 0), 0).unwrap();
        assert_eq!(named(&backend, &rest), [vec![], vec![]]);
    }

    #[test]
    fn the_device_may_write_the_lists_that_are_attended_first() {
        let backend = ReferenceBackend::new();
        let mut lists = listed(&backend, true);
        lists.upload(&backend).unwrap();
        let words = [1u32, 1, 1, 1, 6, 6, 6, 6];
        backend.write(lists.rows_mut(), bytemuck::cast_slice(&words)).unwrap();
        let kv = floats(&backend, &[0.0; 8]);
        let first: View<'_, _> = lists.first(KvView::new(&kv, 0), 0).rows;
        assert_eq!(read_words(&backend, first), words);
    }

    #[test]
    #[should_panic(expected = "a head attends more than 4 rows")]
    fn a_full_list_does_not_run_into_the_next_heads() {
        let mut lists = RowLists::new(&ReferenceBackend::new(), 2, 4, false).unwrap();
        (0..5).for_each(|row| lists.push(HeadId(0), row));
    }
}
