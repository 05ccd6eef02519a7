//! The hit/miss cache where the device looks rows up: a step recalls without the host.
//!
//! Where kernels read the host store, the choice of clusters need not come to the host: one kernel
//! finds the slots of the chosen rows and lists those that are missing, the next one fetches them
//! over the bus. The host only learns, with the token, how many there were.

use longview_core::DType;
use longview_ops::{
    Backend, KvGather, KvGatherParams, KvView, LookUpRows, LookUpRowsParams, OpResult, View,
    ViewMut,
};

use super::selector::Selector;
use crate::index::LayerIndex;
use crate::layout::{DeviceLayout, KvShape, SelectionId};
use crate::stats::Stats;
use crate::store::{DeviceRows, RowLists};

/// Words of each head that [`LookUpRows`] counts in.
const COUNTS: usize = 4;

/// Device caches of all layers that recall.
pub(crate) struct DeviceCache<B: Backend> {
    /// A layer's caches.
    states: Vec<B::Buffer>,
    /// Rows to fetch: in the host store, then on the device. One layer after the other uses it.
    moves: B::Buffer,
    /// `[recall layers, 4, Hkv]`.
    counts: B::Buffer,
    host_counts: Vec<u32>,
    /// Entries of the lists of each layer and head that `counts` begins with.
    listed: Vec<u32>,
    /// Whether `counts` still has them: the lookup of a layer replaces its own.
    is_listed: Vec<bool>,
    /// No layer of the step has looked rows up.
    begins: bool,
    /// Hits and misses of each layer and head that the statistics have.
    reported: Vec<u32>,
    /// Rows of each layer and head that the step attends beside those lists.
    apart: Vec<u32>,
    zeros: Vec<u32>,
    n_heads: usize,
    n_slots: usize,
    move_stride: usize,
    cache_steps: u32,
    /// Nothing is kept from one step to the next.
    is_off: bool,
    /// A step has counted, and nobody has read it.
    is_unread: bool,
}

/// One layer's part of a step.
pub(crate) struct DeviceLookup<'a, B: Backend> {
    pub selection: SelectionId,
    /// The layer's own one, which is another where it attends what a layer before has selected.
    pub own: SelectionId,
    pub index: &'a LayerIndex<B>,
    pub selector: &'a Selector<B>,
    /// The rows to attend, to which the recalled ones are added.
    pub lists: &'a mut RowLists<B>,
    /// For each head the rows that it attends in another list, or nothing.
    pub apart: &'a [u32],
    /// The host store.
    pub src: KvView<'a, B>,
    /// The layer's rows on the device.
    pub dst: DeviceRows<'a, B>,
    /// Where among them the cache's slots begin.
    pub first_slot_row: usize,
}

/// What device caches are made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCacheSizes {
    /// Rows of a head on the device.
    pub layout: DeviceLayout,
    /// Layers that recall.
    pub n_layers: usize,
    /// Most tokens that a head attends.
    pub most_attended: usize,
    /// Past steps whose recalled rows stay on the device, R.
    pub cache_steps: usize,
}

impl<B: Backend> DeviceCache<B> {
    /// Empty caches of rows laid out as `sizes` says.
    pub fn new(backend: &B, shape: &KvShape, sizes: &DeviceCacheSizes) -> OpResult<Self> {
        let DeviceCacheSizes { layout, n_layers, most_attended, cache_steps } = *sizes;
        let h = shape.n_kv_heads;
        let move_stride = most_attended.clamp(1, shape.capacity);
        let state = h * LookUpRowsParams::state_len(layout.slots);
        let states = (0..n_layers).map(|_| backend.alloc(DType::U32, state, "device cache"));
        Ok(Self {
            states: states.collect::<OpResult<_>>()?,
            moves: backend.alloc(DType::U32, 2 * h * move_stride, "rows to fetch")?,
            counts: backend.alloc(DType::U32, n_layers * COUNTS * h, "hits and misses")?,
            host_counts: vec![0; n_layers * COUNTS * h],
            listed: vec![0; n_layers * h],
            is_listed: vec![false; n_layers],
            begins: true,
            reported: vec![0; n_layers * 2 * h],
            apart: vec![0; n_layers * h],
            zeros: vec![0; layout.slots],
            n_heads: h,
            n_slots: layout.slots,
            move_stride,
            cache_steps: cache_steps.max(1) as u32,
            is_off: cache_steps == 0,
            is_unread: false,
        })
    }

