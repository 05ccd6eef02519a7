//! Launches `matmul.cu`, or has a vendor's library make large products where it is installed.
//! `quantised` has the other weights.

use longview_ops::{Linear, Op, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::MatmulArgs;
use crate::kernels::Kernel;
use crate::library::{self, args_of_x};
use crate::ops::matvec;
use crate::quantised;
use crate::variant::{bias_of, by_type};
use crate::weight::Rows;

const WIDE: [Kernel; 3] =
    [Kernel::matmul_wide_f32, Kernel::matmul_wide_f16, Kernel::matmul_wide_bf16];
const NARROW: [Kernel; 3] =
    [Kernel::matmul_narrow_f32, Kernel::matmul_narrow_f16, Kernel::matmul_narrow_bf16];

/// The kernels, and the side of their tiles. Large tiles read less; but where they are too few for
/// all multiprocessors, or rows fill half of one at most, small ones are done earlier.
fn choose(n_rows: usize, n_out: usize, n_multiprocessors: usize) -> ([Kernel; 3], usize) {
    let n_wide = n_rows.div_ceil(128) * n_out.div_ceil(128);
    if n_rows > 64 && n_wide >= n_multiprocessors { (WIDE, 128) } else { (NARROW, 64) }
}

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    mut d: Linear<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check(Op::Matmul)?;
    let (n_rows, n_in, n_out) = (d.p.n_rows as usize, d.p.n_in as usize, d.p.n_out as usize);
    d.weight.expect(Op::Matmul, n_out, n_in)?;
    bias_of(Op::Matmul, &d)?;
    let plain = match d.weight.rows {
        Rows::Plain(plain) => plain,
        Rows::Tiled(tiled) => return quantised::linear(backend, Op::Matmul, &d, tiled),
    };
    if plain.keeps_x() {
        return matvec::stream(backend, Op::Matmul, &d, plain);
    }
    let is_large = library::suits(n_rows, plain, d.out.at());
    if is_large && backend.has_library() && library::run(backend, &mut d, plain)? {
        return Ok(());
    }
    by_kernel(backend, d)
}

/// By our own kernel; sizes were checked.
pub(crate) fn by_kernel<D: Driver>(
    backend: &CudaBackend<D>,
    d: Linear<'_, CudaBackend<D>>,
) -> OpResult<()> {
    let (n_rows, n_out) = (d.p.n_rows as usize, d.p.n_out as usize);
    let n_multiprocessors = backend.driver().facts().n_multiprocessors as usize;
    let (kernels, side) = choose(n_rows, n_out, n_multiprocessors);
    let (x, x_is_aligned) = args_of_x(&d);
    let plain = d.weight.plain(Op::Matmul)?;
    let (bias, bias_kind) = bias_of(Op::Matmul, &d)?;
    let args = MatmulArgs {
        x,
        weight: d.weight.address(),
        bias,
        out: d.out.at(),
        n_rows: d.p.n_rows,
        n_in: d.p.n_in,
        n_out: d.p.n_out,
        row_units: plain.row_units(),
        bias_kind,
        accumulate: d.p.accumulate,
        x_is_aligned,
        is_rounding: plain.is_rounding().into(),
    };
    // Blocks that share rows of W follow each other.
    let grid = Grid::new([n_rows.div_ceil(side), n_out.div_ceil(side), 1]);
    backend.launch(by_type(plain.dtype, kernels), grid, &args)
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn tiles_are_large_where_there_are_enough() {
        let side = |n_rows, n_out| choose(n_rows, n_out, 108).1;
        assert_eq!(side(64, 151_936), 64);
        assert_eq!(side(65, 151_936), 128);
        assert_eq!(side(512, 896), 64);
        assert_eq!(side(512, 4864), 128);
    }
}
