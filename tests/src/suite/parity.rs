//! The corpus once more, with its views at other places of their buffers.

use std::sync::Arc;

use longview_ops::corpus::{Case, corpus};
use longview_ops::{Backend, Op, ReferenceBackend};

use super::faults::NotRun;
use crate::backends::Probe;

/// Where a view begins that began somewhere.
pub type Place = fn(usize) -> usize;

/// Places, and what they are called.
pub const PLACES: [(&str, Place); 2] = [
    ("views at whole vectors", |front| front.next_multiple_of(64)),
    ("views at odd elements", |front| front | 1),
];

/// The corpus again with its views elsewhere: most of them begin at odd places, on purpose, models'
/// at whole vectors. Cases whose views are all there already are left out. Returns what is wrong.
pub fn failures_elsewhere<B: Backend>(
    backend: &B,
    place: Place,
    is_wanted: impl Fn(Op) -> bool,
) -> Vec<String> {
    let capabilities = backend.capabilities();
    let is_missing = |case: &Case| {
        let mut missing = capabilities.missing_ops.iter();
        missing.any(|(op, _)| *op == case.op()) || !case.runs_on(capabilities)
    };
    let cases = corpus().into_iter().filter(|case| is_wanted(case.op()) && !is_missing(case));
    cases.filter_map(|case| failure_elsewhere(backend, &case, place).err()).collect()
}

/// Products of prompts by a vendor's library, if there is one, against the backend's own kernels:
/// whole tiles and ragged ones, of the widths of models.
pub fn products_of_a_library_are_those_of_our_kernels<B: Probe>(backend: &Arc<B>) -> NotRun {
    for sizes in [[65, 64, 64], [512, 896, 1152], [131, 4864, 896], [1000, 203, 76], [129, 40, 12]]
    {
        match backend.compare_products(sizes) {
            None => return Some("it knows no library"),
            Some(Err(_)) => return Some("no library is used; `longview doctor` says why"),
            Some(Ok(result)) => result.unwrap_or_else(|reason| panic!("{reason}")),
        }
    }
    None
}

fn failure_elsewhere<B: Backend>(backend: &B, case: &Case, place: Place) -> Result<(), String> {
    let mut plan = case.plan();
    let inputs = plan.inputs.iter_mut().map(|input| &mut input.front);
    let fronts = inputs.chain(plan.outputs.iter_mut().map(|output| &mut output.front));
    let mut is_moved = false;
    // Some buffers are written from their begin, by contract.
    for front in fronts.filter(|front| **front > 0) {
        is_moved |= *front != place(*front);
        *front = place(*front);
    }
    if !is_moved {
        return Ok(());
    }
    let got = pollster::block_on(case.execute_plan(&plan, backend));
    let got = got.map_err(|e| format!("{}: {e}", case.name()))?;
    let want = pollster::block_on(case.execute_plan(&plan, &ReferenceBackend::new()));
    let comparison = case.compare_plan(&plan, &got, &want.map_err(|e| e.to_string())?);
    if comparison.passed() { Ok(()) } else { Err(format!("{}: {comparison}", case.name())) }
}
