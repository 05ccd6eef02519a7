//! One bench of ops for every backend, written against the contract alone.
//!
//! Each case is timed (`meter`) and compared with limits that were measured on the same device in
//! the same process (`limits`). Bytes count the large operands of an op once (a copy: read and
//! written); FLOP are those of the equation. After the ops the embedded model decodes, and what a
//! token asks of the device is counted (`tokens`). What the same bytes and FLOP imply on GPUs that
//! are not here is `bounds`; whole steps over long contexts are `decode`.

mod attention;
mod bounds;
mod cluster;
pub mod decode;
mod dense;
mod kv;
mod limits;
mod meter;
mod random_model;
mod request;
mod select;
mod tokens;

pub use bounds::bounds;
pub use request::{Asked, Device, Request, USAGE};

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_cpu::CpuBackend;
use longview_cuda::CudaBackend;
use longview_ops::{Backend, Op, OpError, OpResult, ViewMut, WeightSource};
use longview_wgpu::WgpuBackend;

use limits::Limits;
use meter::Meter;

/// Operands up to here are meant to stay in cache.
const CACHED_BYTES: usize = 4 << 20;

/// Bytes handed to the device at once: its staging stays small.
const UPLOAD_BYTES: usize = 8 << 20;

/// Length of the block of random numbers that operands repeat.
const BLOCK: usize = 65_521;

/// Opens the device and measures; a line of the table as soon as it is known.
pub fn run(request: &Request, out: &mut dyn Write) -> Result<()> {
    match &request.device {
        Device::Cpu(options) => {
            let backend = Arc::new(CpuBackend::new(*options)?);
            let limits = Limits::of_cpu(&backend);
            measure(&backend, Some(limits), request, out)
        }
        Device::Wgpu(options) => {
            let backend = Arc::new(pollster::block_on(WgpuBackend::new(options))?);
            measure(&backend, None, request, out)
        }
        Device::Cuda(options) => {
            let backend = Arc::new(pollster::block_on(CudaBackend::new(options))?);
            measure(&backend, None, request, out)
        }
    }
}

/// All tables of one backend. Limits that its own crate cannot measure are measured by ops.
fn measure<B: Backend>(
    backend: &Arc<B>,
    limits: Option<Limits>,
    request: &Request,
    out: &mut dyn Write,
) -> Result<()> {
    let mut bench = Bench::new(&**backend, &request.filter, request.quick)?;
    writeln!(out, "{}", backend.capabilities().device)?;
    let limits = match limits {
        Some(limits) => limits,
        None => Limits::of_ops(&mut bench)?,
    };
    writeln!(out, "{}", limits.text)?;
    if request.quick {
        writeln!(out, "--quick: small operands, short samples; rates and shares mean little")?;
    }
    let mut table = Table { limits, out };
    table.add(&mut bench, &cases())?;
    tokens::table(&bench, backend, table.out)
}

/// Every case, in the order of the table.
fn cases<B: Backend>() -> Cases<B> {
    let parts =
        [dense::cases(), attention::cases(), kv::cases(), cluster::cases(), select::cases()];
    parts.into_iter().flatten().collect()
}

/// What bounds an op, and so which limit its share is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Memory,
    Arithmetic,
    /// The way from host memory to the device.
    Link,
}

/// What an op has to do at least.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Of the device's memory.
    bytes: f64,
    /// Of host memory.
    link_bytes: f64,
    flop: f64,
    /// Whether the products may be of 16 bits, as tensor cores make them.
    is_16_bit: bool,
    bound: Bound,
}

impl Work {
    /// Bound by memory.
    fn memory(bytes: usize, flop: f64) -> Self {
        let (bytes, bound) = (bytes as f64, Bound::Memory);
        Self { bytes, link_bytes: 0.0, flop, is_16_bit: false, bound }
    }

    /// Bound by arithmetic.
    fn arithmetic(bytes: usize, flop: f64) -> Self {
        Self { bound: Bound::Arithmetic, ..Self::memory(bytes, flop) }
    }

    /// Bound by the way from the host: `bytes` come along it and are written.
    fn link(bytes: usize) -> Self {
        Self { link_bytes: bytes as f64, bound: Bound::Link, ..Self::memory(bytes, 0.0) }
    }

    /// With one factor of the products in `dtype`.
    fn with(self, dtype: DType) -> Self {
        Self { is_16_bit: dtype != DType::F32, ..self }
    }

    /// Seconds at the limits: no device is faster, caches apart.
    fn seconds(&self, limits: &Limits) -> f64 {
        match self.bound {
            Bound::Memory => self.bytes / limits.memory.rate / 1e9,
            Bound::Arithmetic => self.flop / limits.arithmetic.rate / 1e9,
            Bound::Link => self.link_bytes / limits.link.rate / 1e9,
        }
    }
}

