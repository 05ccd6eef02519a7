//! Embedding lookup: rows of the table as f32.

use longview_ops::{Embed, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::ensure_below;
use crate::kernels::vector::Convert;
use crate::queue::Queue;
use crate::simd::elem::with_elem;
use crate::team::Cost;
use crate::views::{slice, slice_mut};
use crate::weight::Matrix;

/// `out[t] = scale * table[ids[t]]`.
pub(crate) fn run(queue: &mut Queue, d: Embed<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let width = d.p.width as usize;
    d.table.expect_cols(Op::Embed, width)?;
    let ids: &[u32] = slice(&d.ids);
    ensure_below(Op::Embed, "token", ids, d.table.n_rows())?;
    let (out, scale) = (slice_mut::<f32>(d.out), d.p.scale);
    let (isa, cost) = (queue.team.isa(), Cost::bytes(out.len() * 6));
    let dtype = match d.table.matrix() {
        Matrix::Plain(dtype) => dtype,
        Matrix::Tiled(table) => {
            queue.team.for_chunks(out, width, cost, |_, t, out| {
                table.row(ids[t] as usize, out);
                multiply(out, scale);
            });
            return Ok(());
        }
    };
    with_elem!(dtype, E => {
        let table: &[E] = d.table.elements();
        queue.team.for_chunks(out, width, cost, |_, t, out| {
            let row = ids[t] as usize * width;
            isa.run(Convert { from: &table[row..row + width], to: out });
            multiply(out, scale);
        });
    });
    Ok(())
}

fn multiply(row: &mut [f32], scale: f32) {
    if scale != 1.0 {
        row.iter_mut().for_each(|x| *x *= scale);
    }
}
