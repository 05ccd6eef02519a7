//! Products of many rows by a vendor's library (cuBLASLt), where it is installed.
//!
//! The library multiplies numbers of one type: x is rounded to the type of W first, as our own
//! kernel does on its way to shared memory, and a bias is put into `out` before, to which the
//! product is then added. Both are kernels of `matmul.cu`; only the product itself is a call, which
//! no graph can hold. Memory is a fixed part of the queue's scratch: more rows than fit are done in
//! several products.
//!
//! All of it but the call is tested without a GPU, where the emulated device multiplies in the
//! library's place. The call is proven where there is a GPU: when a device is opened, by [`check`],
//! without which the library is not used, and by the GPU suite, at more shapes.

use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_ops::*;

use super::args_of_x;
use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid, ProductCall};
use crate::kernels::Kernel;
use crate::ops::{by_type, kind};

kernel_args! {
    /// See `matmul.cu`.
    MatmulRoundArgs {
        x: Address,
        to: Address,
        n_rows: u32,
        n_in: u32,
        row_units: u32,
        x_is_aligned: u32,
    }
}

kernel_args! {
    /// See `matmul.cu`.
    MatmulBiasArgs {
        bias: Address,
        out: Address,
        n_rows: u32,
        n_out: u32,
        bias_kind: u32,
        accumulate: u32,
    }
}

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

/// Whether a product is one for the library: large, of 16 bits, and at an address that its fast
/// kernels take.
pub(super) fn suits(n_rows: usize, row_bytes: usize, dtype: DType, out: Address) -> bool {
    let is_half = matches!(dtype, DType::F16 | DType::BF16);
    let fits = row_bytes > 0 && rows_at_once(row_bytes) > 0;
    is_half && n_rows >= LEAST_ROWS && fits && out.is_aligned(16)
}

/// Rows of x that fit into the scratch.
fn rows_at_once(row_bytes: usize) -> usize {
    ROUNDED as usize / row_bytes / STEP * STEP
}

/// Does it, or returns `false` where the library does not take such a product.
pub(super) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: &mut Linear<'_, CudaBackend<D>>,
) -> OpResult<bool> {
    let (n_rows, n_in, n_out) = (d.p.n_rows as usize, d.p.n_in as usize, d.p.n_out as usize);
    let (weight, out) = (d.weight, d.out.at());
    let at_once = rows_at_once(weight.row_bytes).min(n_rows);
    let call = |t: usize, scratch: Address| ProductCall {
        x: scratch.0 + WORKSPACE,
        weight: weight.address().0,
        out: out.0 + (t * n_out * 4) as u64,
        n_rows: (n_rows - t).min(at_once) as u32,
        n_out: d.p.n_out,
        width: (weight.row_bytes / 2) as u32,
        dtype: weight.dtype,
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
                bias_kind: kind(bias.dtype),
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
                row_units: weight.row_units(),
                x_is_aligned,
            };
            let n_units = call.n_rows as usize * weight.row_units() as usize;
            let kernel = by_type(weight.dtype, ROUND);
            backend.launch(kernel, Grid::over(n_units, THREADS), &args)?;
            backend.queue.multiply(&call)?;
        }
        Ok(())
    })?;
    Ok(true)
}

/// Sizes of a product to be compared: rows, width, rows of W.
pub(crate) type Sizes = [usize; 3];

/// A ragged one: a part of every tile.
pub(crate) const CHECKED: Sizes = [131, 203, 164];

/// Whether the library's product is that of our kernel: in both types, with a bias and added to
/// what is there, and without. An error says where they differ.
pub(crate) async fn check<D: Driver>(backend: &CudaBackend<D>, sizes: Sizes) -> Result<(), String> {
    for dtype in [DType::F16, DType::BF16] {
        for accumulate in [false, true] {
            let pair = [true, false].map(|by_library| (sizes, dtype, accumulate, by_library));
            let said = |e: OpError| e.to_string();
            let by_library = product(backend, pair[0]).await.map_err(said)?;
            let Some(by_library) = by_library else {
                return Err(format!("it does not multiply {sizes:?} of {dtype}"));
            };
            let by_kernel = product(backend, pair[1]).await.map_err(said)?.unwrap_or_default();
            let mut pairs = by_library.iter().zip(&by_kernel).enumerate();
            // The same rounded numbers; sums of them differ by their order alone.
            let differs = |a: f32, b: f32| (a - b).abs() > 1e-3 + 1e-4 * b.abs() || a.is_nan();
            if let Some((i, (a, b))) = pairs.find(|(_, (a, b))| differs(**a, **b)) {
                return Err(format!("{sizes:?} of {dtype}: {a} instead of {b} at {i}"));
            }
        }
    }
    Ok(())
}

/// A product of seeded numbers, by the library or by our kernel; `None` where the library does not
/// take it.
async fn product<D: Driver>(
    backend: &CudaBackend<D>,
    ([n_rows, n_in, n_out], dtype, accumulate, by_library): (Sizes, DType, bool, bool),
) -> OpResult<Option<Vec<f32>>> {
    let mut rng = SplitMix64::new(29);
    let mut normals = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.next_normal()).collect() };
    let (w, b) = (normals(n_out * n_in), normals(n_out));
    let (x_numbers, before) = (normals(n_rows * n_in), normals(n_rows * n_out));
    let weight = |name: &str, n_rows: usize, n_cols: usize, numbers: &[f32]| {
        let bytes = HostBytes::from_vec(encode_f32(dtype, numbers));
        backend.load_weight(WeightSource { name: name.into(), dtype, n_rows, n_cols, bytes })
    };
    let (w, b) = (weight("checked", n_out, n_in, &w)?, weight("checked bias", 1, n_out, &b)?);
    let mut x = backend.alloc(DType::F32, n_rows * n_in, "checked rows")?;
    let mut out = backend.alloc(DType::F32, n_rows * n_out, "checked product")?;
    backend.write(ViewMut::all(&mut x), &encode_f32(DType::F32, &x_numbers))?;
    backend.write(ViewMut::all(&mut out), &encode_f32(DType::F32, &before))?;
    let sizes = [n_rows, n_in, n_out].map(|n| n as u32);
    let p = LinearParams {
        n_rows: sizes[0],
        n_in: sizes[1],
        n_out: sizes[2],
        accumulate: accumulate.into(),
    };
    let bias = accumulate.then_some(&b);
    let (x, to) = (View::all(&x), ViewMut::all(&mut out));
    let mut d = Linear { p, x, weight: &w, bias, out: to };
    match by_library {
        true if !run(backend, &mut d)? => return Ok(None),
        true => {}
        false => super::by_kernel(backend, d)?,
    }
    let mut bytes = vec![0; 4 * n_rows * n_out];
    backend.read(View::all(&out), &mut bytes).await?;
    let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Ok(Some(floats.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_products_of_16_bits_are_for_the_library() {
        let out = Address(4096);
        assert!(suits(65, 1792, DType::F16, out) && suits(512, 1792, DType::BF16, out));
        assert!(!suits(64, 1792, DType::F16, out), "too few rows");
        assert!(!suits(512, 3584, DType::F32, out), "f32");
        assert!(!suits(512, 1792, DType::F16, Address(4100)), "not at 16 bytes");
        assert!(!suits(512, 1 << 20, DType::F16, out), "rows too long for the scratch");
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