/// Backend, operands and clock of all cases.
struct Bench<'a, B: Backend> {
    backend: &'a B,
    meter: Meter<B>,
    filter: &'a str,
    quick: bool,
    rng: SplitMix64,
}

/// One case: a title, and how it is measured.
trait Case<B: Backend> {
    fn title(&self) -> String;
    fn work(&self) -> Work;
    /// Seconds of one call.
    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64>;
}

type Cases<B> = Vec<Box<dyn Case<B>>>;

/// Cases of one kind as cases of any.
fn boxed<B: Backend, C: Case<B> + 'static>(cases: impl IntoIterator<Item = C>) -> Cases<B> {
    cases.into_iter().map(|case| -> Box<dyn Case<B>> { Box::new(case) }).collect()
}

/// Lines, and what their shares are of.
struct Table<'a> {
    limits: Limits,
    out: &'a mut dyn Write,
}

impl Table<'_> {
    /// Measures the cases that the filter lets through. One that the device lacks the memory or
    /// the op for, or for which it is too slow, is told, and the others go on.
    fn add<B: Backend>(
        &mut self,
        bench: &mut Bench<'_, B>,
        cases: &[Box<dyn Case<B>>],
    ) -> Result<()> {
        let filter = bench.filter;
        for case in cases.iter().filter(|case| case.title().contains(filter)) {
            let predicted = case.work().seconds(&self.limits);
            if predicted > bench.meter.effort.longest_call_s {
                let title = case.title();
                writeln!(self.out, "{title:<52} NOT RUN: over {predicted:.1} s a call")?;
                continue;
            }
            let line = match case.seconds(bench) {
                Ok(seconds) => line(&case.title(), case.work(), seconds, &self.limits),
                Err(error @ (OpError::OutOfMemory { .. } | OpError::Unsupported { .. })) => {
                    format!("{:<52} NOT RUN: {error}", case.title())
                }
                Err(error) => return Err(error.into()),
            };
            writeln!(self.out, "{line}")?;
            self.out.flush()?;
        }
        Ok(())
    }
}

fn line(title: &str, work: Work, seconds: f64, limits: &Limits) -> String {
    let (gbps, gflops) = (work.bytes / seconds / 1e9, work.flop / seconds / 1e9);
    let (rate, limit) = match work.bound {
        Bound::Memory => (gbps, &limits.memory),
        Bound::Arithmetic => (gflops, &limits.arithmetic),
        Bound::Link => (work.link_bytes / seconds / 1e9, &limits.link),
    };
    let share = 100.0 * rate / limit.rate;
    format!(
        "{title:<52} {:>10.1} us {:>6} GB/s {:>6} GFLOP/s {share:>4.0} % of {}",
        seconds * 1e6,
        figure(gbps),
        figure(gflops),
        limit.name,
    )
}

/// A rate with as many digits as mean something; none for what an op does not do.
fn figure(rate: f64) -> String {
    match rate {
        0.0 => "-".into(),
        small if small < 10.0 => format!("{small:.2}"),
        large => format!("{large:.1}"),
    }
}

impl<'a, B: Backend> Bench<'a, B> {
    fn new(backend: &'a B, filter: &'a str, quick: bool) -> OpResult<Self> {
        let (meter, rng) = (Meter::new(backend, quick)?, SplitMix64::new(1));
        Ok(Self { backend, meter, filter, quick, rng })
    }
}

