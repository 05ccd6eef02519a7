//! The hit/miss cache where the device looks rows up: a step recalls without the host.
//!
//! Where kernels read the host store, the choice of clusters need not come to the host: one kernel
//! finds the slots of the chosen rows and lists those that are missing, the next one fetches them
//! over the bus. The host only learns, with the token, how many there were.

use longview_core::DType;
use longview_ops::{
    Backend, KvGather, KvGatherParams, KvView, OpResult, ResolveRows, ResolveRowsParams, View,
    ViewMut,
};

use super::selector::Selector;
use crate::index::LayerIndex;
use crate::layout::{DeviceLayout, KvShape, SelectionId};
use crate::stats::Stats;
use crate::store::{DeviceRows, RowLists};

/// Words of each head that [`ResolveRows`] counts in.
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
    /// Hits and misses of each layer and head that the statistics have.
    reported: Vec<u32>,
    zeros: Vec<u32>,
    n_heads: usize,
    n_slots: usize,
    move_stride: usize,
    first_slot_row: usize,
    cache_steps: u32,
    /// Nothing is kept from one step to the next.
    is_off: bool,
    /// A step has counted, and nobody has read it.
    is_unread: bool,
}

/// One layer's part of a step.
pub(crate) struct DeviceLookup<'a, B: Backend> {
    pub selection: SelectionId,
    pub index: &'a LayerIndex<B>,
    pub selector: &'a Selector<B>,
    /// The rows to attend, to which the recalled ones are added.
    pub lists: &'a mut RowLists<B>,
    /// The host store.
    pub src: KvView<'a, B>,
    /// The layer's rows on the device.
    pub dst: DeviceRows<'a, B>,
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
    /// R.
    pub cache_steps: usize,
}

impl<B: Backend> DeviceCache<B> {
    /// Empty caches of rows laid out as `sizes` says.
    pub fn new(backend: &B, shape: &KvShape, sizes: &DeviceCacheSizes) -> OpResult<Self> {
        let DeviceCacheSizes { layout, n_layers, most_attended, cache_steps } = *sizes;
        let h = shape.n_kv_heads;
        let move_stride = most_attended.clamp(1, shape.capacity);
        let state = h * ResolveRowsParams::state_len(layout.slots);
        let states = (0..n_layers).map(|_| backend.alloc(DType::U32, state, "device cache"));
        Ok(Self {
            states: states.collect::<OpResult<_>>()?,
            moves: backend.alloc(DType::U32, 2 * h * move_stride, "rows to fetch")?,
            counts: backend.alloc(DType::U32, n_layers * COUNTS * h, "hits and misses")?,
            host_counts: vec![0; n_layers * COUNTS * h],
            reported: vec![0; n_layers * 2 * h],
            zeros: vec![0; layout.slots],
            n_heads: h,
            n_slots: layout.slots,
            move_stride,
            first_slot_row: layout.first_slot_row(),
            cache_steps: cache_steps.max(1) as u32,
            is_off: cache_steps == 0,
            is_unread: false,
        })
    }

    /// Adds the chosen rows to the lists and fetches those that are missing.
    pub fn run(&mut self, backend: &B, shape: &KvShape, r: DeviceLookup<'_, B>) -> OpResult<()> {
        if self.is_off {
            self.forget(backend, r.selection)?;
        }
        let (h, counts_at) = (self.n_heads, r.selection.0 * COUNTS * self.n_heads);
        let listed = ViewMut::part(&mut self.counts, counts_at, h);
        backend.write(listed, bytemuck::cast_slice(r.lists.counts()))?;
        let [clusters, takes, n_selected] = r.selector.selection(r.selection);
        backend.resolve_rows(ResolveRows {
            p: ResolveRowsParams {
                n_kv_heads: h as u32,
                max_selected: r.selector.max_selected() as u32,
                cluster_stride: r.index.capacity() as u32,
                list_stride: r.lists.stride as u32,
                move_stride: self.move_stride as u32,
                n_slots: self.n_slots as u32,
                first_slot_row: self.first_slot_row as u32,
                cache_steps: self.cache_steps,
            },
            starts: r.index.starts(),
            clusters,
            takes,
            n_selected,
            state: ViewMut::all(&mut self.states[r.selection.0]),
            rows: r.lists.rows_mut(),
            moves: ViewMut::all(&mut self.moves),
            counts: ViewMut::part(&mut self.counts, counts_at, COUNTS * h),
        })?;
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

    /// Entries of the lists of a layer, once rows are looked up.
    pub fn n_rows(&self, selection: SelectionId) -> View<'_, B> {
        View::part(&self.counts, selection.0 * COUNTS * self.n_heads, self.n_heads)
    }

    /// Forgets what a layer's caches hold: rows of the host store have moved.
    pub fn forget(&mut self, backend: &B, selection: SelectionId) -> OpResult<()> {
        let stride = ResolveRowsParams::state_len(self.n_slots);
        (0..self.n_heads).try_for_each(|head| {
            let held = ViewMut::part(&mut self.states[selection.0], head * stride, self.n_slots);
            backend.write(held, bytemuck::cast_slice(&self.zeros))
        })
    }

    /// A step has ended.
    pub fn end_step(&mut self) {
        self.is_unread = true;
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
            stats.attended_last[layer * h..][..h].copy_from_slice(&counts[..h]);
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
