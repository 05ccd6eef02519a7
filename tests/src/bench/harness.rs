//! What the cases of the bench share: the work of an op, the operands, the clock.

use longview_core::{DType, HostBytes, SplitMix64, encode_f32, kv8};
use longview_ops::{Activations, Backend, Op, OpError, OpResult, ViewMut, WeightSource};

use super::meter::Meter;
use super::rates::Limits;

/// Operands up to here are meant to stay in cache.
const CACHED_BYTES: usize = 4 << 20;

/// Bytes handed to the device at once: its staging stays small.
const UPLOAD_BYTES: usize = 8 << 20;

/// Length of the block of random numbers that operands repeat.
const BLOCK: usize = 65_521;

/// What bounds an op, and so which limit its share is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Memory,
    Arithmetic,
    /// The way from host memory to the device.
    Link,
}

/// What an op has to do at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Of the device's memory.
    pub(super) bytes: f64,
    /// Of host memory.
    pub(super) link_bytes: f64,
    pub(super) flop: f64,
    /// Whether the products may be of 16 bits, as tensor cores make them.
    pub(super) is_16_bit: bool,
    pub(super) bound: Bound,
}

impl Work {
    /// Bound by memory.
    pub(super) fn memory(bytes: usize, flop: f64) -> Self {
        let (bytes, bound) = (bytes as f64, Bound::Memory);
        Self { bytes, link_bytes: 0.0, flop, is_16_bit: false, bound }
    }

    /// Bound by arithmetic.
    pub(super) fn arithmetic(bytes: usize, flop: f64) -> Self {
        Self { bound: Bound::Arithmetic, ..Self::memory(bytes, flop) }
    }

    /// Bound by the way from the host: `bytes` come along it and are written.
    pub(super) fn link(bytes: usize) -> Self {
        Self { link_bytes: bytes as f64, bound: Bound::Link, ..Self::memory(bytes, 0.0) }
    }

    /// With one factor of the products in `dtype`.
    pub(super) fn with(self, dtype: DType) -> Self {
        Self { is_16_bit: dtype != DType::F32, ..self }
    }

    /// Seconds at the limits: no device is faster, caches apart.
    pub(super) fn seconds(&self, limits: &Limits) -> f64 {
        match self.bound {
            Bound::Memory => self.bytes / limits.memory.rate / 1e9,
            Bound::Arithmetic => self.flop / limits.arithmetic.rate / 1e9,
            Bound::Link => self.link_bytes / limits.link.rate / 1e9,
        }
    }
}

/// Backend, operands and clock of all cases.
pub(super) struct Bench<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) meter: Meter<B>,
    pub(super) filter: &'a str,
    pub(super) quick: bool,
    pub(super) rng: SplitMix64,
}

/// One case: a title, and how it is measured.
pub(super) trait Case<B: Backend> {
    fn title(&self) -> String;
    fn work(&self) -> Work;
    /// Whether the backend has kernels for it.
    fn is_possible(&self, _backend: &B) -> bool {
        true
    }
    /// Seconds of one call.
    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64>;
}

pub(super) type Cases<B> = Vec<Box<dyn Case<B>>>;

/// Cases of one kind as cases of any.
pub(super) fn boxed<B: Backend, C: Case<B> + 'static>(
    cases: impl IntoIterator<Item = C>,
) -> Cases<B> {
    cases.into_iter().map(|case| -> Box<dyn Case<B>> { Box::new(case) }).collect()
}

impl<'a, B: Backend> Bench<'a, B> {
    pub(super) fn new(backend: &'a B, filter: &'a str, quick: bool) -> OpResult<Self> {
        let (meter, rng) = (Meter::new(backend, quick)?, SplitMix64::new(1));
        Ok(Self { backend, meter, filter, quick, rng })
    }
}

