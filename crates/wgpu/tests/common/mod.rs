//! The device of the tests, the same for all of them.
//!
//! A test that needs an adapter (a software one will do) fails without one. `LONGVIEW_NO_GPU` says
//! that there is none; then the test says that it was not run.

#![expect(clippy::print_stderr, reason = "a test that did not run says so")]

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Once;

use longview_ops::corpus::{Case, Plan, turns};
use longview_ops::{Backend, ReferenceBackend};
use longview_wgpu::{ShaderLevel, StartError, WgpuBackend, WgpuOptions};
use pollster::block_on;

/// Whether there is to be no device; asked before any is opened.
fn none_is_promised() -> bool {
    spare_optimising();
    let promised = std::env::var_os("LONGVIEW_NO_GPU").is_some();
    if promised {
        eprintln!("NOT RUN: LONGVIEW_NO_GPU is set");
    }
    promised
}

/// Mesa's software device reads once, when it is first opened, that it is not to optimise; others
/// do not look. A kernel runs here for a moment and takes a second to compile.
fn spare_optimising() {
    static ONCE: Once = Once::new();
    // SAFETY: nothing in this program reads the environment but the standard library, which locks
    // it, and the drivers of devices, all of which are opened behind this.
    ONCE.call_once(|| unsafe { std::env::set_var("GALLIVM_PERF", "nopt") });
}

fn no_device(error: &StartError) -> ! {
    panic!("{error} (LONGVIEW_NO_GPU=1 leaves these tests out)")
}

/// The device at the level that it chooses; `None` where there is said to be no device.
pub fn device() -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    Some(open(&WgpuOptions::default()))
}

/// The device with these options.
pub fn device_with(options: &WgpuOptions) -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    Some(open(options))
}

/// Says that a test did not run, and why.
pub fn not_run(reason: &str) {
    eprintln!("NOT RUN: {reason}");
}

/// The device, with bindings of at most so many bytes.
pub fn device_of_bindings(max_binding_bytes: u64) -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    let max_binding_bytes = Some(max_binding_bytes);
    Some(open(&WgpuOptions { max_binding_bytes, ..WgpuOptions::default() }))
}

/// A device that notes what is launched and runs nothing.
pub fn listing() -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    Some(open(&WgpuOptions { lists_only: true, ..WgpuOptions::default() }))
}

fn open(options: &WgpuOptions) -> WgpuBackend {
    block_on(WgpuBackend::new(options)).unwrap_or_else(|e| no_device(&e))
}

/// The device at each level that it has; none where there is said to be no device.
pub fn levels() -> Vec<WgpuBackend> {
    if none_is_promised() {
        return Vec::new();
    }
    let open = |level: ShaderLevel| {
        let options = WgpuOptions { shader_level: Some(level), ..WgpuOptions::default() };
        match block_on(WgpuBackend::new(&options)) {
            Ok(backend) => Some(backend),
            Err(StartError::ShaderLevel { reason, .. }) => {
                eprintln!("NOT RUN: shader level {level}: {reason}");
                None
            }
            Err(e) => no_device(&e),
        }
    };
    ShaderLevel::ALL.into_iter().filter_map(open).collect()
}

/// The devices for case `i` of a test whose cases compile kernels of their own: levels take turns.
/// `LONGVIEW_ALL_CASES` in the environment has every level take all.
pub fn levels_of_case(i: usize) -> Vec<WgpuBackend> {
    let mut levels = levels();
    if levels.is_empty() || std::env::var_os("LONGVIEW_ALL_CASES").is_some() {
        return levels;
    }
    let n_levels = levels.len();
    vec![levels.swap_remove(i % n_levels)]
}

/// Compares cases, with their buffers laid out as planned, with the reference at every level of the
/// device.
pub fn check(cases: Vec<(Case, Plan)>) {
    let backends = levels();
    let all: Vec<_> = (0..backends.len()).collect();
    for (case, plan) in &cases {
        check_case(&backends, &all, case, plan);
    }
}

/// As [`check`], but that levels take turns, since each compiles kernels of its own: every case at
/// one, and every value of every constant of every kernel at all of them. `LONGVIEW_ALL_CASES` in
/// the environment has every level take all.
pub fn check_in_turns(what: &str, cases: Vec<(Case, Plan)>) {
    if std::env::var_os("LONGVIEW_ALL_CASES").is_some() {
        return check(cases);
    }
    let Some(listing) = listing() else { return };
    let brings = |(case, plan): &(Case, Plan)| listing.launches_of(case, plan).expect("memory");
    let brings: Vec<BTreeSet<_>> = cases.iter().map(brings).collect();
    let backends = levels();
    let takers = turns(&brings, backends.len());
    for ((case, plan), takers) in cases.iter().zip(&takers) {
        check_case(&backends, takers, case, plan);
    }
    for (i, backend) in backends.iter().enumerate() {
        let n = takers.iter().filter(|takers| takers.contains(&i)).count();
        let (level, n_cases) = (backend.shader_level(), cases.len());
        assert!(n >= n_cases / 4, "{what}, {level}: {n} of {n_cases} cases");
        // Not by a macro of the standard library, which keeps it back where a test passes.
        let _ = writeln!(std::io::stderr(), "{what}, {level}: {n} of {n_cases} cases");
    }
}

/// Compares a case with the reference on each of `backends`.
pub fn check_at(backends: &[WgpuBackend], case: &Case) {
    let all: Vec<_> = (0..backends.len()).collect();
    check_case(backends, &all, case, &case.plan());
}

/// Compares a case on those of `backends` whose places are given.
fn check_case(backends: &[WgpuBackend], takers: &[usize], case: &Case, plan: &Plan) {
    let takers = takers.iter().map(|taker| &backends[*taker]);
    let mut takers = takers.filter(|taker| case.runs_on(taker.capabilities())).peekable();
    if takers.peek().is_none() {
        return;
    }
    let want = block_on(case.execute_plan(plan, &ReferenceBackend::new())).expect("the reference");
    for backend in takers {
        let got = block_on(case.execute_plan(plan, backend));
        let got = got.unwrap_or_else(|e| panic!("{}: {e}", case.name()));
        let compared = case.compare_plan(plan, &got, &want);
        assert!(compared.passed(), "{}, level {}: {compared}", case.name(), backend.shader_level());
    }
}

/// `cases` with all views at element `front`: at a multiple of 4 every vector load is taken.
pub fn with_views_at(front: usize, cases: Vec<Case>) -> Vec<(Case, Plan)> {
    let moved = |case: Case| {
        let mut plan = case.plan();
        plan.inputs.iter_mut().for_each(|input| input.front = front);
        plan.outputs.iter_mut().for_each(|output| output.front = front);
        (case, plan)
    };
    cases.into_iter().map(moved).collect()
}
