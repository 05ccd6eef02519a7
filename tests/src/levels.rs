//! The corpus on the WGSL backend at each of its shader levels.
//!
//! Most of the time goes into compiling: every level has kernels of its own. So as a rule the cases
//! of an op take turns: each runs at one level, and every level sees every value of every constant
//! of every kernel. To know them before anything is compiled, the cases are launched on a device
//! that lists what it is asked for.
//!
//! The devices of the lower levels are made with less than the adapter has: the limits that WebGPU
//! guarantees, and bindings of a size that is no multiple of anything.

use longview_ops::corpus::{Case, cases_of, turns};
use longview_ops::parity::{ParityRow, parity_of_cases};
use longview_wgpu::{ShaderLevel, WgpuBackend, WgpuOptions};
use pollster::block_on;

use crate::backends::Sample;

/// Which level takes which case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Every level takes all.
    All,
    /// They take turns.
    Turns,
}

/// How a level went.
pub struct LevelRows {
    /// Which.
    pub level: ShaderLevel,
    /// A row for each op, and for what it lacks.
    pub rows: Vec<ParityRow>,
    /// Cases that it took.
    pub n_taken: usize,
    /// Cases that there were.
    pub n_cases: usize,
}

/// The cases of `sample` at each shader level; the error says why there is no such device.
pub fn parity_at_levels(sample: Sample, share: Share) -> Result<Vec<LevelRows>, String> {
    let listing = open(WgpuOptions { lists_only: true, ..WgpuOptions::default() })?;
    let at = |level| WgpuOptions { shader_level: Some(level), ..limited(level) };
    let opened = ShaderLevel::ALL.map(|level| open(at(level)));
    let opened: Vec<_> = opened.into_iter().collect::<Result<_, _>>()?;
    let backends: Vec<_> = opened.iter().collect();
    let levels = ShaderLevel::ALL.into_iter();
    let none = |level| LevelRows { level, rows: Vec::new(), n_taken: 0, n_cases: 0 };
    let mut levels: Vec<_> = levels.map(none).collect();
    for op in sample.ops() {
        let cases: Vec<_> = cases_of(op).into_iter().step_by(sample.every).collect();
        let cases = shared_out(&listing, cases, share)?;
        for (i, rows) in block_on(parity_of_cases(&backends, op, &cases)).into_iter().enumerate() {
            levels[i].rows.extend(rows);
            levels[i].n_taken += cases.iter().filter(|(_, takers)| takers.contains(&i)).count();
            levels[i].n_cases += cases.len();
        }
    }
    Ok(levels)
}

/// Bytes of a binding: less than WebGPU guarantees, and a prime.
const ODD_BINDING: u64 = 100_000_007;

/// The limits of the device of a level.
fn limited(level: ShaderLevel) -> WgpuOptions {
    let all = WgpuOptions::default();
    match level {
        ShaderLevel::Core => WgpuOptions { webgpu_limits: true, ..all },
        ShaderLevel::F16 => WgpuOptions { max_binding_bytes: Some(ODD_BINDING), ..all },
        ShaderLevel::Subgroups => all,
    }
}

/// Each case with the places of the levels that take it.
fn shared_out(
    listing: &WgpuBackend,
    cases: Vec<Case>,
    share: Share,
) -> Result<Vec<(Case, Vec<usize>)>, String> {
    let n = ShaderLevel::ALL.len();
    if share == Share::All {
        return Ok(cases.into_iter().map(|case| (case, (0..n).collect())).collect());
    }
    let brings = cases.iter().map(|case| listing.launches_of(case, &case.plan()));
    let brings: Vec<_> = brings.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    Ok(cases.into_iter().zip(turns(&brings, n)).collect())
}

fn open(options: WgpuOptions) -> Result<WgpuBackend, String> {
    block_on(WgpuBackend::new(&options)).map_err(|e| e.to_string())
}
