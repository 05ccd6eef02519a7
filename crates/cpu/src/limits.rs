//! What this machine can do at best, measured the way ops run: the same threads, the same
//! instructions.
//!
//! Benches report shares of these. Both are upper bounds only as far as the machine is otherwise
//! idle.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::kernels::limits::{ReadAll, Spin};
use crate::queue::Queue;
use crate::scratch::Scratch;
use crate::team::Cost;

/// Bytes that are streamed: far more than any L3.
const READ_BYTES: usize = 512 << 20;

/// Bytes of one measurement; the next one reads others.
const SLICE: usize = 32 << 20;

/// Bytes of an item.
const ITEM: usize = 256 << 10;

/// Measurements; the best counts.
const SLICES: usize = 200;

/// FMA rounds of an item, about 10 us.
const ROUNDS: usize = 3_000;

/// The best of several measurements.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streaming read bandwidth, GB/s.
    pub read_gbps: f64,
    /// Register-resident f32 FMA rate, GFLOP/s.
    pub fma_gflops: f64,
}

impl Limits {
    pub(crate) fn measure(queue: &mut Queue) -> Self {
        let [data] = queue.shared.floats([READ_BYTES / 4]);
        data.fill(1.0);
        let data = &*data;
        let isa = queue.team.isa();
        let mut limits = Self { read_gbps: 0.0, fma_gflops: 0.0 };
        for round in 0..SLICES {
            // A slice is short, so that some of them are not disturbed on a busy machine.
            let start = Instant::now();
            let first = round % (READ_BYTES / SLICE) * SLICE;
            queue.team.for_each(SLICE / ITEM, Cost::bytes(SLICE), |_, i| {
                let at = (first + i * ITEM) / 4;
                black_box(isa.run(ReadAll { data: &data[at..at + ITEM / 4] }));
            });
            let rate = SLICE as f64 / start.elapsed().as_secs_f64() / 1e9;
            limits.read_gbps = limits.read_gbps.max(rate);
            let (start, flop) = (Instant::now(), AtomicUsize::new(0));
            queue.team.for_each(64, Cost::flop(usize::MAX / 2), |_, _| {
                flop.fetch_add(isa.run(Spin { rounds: ROUNDS }), Ordering::Relaxed);
            });
            let rate = flop.into_inner() as f64 / start.elapsed().as_secs_f64() / 1e9;
            limits.fma_gflops = limits.fma_gflops.max(rate);
        }
        queue.shared = Scratch::default();
        limits
    }
}
