//! Positive and negative parts of vectors.

use longview_ops::{OpResult, SplitSigns};

use crate::backend::CpuBackend;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Each vector is one item.
pub(crate) fn run(queue: &mut Queue, d: SplitSigns<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (x, width) = (slice::<f32>(&d.x), d.p.width as usize);
    let out = slice_mut::<f32>(d.out);
    queue.team.for_chunks(out, 2 * width, Cost::bytes(12 * x.len()), |_, i, out| {
        split(&x[i * width..(i + 1) * width], out);
    });
    Ok(())
}

/// `[max(x, 0); min(x, 0)]`.
pub(crate) fn split(x: &[f32], out: &mut [f32]) {
    let (above, below) = out.split_at_mut(x.len());
    for ((x, above), below) in x.iter().zip(above).zip(below) {
        (*above, *below) = (x.max(0.0), x.min(0.0));
    }
}
