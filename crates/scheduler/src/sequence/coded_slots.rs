//! Device caches whose rows have 8 bits, as those of the host store do.
//!
//! First rows and pending ones lie beside them in a buffer of 16 bits. So a step attends to two
//! lists, merged by log-sum-exp, and a row that is fetched is half of what it is elsewhere.

use longview_core::{DType, LayerId};
use longview_ops::{Backend, KvView, OpResult};

use super::options::{Placement, SequenceOptions};
use crate::layout::{HostRows, KvShape, LayerMode};
use crate::policy::Policy;
use crate::store::{DeviceRows, RowLists, RowMover};

/// What layers share whose device cache has rows of 8 bits.
pub(super) struct CodedSlots<B: Backend> {
    /// The slots that each head attends.
    pub lists: RowLists<B>,
    /// Carries codes of the host store to slots.
    pub mover: RowMover<B>,
}

impl<B: Backend> CodedSlots<B> {
    /// For layers whose heads attend at most `attended` rows, some of them later if `divided`, from
    /// a store whose codes kernels read if `mapped`.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        attended: usize,
        (divided, mapped): (bool, bool),
    ) -> OpResult<Self> {
        Ok(Self {
            lists: RowLists::new(backend, shape.n_kv_heads, attended, divided)?,
            mover: RowMover::of_codes(backend, shape, attended, mapped)?,
        })
    }
}

/// Slots of 8 bits of each head of `layer`; 0 where the device cache has rows as they are attended.
pub(super) fn n_coded_slots(
    shape: &KvShape,
    policy: &Policy,
    options: &SequenceOptions,
    layer: LayerId,
) -> usize {
    let are_coded = shape.host_rows == HostRows::EightBits
        && options.eight_bit_slots
        && options.placement == Placement::Device
        && policy.layer_mode(shape, layer) == LayerMode::Recall;
    if are_coded { policy.device_layout(shape.capacity).slots } else { 0 }
}

/// The cache slots of one layer, `[Hkv, n]` rows of 8 bits.
pub struct Slots<B: Backend> {
    pub(super) buffer: B::Buffer,
    /// Of each head.
    pub(super) n: usize,
}

impl<B: Backend> Slots<B> {
    pub(super) fn new(backend: &B, shape: &KvShape, n: usize) -> OpResult<Self> {
        let len = shape.n_kv_heads * n * DType::Q8.kv_row_len(shape.head_dim);
        Ok(Self { buffer: backend.alloc(DType::Q8, len, "device cache")?, n })
    }

    pub(super) fn view(&self) -> KvView<'_, B> {
        KvView::new(&self.buffer, self.n)
    }

    pub(super) fn rows_mut(&mut self) -> DeviceRows<'_, B> {
        DeviceRows { buffer: &mut self.buffer, head_stride: self.n }
    }
}
