//! A linear layer for many rows: widened weights, or pairs of bf16, and register tiles.

use half::bf16;
use longview_ops::{Linear, Op, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::gemm::{Block, SIDE, scratch_lens};
use crate::kernels::pairs::{Pairs, waiting_len};
use crate::ops::matvec::{checked, no_products};
use crate::problem::Problem;
use crate::quantised;
use crate::queue::Queue;
use crate::rounded::{self, Rows};
use crate::simd::elem::{Elem, with_elem};
use crate::team::{Cost, Shared, Team};
use crate::views::slice_mut;
use crate::weight::{CpuWeight, Matrix};

/// Up to here a pass over the weights with dot products beats packing them.
const MATVEC_ROWS: usize = 8;

/// Rows that are packed at a time: 1024 rows of 4096 are 16 MiB.
const ROWS: usize = 1024;

/// `out = x W^T (+ bias) (+ out)`.
pub(crate) fn run(queue: &mut Queue, d: Linear<'_, CpuBackend>, op: Op) -> OpResult<()> {
    if d.p.n_rows as usize <= MATVEC_ROWS {
        return super::matvec::run(queue, d, op);
    }
    let problem = checked(&d, op)?;
    let out = slice_mut(d.out);
    if problem.n_in == 0 || problem.n_out == 0 {
        if problem.n_out > 0 {
            no_products(&problem, out);
        }
        return Ok(());
    }
    match d.weight.matrix() {
        Matrix::Plain(_) => plain(queue, &problem, d.weight, out),
        Matrix::Tiled(weight) => quantised::linear(queue, &problem, weight, out),
    }
    Ok(())
}

/// The layer with a plain matrix, of sizes that are not 0.
pub(crate) fn plain(queue: &mut Queue, p: &Problem<'_>, weight: &CpuWeight, out: &mut [f32]) {
    let form = weight.form(queue.team.isa());
    let groups = p.x.chunks(ROWS * p.n_in).zip(out.chunks_mut(ROWS * p.n_out));
    for (x, out) in groups {
        let [scratch] = queue.shared.floats([form.many_len(x.len() / p.n_in, p.n_in)]);
        let team = &mut queue.team;
        match rounded::many(team, form, x, p.n_in, scratch) {
            Rows::Pairs(pairs) => {
                multiply_pairs(team, &Problem { x, ..*p }, pairs, weight.elements(), out);
            }
            Rows::Floats(x) => with_elem!(weight.dtype(), E => {
                multiply(team, &Problem { x, ..*p }, weight.elements::<E>(), out);
            }),
        }
    }
}

/// With rows of f32.
fn multiply<E: Elem>(team: &mut Team, p: &Problem<'_>, weights: &[E], out: &mut [f32]) {
    let Problem { x, n_in: k, n_out, bias, add } = *p;
    let (isa, m) = (team.isa(), x.len() / k);
    let out = Shared::new(out);
    let block = block_columns(n_out);
    let cost = Cost::flop(2 * m * k * n_out);
    team.for_each(n_out.div_ceil(block), cost, |scratch, i| {
        let first = i * block;
        let last = (first + block).min(n_out);
        let [wide, waiting] = scratch.floats(scratch_lens(m, last - first, k, isa.lanes()));
        let weights = &weights[first * k..last * k];
        isa.run(Block { x, m, weights, k, bias, add, out, n_out, first, wide, waiting });
    });
}

/// With rows of bf16, which stand in `p` as they were.
fn multiply_pairs(team: &mut Team, p: &Problem<'_>, x: &[bf16], weights: &[bf16], out: &mut [f32]) {
    let Problem { n_in: k, n_out, bias, add, .. } = *p;
    let (isa, m) = (team.isa(), p.x.len() / k);
    let out = Shared::new(out);
    let block = block_columns(n_out);
    let cost = Cost::flop(m * k * n_out);
    team.for_each(n_out.div_ceil(block), cost, |scratch, i| {
        let first = i * block;
        let last = (first + block).min(n_out);
        let [waiting] = scratch.floats([waiting_len(m, last - first, k, isa.lanes())]);
        let weights = &weights[first * k..last * k];
        isa.run_pairs(Pairs { x, m, weights, k, bias, add, out, n_out, first, waiting });
    });
}

/// Columns of an item: widened weights of 256 KiB where there are enough columns for all cores,
/// else fewer.
fn block_columns(n_out: usize) -> usize {
    (n_out / 16).next_multiple_of(SIDE).clamp(SIDE, 64)
}
