//! A linear layer for few rows: one pass over the weights.

use longview_core::DType;
use longview_ops::{Linear, Op, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::matvec::{MAX_ROWS, Matvec};
use crate::kernels::pairs::Pairs;
use crate::problem::Problem;
use crate::quantised;
use crate::queue::Queue;
use crate::rounded::{Rows, few};
use crate::simd::elem::with_elem;
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Shared};
use crate::views::{slice, slice_mut};
use crate::weight::{CpuWeight, Matrix};

/// Least and most bytes of weights in an item: long enough for the prefetches to run ahead, short
/// enough that the last item is soon done.
const ITEM_BYTES: [usize; 2] = [32 << 10, 256 << 10];

/// Items that keep a machine busy.
const ENOUGH_ITEMS: usize = 32;

/// `out = x W^T (+ bias) (+ out)`.
pub(crate) fn run(queue: &mut Queue, d: Linear<'_, CpuBackend>, op: Op) -> OpResult<()> {
    let problem = checked(&d, op)?;
    let out = slice_mut(d.out);
    if problem.n_out == 0 || out.is_empty() {
        return Ok(());
    }
    if problem.n_in == 0 {
        no_products(&problem, out);
        return Ok(());
    }
    match d.weight.matrix() {
        Matrix::Tiled(weight) => quantised::linear(queue, &problem, weight, out),
        Matrix::Plain(_) => stream(queue, &problem, d.weight, out),
    }
    Ok(())
}

/// The layer without weight and output, once all sizes were checked.
pub(crate) fn checked<'a>(d: &Linear<'a, CpuBackend>, op: Op) -> OpResult<Problem<'a>> {
    d.check(op)?;
    let (n_in, n_out) = (d.p.n_in as usize, d.p.n_out as usize);
    d.weight.expect(op, n_out, n_in)?;
    if let Some(bias) = d.bias {
        bias.expect(op, 1, n_out)?;
    }
    let bias = d.bias.map(|b| b.elements());
    Ok(Problem { x: slice(&d.x), n_in, n_out, bias, add: d.p.accumulate != 0 })
}

/// The layer with a plain matrix, of sizes that are not 0.
pub(crate) fn stream(queue: &mut Queue, p: &Problem<'_>, weight: &CpuWeight, out: &mut [f32]) {
    // More rows than the op is meant for cost one more pass each time, not an error.
    let groups = p.x.chunks(MAX_ROWS * p.n_in).zip(out.chunks_mut(MAX_ROWS * p.n_out));
    for (x, out) in groups {
        let p = Problem { x, ..*p };
        let isa = queue.team.isa();
        let len = PlainWork::scratch_len(isa, weight, x.len() / p.n_in, p.n_in);
        let [scratch] = queue.shared.floats([len]);
        let work = PlainWork::new(isa, &p, weight, scratch);
        let out = Shared::new(out);
        queue.team.for_each(work.n_items(), work.cost(), |_, i| work.item(isa, out, i));
    }
}

/// A product of up to [`MAX_ROWS`] rows with a plain matrix, cut into blocks of weight rows.
#[derive(Clone, Copy)]
pub(crate) struct PlainWork<'a> {
    weight: &'a CpuWeight,
    dtype: DType,
    x: Rows<'a>,
    n_rows: usize,
    n_in: usize,
    n_out: usize,
    bias: Option<&'a [f32]>,
    add: bool,
    /// Weight rows of an item.
    block: usize,
}

impl<'a> PlainWork<'a> {
    /// Elements that [`PlainWork::new`] needs for the rows of x.
    pub(crate) fn scratch_len(
        isa: SupportedIsa,
        weight: &CpuWeight,
        n_rows: usize,
        n_in: usize,
    ) -> usize {
        weight.form(isa).few_len(n_rows, n_in)
    }

    /// # Panics
    /// If the weight is quantised.
    pub(crate) fn new(
        isa: SupportedIsa,
        p: &Problem<'a>,
        weight: &'a CpuWeight,
        scratch: &'a mut [f32],
    ) -> Self {
        let Problem { x, n_in, n_out, bias, add } = *p;
        let dtype = weight.dtype();
        let row_bytes = n_in * dtype.size();
        // A multiple of 3 and 4, the rows that the kernel does side by side.
        let wanted = n_out * row_bytes / ENOUGH_ITEMS;
        let item_bytes = wanted.clamp(ITEM_BYTES[0], ITEM_BYTES[1]);
        let block = (item_bytes / row_bytes).next_multiple_of(12).max(12);
        let n_rows = x.len() / n_in;
        let x = few(isa, weight.form(isa), x, n_in, scratch);
        Self { weight, dtype, x, n_rows, n_in, n_out, bias, add, block }
    }

    pub(crate) fn n_items(&self) -> usize {
        self.n_out.div_ceil(self.block)
    }

    pub(crate) fn cost(&self) -> Cost {
        Cost::bytes(self.n_out * self.n_in * self.dtype.size() * self.n_rows.div_ceil(4))
    }

    /// Item `i` of `out`, `[n_rows, n_out]`.
    pub(crate) fn item(&self, isa: SupportedIsa, out: Shared<'_, f32>, i: usize) {
        let Self { weight, dtype, x, n_rows, n_in: k, n_out, bias, add, block } = *self;
        let first = i * block;
        let last = (first + block).min(n_out);
        match x {
            Rows::Floats(x) => with_elem!(dtype, E => {
                let weights = &weight.elements::<E>()[first * k..last * k];
                isa.run(Matvec {
                    weights,
                    x,
                    n_rows,
                    k,
                    bias,
                    add,
                    out,
                    n_out,
                    first,
                    reads_ahead: isa.reads_ahead(),
                });
            }),
            Rows::Pairs(x) => {
                let weights = &weight.elements()[first * k..last * k];
                let (m, waiting) = (n_rows, &mut [][..]);
                isa.run_pairs(Pairs { x, m, weights, k, bias, add, out, n_out, first, waiting });
            }
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
