//! Lists of selected rows where all rows lie on the device: it adds them itself, and no layer waits
//! for the host.

use longview_core::DType;
use longview_ops::{Backend, ClusterRows, ClusterRowsParams, OpResult, View, ViewMut};

use super::selector::Selector;
use crate::index::LayerIndex;
use crate::layout::{KvShape, SelectionId};
use crate::stats::Stats;
use crate::store::RowLists;

/// How many rows the layers that recall have listed.
pub(crate) struct ResidentLists<B: Backend> {
    /// U32 `[recall layers, Hkv]`.
    counts: B::Buffer,
    host_counts: Vec<u32>,
    /// Layers that have listed rows in this step.
    has_listed: Vec<bool>,
    n_heads: usize,
    /// A step has listed rows, and nobody has read how many.
    is_unread: bool,
}

/// Bytes that [`ResidentLists`] takes on the device.
pub(crate) fn resident_lists_bytes(shape: &KvShape, n_layers: usize) -> u64 {
    (DType::U32.size() * shape.n_kv_heads * n_layers) as u64
}

impl<B: Backend> ResidentLists<B> {
    /// For `n_layers` layers.
    pub fn new(backend: &B, shape: &KvShape, n_layers: usize) -> OpResult<Self> {
        let h = shape.n_kv_heads;
        Ok(Self {
            counts: backend.alloc(DType::U32, n_layers * h, "rows to attend")?,
            host_counts: vec![0; n_layers * h],
            has_listed: vec![false; n_layers],
            n_heads: h,
            is_unread: false,
        })
    }

    /// Adds the rows of a selection among the units of `index` to the lists on the device. `own` is
    /// the layer's own selection, which is another where a layer before has selected for it.
    pub fn add(
        &mut self,
        backend: &B,
        lists: &mut RowLists<B>,
        index: &LayerIndex<B>,
        (selector, selection, own): (&Selector<B>, SelectionId, SelectionId),
    ) -> OpResult<()> {
        let (h, list_stride) = (self.n_heads, lists.stride as u32);
        let (behind, rows) = lists.rows_to_add_to();
        let [clusters, takes, n_selected] = selector.selection(selection);
        backend.cluster_rows(ClusterRows {
            p: ClusterRowsParams {
                n_kv_heads: h as u32,
                cluster_stride: index.capacity() as u32,
                max_selected: selector.max_selected() as u32,
                list_stride,
                first_row: 0,
            },
            starts: index.starts(),
            clusters,
            takes,
            n_selected,
            behind: Some(behind),
            rows,
            n_rows: ViewMut::part(&mut self.counts, own.0 * h, h),
        })?;
        self.has_listed[own.0] = true;
        Ok(())
    }

    /// How many rows the lists of a layer have; nothing where it has selected none in this step.
    pub fn n_rows(&self, selection: SelectionId) -> Option<View<'_, B>> {
        let h = self.n_heads;
        self.has_listed[selection.0].then(|| View::part(&self.counts, selection.0 * h, h))
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
                stats.attended_last[layer * h..][..h].copy_from_slice(counts);
                stats.attended_rows += counts.iter().map(|n| u64::from(*n)).sum::<u64>();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use longview_core::HeadId;
    use longview_ops::{DeviceBuffer, KvView};

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
        let mut resident = ResidentLists::new(&device, &shape, 3).unwrap();
        assert_eq!(resident_lists_bytes(&shape, 3), resident.counts.size_bytes());
        // Head 0 takes two tokens of its second cluster and its first one, head 1 one token.
        let choice = [vec![[1, 2], [0, 2]], vec![[0, 1]]];
        let selector = chosen(&device, &shape, &policy(4), &choice);
        resident.begin_step();
        assert!(resident.n_rows(SELECTION).is_none());
        resident.end_step();
        assert!(!resident.is_unread(), "nothing was listed");
        resident.begin_step();
        let mut lists = RowLists::new(&device, 2, 6, false).unwrap();
        lists.clear();
        // Head 0 attends a sink besides.
        lists.push(HeadId(0), 1);
        lists.upload(&device).unwrap();
        resident.add(&device, &mut lists, &index, (&selector, SELECTION, SELECTION)).unwrap();
        assert_eq!(words(&device, resident.n_rows(SELECTION).unwrap()), [5, 1]);
        let kv = upload(&device, &[0.0; 2 * 64 * 2 * WIDTH]);
        let listed = words(&device, lists.first(KvView::new(&kv, 64), 0).rows);
        let first = SINKS as u32;
        assert_eq!(listed[..5], [1, first + 2, first + 3, first, first + 1]);
        assert_eq!(listed[6], first);
        resident.end_step();
        assert!(resident.is_unread());
        let mut stats = Stats::new(4, 2);
        stats.attended_last.fill(9);
        pollster::block_on(device.read_all(&mut [resident.read_part()])).unwrap();
        resident.report(&mut stats, [0, 2, 3].into_iter());
        assert!(!resident.is_unread());
        let mut want = vec![9; 8];
        let layer = [0, 2, 3][SELECTION.0];
        (want[2 * layer], want[2 * layer + 1]) = (5, 1);
        assert_eq!((stats.attended_last, stats.attended_rows), (want, 6));
    }
}
