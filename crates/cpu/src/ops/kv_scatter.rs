//! New keys and values into KV rows.

use longview_core::{DType, kv8};
use longview_ops::{DeviceBuffer, KvScatter, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::ensure_below;
use crate::kernels::vector::{Convert, EncodeRow};
use crate::queue::Queue;
use crate::simd::elem::with_elem;
use crate::team::Cost;
use crate::views::slice;

/// Row `rows[t]` of every head gets the token's key and value, rounded.
pub(crate) fn run(queue: &mut Queue, d: KvScatter<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (h, dh) = (d.p.n_kv_heads as usize, d.p.head_dim as usize);
    let stride = d.p.dst_head_stride as usize;
    let rows: &[u32] = slice(&d.rows);
    ensure_below(Op::KvScatter, "row", rows, stride)?;
    if rows.is_empty() || h == 0 || dh == 0 {
        return Ok(());
    }
    let (k, v) = (slice::<f32>(&d.k), slice::<f32>(&d.v));
    let (isa, cost) = (queue.team.isa(), Cost::bytes(k.len() * 12));
    if d.dst.dtype() == DType::Q8 {
        let row_bytes = kv8::row_bytes(dh);
        let dst = &mut d.dst.elements_mut::<u8>()[..h * stride * row_bytes];
        queue.team.for_chunks(dst, stride * row_bytes, cost, |_, head, dst| {
            for (t, &row) in rows.iter().enumerate() {
                let from = (t * h + head) * dh..(t * h + head + 1) * dh;
                let row = &mut dst[row as usize * row_bytes..][..row_bytes];
                isa.run(EncodeRow { key: &k[from.clone()], value: &v[from], row });
            }
        });
        return Ok(());
    }
    with_elem!(d.dst.dtype(), E => {
        let dst = &mut d.dst.elements_mut::<E>()[..h * stride * 2 * dh];
        queue.team.for_chunks(dst, stride * 2 * dh, cost, |_, head, dst| {
            for (t, &row) in rows.iter().enumerate() {
                let from = (t * h + head) * dh;
                let (key, value) = dst[row as usize * 2 * dh..][..2 * dh].split_at_mut(dh);
                isa.run(Convert { from: &k[from..from + dh], to: key });
                isa.run(Convert { from: &v[from..from + dh], to: value });
            }
        });
    });
    Ok(())
}
