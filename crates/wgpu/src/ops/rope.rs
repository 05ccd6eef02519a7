//! Launches `rope.wgsl`.

use longview_ops::{OpResult, Rope, RopeParams};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: Rope<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let RopeParams { n_tokens, n_heads, head_dim, rotary_dim } = d.p;
    // A pair is one item.
    let per_head = (head_dim - rotary_dim / 2) as usize;
    let n = n_tokens as usize * n_heads as usize * per_head;
    Launch::new(backend, "rope", "rope")
        .params(&d.p)
        .view(&d.x)
        .view(&d.table)
        .view_mut(&d.out)
        .counts(((d.x.len + d.table.len) * 4) as u64)
        .run(n.div_ceil(GROUP))
}
