//! Which selected rows are on the device, which must be fetched, and where they go.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{ensure, reads, writes};
use crate::buffer::{Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`LookUpRows`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LookUpRowsParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Entries from one head's selection to the next.
    pub max_selected: u32,
    /// Clusters from one head to the next.
    pub cluster_stride: u32,
    /// Entries from one head's list of attended rows to the next.
    pub list_stride: u32,
    /// Entries from one head's list of moves to the next.
    pub move_stride: u32,
    /// Rows of a head that the cache holds.
    pub n_slots: u32,
    /// Device row of the first slot.
    pub first_slot_row: u32,
    /// R: a row stays for this many steps after its last use; at least 1.
    pub cache_steps: u32,
}

impl LookUpRowsParams {
    /// Words of a head's state that last from step to step.
    pub const fn kept_len(n_slots: usize) -> usize {
        2 * n_slots + 1
    }

    /// Entries of the table from host rows to slots: a power of two, at most half full.
    pub const fn table_len(n_slots: usize) -> usize {
        (2 * n_slots).next_power_of_two()
    }

    /// Words of a head's state: what lasts, the free slots, keys and values of the table.
    pub const fn state_len(n_slots: usize) -> usize {
        Self::kept_len(n_slots) + n_slots + 2 * Self::table_len(n_slots)
    }
}

/// One sequence's selection, looked up in its device cache: a step of the hit/miss cache without
/// the host.
///
/// A head's state begins with what lasts: for each slot the host row that it holds plus 1 (0: it is
/// free), for each slot the step of its last use, then the number of steps so far. Zeros are an
/// empty cache. The rest is scratch.
pub struct LookUpRows<'a, B: Storage> {
    /// Sizes.
    pub p: LookUpRowsParams,
    /// U32 `[Hkv, cluster_stride]`: host row of each cluster's first token.
    pub starts: View<'a, B>,
    /// U32 `[Hkv, max_selected]`: clusters, none twice; as [`crate::SelectClusters::clusters`].
    pub clusters: View<'a, B>,
    /// U32 `[Hkv, max_selected]`: tokens taken of each.
    pub takes: View<'a, B>,
    /// U32 `[Hkv]`: clusters selected.
    pub n_selected: View<'a, B>,
    /// U32 `[Hkv, state_len(n_slots)]`, read and written.
    pub state: ViewMut<'a, B>,
    /// U32 `[Hkv, list_stride]`: device rows to attend; those of the selection are appended.
    pub rows: ViewMut<'a, B>,
    /// U32 `[2, Hkv, move_stride]`: host rows to fetch, then the device row for each.
    pub moves: ViewMut<'a, B>,
    /// U32 `[4, Hkv]`: entries of `rows`, added to; rows to fetch; hits and misses of all steps,
    /// added to.
    pub counts: ViewMut<'a, B>,
}

impl<B: Storage> LookUpRows<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::LookUpRows, &self.p);
        ensure(op, p.cache_steps > 0, || "cache_steps is 0".into())?;
        let h = p.n_kv_heads as usize;
        let of = |stride: u32| h * stride as usize;
        let n_slots = p.n_slots as usize;
        reads(op, "starts", &self.starts, DType::U32, of(p.cluster_stride))?;
        reads(op, "clusters", &self.clusters, DType::U32, of(p.max_selected))?;
        reads(op, "takes", &self.takes, DType::U32, of(p.max_selected))?;
        reads(op, "n_selected", &self.n_selected, DType::U32, h)?;
        let state = h * LookUpRowsParams::state_len(n_slots);
        writes(op, "state", &self.state, DType::U32, state)?;
        writes(op, "rows", &self.rows, DType::U32, of(p.list_stride))?;
        writes(op, "moves", &self.moves, DType::U32, 2 * of(p.move_stride))?;
        writes(op, "counts", &self.counts, DType::U32, 4 * h)
    }
}
