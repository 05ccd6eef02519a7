//! The table of the bench: a line a case, with its share of what bounds it.

use std::io::Write;

use anyhow::Result;
use longview_ops::{Backend, OpError};

use super::harness::{Bench, Bound, Case, Work};
use super::rates::Limits;

/// Lines, and what their shares are of.
pub(super) struct Table<'a> {
    pub(super) limits: Limits,
    pub(super) out: &'a mut dyn Write,
}

impl Table<'_> {
    /// Measures the cases that the filter lets through. One that the device lacks the memory or
    /// the op for, or for which it is too slow, is told, and the others go on.
    pub(super) fn add<B: Backend>(
        &mut self,
        bench: &mut Bench<'_, B>,
        cases: &[Box<dyn Case<B>>],
    ) -> Result<()> {
        let filter = bench.filter;
        let wanted = cases.iter().filter(|case| case.title().contains(filter));
        for case in wanted.filter(|case| case.is_possible(bench.backend)) {
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

pub(super) fn line(title: &str, work: Work, seconds: f64, limits: &Limits) -> String {
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
pub(super) fn figure(rate: f64) -> String {
    match rate {
        0.0 => "-".into(),
        small if small < 10.0 => format!("{small:.2}"),
        large => format!("{large:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use longview_cpu::CpuBackend;
    use longview_ops::OpResult;

    use super::super::harness::boxed;
    use super::super::rates::Limit;
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
