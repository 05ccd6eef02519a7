//! Means of neighbouring KV rows.

use longview_ops::{DeviceBuffer, OpResult, RowMeans};

use crate::backend::CpuBackend;
use crate::kernels::blocks::MeanOfRows;
use crate::queue::Queue;
use crate::simd::stored::{KvElem, with_rows};
use crate::team::{Cost, Shared};
use crate::views::slice_mut;

/// Each mean of each head is one item.
pub(crate) fn run(queue: &mut Queue, d: RowMeans<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    with_rows!(d.kv.buffer.dtype(), E => means::<E>(queue, d));
    Ok(())
}

fn means<E: KvElem>(queue: &mut Queue, d: RowMeans<'_, CpuBackend>) {
    let (p, kv, dh) = (d.p, d.kv, d.p.head_dim as usize);
    let (heads, n, of) = (p.n_kv_heads as usize, p.n_means as usize, p.n_averaged as usize);
    let elements = &kv.buffer.elements::<E>()[kv.offset..];
    let out = Shared::new(slice_mut::<f32>(d.out));
    let (isa, row) = (queue.team.isa(), E::row_len(dh));
    let cost = Cost::bytes(heads * n * of * row * size_of::<E>());
    queue.team.for_each(heads * n, cost, |_, i| {
        let (head, mean) = (i / n, i % n);
        let start = (head * kv.head_stride + p.row_start as usize + mean * of) * row;
        let at = head * p.out_stride as usize + p.first_mean as usize + mean;
        // SAFETY: every item has a mean of its own.
        let out = unsafe { out.slice(at * 2 * dh, 2 * dh) };
        isa.run(MeanOfRows { elements: &elements[start..start + of * row], head_dim: dh, out });
    });
}
