//! Products of many rows by a vendor's library (cuBLASLt), where it is installed.
//!
//! The library multiplies numbers of one type: x is rounded to the type of W first, as our own
//! kernel does on its way to shared memory, and a bias is put into `out` before, to which the
//! product is then added. Both are kernels of `matmul.cu`; only the product itself is a call, which
//! no graph can hold. Memory is a fixed part of the queue's scratch: more rows than fit are done in
//! several products.
//!
//! All of it but the call is tested without a GPU, where the emulated device multiplies in the
//! library's place. The call is proven where there is a GPU: when a device is opened, by
//! `library_check`, without which the library is not used, and by the GPU suite, at more shapes.

use longview_core::DType;
use longview_ops::{Linear, Op, OpResult, kind};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid, ProductCall};
use crate::kernel_args::{MatmulBiasArgs, MatmulRoundArgs};
use crate::kernels::Kernel;
use crate::variant::by_type;
use crate::weight::Plain;

/// Device memory that the library may use in a product.
const WORKSPACE: u64 = 32 << 20;
/// Rounded rows of x in one product.
const ROUNDED: u64 = 32 << 20;
/// What a queue that multiplies needs, for ever: a plan of memory leaves so much free.
pub(crate) const SCRATCH: u64 = WORKSPACE + ROUNDED;
/// Products of fewer rows are done before the call is.
const LEAST_ROWS: usize = 65;
/// Rows of a product, where there are several, are a multiple of this: each begins at 256 bytes.
const STEP: usize = 64;

/// Threads of a block of the kernels here.
const THREADS: usize = 256;

const ROUND: [Kernel; 3] =
    [Kernel::matmul_round_f16, Kernel::matmul_round_f16, Kernel::matmul_round_bf16];

/// Where x is, and whether every row of it begins at 16 bytes.
pub(crate) fn args_of_x<D: Driver>(d: &Linear<'_, CudaBackend<D>>) -> (Address, u32) {
    let x = d.x.at();
    (x, (x.is_aligned(16) && d.p.n_in.is_multiple_of(4)).into())
}

/// Whether a product is one for the library: large, of 16 bits, and at an address that its fast
/// kernels take.
pub(crate) fn suits(n_rows: usize, weight: Plain, out: Address) -> bool {
    let Plain { dtype, row_bytes, .. } = weight;
    let is_half = matches!(dtype, DType::F16 | DType::BF16);
    let fits = row_bytes > 0 && rows_at_once(row_bytes) > 0;
    is_half && n_rows >= LEAST_ROWS && fits && out.is_aligned(16)
}

/// Rows of x that fit into the scratch.
fn rows_at_once(row_bytes: usize) -> usize {
    ROUNDED as usize / row_bytes / STEP * STEP
}

/// Whether the library makes products with weights of such a type at all. Tensor cores know bf16
/// from compute capability 8.0 on; before, our own kernel multiplies rows of f32 by such weights.
pub(crate) fn is_for(dtype: DType, compute_capability: (u32, u32)) -> bool {
    dtype != DType::BF16 || compute_capability >= (8, 0)
}

/// Does it, or returns `false` where the library does not take such a product.
pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: &mut Linear<'_, CudaBackend<D>>,
    plain: Plain,
) -> OpResult<bool> {
    if !is_for(plain.dtype, backend.driver().facts().compute_capability) {
        return Ok(false);
    }
    let (n_rows, n_in, n_out) = (d.p.n_rows as usize, d.p.n_in as usize, d.p.n_out as usize);
    let (weight, out) = (d.weight, d.out.at());
    let at_once = rows_at_once(plain.row_bytes).min(n_rows);
    let call = |t: usize, scratch: Address| ProductCall {
        x: scratch.0 + WORKSPACE,
        weight: weight.address().0,
        out: out.0 + (t * n_out * 4) as u64,
        n_rows: (n_rows - t).min(at_once) as u32,
        n_out: d.p.n_out,
        width: (plain.row_bytes / 2) as u32,
        dtype: plain.dtype,
        accumulate: d.p.accumulate != 0 || d.bias.is_some(),
        workspace: scratch.0,
        workspace_bytes: WORKSPACE,
    };
    let starts = (0..n_rows).step_by(at_once);
    // All but the last are alike.
    let last = (n_rows - 1) / at_once * at_once;
    if ![0, last].iter().all(|t| backend.driver().takes_product(&call(*t, Address::NONE))) {
        return Ok(false);
    }
    backend.queue.with_scratch(SCRATCH, |scratch| {
        if let Some(bias) = d.bias {
            let args = MatmulBiasArgs {
                bias: bias.address(),
                out,
                n_rows: d.p.n_rows,
                n_out: d.p.n_out,
                bias_kind: kind(bias.plain(Op::Matmul)?.dtype),
                accumulate: d.p.accumulate,
            };
            backend.launch(Kernel::matmul_bias, Grid::over(n_rows * n_out, THREADS), &args)?;
        }
        let (x, x_is_aligned) = args_of_x(d);
        for t in starts {
            let call = call(t, scratch);
            let args = MatmulRoundArgs {
                x: Address(x.0 + (t * n_in * 4) as u64),
                to: Address(call.x),
                n_rows: call.n_rows,
                n_in: d.p.n_in,
                row_units: plain.row_units(),
                x_is_aligned,
            };
            let n_units = call.n_rows as usize * plain.row_units() as usize;
            let kernel = by_type(plain.dtype, ROUND);
            backend.launch(kernel, Grid::over(n_units, THREADS), &args)?;
            backend.queue.multiply(&call)?;
        }
        Ok(())
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use longview_ops::Activations;

    use super::*;

    #[test]
    fn large_products_of_16_bits_are_for_the_library() {
        let out = Address(4096);
        let activations = Activations::default();
        let [f32, f16, bf16] = [(DType::F32, 3584), (DType::F16, 1792), (DType::BF16, 1792)]
            .map(|(dtype, row_bytes)| Plain { dtype, row_bytes, activations });
        assert!(suits(65, f16, out) && suits(512, bf16, out));
        assert!(!suits(64, f16, out), "too few rows");
        assert!(!suits(512, f32, out), "f32");
        assert!(!suits(512, f16, Address(4100)), "not at 16 bytes");
        let long = Plain { row_bytes: 1 << 20, ..f16 };
        assert!(!suits(512, long, out), "rows too long for the scratch");
    }

    #[test]
    fn slices_of_rows_fill_the_scratch_and_begin_at_256_bytes() {
        for row_bytes in [16, 1792, 37_888, 1 << 19] {
            let n = rows_at_once(row_bytes);
            assert!(n.is_multiple_of(STEP) && n > 0);
            assert!((n * row_bytes) as u64 <= ROUNDED && ((n + STEP) * row_bytes) as u64 > ROUNDED);
        }
    }
}
