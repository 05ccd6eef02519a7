//! Keys of KV rows, widened.

use longview_ops::{DeviceBuffer, KvKeys, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::ensure_below;
use crate::kernels::vector::Convert;
use crate::queue::Queue;
use crate::simd::elem::with_elem;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

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
    let (isa, cost) = (queue.team.isa(), Cost::bytes(out.len() * 8));
    with_elem!(d.src.buffer.dtype(), E => {
        let src = &d.src.buffer.elements::<E>()[d.src.offset..];
        queue.team.for_chunks(out, dh, cost, |_, i, key| {
            let from = (i / n * stride + rows[i] as usize) * 2 * dh;
            isa.run(Convert { from: &src[from..from + dh], to: key });
        });
    });
    Ok(())
}
