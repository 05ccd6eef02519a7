//! Sums of queries over blocks of positions.

use longview_ops::{OpResult, QuerySums};

use crate::backend::CpuBackend;
use crate::kernels::vector::Blend;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Each KV head is one item; tokens are added in their order.
pub(crate) fn run(queue: &mut Queue, d: QuerySums<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (p, q) = (d.p, slice::<f32>(&d.q));
    let (hq, dh, group) =
        (p.n_q_heads as usize, p.head_dim as usize, (p.n_q_heads / p.n_kv_heads) as usize);
    if p.q_len == 0 {
        return Ok(());
    }
    let out = slice_mut::<f32>(d.out);
    let (isa, cost) = (queue.team.isa(), Cost::bytes(8 * p.q_len as usize * hq * dh));
    queue.team.for_chunks(out, p.n_blocks as usize * dh, cost, |_, head, out| {
        for i in 0..p.q_len as usize {
            let block = (p.position as usize + i) / p.block as usize;
            let sum = &mut out[block * dh..(block + 1) * dh];
            let token = (p.q_start as usize + i) * hq + head * group;
            for x in q[token * dh..(token + group) * dh].chunks_exact(dh) {
                isa.run(Blend { x, add: 1.0, keep: 1.0, out: &mut *sum });
            }
        }
    });
    Ok(())
}
