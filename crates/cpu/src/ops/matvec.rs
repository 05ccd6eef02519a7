//! A linear layer for few rows: one pass over the weights.

use longview_ops::{Linear, Op, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::matvec::{MAX_ROWS, Matvec, pack_rows, packed_len};
use crate::problem::Problem;
use crate::quantised;
use crate::queue::Queue;
use crate::simd::elem::{Elem, with_elem};
use crate::team::{Cost, Shared};
use crate::views::{slice, slice_mut};
use crate::weight::Matrix;

/// Least and most bytes of weights in an item: long enough for the prefetches to run ahead, short
/// enough that the last item is soon done.
const ITEM_BYTES: [usize; 2] = [32 << 10, 256 << 10];

/// Items that keep a machine busy.
const ENOUGH_ITEMS: usize = 32;

/// `out = x W^T (+ bias) (+ out)`.
pub(crate) fn run(queue: &mut Queue, d: Linear<'_, CpuBackend>, op: Op) -> OpResult<()> {
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
    if n_out == 0 || out.is_empty() {
        return Ok(());
    }
    if n_in == 0 {
        no_products(&problem, out);
        return Ok(());
    }
    match d.weight.matrix() {
        Matrix::Tiled(weight) => quantised::linear(queue, &problem, weight, out),
        Matrix::Plain(dtype) => {
            with_elem!(dtype, E => problem.run::<E>(queue, d.weight.elements(), out));
        }
    }
    Ok(())
}

impl Problem<'_> {
    fn run<E: Elem>(&self, queue: &mut Queue, weights: &[E], out: &mut [f32]) {
        let Self { x, n_in, n_out, bias, add } = *self;
        let row_bytes = n_in * size_of::<E>();
        // A multiple of 4, the rows that the kernel does side by side.
        let wanted = n_out * row_bytes / ENOUGH_ITEMS;
        let item_bytes = wanted.clamp(ITEM_BYTES[0], ITEM_BYTES[1]);
        let block = (item_bytes / row_bytes).next_multiple_of(4).max(4);
        let isa = queue.team.isa();
        // More rows than the op is meant for cost one more pass each time, not an error.
        let groups = x.chunks(MAX_ROWS * n_in).zip(out.chunks_mut(MAX_ROWS * n_out));
        for (x, out) in groups {
            let n_rows = x.len() / n_in;
            let x = if n_rows == 1 {
                x
            } else {
                let [packed] = queue.shared.floats([packed_len(n_rows, n_in)]);
                pack_rows(x, n_in, packed);
                packed
            };
            let out = Shared::new(out);
            let cost = Cost::bytes(size_of_val(weights) * n_rows.div_ceil(4));
            queue.team.for_each(n_out.div_ceil(block), cost, |_, i| {
                let first = i * block;
                let last = (first + block).min(n_out);
                let weights = &weights[first * n_in..last * n_in];
                isa.run(Matvec { weights, x, n_rows, k: n_in, bias, add, out, n_out, first });
            });
        }
    }
}

/// The product with no columns: the bias alone.
pub(super) fn no_products(p: &Problem<'_>, out: &mut [f32]) {
    for row in out.chunks_exact_mut(p.n_out) {
        for (o, value) in row.iter_mut().enumerate() {
            *value = p.bias.map_or(0.0, |b| b[o]) + if p.add { *value } else { 0.0 };
        }
    }
}
