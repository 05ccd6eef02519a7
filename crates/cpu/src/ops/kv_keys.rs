//! Keys of KV rows, widened.

use longview_ops::{DeviceBuffer, KvKeys, Op, OpResult};

use super::ensure_below;
use crate::CpuBackend;
use crate::backend::Queue;
use crate::buffer::{slice, slice_mut};
use crate::kernels::vector::Convert;
use crate::simd::elem::with_elem;
use crate::team::Cost;

/// `out[h, i]` becomes the key of row `rows[h, i]`.
pub(crate) fn run(queue: &mut Queue, d: KvKeys<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n, dh, stride) = (d.p.n_rows as usize, d.p.head_dim as usize, d.src.head_stride);
    let rows: &[u32] = slice(&d.rows);
    ensure_below(Op::KvKeys, "row", rows, d.src.row_limit(dh))?;
    if rows.is_empty() || dh == 0 {
        return Ok(());
    }
    let out = slice_mut::<f32>(d.out);
    let (tier, cost) = (queue.team.tier(), Cost::bytes(out.len() * 8));
    with_elem!(d.src.buffer.dtype(), E => {
        let src = &d.src.buffer.elements::<E>()[d.src.offset..];
        queue.team.for_chunks(out, dh, cost, |_, i, key| {
            let from = (i / n * stride + rows[i] as usize) * 2 * dh;
            tier.run(Convert { from: &src[from..from + dh], to: key });
        });
    });
    Ok(())
}
