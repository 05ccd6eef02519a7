//! A linear layer for many rows: widened weights, or pairs of bf16, and register tiles.

use half::bf16;
use longview_ops::{Linear, Op, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::gemm::{Block, SIDE, scratch_lens};
use crate::kernels::pairs::{self, Pairs};
use crate::kernels::panels::{self, PackStrip, Panels, strip_len, waiting_len};
use crate::ops::matvec::{checked, no_products};
use crate::problem::Problem;
use crate::quantised;
use crate::queue::Queue;
use crate::rounded::{self, Form, Rows};
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
        let (isa, n_rows) = (queue.team.isa(), x.len() / p.n_in);
        let in_panels = form != Form::Pairs && panels::is_faster(isa, n_rows, p.n_in);
        let packed_len =
            if in_panels { n_rows.next_multiple_of(isa.tile_rows()) * p.n_in } else { 0 };
        let [scratch, packed] = queue.shared.floats([form.many_len(n_rows, p.n_in), packed_len]);
        let team = &mut queue.team;
        match rounded::many(team, form, x, p.n_in, scratch) {
            Rows::Pairs(pairs) => {
                multiply_pairs(team, &Problem { x, ..*p }, pairs, weight.elements(), out);
            }
            Rows::Floats(x) if in_panels => with_elem!(weight.dtype(), E => {
                multiply_panels(team, &Problem { x, ..*p }, packed, weight.elements::<E>(), out);
            }),
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

/// With rows of f32 that are packed first.
fn multiply_panels<E: Elem>(
    team: &mut Team,
    p: &Problem<'_>,
    packed: &mut [f32],
    weights: &[E],
    out: &mut [f32],
) {
    let Problem { x, n_in: k, n_out, bias, add } = *p;
    let (isa, m) = (team.isa(), x.len() / k);
    let rows = isa.tile_rows() * k;
    team.for_chunks(&mut *packed, strip_len(isa, k), Cost::bytes(8 * x.len()), |_, i, to| {
        let x = &x[i * rows..x.len().min((i + 1) * rows)];
        isa.run(PackStrip { x, k, to });
    });
    let (x, out, columns) = (&*packed, Shared::new(out), isa.tile_cols());
    let cost = Cost::flop(2 * m * k * n_out);
    team.for_each(n_out.div_ceil(columns), cost, |scratch, i| {
        let first = i * columns;
        let last = (first + columns).min(n_out);
        let [panel, waiting] = scratch.floats([columns * k, waiting_len(isa)]);
        let weights = &weights[first * k..last * k];
        isa.run(Panels { x, m, weights, k, bias, add, out, n_out, first, panel, waiting });
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
        let [waiting] = scratch.floats([pairs::waiting_len(m, last - first, k, isa.lanes())]);
        let weights = &weights[first * k..last * k];
        isa.run_pairs(Pairs { x, m, weights, k, bias, add, out, n_out, first, waiting });
    });
}

/// Columns of an item: widened weights of 256 KiB where there are enough columns for all cores,
/// else fewer.
fn block_columns(n_out: usize) -> usize {
    (n_out / 16).next_multiple_of(SIDE).clamp(SIDE, 64)
}
