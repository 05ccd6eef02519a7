//! A linear layer for many rows: widened weights and register tiles.

use longview_ops::{Linear, Op, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::gemm::{Block, SIDE, scratch_lens};
use crate::ops::matvec::no_products;
use crate::problem::Problem;
use crate::quantised;
use crate::queue::Queue;
use crate::simd::elem::{Elem, with_elem};
use crate::team::{Cost, Shared};
use crate::views::{slice, slice_mut};
use crate::weight::Matrix;

/// Up to here a pass over the weights with dot products beats packing them.
const MATVEC_ROWS: usize = 8;

/// Rows that are packed at a time: 1024 rows of 4096 are 16 MiB.
const ROWS: usize = 1024;

/// `out = x W^T (+ bias) (+ out)`.
pub(crate) fn run(queue: &mut Queue, d: Linear<'_, CpuBackend>, op: Op) -> OpResult<()> {
    if d.p.n_rows as usize <= MATVEC_ROWS {
        return super::matvec::run(queue, d, op);
    }
    d.check(op)?;
    let (n_in, n_out) = (d.p.n_in as usize, d.p.n_out as usize);
    d.weight.expect(op, n_out, n_in)?;
    if let Some(bias) = d.bias {
        bias.expect(op, 1, n_out)?;
    }
    let problem = Problem {
        x: slice(&d.x),
        n_in,
        n_out,
        bias: d.bias.map(|b| b.elements()),
        add: d.p.accumulate != 0,
    };
    let out = slice_mut(d.out);
    if n_in == 0 || n_out == 0 {
        if n_out > 0 {
            no_products(&problem, out);
        }
        return Ok(());
    }
    let dtype = match d.weight.matrix() {
        Matrix::Plain(dtype) => dtype,
        Matrix::Tiled(weight) => {
            quantised::linear(queue, &problem, weight, out);
            return Ok(());
        }
    };
    with_elem!(dtype, E => {
        let weights = d.weight.elements::<E>();
        let groups = problem.x.chunks(ROWS * n_in).zip(out.chunks_mut(ROWS * n_out));
        for (x, out) in groups {
            multiply(queue, &Problem { x, ..problem }, weights, out);
        }
    });
    Ok(())
}

fn multiply<E: Elem>(queue: &mut Queue, p: &Problem<'_>, weights: &[E], out: &mut [f32]) {
    let Problem { x, n_in: k, n_out, bias, add } = *p;
    let (isa, m) = (queue.team.isa(), x.len() / k);
    let out = Shared::new(out);
    let block = block_columns(n_out);
    let cost = Cost::flop(2 * m * k * n_out);
    queue.team.for_each(n_out.div_ceil(block), cost, |scratch, i| {
        let first = i * block;
        let last = (first + block).min(n_out);
        let [wide, waiting] = scratch.floats(scratch_lens(m, last - first, k, isa.lanes()));
        let weights = &weights[first * k..last * k];
        isa.run(Block { x, m, weights, k, bias, add, out, n_out, first, wide, waiting });
    });
}

/// Columns of an item: widened weights of 256 KiB where there are enough columns for all cores,
/// else fewer.
fn block_columns(n_out: usize) -> usize {
    (n_out / 16).next_multiple_of(SIDE).clamp(SIDE, 64)
}
