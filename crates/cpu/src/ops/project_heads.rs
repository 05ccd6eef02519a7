//! Keys or queries in the low-rank space of their KV head.

use longview_ops::{OpResult, ProjectHeads};

use crate::backend::CpuBackend;
use crate::kernels::mass::Projection;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Vectors of an item.
const PART: usize = 64;

pub(crate) fn run(queue: &mut Queue, d: ProjectHeads<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (p, x, w) = (d.p, slice::<f32>(&d.x), slice::<f32>(&d.w));
    let (k, rank) = (p.head_dim as usize, p.rank as usize);
    let (t, h, group) = (p.n_tokens as usize, p.n_heads as usize, p.group as usize);
    let out = slice_mut::<f32>(d.out);
    if out.is_empty() {
        return Ok(());
    }
    let (isa, cost) = (queue.team.isa(), Cost::flop(2 * out.len() * k));
    queue.team.for_chunks(out, PART * rank, cost, |_, part, out| {
        for (i, out) in out.chunks_exact_mut(rank).enumerate() {
            let i = part * PART + i;
            let head = if p.head_major == 1 { i / t } else { i % h };
            let w = &w[head / group * k * rank..][..k * rank];
            isa.run(Projection { x: &x[i * k..(i + 1) * k], w, out });
        }
    });
    Ok(())
}
