//! Time of one op on a device that may have a queue.
//!
//! Ops are recorded, then one word is read, which waits for all of them; the whole is timed and
//! nothing is subtracted. So many calls make a sample that the wait weighs nothing. Other work on
//! the machine only ever makes a sample slower: the best one counts.

use std::time::{Duration, Instant};

use longview_core::DType;
use longview_ops::{Backend, OpResult, View};
use pollster::block_on;

/// How long to measure, and how large operands are that no cache should hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// A sample takes at least this; zero: one call.
    sample: Duration,
    /// An op is sampled for at least this.
    total: Duration,
    samples: usize,
    /// Bytes of operands that come from memory, together.
    pub streamed_bytes: usize,
    /// What takes longer at the device's limits is left out.
    pub longest_call_s: f64,
}

impl Effort {
    /// A backend without counters computes when it is called: each call can be timed alone, and a
    /// short time is more likely to be undisturbed.
    pub fn new<B: Backend>(backend: &B, quick: bool) -> Self {
        let has_queue = backend.device_counters().is_some();
        let ms = |with_queue, without| {
            Duration::from_millis(if has_queue { with_queue } else { without })
        };
        if quick {
            let (sample, total, longest_call_s) = (ms(5, 0), ms(10, 10), 0.05);
            return Self { sample, total, samples: 1, streamed_bytes: 8 << 20, longest_call_s };
        }
        let (sample, total, longest_call_s) = (ms(100, 0), ms(500, 1000), 1.0);
        Self { sample, total, samples: 3, streamed_bytes: 256 << 20, longest_call_s }
    }
}

/// A backend with something to wait for.
pub(crate) struct Meter<B: Backend> {
    pub effort: Effort,
    mark: B::Buffer,
}

impl<B: Backend> Meter<B> {
    pub fn new(backend: &B, quick: bool) -> OpResult<Self> {
        let effort = Effort::new(backend, quick);
        Ok(Self { effort, mark: backend.alloc(DType::U32, 1, "mark")? })
    }

    /// Waits for everything before it.
    pub fn wait(&self, backend: &B) -> OpResult<()> {
        block_on(backend.read(View::all(&self.mark), &mut [0; 4]))
    }

    /// Seconds of one call of `op`, the best sample's mean.
    pub fn seconds(&self, backend: &B, op: &mut dyn FnMut() -> OpResult<()>) -> OpResult<f64> {
        // The first call compiles kernels and touches memory.
        op()?;
        self.wait(backend)?;
        let (start, mut best, mut n_samples, mut n_calls) = (Instant::now(), f64::MAX, 0, 1);
        loop {
            let took = self.sample(backend, op, n_calls)?;
            if took < self.effort.sample {
                n_calls = more_calls(n_calls, took, self.effort.sample);
                continue;
            }
            best = best.min(took.as_secs_f64() / n_calls as f64);
            n_samples += 1;
            let elapsed = start.elapsed();
            let enough = elapsed >= self.effort.total && n_samples >= self.effort.samples;
            if enough || elapsed >= self.effort.total * 2 {
                return Ok(best);
            }
        }
    }

    fn sample(
        &self,
        backend: &B,
        op: &mut dyn FnMut() -> OpResult<()>,
        n_calls: usize,
    ) -> OpResult<Duration> {
        let start = Instant::now();
        for call in 0..n_calls {
            op()?;
            // No submission takes long: drivers end those that do.
            if call % n_calls.div_ceil(8) == 0 {
                backend.submit()?;
            }
        }
        self.wait(backend)?;
        Ok(start.elapsed())
    }
}

/// Calls of the next sample, after one that was too short. It grows in steps, because a short
/// sample is mostly the wait.
fn more_calls(n_calls: usize, took: Duration, wanted: Duration) -> usize {
    let ratio = 1.1 * wanted.as_secs_f64() / took.as_secs_f64().max(1e-9);
    (n_calls as f64 * ratio.clamp(1.0, 16.0)).ceil() as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use longview_cpu::{CpuBackend, CpuOptions};

    #[test]
    fn samples_grow_until_they_are_long_enough() {
        let ms = Duration::from_millis;
        assert_eq!(more_calls(1, ms(50), ms(100)), 4);
        assert_eq!(more_calls(10, Duration::ZERO, ms(100)), 161);
        assert_eq!(more_calls(10, ms(99), ms(100)), 13);
        assert_eq!(more_calls(10, ms(200), ms(100)), 11, "never fewer");
    }

    fn meter(sample: Duration, samples: usize) -> (CpuBackend, Meter<CpuBackend>) {
        let backend = CpuBackend::new(CpuOptions { threads: 1, isa: None }).expect("a processor");
        let mut meter = Meter::new(&backend, true).expect("a word");
        meter.effort.sample = sample;
        meter.effort.samples = samples;
        (backend, meter)
    }

    #[test]
    fn a_call_takes_at_least_its_own_time() {
        let (backend, meter) = meter(Duration::from_millis(8), 1);
        let mut calls = 0;
        let seconds = meter.seconds(&backend, &mut || {
            calls += 1;
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        let seconds = seconds.expect("nothing fails");
        // No upper bounds: a busy machine sleeps for longer.
        assert!(seconds >= 1e-3, "{seconds}");
        assert!(calls >= 2, "the warm-up and a sample");
    }

    #[test]
    fn a_slow_op_is_not_run_for_every_sample() {
        let (backend, meter) = meter(Duration::ZERO, 100);
        let mut calls = 0;
        let seconds = meter.seconds(&backend, &mut || {
            calls += 1;
            std::thread::sleep(Duration::from_millis(25));
            Ok(())
        });
        assert!(seconds.expect("nothing fails") >= 25e-3);
        assert_eq!(calls, 2, "the warm-up and one sample over twice the time");
    }
}
