//! Launches `query_gate.wgsl`.

use longview_ops::{OpResult, QueryGate};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Invocations for each KV head.
const GROUP: u32 = 64;

pub(crate) fn run(backend: &WgpuBackend, d: QueryGate<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    Launch::new(backend, "query_gate", "query_gate")
        .define("GROUP", GROUP)
        .params(&d.p)
        .view(&d.q)
        .view_mut(&d.last)
        .view_mut(&d.cosines)
        .counts((d.last.len * 8) as u64)
        .run(d.p.n_kv_heads as usize)
}
