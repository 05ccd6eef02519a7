//! Keys of KV rows turned to another position.

use longview_ops::{DeviceBuffer, OpResult, RotateRows};

use crate::backend::CpuBackend;
use crate::kernels::vector::{Convert, Rotate};
use crate::queue::Queue;
use crate::simd::elem::with_elem;
use crate::team::Cost;
use crate::views::slice;

/// Each head is one item.
pub(crate) fn run(queue: &mut Queue, d: RotateRows<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (h, dh, n) = (d.p.n_kv_heads as usize, d.p.head_dim as usize, d.p.n_rows as usize);
    let (from, to) = (d.src.head_stride, d.p.dst_head_stride as usize);
    if h == 0 || n == 0 {
        return Ok(());
    }
    let table: &[f32] = slice(&d.table);
    let (isa, cost) = (queue.team.isa(), Cost::bytes(h * n * dh * 16));
    with_elem!(d.dst.dtype(), E => {
        let src = &d.src.buffer.elements::<E>()[d.src.offset..];
        let dst = &mut d.dst.elements_mut::<E>()[..h * to * 2 * dh];
        queue.team.for_chunks(dst, to * 2 * dh, cost, |scratch, head, dst| {
            let src = &src[head * from * 2 * dh..][..n * 2 * dh];
            let [x, out] = scratch.floats([dh, dh]);
            for (row, to) in src.chunks_exact(2 * dh).zip(dst.chunks_exact_mut(2 * dh)) {
                isa.run(Convert { from: &row[..dh], to: &mut *x });
                isa.run(Rotate { x, table, head_dim: dh, out: &mut *out });
                isa.run(Convert { from: &*out, to: &mut to[..dh] });
                to[dh..].copy_from_slice(&row[dh..]);
            }
        });
    });
    Ok(())
}
