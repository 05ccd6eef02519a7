//! Rotary position embedding, tokens in parallel.

use longview_ops::{OpResult, Rope};

use crate::backend::CpuBackend;
use crate::kernels::vector::Rotate;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Rotates the first elements of each head by the angles of its token.
pub(crate) fn run(queue: &mut Queue, d: Rope<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (head_dim, rotary) = (d.p.head_dim as usize, d.p.rotary_dim as usize);
    let width = d.p.n_heads as usize * head_dim;
    if width == 0 {
        return Ok(());
    }
    let (x, table) = (slice::<f32>(&d.x), slice::<f32>(&d.table));
    let out = slice_mut::<f32>(d.out);
    let (isa, cost) = (queue.team.isa(), Cost::bytes(out.len() * 10));
    queue.team.for_chunks(out, width, cost, |_, t, out| {
        let x = &x[t * width..(t + 1) * width];
        let table = &table[t * rotary..(t + 1) * rotary];
        isa.run(Rotate { x, table, head_dim, out });
    });
    Ok(())
}
