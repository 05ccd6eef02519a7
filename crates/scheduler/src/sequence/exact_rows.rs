//! Which rows a sequence attends as they were written, where its host store rounds rows to 8 bits.

use longview_ops::Backend;

use super::options::SequenceOptions;
use super::sparse_means::BLOCK;
use crate::layout::{DeviceLayout, KvShape, LayerMode, PrefillMode};
use crate::policy::Policy;
use crate::store::RowLists;

/// Recent rows that are attended as they were written, at least.
const RECENT: usize = 128;

/// The rows that steps attend as they were written.
pub(super) struct ExactRows<B: Backend> {
    /// So many before a query, and itself.
    pub recent: usize,
    /// Where they are listed in decode.
    pub lists: RowLists<B>,
}

/// Recent rows that are attended as they were written under `policy`: all that are not indexed.
/// Where prompts are read sparsely, whole blocks of them.
pub(super) fn recent_rows(shape: &KvShape, policy: &Policy, prefill: PrefillMode) -> usize {
    let rows = policy.device_layout(shape.capacity).ring.max(RECENT);
    let rows = if prefill.is_exact() { rows } else { rows.next_multiple_of(BLOCK) };
    rows.min(shape.capacity)
}

/// The rows that a host store of 8 bits keeps as they are written: those that a chunk's first query
/// needs, and the chunk itself.
pub(super) fn exact_layout(
    shape: &KvShape,
    policy: &Policy,
    options: &SequenceOptions,
) -> DeviceLayout {
    let sinks = policy.device_layout(shape.capacity).sinks.min(shape.capacity);
    let ring =
        (recent_rows(shape, policy, options.prefill) + options.chunk).min(shape.capacity - sinks);
    DeviceLayout { sinks, ring: ring.max(1), slots: 0 }
}

/// Whether a layer of `mode` has device rows even where others are attended in place: rows that are
/// kept are few, and are measured where they lie.
pub(super) fn has_device_rows(mode: LayerMode) -> bool {
    mode == LayerMode::Kept
}