impl<B: Backend> Bench<'_, B> {
    fn seconds(&self, op: &mut dyn FnMut() -> OpResult<()>) -> OpResult<f64> {
        self.meter.seconds(self.backend, op)
    }

    /// Bytes of operands that no cache should hold.
    fn streamed_bytes(&self) -> usize {
        self.meter.effort.streamed_bytes
    }

    /// How many operands of `bytes` it takes, in turn, to find none of them in a cache.
    fn copies(&self, bytes: usize) -> usize {
        if bytes > CACHED_BYTES { self.streamed_bytes().div_ceil(bytes) } else { 1 }
    }

    /// Random numbers: a block of them, again and again, because normal numbers cost a logarithm.
    fn bytes(&mut self, dtype: DType, n: usize) -> Vec<u8> {
        let block: Vec<f32> = (0..n.min(BLOCK)).map(|_| self.rng.next_normal()).collect();
        let block = encode_f32(dtype, &block);
        let n_bytes = n * dtype.size();
        let mut bytes = Vec::with_capacity(n_bytes);
        while bytes.len() < n_bytes {
            let left = n_bytes - bytes.len();
            bytes.extend_from_slice(&block[..left.min(block.len())]);
        }
        bytes
    }

    fn buffer(&mut self, dtype: DType, n: usize) -> OpResult<B::Buffer> {
        let bytes = self.bytes(dtype, n);
        self.upload(dtype, &bytes)
    }

    fn words(&self, words: &[u32]) -> OpResult<B::Buffer> {
        self.upload(DType::U32, bytemuck::cast_slice(words))
    }

    fn upload(&self, dtype: DType, bytes: &[u8]) -> OpResult<B::Buffer> {
        let buffer = self.backend.alloc(dtype, bytes.len() / dtype.size(), "operand")?;
        self.fill(buffer, dtype, bytes)
    }

    /// As [`Bench::buffer`], in host memory that kernels of `op` read.
    fn host_buffer(&mut self, op: Op, dtype: DType, n: usize) -> OpResult<B::Buffer> {
        let buffer = self.backend.alloc_host(dtype, n, "operand on the host")?;
        let backend = self.backend.name();
        let reason = || "its kernels read no host memory".to_owned();
        let missing = || OpError::Unsupported { backend, op, reason: reason() };
        let bytes = self.bytes(dtype, n);
        self.fill(buffer.ok_or_else(missing)?, dtype, &bytes)
    }

    fn fill(&self, mut buffer: B::Buffer, dtype: DType, bytes: &[u8]) -> OpResult<B::Buffer> {
        let size = dtype.size();
        for (i, piece) in bytes.chunks(UPLOAD_BYTES).enumerate() {
            let dst = ViewMut::part(&mut buffer, i * UPLOAD_BYTES / size, piece.len() / size);
            self.backend.write(dst, piece)?;
        }
        Ok(buffer)
    }

    /// Weights of one shape, each in memory of its own.
    fn weights(
        &mut self,
        dtype: DType,
        n_rows: usize,
        n_cols: usize,
        copies: usize,
    ) -> OpResult<Vec<B::Weight>> {
        let bytes = self.bytes(dtype, n_rows * n_cols);
        let load = |_| {
            let (name, bytes) = ("weight".into(), HostBytes::from_vec(bytes.clone()));
            self.backend.load_weight(WeightSource { name, dtype, n_rows, n_cols, bytes })
        };
        (0..copies).map(load).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::limits::Limit;
    use super::*;

    fn limits() -> Limits {
        Limits {
            memory: Limit { rate: 20.0, name: "copy" },
            arithmetic: Limit { rate: 400.0, name: "matmul" },
            link: Limit { rate: 5.0, name: "link" },
            text: String::new(),
        }
    }

    #[test]
    fn shares_are_of_what_bounds_the_op() {
        let words = |work| {
            let line = line("op", work, 0.001, &limits());
            line.split_whitespace().skip(1).map(String::from).collect::<Vec<_>>().join(" ")
        };
        let memory = Work::memory(10_000_000, 2e6);
        assert_eq!(words(memory), "1000.0 us 10.0 GB/s 2.00 GFLOP/s 50 % of copy");
        let arithmetic = Work::arithmetic(10_000_000, 1e8);
        assert_eq!(words(arithmetic), "1000.0 us 10.0 GB/s 100.0 GFLOP/s 25 % of matmul");
        assert_eq!(words(Work::memory(20_000, 0.0)), "1000.0 us 0.02 GB/s - GFLOP/s 0 % of copy");
        assert_eq!(words(Work::link(1_000_000)), "1000.0 us 1.00 GB/s - GFLOP/s 20 % of link");
        assert_eq!(memory.seconds(&limits()), 0.0005);
        assert_eq!(Work::link(1_000_000).seconds(&limits()), 0.0002);
        assert_eq!(arithmetic.seconds(&limits()), 0.00025);
    }

    struct Thousand;

    impl<B: Backend> Case<B> for Thousand {
        fn title(&self) -> String {
            "a thousand GFLOP".into()
        }

        fn work(&self) -> Work {
            Work::arithmetic(1, 1e12)
        }

        fn seconds(&self, _: &mut Bench<'_, B>) -> OpResult<f64> {
            panic!("not run")
        }
    }

    #[test]
    fn what_would_take_too_long_is_told_and_not_run() {
        let backend = CpuBackend::new(longview_cpu::CpuOptions::default()).expect("a processor");
        let mut bench = Bench::new(&backend, "", false).expect("a word");
        let mut out = Vec::new();
        let mut table = Table { limits: limits(), out: &mut out };
        table.add(&mut bench, &boxed([Thousand])).expect("nothing fails");
        let text = String::from_utf8(out).expect("text");
        assert!(text.ends_with(" NOT RUN: over 2.5 s a call\n"), "{text}");
    }
}
