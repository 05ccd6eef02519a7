//! Backends by name: the one place where tests learn which there are.

use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda::{CudaBackend, CudaOptions};
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_ops::Op;
use longview_ops::parity::{ParityRow, run_parity};
use longview_wgpu::{Tier, WgpuBackend, WgpuOptions};

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

/// The parity rows of a backend: of the corpus, or the one row that says why it is absent.
pub fn parity_rows(name: &'static str, op: Option<Op>) -> Vec<ParityRow> {
    match name {
        "cpu" => cpu_rows(CpuOptions::default(), op),
        "wgpu" => match wgpu_tier() {
            Ok(tier) => wgpu_rows(&WgpuOptions { tier, adapter: None }, op),
            Err(reason) => vec![ParityRow::absent(name, reason)],
        },
        "cuda" => cuda_rows(op),
        "cuda-emulated" => match cuda_emulated(EmulatedOptions::default()) {
            Ok(backend) => run_parity(&backend, op),
            Err(reason) => vec![ParityRow::absent(name, reason)],
        },
        _ => vec![ParityRow::absent(name, "not in this build")],
    }
}

/// The parity rows of the CPU backend, started as told.
pub fn cpu_rows(options: CpuOptions, op: Option<Op>) -> Vec<ParityRow> {
    match CpuBackend::new(options) {
        Ok(backend) => run_parity(&backend, op),
        Err(e) => vec![ParityRow::absent("cpu", e.to_string())],
    }
}

/// The parity rows of a GPU, twice: as it is, and as if it had so few multiprocessors that the
/// corpus gets the kernels of large shapes.
fn cuda_rows(op: Option<Op>) -> Vec<ParityRow> {
    let mut rows = Vec::new();
    for n_multiprocessors in [None, Some(4)] {
        let options = CudaOptions { n_multiprocessors, ..Default::default() };
        match pollster::block_on(CudaBackend::new(&options)) {
            Ok(backend) => rows.extend(run_parity(&backend, op)),
            Err(e) => return vec![ParityRow::absent("cuda", e.to_string())],
        }
    }
    rows
}

/// The CUDA backend on the CPU.
pub fn cuda_emulated(options: EmulatedOptions) -> Result<CudaBackend<EmulatedDriver>, String> {
    CudaBackend::on(EmulatedDriver::new(options)?).map_err(|e| e.to_string())
}

/// The tier named in `LONGVIEW_TIER`; none leaves the choice to the backend.
pub fn wgpu_tier() -> Result<Option<Tier>, String> {
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
    if std::env::var_os("LONGVIEW_NO_GPU").is_some() {
        not_run();
        return None;
    }
    let tier = wgpu_tier().unwrap_or_else(|e| panic!("LONGVIEW_TIER: {e}"));
    let options = WgpuOptions { adapter: None, tier };
    match pollster::block_on(WgpuBackend::new(&options)) {
        Ok(backend) => Some(Arc::new(backend)),
        Err(e) => panic!("{e}; set LONGVIEW_NO_GPU to go without"),
    }
}

/// The parity rows of the WGSL backend, opened as told.
pub fn wgpu_rows(options: &WgpuOptions, op: Option<Op>) -> Vec<ParityRow> {
    match pollster::block_on(WgpuBackend::new(options)) {
        Ok(backend) => run_parity(&backend, op),
        Err(e) => vec![ParityRow::absent("wgpu", e.to_string())],
    }
}

fn find(name: &str) -> Result<&'static str, UnknownBackend> {
    let known = KNOWN.iter().copied().find(|known| *known == name);
    known.ok_or_else(|| UnknownBackend(name.to_owned()))
}
