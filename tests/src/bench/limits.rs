//! What the device can do at best, measured in the same process: shares are of these.

use longview_core::DType;
use longview_cpu::CpuBackend;
use longview_ops::{Argmax, ArgmaxParams, Backend, DeviceBuffer, OpError, OpResult, View, ViewMut};

use super::dense::LinearCase;
use super::harness::{Bench, Case};
use super::kv::GatherCase;
use super::rates::{Limit, Limits};

/// Smallest copy that says something.
const LEAST_COPY: usize = 4 << 20;

/// Longest matrix product that is worth a try.
const LONGEST_MATMUL_S: f64 = 0.5;

/// Rows, inputs and outputs of the products tried, each about 8 times the one before.
const MATMULS: &[(usize, usize, usize)] =
    &[(256, 1024, 1024), (512, 2048, 2048), (1024, 4096, 4096), (4096, 4096, 8192)];

impl Limits {
    /// The processor's own, without any op: streaming reads, and FMAs in registers.
    pub fn of_cpu(backend: &CpuBackend) -> Self {
        let limits = backend.measure_limits();
        let (read, fma) = (limits.read_gbps, limits.fma_gflops);
        Self {
            memory: Limit { rate: read, name: "read" },
            arithmetic: Limit { rate: fma, name: "FMA" },
            link: Limit { rate: read, name: "read" },
            text: format!(
                "limits: {read:.1} GB/s streaming read, {fma:.1} GFLOP/s f32 FMA in registers"
            ),
        }
    }

    /// Those of a device that only ops can use: a large copy, and the fastest large product.
    pub fn of_ops<B: Backend>(bench: &mut Bench<'_, B>) -> OpResult<Self> {
        let (copy, bytes) = copy_gbps(bench)?;
        let read = read_gbps(bench, bytes)?;
        let mut best = (0.0, String::new());
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if bench.backend.capabilities().weight_dtypes.contains(&dtype) {
                let found = matmul_gflops(bench, dtype)?;
                best = if found.0 > best.0 { found } else { best };
            }
        }
        let (product, shape) = best;
        let link = link_gbps(bench, bytes)?;
        let wait = bench.seconds(&mut || bench.meter.wait(bench.backend))? * 1e6;
        let text = format!(
            "limits: {copy:.2} GB/s copy (kv_gather of long rows, {} MiB, read + written), \
             {product:.2} GFLOP/s {shape}\n\
             beside them: {read:.2} GB/s read (argmax of long rows), {}, {wait:.1} us to wait for \
             one word",
            bytes >> 20,
            link.map_or("no host memory is read".into(), |rate| {
                format!("{rate:.2} GB/s from host memory (kv_gather of long rows)")
            }),
        );
        Ok(Self {
            memory: Limit { rate: copy, name: "copy" },
            arithmetic: Limit { rate: product, name: "matmul" },
            link: Limit { rate: link.unwrap_or(copy), name: "link" },
            text,
        })
    }
}

/// The rate of a copy, and its bytes in one direction: as many as a buffer may have, up to what no
/// cache holds.
pub(super) fn copy_gbps<B: Backend>(bench: &mut Bench<'_, B>) -> OpResult<(f64, usize)> {
    let mut bytes = bench.streamed_bytes();
    loop {
        match GatherCase::long_rows(bytes).seconds(bench) {
            Ok(seconds) => return Ok((2.0 * bytes as f64 / seconds / 1e9, bytes)),
            Err(OpError::OutOfMemory { .. }) if bytes > LEAST_COPY => bytes /= 2,
            Err(error) => return Err(error),
        }
    }
}

/// The rate of a copy of long rows from host memory; `None` where kernels read none of another
/// kind.
fn link_gbps<B: Backend>(bench: &mut Bench<'_, B>, bytes: usize) -> OpResult<Option<f64>> {
    let capabilities = bench.backend.capabilities();
    if !capabilities.reads_host_memory || capabilities.unified_memory {
        return Ok(None);
    }
    let seconds = GatherCase::long_rows(bytes).recalled().seconds(bench)?;
    Ok(Some(bytes as f64 / seconds / 1e9))
}

fn read_gbps<B: Backend>(bench: &mut Bench<'_, B>, bytes: usize) -> OpResult<f64> {
    let width = 16_384;
    let n_rows = (bytes / 4 / width).max(1);
    let x = bench.buffer(DType::F32, n_rows * width)?;
    let backend = bench.backend;
    let mut out = backend.alloc(DType::U32, n_rows, "out")?;
    let p = ArgmaxParams { n_rows: n_rows as u32, width: width as u32 };
    let seconds = bench.seconds(&mut || {
        backend.argmax(Argmax { p, x: View::all(&x), out: ViewMut::all(&mut out) })
    })?;
    Ok(x.size_bytes() as f64 / seconds / 1e9)
}

/// The rate of the largest product that does not take too long, and what it was.
fn matmul_gflops<B: Backend>(bench: &mut Bench<'_, B>, dtype: DType) -> OpResult<(f64, String)> {
    let mut best = (0.0, String::new());
    for (i, &(m, k, n)) in MATMULS.iter().enumerate() {
        let flop = 2.0 * (m * k * n) as f64;
        if i > 0 && (bench.quick || flop / best.0 / 1e9 > LONGEST_MATMUL_S) {
            break;
        }
        let rate = flop / LinearCase::matmul(dtype, m, k, n).seconds(bench)? / 1e9;
        if rate > best.0 {
            best = (rate, format!("matmul {dtype} {m} x {k} -> {n}"));
        }
    }
    Ok(best)
}
