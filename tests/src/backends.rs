//! Backends by name: the one place where tests learn which there are.

use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda::{
    CudaBackend, CudaOptions, Driver, Grid, Kernel, KernelCall, NvidiaDriver, Work,
};
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_ops::parity::{ParityRow, parity_part};
use longview_ops::{Backend, Op};
use longview_wgpu::{ShaderLevel, WgpuBackend, WgpuOptions};

/// Every backend that tests know, by the name it carries on command lines. `cuda-emulated` is
/// `cuda` without a GPU: the same launches, the same kernels compiled as C++.
pub const KNOWN: &[&str] = &["cpu", "wgpu", "cuda", "cuda-emulated"];

/// A name that is not in [`KNOWN`].
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownBackend(pub String);

impl std::fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown backend '{}': one of {}", self.0, KNOWN.join(", "))
    }
}

impl std::error::Error for UnknownBackend {}

/// Reads a list such as `cpu,wgpu`; empty entries are left out.
pub fn parse_list(text: &str) -> Result<Vec<&'static str>, UnknownBackend> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(find).collect()
}

/// Which cases of the corpus are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Of this op alone.
    pub op: Option<Op>,
    /// Every so-manieth case of an op, the first included.
    pub every: usize,
}

impl Sample {
    /// The whole corpus.
    pub const ALL: Self = Self { op: None, every: 1 };

    /// All cases of an op.
    pub fn of(op: Op) -> Self {
        Self { op: Some(op), every: 1 }
    }

    /// Which ops have cases in it.
    pub fn ops(self) -> impl Iterator<Item = Op> {
        Op::ALL.iter().copied().filter(move |op| self.op.is_none_or(|only| only == *op))
    }

    fn run(self, backend: &impl Backend) -> Vec<ParityRow> {
        let rows = |op| pollster::block_on(parity_part(backend, op, self.every));
        self.ops().flat_map(rows).collect()
    }
}

/// The parity rows of a backend: of the corpus, or the one row that says why it is absent.
pub fn parity_rows(name: &'static str, sample: Sample) -> Vec<ParityRow> {
    match name {
        "cpu" => cpu_rows(CpuOptions::default(), sample),
        "wgpu" => match wgpu_shader_level() {
            Ok(shader_level) => {
                wgpu_rows(&WgpuOptions { shader_level, ..WgpuOptions::default() }, sample)
            }
            Err(reason) => vec![ParityRow::absent(name, reason)],
        },
        "cuda" => cuda_rows(sample),
        "cuda-emulated" => match cuda_emulated(EmulatedOptions::default()) {
            Ok(backend) => sample.run(&backend),
            Err(reason) => vec![ParityRow::absent(name, reason)],
        },
        _ => vec![ParityRow::absent(name, "not in this build")],
    }
}

/// The parity rows of the CPU backend, started as told.
fn cpu_rows(options: CpuOptions, sample: Sample) -> Vec<ParityRow> {
    match CpuBackend::new(options) {
        Ok(backend) => sample.run(&backend),
        Err(e) => vec![ParityRow::absent("cpu", e.to_string())],
    }
}

/// The parity rows of a GPU, twice: as it is, and without a vendor's library, as if it had so few
/// multiprocessors that the corpus gets the kernels of large shapes.
fn cuda_rows(sample: Sample) -> Vec<ParityRow> {
    let mut rows = Vec::new();
    for n_multiprocessors in [None, Some(4)] {
        let own_products = n_multiprocessors.is_some();
        let options = CudaOptions { n_multiprocessors, own_products, ..Default::default() };
        match pollster::block_on(CudaBackend::new(&options)) {
            Ok(backend) => rows.extend(sample.run(&backend)),
            Err(e) => return vec![ParityRow::absent("cuda", e.to_string())],
        }
    }
    rows
}

/// The CUDA backend on the CPU.
pub fn cuda_emulated(options: EmulatedOptions) -> Result<CudaBackend<EmulatedDriver>, String> {
    CudaBackend::on(EmulatedDriver::new(options)?).map_err(|e| e.to_string())
}

/// The shader level named in `LONGVIEW_TIER`; none leaves the choice to the backend.
pub fn wgpu_shader_level() -> Result<Option<ShaderLevel>, String> {
    match std::env::var("LONGVIEW_TIER") {
        Ok(name) => name.parse().map(Some),
        Err(_) => Ok(None),
    }
}

/// Says on stderr that a test on a GPU was not run, because `LONGVIEW_NO_GPU` is set.
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
pub fn not_run() {
    eprintln!("NOT RUN on wgpu: LONGVIEW_NO_GPU is set");
}

/// The WGSL backend for a test; `None`, with a line that says so, where `LONGVIEW_NO_GPU` is set.
///
/// # Panics
/// If there is no adapter and nobody said that there need not be one.
pub fn wgpu() -> Option<Arc<WgpuBackend>> {
    wgpu_with(WgpuOptions::default())
}