impl<B: Backend> Bench<'_, B> {
    pub(super) fn seconds(&self, op: &mut dyn FnMut() -> OpResult<()>) -> OpResult<f64> {
        self.meter.seconds(self.backend, op)
    }

    /// Bytes of operands that no cache should hold.
    pub(super) fn streamed_bytes(&self) -> usize {
        self.meter.effort.streamed_bytes
    }

    /// How many operands of `bytes` it takes, in turn, to find none of them in a cache.
    pub(super) fn copies(&self, bytes: usize) -> usize {
        if bytes > CACHED_BYTES { self.streamed_bytes().div_ceil(bytes) } else { 1 }
    }

    /// Random numbers: a block of them, again and again, because normal numbers cost a logarithm.
    pub(super) fn bytes(&mut self, dtype: DType, n: usize) -> Vec<u8> {
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

    /// KV rows of random numbers, likewise: a block of them, again and again.
    pub(super) fn rows(&mut self, dtype: DType, n: usize, head_dim: usize) -> Vec<u8> {
        if dtype != DType::Q8 {
            return self.bytes(dtype, n * 2 * head_dim);
        }
        let n_block = n.min(BLOCK / (2 * head_dim)).max(1);
        let numbers: Vec<f32> =
            (0..n_block * 2 * head_dim).map(|_| self.rng.next_normal()).collect();
        let row_bytes = kv8::row_bytes(head_dim);
        let mut block = vec![0; n_block * row_bytes];
        for (numbers, row) in
            numbers.chunks_exact(2 * head_dim).zip(block.chunks_exact_mut(row_bytes))
        {
            let (key, value) = numbers.split_at(head_dim);
            kv8::encode(key, value, row);
        }
        block.into_iter().cycle().take(n * row_bytes).collect()
    }

    pub(super) fn buffer(&mut self, dtype: DType, n: usize) -> OpResult<B::Buffer> {
        let bytes = self.bytes(dtype, n);
        self.upload(dtype, &bytes)
    }

    pub(super) fn words(&self, words: &[u32]) -> OpResult<B::Buffer> {
        self.upload(DType::U32, bytemuck::cast_slice(words))
    }

    pub(super) fn upload(&self, dtype: DType, bytes: &[u8]) -> OpResult<B::Buffer> {
        let buffer = self.backend.alloc(dtype, bytes.len() / dtype.size(), "operand")?;
        self.fill(buffer, dtype, bytes)
    }

    /// As [`Bench::buffer`], in host memory that kernels of `op` read.
    pub(super) fn host_buffer(&mut self, op: Op, dtype: DType, n: usize) -> OpResult<B::Buffer> {
        let buffer = self.backend.alloc_host(dtype, n, "operand on the host")?;
        let backend = self.backend.name();
        let reason = || "its kernels read no host memory".to_owned();
        let missing = || OpError::Unsupported { backend, op, reason: reason() };
        let bytes = self.bytes(dtype, n);
        self.fill(buffer.ok_or_else(missing)?, dtype, &bytes)
    }

    pub(super) fn fill(
        &self,
        mut buffer: B::Buffer,
        dtype: DType,
        bytes: &[u8],
    ) -> OpResult<B::Buffer> {
        let size = dtype.size();
        for (i, piece) in bytes.chunks(UPLOAD_BYTES).enumerate() {
            let dst = ViewMut::part(&mut buffer, i * UPLOAD_BYTES / size, piece.len() / size);
            self.backend.write(dst, piece)?;
        }
        Ok(buffer)
    }

    /// Weights of one shape, each in memory of its own.
    pub(super) fn weights(
        &mut self,
        dtype: DType,
        n_rows: usize,
        n_cols: usize,
        copies: usize,
    ) -> OpResult<Vec<B::Weight>> {
        let bytes = self.bytes(dtype, n_rows * n_cols);
        let load = |_| {
            let (name, bytes) = ("weight".into(), HostBytes::from_vec(bytes.clone()));
            let activations = Activations::Bf16;
            let source = WeightSource { name, dtype, n_rows, n_cols, bytes, activations };
            self.backend.load_weight(source)
        };
        (0..copies).map(load).collect()
    }
}
