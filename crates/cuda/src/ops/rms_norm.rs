//! Launches `rms_norm.cu`.

use longview_ops::{Op, OpResult, RmsNorm};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::RmsNormArgs;
use crate::kernels::Kernel;
use crate::variant::by_type;

/// Rows up to this width (norms of heads) have a warp each; wider ones a block.
pub(crate) const NARROW: usize = 256;
/// Warps of a block for narrow rows.
const NARROW_ROWS: usize = 8;

const WIDE: [Kernel; 3] =
    [Kernel::rms_norm_wide_f32, Kernel::rms_norm_wide_f16, Kernel::rms_norm_wide_bf16];
const NARROWS: [Kernel; 3] =
    [Kernel::rms_norm_narrow_f32, Kernel::rms_norm_narrow_f16, Kernel::rms_norm_narrow_bf16];

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: RmsNorm<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (n_rows, width) = (d.p.n_rows as usize, d.p.width as usize);
    d.weight.expect(Op::RmsNorm, 1, width)?;
    let plain = d.weight.plain(Op::RmsNorm)?;
    let args = RmsNormArgs {
        x: d.x.at(),
        weight: d.weight.address(),
        out: d.out.at(),
        n_rows: d.p.n_rows,
        width: d.p.width,
        eps: d.p.eps,
        accumulate: d.p.accumulate,
    };
    let (kernels, rows) = if width <= NARROW { (NARROWS, NARROW_ROWS) } else { (WIDE, 1) };
    backend.launch(by_type(plain.dtype, kernels), Grid::over(n_rows, rows), &args)
}