/// The same for a test that counts bytes: memory and copies are real, and the kernels of one shader
/// do not run.
pub fn wgpu_without(shader: &'static str) -> Option<Arc<WgpuBackend>> {
    wgpu_with(WgpuOptions { left_out: Some(shader), ..WgpuOptions::default() })
}

fn wgpu_with(options: WgpuOptions) -> Option<Arc<WgpuBackend>> {
    if std::env::var_os("LONGVIEW_NO_GPU").is_some() {
        not_run();
        return None;
    }
    let shader_level = wgpu_shader_level().unwrap_or_else(|e| panic!("LONGVIEW_TIER: {e}"));
    match pollster::block_on(WgpuBackend::new(&WgpuOptions { shader_level, ..options })) {
        Ok(backend) => Some(Arc::new(backend)),
        Err(e) => panic!("{e}; set LONGVIEW_NO_GPU to go without"),
    }
}

/// The parity rows of the WGSL backend, opened as told.
fn wgpu_rows(options: &WgpuOptions, sample: Sample) -> Vec<ParityRow> {
    match pollster::block_on(WgpuBackend::new(options)) {
        Ok(backend) => sample.run(&backend),
        Err(e) => vec![ParityRow::absent("wgpu", e.to_string())],
    }
}

/// What checks want of a backend beside the contract.
pub trait Probe: Backend {
    /// Whether products of many rows with weights of 16 bits round the rows to the weights' type,
    /// as tensor cores want it.
    const ROUNDS_ACTIVATIONS: bool = false;

    /// Reads so far.
    fn n_readbacks(&self) -> u64 {
        self.device_counters().map_or(0, |counters| counters.readbacks)
    }

    /// Takes the device away, as its driver would; `false` where there is none to lose.
    fn lose(&self) -> bool;

    /// Graphs made so far, or why there are none; `None` where nothing is made into graphs.
    fn graphs(&self) -> Option<Result<u64, String>> {
        None
    }

    /// Compares products of these sizes by a vendor's library and by the backend's own kernels;
    /// `None` where the backend knows no library, the outer error where it uses none.
    fn compare_products(&self, _sizes: [usize; 3]) -> Option<Result<Result<(), String>, String>> {
        None
    }

    /// Runs a kernel that reads where nothing is; `false` where that ends the whole process.
    fn fault(&self) -> bool {
        false
    }
}

impl Probe for CpuBackend {
    fn n_readbacks(&self) -> u64 {
        self.readbacks()
    }

    fn lose(&self) -> bool {
        false
    }
}

impl Probe for WgpuBackend {
    fn lose(&self) -> bool {
        self.destroy_device();
        true
    }
}

/// What [`Probe::graphs`] says of a CUDA device.
fn graphs_of<D: Driver>(backend: &CudaBackend<D>) -> Option<Result<u64, String>> {
    Some(backend.no_graphs().map_or(Ok(backend.counters().graphs), Err))
}

impl Probe for CudaBackend<EmulatedDriver> {
    const ROUNDS_ACTIVATIONS: bool = true;

    fn lose(&self) -> bool {
        self.lose_device();
        true
    }

    fn graphs(&self) -> Option<Result<u64, String>> {
        graphs_of(self)
    }

    fn compare_products(&self, sizes: [usize; 3]) -> Option<Result<Result<(), String>, String>> {
        Some(self.library().map(|()| pollster::block_on(self.check_library(sizes))))
    }
}

impl Probe for CudaBackend<NvidiaDriver> {
    const ROUNDS_ACTIVATIONS: bool = true;

    fn lose(&self) -> bool {
        self.lose_device();
        true
    }

    fn graphs(&self) -> Option<Result<u64, String>> {
        graphs_of(self)
    }

    fn compare_products(&self, sizes: [usize; 3]) -> Option<Result<Result<(), String>, String>> {
        Some(self.library().map(|()| pollster::block_on(self.check_library(sizes))))
    }

    fn fault(&self) -> bool {
        let kernel = Kernel::silu_mul;
        let layout = kernel.facts().args;
        let mut args = vec![0; layout.size as usize];
        // Three addresses, and a number of elements: 16 elements where nothing is.
        for field in layout.fields {
            args[field.offset as usize] = 16;
        }
        let (driver, grid) = (self.driver(), Grid::over(16, 256));
        let call = KernelCall { kernel, grid, args: &args };
        let Ok(stream) = driver.new_stream() else { return true };
        // SAFETY: none: the kernel faults, which ends the context and nothing else; that is what
        // the check is about.
        let _ = unsafe { driver.run(&stream, Work::Launch(call)) };
        // The fault is found when somebody waits.
        let _ = driver.synchronize(&stream);
        true
    }
}

fn find(name: &str) -> Result<&'static str, UnknownBackend> {
    let known = KNOWN.iter().copied().find(|known| *known == name);
    known.ok_or_else(|| UnknownBackend(name.to_owned()))
}
