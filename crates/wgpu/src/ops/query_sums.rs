//! Launches `query_sums.wgsl`.

use longview_ops::{OpResult, QuerySums};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: QuerySums<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    let (position, block, n_tokens) = (p.position as usize, p.block as usize, p.q_len as usize);
    let (first_block, left) = (position / block, block - position % block);
    let n_touched = match n_tokens {
        0 => 0,
        n => 1 + n.saturating_sub(left).div_ceil(block),
    };
    let (n_heads, width) = (p.n_kv_heads as usize, p.head_dim as usize);
    let n_sums = n_heads * n_touched * width;
    Launch::new(backend, "query_sums", "query_sums")
        .params(&p)
        .u32(first_block)
        .u32(n_touched)
        .u32(left)
        .view(&d.q)
        .view_mut(&d.out)
        .counts((4 * (n_tokens * p.n_q_heads as usize * width + n_sums)) as u64)
        .run(n_sums.div_ceil(GROUP))
}
