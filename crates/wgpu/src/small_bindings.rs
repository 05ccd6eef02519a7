//! Cases of the corpus with bindings so small, and so odd, that their weights lie in many buffers.
//!
//! In the crate because the limit changes between the cases of one device: a device of its own for
//! each would compile every kernel anew.

use std::sync::Arc;

use longview_core::quant::{Order, Tiles};
use longview_ops::corpus::{Case, Plan, PlannedWeight, cases_of};
use longview_ops::{Backend, Op, QuantSource, ReferenceBackend};
use pollster::block_on;

use crate::gpu::STORAGE_ALIGNMENT;
use crate::{WgpuBackend, testing};

/// Of that many cases one runs: a prime, as in the sample of the parity run.
const EVERY: usize = 7;

/// Bytes of a weight's row with what fills it up, or of a tile, which are never cut.
fn piece_bytes(weight: &PlannedWeight) -> usize {
    match weight {
        PlannedWeight::Plain(source) => (source.n_cols * source.dtype.size()).next_multiple_of(16),
        PlannedWeight::Quantised(QuantSource { ty, n_rows, n_cols, .. }) => {
            let (ty, n_rows, n_cols, order) = (*ty, *n_rows, *n_cols, Order::Apart);
            Tiles { ty, n_rows, n_cols, order }.tile_bytes()
        }
    }
}

/// The least limit with which everything of a plan but whole weights fits: no multiple of anything.
fn least_limit(plan: &Plan) -> u64 {
    // As `Plan::upload` surrounds them.
    let surrounded = |len: usize, front: usize, size: usize| (front + len + 131) * size;
    let inputs = plan.inputs.iter().map(|i| surrounded(i.values.len(), i.front, i.dtype.size()));
    let outputs = plan.outputs.iter().map(|o| surrounded(o.len, o.front, o.dtype.size()));
    let pieces = plan.weights.iter().map(piece_bytes);
    let most = inputs.chain(outputs).chain(pieces).max().unwrap_or(0) as u64;
    most.next_multiple_of(STORAGE_ALIGNMENT) + STORAGE_ALIGNMENT - 1
}

/// How many buffers the case's weight takes.
fn n_shards(backend: &WgpuBackend, plan: &Plan) -> usize {
    let weight = plan.weights.first().expect("an op with a weight").clone();
    let weight = match weight {
        PlannedWeight::Plain(source) => backend.load_weight(source),
        PlannedWeight::Quantised(source) => backend.load_quantised(source),
    };
    weight.expect("rows that fit").shards.len()
}

/// Needs an adapter, as `tests/backend.rs` does.
#[test]
fn weights_in_many_buffers_give_what_the_reference_gives() {
    let Some(mut backend) = testing::device() else { return };
    let allowed = backend.gpu.limits.max_storage_buffer_binding_size;
    let set_limit = |backend: &mut WgpuBackend, bytes: u64| {
        let gpu = Arc::get_mut(&mut backend.gpu).expect("nobody else has the device");
        gpu.limits.max_storage_buffer_binding_size = bytes;
    };
    for op in [Op::Matvec, Op::Matmul, Op::Embed] {
        let mut n_split = [0; 2];
        let mut cases: Vec<Case> = cases_of(op).into_iter().step_by(EVERY).collect();
        cases.retain(|case| case.runs_on(backend.capabilities()));
        for case in &cases {
            let plan = case.plan();
            set_limit(&mut backend, least_limit(&plan).min(allowed));
            if n_shards(&backend, &plan) == 1 {
                continue;
            }
            n_split[usize::from(case.is_quantised())] += 1;
            let got = block_on(case.execute_plan(&plan, &backend));
            let got = got.unwrap_or_else(|e| panic!("{}: {e}", case.name()));
            let want = block_on(case.execute_plan(&plan, &ReferenceBackend::new()));
            let compared = case.compare_plan(&plan, &got, &want.expect("the reference"));
            assert!(compared.passed(), "{}: {compared}", case.name());
        }
        assert!(n_split.iter().all(|n| *n > 0), "{op}: {n_split:?} cases with a split weight");
    }
}
