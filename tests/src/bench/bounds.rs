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

/// A GPU by its data sheet.
struct Gpu {
    name: &'static str,
    memory_gbps: f64,
    /// From host memory: what is left of the link's peak for a kernel that reads rows.
    link_gbps: f64,
    /// Dense products of 16-bit numbers with f32 sums.
    tensor_tflops: f64,
    f32_tflops: f64,
    memory_bytes: f64,
}

const GPUS: [Gpu; 2] = [
    Gpu {
        name: "RTX 4090",
        memory_gbps: 1008.0,
        link_gbps: 25.0,
        tensor_tflops: 165.0,
        f32_tflops: 82.6,
        memory_bytes: 24e9,
    },
    Gpu {
        name: "H200",
        memory_gbps: 4800.0,
        link_gbps: 55.0,
        tensor_tflops: 989.0,
        f32_tflops: 67.0,
        memory_bytes: 141e9,
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

/// Prints the bound of every case whose title contains `filter`, then those of a decoded token.
pub fn bounds(filter: &str, out: &mut dyn Write) -> Result<()> {
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
    if TOKENS_TITLE.contains(filter) {
        tokens(out)?;
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

const TOKENS_TITLE: &str = "token";

/// The dimensions of Llama-3.1-8B.
struct Llama;

impl Llama {
    const LAYERS: f64 = 32.0;
    const HIDDEN: f64 = 4096.0;
    const FFN: f64 = 14_336.0;
    const KV_HEADS: f64 = 8.0;
    const HEAD_DIM: f64 = 128.0;
    const VOCAB: f64 = 128_256.0;
    const CONTEXT: f64 = 131_072.0;
    const BUDGET: f64 = 2048.0;
    const CLUSTER_TOKENS: f64 = 16.0;
    /// Of the recalled rows, as the paper of ClusterKV measured for one step of reuse.
    const MISSES: f64 = 0.37;

    /// In bf16, all that a token reads: of the embedding one row.
    fn weight_bytes() -> f64 {
        let attention = 2.0 * Self::HIDDEN * (Self::HIDDEN + Self::KV_HEADS * Self::HEAD_DIM);
        let ffn = 3.0 * Self::HIDDEN * Self::FFN;
        2.0 * (Self::LAYERS * (attention + ffn) + Self::HIDDEN * Self::VOCAB)
    }

    /// In f16, keys and values of so many tokens.
    fn row_bytes(n_tokens: f64) -> f64 {
        Self::LAYERS * Self::KV_HEADS * n_tokens * 2.0 * Self::HEAD_DIM * 2.0
    }

    /// The index is half a row for each cluster.
    fn index_bytes() -> f64 {
        Self::row_bytes(Self::CONTEXT / Self::CLUSTER_TOKENS) / 2.0
    }
}

/// Full attention and recall, by what a token reads for `batch` sequences: (title, bytes of device
/// memory, bytes from host memory, bytes that must lie on the device).
fn steps(batch: f64) -> [(String, f64, f64, f64); 2] {
    let weights = Llama::weight_bytes();
    let full = batch * Llama::row_bytes(Llama::CONTEXT);
    let attended = batch * (Llama::row_bytes(Llama::BUDGET) + Llama::index_bytes());
    let fetched = batch * Llama::row_bytes(Llama::BUDGET) * Llama::MISSES;
    // What is fetched is written once and read with the rest.
    [
        (format!("full, batch {batch}"), weights + full, 0.0, weights + full),
        (
            format!("clusterkv, batch {batch}"),
            weights + attended + fetched,
            fetched,
            weights + attended,
        ),
    ]
}

fn tokens(out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "\na decoded token, Llama-3.1-8B's shape, bf16 weights, f16 rows, {} tokens, B = {}, clusters \
         of {},\n{:.0} % misses: reading all it needs once; recall alone, then with the way from the \
         host in its shadow and in turns",
        Llama::CONTEXT,
        Llama::BUDGET,
        Llama::CLUSTER_TOKENS,
        100.0 * Llama::MISSES,
    )?;
    for gpu in &GPUS {
        for batch in [1.0, 4.0] {
            let [full, recall] = steps(batch);
            let ms = |bytes: f64| bytes / gpu.memory_gbps / 1e6;
            let link = recall.2 / gpu.link_gbps / 1e6;
            let (all, device) = (ms(full.1), ms(recall.1));
            let fits = if full.3 <= gpu.memory_bytes { "" } else { " (does not fit)" };
            writeln!(
                out,
                "{:<9} {:<10} {all:>7.2} ms{fits}; {} {device:.2} ms + {link:.2} ms of the link: \
                 {:.2} x in its shadow, {:.2} x in turns",
                gpu.name,
                full.0,
                recall.0,
                all / device.max(link),
                all / (device + link),
            )?;
        }
    }
    Ok(())
}

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
    fn every_case_and_the_tokens_have_a_bound() {
        let text = |filter: &str| {
            let mut out = Vec::new();
            bounds(filter, &mut out).expect("nothing fails");
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
        assert!(all.contains("a decoded token"));
        let few = text("top_k 40 of 1 x 151936");
        assert_eq!(few.lines().filter(|line| line.starts_with("top_k")).count(), 1, "{few}");
        assert!(!few.contains("a decoded token"));
    }

    #[test]
    fn a_token_reads_what_the_published_shape_has() {
        // 8.03 billion parameters, of which the embedding's 0.53 are not read.
        assert!((Llama::weight_bytes() / 2e9 - 7.5).abs() < 0.05, "{}", Llama::weight_bytes());
        // 16 GiB of keys and values at 128K.
        assert_eq!(Llama::row_bytes(Llama::CONTEXT), 16.0 * (1u64 << 30) as f64);
        let [full, recall] = steps(1.0);
        assert!(full.1 > 1.9 * recall.1 && recall.2 > 0.0);
    }
}
