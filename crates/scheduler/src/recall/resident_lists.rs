//! Lists of selected rows where all rows lie on the device: it makes them itself, and no layer waits
//! for the host.

use longview_core::DType;
use longview_ops::{
    Backend, ClusterRows, ClusterRowsParams, KvView, ListSpan, OpResult, View, ViewMut,
};

use super::selector::Selector;
use crate::index::LayerIndex;
use crate::layout::{KvShape, SelectionId};
use crate::stats::Stats;

/// Lists of all layers that recall.
pub(crate) struct ResidentLists<B: Backend> {
    /// U32 `[Hkv, stride]`; one layer after the other uses it.
    rows: B::Buffer,
    /// U32 `[recall layers, Hkv]`: rows of each list.
    counts: B::Buffer,
    host_counts: Vec<u32>,
    /// Layers that have listed rows in this step.
    has_listed: Vec<bool>,
    stride: usize,
    n_heads: usize,
    /// A step has listed rows, and nobody has read how many.
    is_unread: bool,
}

/// Bytes that [`ResidentLists`] takes on the device.
pub(crate) fn resident_lists_bytes(shape: &KvShape, n_layers: usize, most_attended: usize) -> u64 {
    let stride = most_attended.clamp(1, shape.capacity);
    (DType::U32.size() * shape.n_kv_heads * (stride + n_layers)) as u64
}

impl<B: Backend> ResidentLists<B> {
    /// For `n_layers` layers that attend at most `most_attended` tokens.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        n_layers: usize,
        most_attended: usize,
    ) -> OpResult<Self> {
        let (h, stride) = (shape.n_kv_heads, most_attended.clamp(1, shape.capacity));
        Ok(Self {
            rows: backend.alloc(DType::U32, h * stride, "rows to attend")?,
            counts: backend.alloc(DType::U32, n_layers * h, "rows to attend")?,
            host_counts: vec![0; n_layers * h],
            has_listed: vec![false; n_layers],
            stride,
            n_heads: h,
            is_unread: false,
        })
    }

    /// Lists the rows of a selection among the units of `index`.
    pub fn list(
        &mut self,
        backend: &B,
        index: &LayerIndex<B>,
        selector: &Selector<B>,
        selection: SelectionId,
    ) -> OpResult<()> {
        let h = self.n_heads;
        let [clusters, takes, n_selected] = selector.selection(selection);
        backend.cluster_rows(ClusterRows {
            p: ClusterRowsParams {
                n_kv_heads: h as u32,
                cluster_stride: index.capacity() as u32,
                max_selected: selector.max_selected() as u32,
                list_stride: self.stride as u32,
                first_row: 0,
            },
            starts: index.starts(),
            clusters,
            takes,
            n_selected,
            rows: ViewMut::all(&mut self.rows),
            n_rows: ViewMut::part(&mut self.counts, selection.0 * h, h),
        })?;
        self.has_listed[selection.0] = true;
        Ok(())
    }

    /// What the layer in progress has listed of rows of `kv`; nothing where it has not.
    pub fn span<'a>(
        &'a self,
        selection: SelectionId,
        kv: KvView<'a, B>,
        q_index: usize,
    ) -> Option<ListSpan<'a, B>> {
        let h = self.n_heads;
        self.has_listed[selection.0].then(|| ListSpan {
            q_index: q_index as u32,
            kv,
            rows: View::all(&self.rows),
            n_rows: View::part(&self.counts, selection.0 * h, h),
            weights: None,
            list_stride: self.stride as u32,
        })
    }

    /// A step begins: nothing is listed for it yet.
    pub fn begin_step(&mut self) {
        self.has_listed.fill(false);
    }

    /// A step has ended.
    pub fn end_step(&mut self) {
        self.is_unread = self.has_listed.contains(&true);
    }

    /// Whether a step has listed rows, and nobody has read how many.
    pub fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// The counts of all layers, and where they go.
    pub fn read_part(&mut self) -> (View<'_, B>, &mut [u8]) {
        (View::all(&self.counts), bytemuck::cast_slice_mut(&mut self.host_counts))
    }

    /// Adds what was read to the statistics. `layers` are the layers that recall.
    pub fn report(&mut self, stats: &mut Stats, layers: impl Iterator<Item = usize>) {
        self.is_unread = false;
        let h = self.n_heads;
        let counts = self.host_counts.chunks_exact(h).zip(&self.has_listed);
        for (layer, (counts, has_listed)) in layers.zip(counts) {
            if *has_listed {
                let attended = &mut stats.attended_last[layer * h..][..h];
                attended.iter_mut().zip(counts).for_each(|(attended, n)| *attended += n);
                stats.attended_rows += counts.iter().map(|n| u64::from(*n)).sum::<u64>();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use longview_ops::DeviceBuffer;

    use super::*;
    use crate::index::HeadClusters;
    use crate::recall::testing::*;

    #[test]
    fn selected_rows_are_listed_and_counted() {
        let (device, shape) = (Device::new(), shape());
        let rows = [2, 3].map(|n| HeadRows::of_equal_keys(&[(n, [1.0; 4]), (8 - n, [2.0; 4])]));
        let made: Vec<HeadClusters> = rows.iter().map(HeadRows::clusters).collect();
        let mut index = LayerIndex::new(&device, &shape, WIDTH, 8, 1).unwrap();
        index.append(&device, SINKS, SINKS + 8, &made).unwrap();
        let mut lists = ResidentLists::new(&device, &shape, 3, 6).unwrap();
        let bytes = lists.rows.size_bytes() + lists.counts.size_bytes();
        assert_eq!(resident_lists_bytes(&shape, 3, 6), bytes);
        // Head 0 takes two tokens of its second cluster and its first one, head 1 one token.
        let choice = [vec![[1, 2], [0, 2]], vec![[0, 1]]];
        let selector = chosen(&device, &shape, &policy(4), &choice);
        lists.begin_step();
        let kv = upload(&device, &[0.0; 2 * 64 * 2 * WIDTH]);
        assert!(lists.span(SELECTION, KvView::new(&kv, 64), 0).is_none());
        lists.end_step();
        assert!(!lists.is_unread(), "nothing was listed");
        lists.begin_step();
        lists.list(&device, &index, &selector, SELECTION).unwrap();
        let span = lists.span(SELECTION, KvView::new(&kv, 64), 1).unwrap();
        assert_eq!((span.q_index, span.list_stride), (1, 6));
        assert_eq!(words(&device, span.n_rows), [4, 1]);
        let listed = words(&device, span.rows);
        let first = SINKS as u32;
        assert_eq!(listed[..4], [first + 2, first + 3, first, first + 1]);
        assert_eq!(listed[6], first);
        lists.end_step();
        assert!(lists.is_unread());
        let mut stats = Stats::new(4, 2);
        stats.attended_last.fill(1);
        pollster::block_on(device.read_all(&mut [lists.read_part()])).unwrap();
        lists.report(&mut stats, [0, 2, 3].into_iter());
        assert!(!lists.is_unread());
        let mut want = vec![1; 8];
        let layer = [0, 2, 3][SELECTION.0];
        (want[2 * layer], want[2 * layer + 1]) = (5, 2);
        assert_eq!((stats.attended_last, stats.attended_rows), (want, 5));
    }
}
