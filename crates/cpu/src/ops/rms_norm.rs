//! Root-mean-square norm, blocks of rows in parallel.

use longview_ops::{Op, OpResult, RmsNorm};

use crate::backend::CpuBackend;
use crate::kernels::vector::Norm;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Elements of an item.
const BLOCK: usize = 16 * 1024;

/// `out = x / sqrt(mean(x^2) + eps) * weight (+ out)`.
pub(crate) fn run(queue: &mut Queue, d: RmsNorm<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let width = d.p.width as usize;
    d.weight.expect(Op::RmsNorm, 1, width)?;
    let (x, weight) = (slice::<f32>(&d.x), d.weight.elements::<f32>());
    let (isa, eps, accumulate) = (queue.team.isa(), d.p.eps, d.p.accumulate != 0);
    let out = slice_mut::<f32>(d.out);
    let block = (BLOCK / width).max(1) * width;
    let cost = Cost::bytes(out.len() * 8);
    queue.team.for_chunks(out, block, cost, |_, i, out| {
        let x = &x[i * block..][..out.len()];
        isa.run(Norm { x, weight, eps, accumulate, out });
    });
    Ok(())
}
