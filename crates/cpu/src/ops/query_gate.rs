//! How near a query is to the last one.

use longview_ops::{OpResult, QueryGate};

use crate::backend::CpuBackend;
use crate::kernels::vector::MeanCosine;
use crate::queue::Queue;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Each KV head is one item: its group's queries are its own.
pub(crate) fn run(queue: &mut Queue, d: QueryGate<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (width, token) = (d.p.head_dim as usize, d.last.len);
    let group = token / d.p.n_kv_heads as usize;
    let q = &slice::<f32>(&d.q)[d.p.q_index as usize * token..][..token];
    let (last, cosines) = (slice_mut::<f32>(d.last), slice_mut::<f32>(d.cosines));
    let (isa, cost) = (queue.team.isa(), Cost::bytes(12 * token));
    queue.team.for_chunks2(
        Pieces::of(last, group),
        Pieces::of(cosines, 1),
        cost,
        |_, i, last, cosine| {
            let q = &q[i * group..][..group];
            cosine[0] = isa.run(MeanCosine { a: q, b: last, width });
            last.copy_from_slice(q);
        },
    );
    Ok(())
}
