//! The corpus on the WGSL backend at each of its shader levels.
//!
//! Most of the time goes into compiling: every level has kernels of its own. So as a rule the cases
//! of an op take turns: each runs at one level, and every level sees every value of every constant
//! of every kernel. To know them before anything is compiled, the cases are launched on a device
//! that lists what it is asked for.
//!
//! The devices of the lower levels are made with less than the adapter has: the limits that WebGPU
//! guarantees, and bindings of a size that is no multiple of anything.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{ScopedJoinHandle, available_parallelism};

use longview_ops::Op;
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

/// Threads at most: each opens four devices.
const MOST_THREADS: usize = 4;

/// The cases of `sample` at each shader level; the error says why there is no such device.
///
/// To compile takes one core, and no op needs another: a thread for each core takes op after op.
pub fn parity_at_levels(sample: Sample, share: Share) -> Result<Vec<LevelRows>, String> {
    let ops: Vec<Op> = sample.ops().collect();
    let n_threads = available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let next = AtomicUsize::new(0);
    let take_turns = || -> Result<Vec<(usize, [LevelRows; 3])>, String> {
        let devices = Devices::open()?;
        let next = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < ops.len());
        let taken = std::iter::from_fn(next);
        taken.map(|i| Ok((i, devices.rows_of(ops[i], sample.every, share)?))).collect()
    };
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(take_turns)).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("no case panics");
        threads.into_iter().map(join).collect::<Result<Vec<_>, String>>()
    })?;
    let mut parts: Vec<_> = parts.into_iter().flatten().collect();
    parts.sort_by_key(|(i, _)| *i);
    let mut levels: Vec<_> = ShaderLevel::ALL.into_iter().map(LevelRows::none).collect();
    for (level, part) in parts.into_iter().flat_map(|(_, parts)| parts.into_iter().enumerate()) {
        levels[level].rows.extend(part.rows);
        levels[level].n_taken += part.n_taken;
        levels[level].n_cases += part.n_cases;
    }
    Ok(levels)
}

impl LevelRows {
    fn none(level: ShaderLevel) -> Self {
        Self { level, rows: Vec::new(), n_taken: 0, n_cases: 0 }
    }
}

/// What one thread compares with the reference.
struct Devices {
    listing: WgpuBackend,
    by_level: [WgpuBackend; 3],
}

impl Devices {
    fn open() -> Result<Self, String> {
        let at = |level| open(WgpuOptions { shader_level: Some(level), ..limited(level) });
        let [core, f16, subgroups] = ShaderLevel::ALL.map(at);
        let listing = open(WgpuOptions { lists_only: true, ..WgpuOptions::default() })?;
        Ok(Self { listing, by_level: [core?, f16?, subgroups?] })
    }

    /// How an op went at each level.
    fn rows_of(&self, op: Op, every: usize, share: Share) -> Result<[LevelRows; 3], String> {
        let cases: Vec<_> = cases_of(op).into_iter().step_by(every).collect();
        let cases = shared_out(&self.listing, cases, share)?;
        let backends: Vec<_> = self.by_level.iter().collect();
        let mut levels = ShaderLevel::ALL.map(LevelRows::none);
        let rows = block_on(parity_of_cases(&backends, op, &cases)).into_iter();
        for (i, (level, rows)) in levels.iter_mut().zip(rows).enumerate() {
            level.rows = rows;
            level.n_taken = cases.iter().filter(|(_, takers)| takers.contains(&i)).count();
            level.n_cases = cases.len();
        }
        Ok(levels)
    }
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
