//! Loops that do nothing but load, or nothing but multiply and add.

use std::hint::black_box;

use crate::simd::{Kernel, Simd};

/// Independent sums: more than latency times throughput of any FMA unit.
const SUMS: usize = 12;

/// Reads everything once.
pub(crate) struct ReadAll<'a> {
    pub(crate) data: &'a [f32],
}

impl Kernel for ReadAll<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        let p = self.data.as_ptr();
        let step = 8 * S::LANES;
        let mut sums = [S::zero(); 8];
        let mut i = 0;
        while i + step <= self.data.len() {
            S::prefetch(p.wrapping_add(i + 2048));
            S::prefetch(p.wrapping_add(i + 2048 + step / 2));
            for (u, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, S::load(p.add(i + u * S::LANES)));
            }
            i += step;
        }
        sums.into_iter().map(|v| S::sum(v)).sum()
    }
}

/// `rounds` times [`SUMS`] FMAs on registers.
pub(crate) struct Spin {
    pub(crate) rounds: usize,
}

impl Kernel for Spin {
    /// FLOP done.
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        let (x, y) = (S::splat(black_box(0.999_999)), S::splat(black_box(1e-6)));
        let mut sums = [S::splat(1.0); SUMS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = S::fma(*sum, x, y);
            }
        }
        black_box(sums.into_iter().map(|v| S::sum(v)).sum::<f32>());
        self.rounds * SUMS * S::LANES * 2
    }
}