    /// Adds the chosen rows to the lists and fetches those that are missing.
    pub fn run(&mut self, backend: &B, shape: &KvShape, r: DeviceLookup<'_, B>) -> OpResult<()> {
        if self.is_off {
            self.forget(backend, r.own)?;
        }
        let (h, counts_at) = (self.n_heads, r.own.0 * COUNTS * self.n_heads);
        self.put_listed(backend, r.own, r.lists.counts())?;
        self.apart[r.own.0 * h..][..r.apart.len()].copy_from_slice(r.apart);
        let [clusters, takes, n_selected] = r.selector.selection(r.selection);
        backend.look_up_rows(LookUpRows {
            p: LookUpRowsParams {
                n_kv_heads: h as u32,
                max_selected: r.selector.max_selected() as u32,
                cluster_stride: r.index.capacity() as u32,
                list_stride: r.lists.stride as u32,
                move_stride: self.move_stride as u32,
                n_slots: self.n_slots as u32,
                first_slot_row: r.first_slot_row as u32,
                cache_steps: self.cache_steps,
            },
            starts: r.index.starts(),
            clusters,
            takes,
            n_selected,
            state: ViewMut::all(&mut self.states[r.own.0]),
            rows: r.lists.rows_mut(),
            moves: ViewMut::all(&mut self.moves),
            counts: ViewMut::part(&mut self.counts, counts_at, COUNTS * h),
        })?;
        self.is_listed[r.own.0] = false;
        let n_moves = h * self.move_stride;
        backend.kv_gather(KvGather {
            p: KvGatherParams {
                n_kv_heads: h as u32,
                head_dim: shape.head_dim as u32,
                list_stride: self.move_stride as u32,
                dst_head_stride: r.dst.head_stride as u32,
            },
            src: r.src,
            src_rows: View::part(&self.moves, 0, n_moves),
            dst_rows: View::part(&self.moves, n_moves, n_moves),
            n_rows: View::part(&self.counts, counts_at + h, h),
            dst: r.dst.buffer,
        })
    }

    /// Says how many entries a layer's lists have before rows are looked up. As a rule those of all
    /// layers have as many, so the first layer of a step says it for all: one way to the device
    /// serves them.
    fn put_listed(&mut self, backend: &B, selection: SelectionId, counts: &[u32]) -> OpResult<()> {
        let (h, begins) = (self.n_heads, std::mem::take(&mut self.begins));
        let Self { listed, is_listed, counts: on_device, .. } = self;
        let is_put = is_listed[selection.0] && listed[selection.0 * h..][..h] == *counts;
        if is_put {
            return Ok(());
        }
        for (i, listed) in listed.chunks_exact_mut(h).enumerate() {
            if i == selection.0 || (begins && i > selection.0) {
                let to = ViewMut::part(on_device, i * COUNTS * h, h);
                backend.write(to, bytemuck::cast_slice(counts))?;
                listed.copy_from_slice(counts);
                is_listed[i] = true;
            }
        }
        Ok(())
    }

