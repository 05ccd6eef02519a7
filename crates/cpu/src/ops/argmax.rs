//! Index of the largest element of each row, and whether that is finite.

use longview_ops::{Argmax, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::vector::Largest;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// The lowest index among equals; a not-a-number wins.
pub(crate) fn run(queue: &mut Queue, d: Argmax<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let width = d.p.width as usize;
    let x = slice::<f32>(&d.x);
    let (isa, cost) = (queue.team.isa(), Cost::bytes(x.len() * 4));
    queue.team.for_chunks(slice_mut::<u32>(d.out), 1, cost, |_, r, out| {
        out[0] = isa.run(Largest { x: &x[r * width..(r + 1) * width] });
    });
    Ok(())
}
