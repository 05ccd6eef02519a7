//! Gated activation by a Gaussian, elementwise.

use longview_ops::{GeluMul, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::vector::Gelu;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Elements of an item.
const BLOCK: usize = 8 * 1024;

/// `out = gelu(gate) * up`, in the approximation by a hyperbolic tangent.
pub(crate) fn run(queue: &mut Queue, d: GeluMul<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (gate, up) = (slice::<f32>(&d.gate), slice::<f32>(&d.up));
    let out = slice_mut::<f32>(d.out);
    let (isa, cost) = (queue.team.isa(), Cost::bytes(out.len() * 24));
    queue.team.for_chunks(out, BLOCK, cost, |_, i, out| {
        let range = i * BLOCK..i * BLOCK + out.len();
        isa.run(Gelu { gate: &gate[range.clone()], up: &up[range], out });
    });
    Ok(())
}
