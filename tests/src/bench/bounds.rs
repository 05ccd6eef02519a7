//! What the bytes and FLOP of every case imply on GPUs that are not here: targets for those who
//! measure there.
//!
//! A bound is the longest of three times: bytes of device memory at its peak rate, bytes from host
//! memory at what the link really gives, products at the peak of the units that make them. No
//! kernel is faster, but where operands stay in caches; a launch costs some microseconds on top.

use std::io::Write;

use anyhow::Result;
use longview_cpu::CpuBackend;

use super::cases::cases;
use super::harness::Work;
use super::token_model;

/// A GPU by its data sheet.
struct Gpu {
    name: &'static str,
    memory_gbps: f64,
    /// From host memory: what is left of the link's peak for a kernel that reads rows.
    link_gbps: f64,
    /// Dense products of 16-bit numbers with f32 sums.
    tensor_tflops: f64,
    f32_tflops: f64,
}

const GPUS: [Gpu; 2] = [
    Gpu {
        name: "RTX 4090",
        memory_gbps: 1008.0,
        link_gbps: 25.0,
        tensor_tflops: 165.0,
        f32_tflops: 82.6,
    },
    Gpu {
        name: "H200",
        memory_gbps: 4800.0,
        link_gbps: 55.0,
        tensor_tflops: 989.0,
        f32_tflops: 67.0,
    },
];

/// What takes longest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limit {
    seconds: f64,
    what: &'static str,
}

impl Gpu {
    fn limit(&self, work: &Work) -> Limit {
        let (what, tflops) =
            if work.is_16_bit { ("tensor", self.tensor_tflops) } else { ("f32", self.f32_tflops) };
        let times = [
            Limit { seconds: work.bytes / self.memory_gbps / 1e9, what: "memory" },
            Limit { seconds: work.link_bytes / self.link_gbps / 1e9, what: "link" },
            Limit { seconds: work.flop / tflops / 1e12, what },
        ];
        times.into_iter().fold(times[0], |a, b| if b.seconds > a.seconds { b } else { a })
    }
}

/// Prints the bound of every case whose title contains `filter`; and what a decoded token takes by
/// its launches, if "token" contains it.
///
/// # Errors
/// If the launches of a token cannot be recorded, or `out` takes nothing.
pub fn bounds(filter: &str, out: &mut dyn Write) -> Result<()> {
    ops(filter, out)?;
    if TOKEN.contains(filter) {
        token_model::tokens(out)?;
    }
    Ok(())
}

fn ops(filter: &str, out: &mut dyn Write) -> Result<()> {
    for gpu in &GPUS {
        let Gpu { name, memory_gbps, link_gbps, tensor_tflops, f32_tflops, .. } = gpu;
        writeln!(
            out,
            "{name}: {memory_gbps} GB/s memory, {link_gbps} GB/s from host memory, \
             {tensor_tflops} TFLOP/s of 16-bit products, {f32_tflops} TFLOP/s f32"
        )?;
    }
    writeln!(out, "\n{:<58} {:>9} {:>9} {:>9}  {}", "", "MB", "host MB", "GFLOP", heads())?;
    // The list is the same for every backend, and none is opened.
    for case in cases::<CpuBackend>() {
        let title = case.title();
        if title.contains(filter) {
            writeln!(out, "{}", line(&title, &case.work()))?;
        }
    }
    Ok(out.flush()?)
}

fn heads() -> String {
    GPUS.iter().map(|gpu| format!("{:>20}", gpu.name)).collect()
}

fn line(title: &str, work: &Work) -> String {
    let limits = GPUS.iter().map(|gpu| {
        let Limit { seconds, what } = gpu.limit(work);
        format!("{:>10} {what:<9}", microseconds(seconds))
    });
    let limits: String = limits.collect();
    let [bytes, host] = [work.bytes, work.link_bytes].map(|n| figure(n / 1e6));
    let gflop = figure(work.flop / 1e9);
    format!("{title:<58} {bytes:>9} {host:>9} {gflop:>9}  {}", limits.trim_end())
}

fn microseconds(seconds: f64) -> String {
    format!("{} us", figure(seconds * 1e6))
}

/// Three digits; `-` for what there is nothing of.
fn figure(x: f64) -> String {
    match x {
        0.0 => "-".into(),
        x if x < 0.995 => format!("{x:.3}"),
        x if x < 9.95 => format!("{x:.2}"),
        x if x < 99.5 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

/// The title of the token.
const TOKEN: &str = "token";

#[cfg(test)]
mod tests {
    use super::*;
    use longview_core::DType;

    #[test]
    fn the_longest_time_bounds() {
        let [small, large] = &GPUS;
        let limit = |gpu: &Gpu, work| {
            let Limit { seconds, what } = gpu.limit(&work);
            (format!("{:.1}", seconds * 1e6), what)
        };
        let streamed = Work::memory(1_008_000_000, 1.0);
        assert_eq!(limit(small, streamed), ("1000.0".into(), "memory"));
        assert_eq!(limit(large, streamed), ("210.0".into(), "memory"));
        assert_eq!(limit(large, Work::link(55_000_000)), ("1000.0".into(), "link"));
        let product = Work::arithmetic(1, 165e9);
        assert_eq!(limit(small, product), ("1997.6".into(), "f32"));
        assert_eq!(limit(small, product.with(DType::BF16)), ("1000.0".into(), "tensor"));
        assert_eq!(limit(small, product.with(DType::F32)).1, "f32");
    }

    #[test]
    fn every_case_has_a_bound() {
        let text = |filter: &str| {
            let mut out = Vec::new();
            ops(filter, &mut out).expect("nothing fails");
            String::from_utf8(out).expect("text")
        };
        let all = text("");
        for op in ["matvec", "matmul", "attend_list", "look_up_rows", "top_k", "gram", "(host)"] {
            assert!(all.contains(op), "{op} is not in:\n{all}");
        }
        let n_cases = cases::<CpuBackend>().len();
        let ends = ["memory", "f32", "tensor", "link"];
        let has_bound =
            |line: &&str| line.contains(" us ") && ends.iter().any(|end| line.ends_with(end));
        assert_eq!(all.lines().filter(has_bound).count(), n_cases);
        let few = text("top_k 40 of 1 x 151936");
        assert_eq!(few.lines().filter(|line| line.starts_with("top_k")).count(), 1, "{few}");
    }
}