    /// Entries of the lists of a layer, once rows are looked up.
    pub fn n_rows(&self, selection: SelectionId) -> View<'_, B> {
        View::part(&self.counts, selection.0 * COUNTS * self.n_heads, self.n_heads)
    }

    /// Forgets what a layer's caches hold: rows of the host store have moved.
    pub fn forget(&mut self, backend: &B, selection: SelectionId) -> OpResult<()> {
        let stride = LookUpRowsParams::state_len(self.n_slots);
        (0..self.n_heads).try_for_each(|head| {
            let held = ViewMut::part(&mut self.states[selection.0], head * stride, self.n_slots);
            backend.write(held, bytemuck::cast_slice(&self.zeros))
        })
    }

    /// A step has ended.
    pub fn end_step(&mut self) {
        (self.is_unread, self.begins) = (true, true);
    }

    /// Whether a step was counted that nobody has read.
    pub fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// The counts of all layers, and where they go.
    pub fn read_part(&mut self) -> (View<'_, B>, &mut [u8]) {
        (View::all(&self.counts), bytemuck::cast_slice_mut(&mut self.host_counts))
    }

    /// Adds what was read to the statistics. `layers` are the layers that recall.
    pub fn report(
        &mut self,
        stats: &mut Stats,
        layers: impl Iterator<Item = usize>,
        row_bytes: usize,
    ) {
        self.is_unread = false;
        let h = self.n_heads;
        for (i_layer, layer) in layers.enumerate() {
            let counts = &self.host_counts[i_layer * COUNTS * h..][..COUNTS * h];
            // A layer that has looked nothing up only has what it was told.
            if !self.is_listed[i_layer] {
                let all = counts.iter().zip(&self.apart[i_layer * h..][..h]).map(|(n, m)| n + m);
                let attended = &mut stats.attended_last[layer * h..][..h];
                attended.iter_mut().zip(all).for_each(|(attended, all)| *attended = all);
            }
            let totals = counts[2 * h..].iter().zip(&mut self.reported[i_layer * 2 * h..]);
            for (i, (total, reported)) in totals.enumerate() {
                let new = u64::from(total.wrapping_sub(*reported));
                *reported = *total;
                stats.attended_rows += new;
                if i < h {
                    stats.hits += new;
                } else {
                    stats.misses += new;
                    stats.fetched_bytes += new * row_bytes as u64;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use longview_core::HeadId;

    use super::*;
    use crate::index::HeadClusters;
    use crate::recall::testing::*;

    /// Two sinks, no ring, and room for four recalled rows.
    const LAYOUT: DeviceLayout = DeviceLayout { sinks: SINKS, ring: 3, slots: 4 };

    /// Three layers that recall; the tests are about the second.
    struct Case {
        device: Device,
        shape: KvShape,
        cache: DeviceCache<Device>,
        index: LayerIndex<Device>,
        /// Number `1000 h + r` in each element of row r of head h.
        store: Buffer,
        rows: Buffer,
        lists: RowLists<Device>,
    }

    fn case(cache_steps: usize) -> Case {
        let (device, shape) = (Device::new(), shape());
        let sizes = DeviceCacheSizes { layout: LAYOUT, n_layers: 3, most_attended: 6, cache_steps };
        let rows = [2, 3].map(|n| HeadRows::of_equal_keys(&[(n, [1.0; 4]), (8 - n, [2.0; 4])]));
        let made: Vec<HeadClusters> = rows.iter().map(HeadRows::clusters).collect();
        let mut index = LayerIndex::new(&device, &shape, WIDTH, 8, 1).unwrap();
        index.append(&device, SINKS, SINKS + 8, &made).unwrap();
        let row = |i: usize| [1000.0 * (i / 64) as f32 + (i % 64) as f32; 2 * WIDTH];
        let store = upload(&device, &(0..128).flat_map(row).collect::<Vec<_>>());
        Case {
            cache: DeviceCache::new(&device, &shape, &sizes).unwrap(),
            rows: upload(&device, &vec![-1.0; 2 * LAYOUT.rows() * 2 * WIDTH]),
            lists: RowLists::new(&device, 2, 8, false).unwrap(),
            device,
            shape,
            index,
            store,
        }
    }

    impl Case {
        /// One step: the store's rows that each head attends, and how many it had to fetch.
        fn step(&mut self, choice: &[Vec<[u32; 2]>]) -> ([Vec<u32>; 2], Vec<u32>) {
            let Self { device, shape, cache, index, store, rows, lists } = self;
            let selector = chosen(device, shape, &policy(4), choice);
            lists.clear();
            // Head 1 attends a sink besides.
            lists.push(HeadId(1), 1);
            lists.upload(device).unwrap();
            let lookup = DeviceLookup {
                selection: SELECTION,
                own: SELECTION,
                index,
                selector: &selector,
                lists: &mut *lists,
                apart: &[],
                src: KvView::new(store, shape.capacity),
                dst: DeviceRows { buffer: rows, head_stride: LAYOUT.rows() },
                first_slot_row: LAYOUT.first_slot_row(),
            };
            cache.run(device, shape, lookup).unwrap();
            let n = words(device, cache.n_rows(SELECTION));
            let span = self.lists.first(KvView::new(store, 64), 0);
            let (listed, held) = (words(device, span.rows), floats(device, View::all(rows)));
            let content = |head: usize, row: u32| {
                let at = (head * LAYOUT.rows() + row as usize) * 2 * WIDTH;
                let elements = &held[at..at + 2 * WIDTH];
                assert!(elements.iter().all(|e| *e == elements[0]), "half a row");
                elements[0] - 1000.0 * head as f32
            };
            assert_eq!(listed[8], 1, "what was listed before stays");
            let attended = [0, 1].map(|head| {
                let own = &listed[head * 8..][head..n[head] as usize];
                assert!(own.iter().all(|row| *row as usize >= LAYOUT.first_slot_row()));
                own.iter().map(|row| content(head, *row) as u32).collect()
            });
            let counts = words(device, View::part(&cache.counts, 8, 8));
            (attended, counts[2..4].to_vec())
        }
    }

    #[test]
    fn chosen_rows_are_fetched_once_and_attended() {
        let mut case = case(1);
        // Head 0: one row of cluster 1, which begins at row 4; head 1: cluster 1 begins at 5.
        let choice = [vec![[1, 1], [0, 2]], vec![[1, 3]]];
        assert_eq!(case.step(&choice), ([vec![4, 2, 3], vec![5, 6, 7]], vec![3, 3]));
        assert_eq!(case.step(&choice), ([vec![4, 2, 3], vec![5, 6, 7]], vec![0, 0]));
        let more = [vec![[1, 2]], vec![[0, 1], [1, 3]]];
        assert_eq!(case.step(&more), ([vec![4, 5], vec![2, 5, 6, 7]], vec![1, 1]));
        // Head 0's cluster 0 was not used in the last step.
        assert_eq!(case.step(&choice), ([vec![4, 2, 3], vec![5, 6, 7]], vec![2, 0]));
    }

    #[test]
    fn rows_that_were_not_used_for_r_steps_are_fetched_again() {
        for (cache_steps, fetched) in [(1, 2), (2, 0)] {
            let mut case = case(cache_steps);
            let [first, other] = [[0, 2], [1, 2]].map(|cluster| [vec![cluster], vec![]]);
            assert_eq!(case.step(&first).1, [2, 0]);
            assert_eq!(case.step(&other).1, [2, 0]);
            assert_eq!(case.step(&first).1, [fetched, 0], "R = {cache_steps}");
        }
    }

    #[test]
    fn without_a_cache_every_step_fetches_all() {
        let mut case = case(0);
        for _ in 0..3 {
            let choice = [vec![[0, 2]], vec![[1, 4]]];
            assert_eq!(case.step(&choice), ([vec![2, 3], vec![5, 6, 7, 8]], vec![2, 4]));
        }
    }

    #[test]
    fn a_layer_forgets_all_its_heads_and_no_other_layer() {
        let mut case = case(1);
        let choice = [vec![[0, 2]], vec![[1, 4]]];
        case.step(&choice);
        for other in [0, 2] {
            case.cache.forget(&case.device, SelectionId(other)).unwrap();
        }
        assert_eq!(case.step(&choice).1, [0, 0]);
        case.cache.forget(&case.device, SELECTION).unwrap();
        assert_eq!(case.step(&choice).1, [2, 4]);
    }

    /// The second of three layers that recall is layer 2 of 4.
    #[test]
    fn a_report_adds_what_is_new_since_the_last() {
        let mut case = case(1);
        let mut stats = Stats::new(4, 2);
        let report = |case: &mut Case, stats: &mut Stats| {
            case.cache.end_step();
            assert!(case.cache.is_unread());
            let (view, out) = case.cache.read_part();
            pollster::block_on(case.device.read(view, out)).unwrap();
            case.cache.report(stats, [1, 2, 3].into_iter(), 32);
            assert!(!case.cache.is_unread());
            (stats.hits, stats.misses, stats.fetched_bytes, stats.attended_rows)
        };
        assert!(!case.cache.is_unread());
        case.step(&[vec![[0, 2]], vec![[1, 3]]]);
        assert_eq!(report(&mut case, &mut stats), (0, 5, 160, 5));
        assert_eq!(stats.attended_last, [0, 0, 0, 0, 2, 4, 0, 0], "with head 1's sink");
        case.step(&[vec![[0, 1]], vec![[1, 4]]]);
        assert_eq!(report(&mut case, &mut stats), (4, 6, 192, 10));
        assert_eq!(stats.attended_last, [0, 0, 0, 0, 1, 5, 0, 0]);
        assert_eq!(report(&mut case, &mut stats), (4, 6, 192, 10), "nothing twice");
    }

    /// The device counts in 32 bits, which a long sequence goes beyond.
    #[test]
    fn counts_that_wrap_are_added_right() {
        let mut case = case(1);
        let mut stats = Stats::new(3, 2);
        // Layer 1, head 1: hits.
        (case.cache.host_counts[13], case.cache.reported[5]) = (3, u32::MAX - 1);
        case.cache.report(&mut stats, 0..3, 32);
        assert_eq!((stats.hits, stats.misses), (5, 0));
        // Layer 2, head 0: misses.
        (case.cache.host_counts[22], case.cache.reported[10]) = (1, u32::MAX);
        case.cache.report(&mut stats, 0..3, 32);
        assert_eq!((stats.hits, stats.misses, stats.fetched_bytes), (5, 2, 64));
    }
}
