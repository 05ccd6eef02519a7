//! Means of neighbouring KV rows.

use longview_ops::{DeviceBuffer, OpResult, RowMeans};

use crate::backend::CpuBackend;
use crate::kernels::blocks::MeanOfRows;
use crate::queue::Queue;
use crate::simd::stored::{KvElem, with_rows};
use crate::team::Cost;
use crate::views::slice_mut;

/// Each head is one item.
pub(crate) fn run(queue: &mut Queue, d: RowMeans<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    with_rows!(d.kv.buffer.dtype(), E => means::<E>(queue, d));
    Ok(())
}

fn means<E: KvElem>(queue: &mut Queue, d: RowMeans<'_, CpuBackend>) {
    let (p, kv, dh) = (d.p, d.kv, d.p.head_dim as usize);
    let (heads, n, of) = (p.n_kv_heads as usize, p.n_means as usize, p.n_averaged as usize);
    if n == 0 {
        return;
    }
    let elements = &kv.buffer.elements::<E>()[kv.offset..];
    let (isa, row) = (queue.team.isa(), E::row_len(dh));
    let cost = Cost::bytes(heads * n * of * row * size_of::<E>());
    let out = slice_mut::<f32>(d.out);
    queue.team.for_chunks(out, p.out_stride as usize * 2 * dh, cost, |_, head, out| {
        let first = p.first_mean as usize * 2 * dh;
        let start = (head * kv.head_stride + p.row_start as usize) * row;
        let rows = elements[start..start + n * of * row].chunks_exact(of * row);
        let means = out[first..first + n * 2 * dh].chunks_exact_mut(2 * dh);
        for (elements, out) in rows.zip(means) {
            isa.run(MeanOfRows { elements, head_dim: dh, out });
        }
    });
}
