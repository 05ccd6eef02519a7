//! Launches `matvec.cu`; `quantised` has the other weights.

use longview_ops::{Linear, Op, OpResult};

use crate::backend::CudaBackend;
use crate::driver::{Driver, Grid};
use crate::kernel_args::MatvecArgs;
use crate::kernels::Kernel;
use crate::quantised;
use crate::variant::{bias_of, by_type};
use crate::weight::{Plain, Rows};

/// Rows of x that one reading of the weight serves.
pub(crate) const MAX_ROWS: usize = 8;
/// Rows of W that a block owns.
const OUTS: usize = 4;

const F32: [Kernel; 4] =
    [Kernel::matvec_f32_1, Kernel::matvec_f32_2, Kernel::matvec_f32_4, Kernel::matvec_f32_8];
const F16: [Kernel; 4] =
    [Kernel::matvec_f16_1, Kernel::matvec_f16_2, Kernel::matvec_f16_4, Kernel::matvec_f16_8];
const BF16: [Kernel; 4] =
    [Kernel::matvec_bf16_1, Kernel::matvec_bf16_2, Kernel::matvec_bf16_4, Kernel::matvec_bf16_8];

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: Linear<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check(Op::Matvec)?;
    let (n_in, n_out) = (d.p.n_in as usize, d.p.n_out as usize);
    d.weight.expect(Op::Matvec, n_out, n_in)?;
    bias_of(Op::Matvec, &d)?;
    let plain = match d.weight.rows {
        Rows::Plain(plain) => plain,
        Rows::Tiled(tiled) => return quantised::linear(backend, Op::Matvec, &d, tiled),
    };
    stream(backend, Op::Matvec, &d, plain)
}

/// With any number of rows, of which a few at a time share a reading of the weight; sizes were
/// checked. The product of many rows for weights of bf16 that must not
/// round x.
pub(crate) fn stream<D: Driver>(
    backend: &CudaBackend<D>,
    op: Op,
    d: &Linear<'_, CudaBackend<D>>,
    plain: Plain,
) -> OpResult<()> {
    let (n_in, n_out) = (d.p.n_in as usize, d.p.n_out as usize);
    let (bias, bias_kind) = bias_of(op, d)?;
    let kernels = by_type(plain.dtype, [F32, F16, BF16]);
    let n_rows = d.p.n_rows as usize;
    // More rows than the op is meant for cost one more pass each time, not an error.
    for first in (0..n_rows).step_by(MAX_ROWS) {
        let n = MAX_ROWS.min(n_rows - first);
        let x = d.x.buffer.address(d.x.offset + first * n_in);
        let args = MatvecArgs {
            x,
            weight: d.weight.address(),
            bias,
            out: d.out.buffer.address(d.out.offset + first * n_out),
            n_rows: n as u32,
            n_in: d.p.n_in,
            n_out: d.p.n_out,
            row_units: plain.row_units(),
            bias_kind,
            accumulate: d.p.accumulate,
            x_is_aligned: (x.is_aligned(16) && n_in.is_multiple_of(4)).into(),
            is_rounding: plain.is_rounding().into(),
        };
        // 1, 2, 4 or 8 rows.
        let kernel = kernels[n.next_power_of_two().ilog2() as usize];
        backend.launch(kernel, Grid::over(n_out, OUTS), &args)?;
    }
    Ok(())
}
