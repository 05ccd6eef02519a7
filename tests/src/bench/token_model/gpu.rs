//! GPUs by their data sheets, and the constants of the model, each with where it is from.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    pub name: &'static str,
    pub compute_capability: (u32, u32),
    /// The column of `kernels/resources.txt`.
    pub target: &'static str,
    pub n_multiprocessors: u32,
    pub memory_bytes: u64,
    pub memory_gbps: f64,
    /// Of the bus, one way, as its standard has it.
    pub link_gbps: f64,
    /// Until a load from device memory is there, under load.
    pub memory_latency_us: f64,
    /// Until a load from the L2 cache is there.
    pub cache_latency_us: f64,
    /// Of a multiprocessor: threads, blocks, registers, bytes of shared memory.
    pub threads: u32,
    pub blocks: u32,
    pub registers: u32,
    pub shared: u32,
}

/// Rates: NVIDIA's data sheets ("Ada GPU architecture" white paper; "H100 Tensor Core GPU" and
/// "H200 Tensor Core GPU" data sheets). Links: PCIe 4.0 and 5.0 x16 behind their line code. Limits
/// of a multiprocessor: CUDA C++ programming guide, table of technical specifications by compute
/// capability. Latencies: cycles that microbenchmarks find (arXiv 2402.13499: about 540 and 480 to
/// memory, 270 and 260 to the L2 cache) at the boost clock of 2.52 and 1.755 GHz; those to memory
/// doubled, because loads queue where bandwidth is used up. The doubling is an assumption.
pub(super) const GPUS: [Gpu; 3] = [
    Gpu {
        name: "RTX 4090",
        compute_capability: (8, 9),
        target: "sm_89",
        n_multiprocessors: 128,
        memory_bytes: 24_000_000_000,
        memory_gbps: 1008.0,
        link_gbps: 31.5,
        memory_latency_us: 0.43,
        cache_latency_us: 0.11,
        threads: 1536,
        blocks: 24,
        registers: 65_536,
        shared: 102_400,
    },
    H100,
    Gpu { name: "H200", memory_bytes: 141_000_000_000, memory_gbps: 4800.0, ..H100 },
];

const H100: Gpu = Gpu {
    name: "H100 SXM",
    compute_capability: (9, 0),
    target: "sm_90",
    n_multiprocessors: 132,
    memory_bytes: 80_000_000_000,
    memory_gbps: 3350.0,
    link_gbps: 63.0,
    memory_latency_us: 0.55,
    cache_latency_us: 0.15,
    threads: 2048,
    blocks: 32,
    registers: 65_536,
    shared: 233_472,
};

/// What holds for all GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants {
    /// Of the data sheet's bandwidth, what a kernel that streams reaches.
    pub memory_share: f64,
    /// Of the link's, what a kernel that reads rows of host memory reaches.
    pub link_share: f64,
    /// From the end of a node to the work of the next.
    pub node_us: f64,
    /// A way to host memory and back.
    pub link_latency_us: f64,
    /// Setting a node of a graph.
    pub update_us: f64,
    /// Between two steps: the host sees the token, samples, records the first commands of the next
    /// step and launches their graph.
    pub step_us: f64,
    /// Of the recalled rows those that the device cache does not hold.
    pub misses: f64,
}

/// 85 % and 80 %: the goals of the kernels' own benches. 1 us a node: what a reading of the kernels
/// assumed; NVIDIA's "Getting started with CUDA graphs" shows 0.5 us beside kernels of 2.9 us. A
/// way over the bus, an update and the time between steps are assumptions that nobody measured. 37
/// % misses: the paper of ClusterKV, for one step of reuse.
pub(super) const CONSTANTS: Constants = Constants {
    memory_share: 0.85,
    link_share: 0.80,
    node_us: 1.0,
    link_latency_us: 1.2,
    update_us: 1.0,
    step_us: 20.0,
    misses: 0.37,
};

/// Registers of a thread and static shared memory of a block, as ptxas says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Resources {
    pub registers: u32,
    pub shared: u32,
}

const TARGETS: [&str; 7] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// What `kernels/resources.txt` says of a kernel; `None` for one that it does not list.
pub(super) fn resources(kernel: &str, target: &str) -> Option<Resources> {
    type Table = BTreeMap<&'static str, Vec<u32>>;
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let text = include_str!("../../../../kernels/resources.txt");
        let row = |line: &'static str| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            let numbers: Vec<u32> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
            (numbers.len() == TARGETS.len() + 1).then_some((name, numbers))
        };
        text.lines().filter_map(row).collect()
    });
    let numbers = table.get(kernel)?;
    let column = TARGETS.iter().position(|known| *known == target)?;
    Some(Resources { registers: numbers[column], shared: numbers[TARGETS.len()] })
}

impl Gpu {
    /// Blocks of a kernel that a multiprocessor holds at once.
    pub fn blocks_at_once(&self, threads: u32, r: Resources, dynamic_shared: u32) -> u32 {
        // Registers are given to warps in units of 256, shared memory with 1 KiB for the system.
        let warps = threads.div_ceil(32);
        let of_warp = (r.registers.max(16) * 32).next_multiple_of(256);
        let by_registers = self.registers / (of_warp * warps);
        let by_shared = self.shared / (r.shared + dynamic_shared + 1024);
        by_registers.min(by_shared).min(self.threads / threads).min(self.blocks).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_those_of_the_table() {
        let of = |kernel, target| resources(kernel, target).map(|r| (r.registers, r.shared));
        assert_eq!(of("attend_list_merge", "sm_75"), Some((80, 1028)));
        assert_eq!(of("attend_list_f16_128", "sm_89"), Some((156, 20_896)));
        assert_eq!(of("attend_list_f16_128", "sm_100"), Some((140, 20_896)));
        assert_eq!(of("no_kernel", "sm_89"), None);
        assert_eq!(of("kernel", "sm_89"), None);
    }

    #[test]
    fn blocks_are_limited_by_what_runs_out_first() {
        let [ada, hopper, _] = GPUS;
        let blocks = |gpu: &Gpu, threads, registers, shared, dynamic| {
            gpu.blocks_at_once(threads, Resources { registers, shared }, dynamic)
        };
        // 156 registers are 160 for each thread of a warp: 5,120; 4 warps are 20,480.
        assert_eq!(blocks(&ada, 128, 156, 20_896, 0), 3);
        assert_eq!(blocks(&ada, 256, 32, 0, 0), 6);
        assert_eq!(blocks(&hopper, 256, 32, 0, 0), 8);
        assert_eq!(blocks(&hopper, 32, 16, 0, 0), 32);
        assert_eq!(blocks(&hopper, 128, 32, 0, 100_000), 2);
        // Whatever was launched runs.
        assert_eq!(blocks(&ada, 1024, 255, 0, 0), 1);
    }
}
