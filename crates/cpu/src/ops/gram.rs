//! Sums of outer products.

use longview_ops::{Gram, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::gram::Outer;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Each matrix is one item.
pub(crate) fn run(queue: &mut Queue, d: Gram<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n_tokens, heads) = (d.p.n_tokens as usize, d.p.n_heads as usize);
    let (group, dh) = (d.p.group as usize, d.p.head_dim as usize);
    let x = slice::<f32>(&d.x);
    let out = slice_mut::<f32>(d.out);
    if n_tokens == 0 || out.is_empty() {
        return Ok(());
    }
    let (isa, cost) = (queue.team.isa(), Cost::flop(2 * x.len() * dh));
    queue.team.for_chunks(out, dh * dh, cost, |scratch, i, out| {
        let first_head = i * group;
        isa.run(Outer { x, n_tokens, heads, first_head, group, dh, out, scratch });
    });
    Ok(())
}
