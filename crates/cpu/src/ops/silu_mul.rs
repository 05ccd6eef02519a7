//! Gated activation, elementwise.

use longview_ops::{OpResult, SiluMul};

use crate::CpuBackend;
use crate::backend::Queue;
use crate::buffer::{slice, slice_mut};
use crate::kernels::vector::Silu;
use crate::team::Cost;

/// Elements of an item.
const BLOCK: usize = 8 * 1024;

/// `out = gate / (1 + exp(-gate)) * up`.
pub(crate) fn run(queue: &mut Queue, d: SiluMul<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (gate, up) = (slice::<f32>(&d.gate), slice::<f32>(&d.up));
    let out = slice_mut::<f32>(d.out);
    let (tier, cost) = (queue.team.tier(), Cost::bytes(out.len() * 24));
    queue.team.for_chunks(out, BLOCK, cost, |_, i, out| {
        let range = i * BLOCK..i * BLOCK + out.len();
        tier.run(Silu { gate: &gate[range.clone()], up: &up[range], out });
    });
    Ok(())
}
