//! Whether a vendor's library multiplies as our own kernel does: asked before it is used.

use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_ops::*;

use crate::backend::CudaBackend;
use crate::driver::Driver;
use crate::library;
use crate::ops::matmul;

/// Sizes of a product to be compared: rows, width, rows of W.
pub(crate) type Sizes = [usize; 3];

/// A ragged one: a part of every tile.
pub(crate) const SIZES: Sizes = [131, 203, 164];

/// Whether the library's product is that of our kernel: in both types, with a bias and added to
/// what is there, and without. An error says where they differ.
pub(crate) async fn check<D: Driver>(backend: &CudaBackend<D>, sizes: Sizes) -> Result<(), String> {
    let capability = backend.driver().facts().compute_capability;
    let dtypes = [DType::F16, DType::BF16].into_iter();
    for dtype in dtypes.filter(|dtype| library::is_for(*dtype, capability)) {
        for accumulate in [false, true] {
            let [by_library, by_kernel] =
                [true, false].map(|by_library| Wanted { sizes, dtype, accumulate, by_library });
            let said = |e: OpError| e.to_string();
            let by_library = product(backend, by_library).await.map_err(said)?;
            let Some(by_library) = by_library else {
                return Err(format!("it does not multiply {sizes:?} of {dtype}"));
            };
            let by_kernel = product(backend, by_kernel).await.map_err(said)?.unwrap_or_default();
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

/// Which product, and who makes it.
struct Wanted {
    sizes: Sizes,
    dtype: DType,
    accumulate: bool,
    by_library: bool,
}

/// A product of seeded numbers, by the library or by our kernel; `None` where the library does not
/// take it.
async fn product<D: Driver>(
    backend: &CudaBackend<D>,
    wanted: Wanted,
) -> OpResult<Option<Vec<f32>>> {
    let Wanted { sizes: [n_rows, n_in, n_out], dtype, accumulate, by_library } = wanted;
    let mut rng = SplitMix64::new(29);
    let mut normals = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.next_normal()).collect() };
    let (w, b) = (normals(n_out * n_in), normals(n_out));
    let (x_numbers, before) = (normals(n_rows * n_in), normals(n_rows * n_out));
    let weight = |name: &str, n_rows: usize, n_cols: usize, numbers: &[f32]| {
        let bytes = HostBytes::from_vec(encode_f32(dtype, numbers));
        let (name, activations) = (name.into(), Activations::default());
        backend.load_weight(WeightSource { name, dtype, n_rows, n_cols, bytes, activations })
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
    let plain = w.plain(Op::Matmul)?;
    let mut d = Linear { p, x, weight: &w, bias, out: to };
    if !by_library {
        matmul::by_kernel(backend, d)?;
    } else if !library::run(backend, &mut d, plain)? {
        return Ok(None);
    }
    let mut bytes = vec![0; 4 * n_rows * n_out];
    backend.read(View::all(&out), &mut bytes).await?;
    let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Ok(Some(floats.collect()))
}
