//! Merge of two attentions over disjoint keys.

use longview_ops::{LseMerge, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::state::merge_weights;
use crate::kernels::vector::Blend;
use crate::queue::Queue;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Rows of an item.
const BLOCK: usize = 32;

/// `out` becomes the mean weighted by the share of the log-sum-exps.
pub(crate) fn run(queue: &mut Queue, d: LseMerge<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let dh = d.p.head_dim as usize;
    let (other, other_lse) = (slice::<f32>(&d.other_out), slice::<f32>(&d.other_lse));
    let out = Pieces::of(slice_mut::<f32>(d.out), BLOCK * dh);
    let lse = Pieces::of(slice_mut::<f32>(d.lse), BLOCK);
    let cost = Cost::bytes(other.len() * 12 + other_lse.len() * 400);
    let isa = queue.team.isa();
    queue.team.for_chunks2(lse, out, cost, |_, i, lse, out| {
        for (j, lse) in lse.iter_mut().enumerate() {
            let row = i * BLOCK + j;
            let (keep, add, merged) = merge_weights(*lse, other_lse[row]);
            *lse = merged;
            let (x, out) = (&other[row * dh..(row + 1) * dh], &mut out[j * dh..(j + 1) * dh]);
            isa.run(Blend { x, add, keep, out });
        }
    });
    Ok(())
}
