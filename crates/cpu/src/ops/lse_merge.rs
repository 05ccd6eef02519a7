//! Merge of two attentions over disjoint keys.

use longview_ops::{LseMerge, OpResult};

use crate::CpuBackend;
use crate::backend::Queue;
use crate::buffer::{slice, slice_mut};
use crate::kernels::attend::merge_weights;
use crate::kernels::vector::Blend;
use crate::team::Cost;

/// Rows of an item.
const BLOCK: usize = 32;

/// `out` becomes the mean weighted by the share of the log-sum-exps.
pub(crate) fn run(queue: &mut Queue, d: LseMerge<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let dh = d.p.head_dim as usize;
    let (other, other_lse) = (slice::<f32>(&d.other_out), slice::<f32>(&d.other_lse));
    let out = (slice_mut::<f32>(d.out), BLOCK * dh);
    let lse = (slice_mut::<f32>(d.lse), BLOCK);
    let cost = Cost::bytes(other.len() * 12 + other_lse.len() * 400);
    let tier = queue.team.tier();
    queue.team.for_chunks2(lse, out, cost, |_, i, lse, out| {
        for (j, lse) in lse.iter_mut().enumerate() {
            let row = i * BLOCK + j;
            let (keep, add, merged) = merge_weights(*lse, other_lse[row]);
            *lse = merged;
            let (x, out) = (&other[row * dh..(row + 1) * dh], &mut out[j * dh..(j + 1) * dh]);
            tier.run(Blend { x, add, keep, out });
        }
    });
    Ok(())
}
