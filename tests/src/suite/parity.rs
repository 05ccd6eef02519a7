//! The corpus once more, with its views at other places of their buffers.

use std::sync::Arc;

use longview_ops::corpus::{Case, Outcome, Plan, corpus};
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

/// The corpus again with its views at each of `places`: most of them begin at odd places, on
/// purpose, models' at whole vectors. Cases whose views are all there already are left out. Returns
/// what is wrong.
pub fn failures_elsewhere<B: Backend>(
    backend: &B,
    places: &[(&str, Place)],
    is_wanted: impl Fn(Op) -> bool,
) -> Vec<String> {
    let cases = corpus().into_iter().filter(|case| is_wanted(case.op()) && runs_on(case, backend));
    let failures = |case: Case| match Expected::of(case) {
        Ok(expected) => expected.failures_elsewhere(backend, places),
        Err(failure) => vec![failure],
    };
    cases.flat_map(failures).collect()
}

/// Whether a backend must get a case right.
pub fn runs_on<B: Backend>(case: &Case, backend: &B) -> bool {
    let capabilities = backend.capabilities();
    let mut missing = capabilities.missing_ops.iter();
    !missing.any(|(op, _)| *op == case.op()) && case.runs_on(capabilities)
}

/// A case with its numbers and what the reference makes of them. Both take longer than most ops, so
/// they are made once for all devices and places.
pub struct Expected {
    /// The case.
    pub case: Case,
    /// Its numbers.
    pub plan: Plan,
    /// What they give.
    pub want: Outcome,
}

impl Expected {
    /// What is expected of a case.
    pub fn of(case: Case) -> Result<Self, String> {
        let plan = case.plan();
        let want = pollster::block_on(case.execute_plan(&plan, &ReferenceBackend::new()));
        let want = want.map_err(|e| format!("{}: {e}", case.name()))?;
        Ok(Self { case, plan, want })
    }

    /// What is wrong at places where not all views are already. The reference knows no places: what
    /// it gave is expected of all.
    pub fn failures_elsewhere<B: Backend>(
        &self,
        backend: &B,
        places: &[(&str, Place)],
    ) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, place) in places {
            let Some(plan) = self.moved(*place) else { continue };
            let wrong = match pollster::block_on(self.case.execute_plan(&plan, backend)) {
                Err(error) => error.to_string(),
                Ok(got) => {
                    let comparison = self.case.compare_plan(&plan, &got, &self.want);
                    if comparison.passed() {
                        continue;
                    }
                    comparison.to_string()
                }
            };
            failures.push(format!("{name}: {}: {wrong}", self.case.name()));
        }
        failures
    }

    /// The numbers with their views at a place; `None` if they are there already.
    fn moved(&self, place: Place) -> Option<Plan> {
        let mut plan = self.plan.clone();
        let inputs = plan.inputs.iter_mut().map(|input| &mut input.front);
        let fronts = inputs.chain(plan.outputs.iter_mut().map(|output| &mut output.front));
        let mut is_moved = false;
        // Some buffers are written from their begin, by contract.
        for front in fronts.filter(|front| **front > 0) {
            is_moved |= *front != place(*front);
            *front = place(*front);
        }
        is_moved.then_some(plan)
    }
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
