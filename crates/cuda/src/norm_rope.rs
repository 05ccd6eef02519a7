//! Launches `norm_rope` of `rope.cu`: norms of heads and RoPE of q and k, behind the launch that
//! projects them.

use longview_ops::{NO_KIND, Op, OpResult, Project, RopeParams, kind};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::fused_args::NormRopeArgs;
use crate::kernels::Kernel;
use crate::ops::rms_norm::NARROW;

/// Heads of a block, with a warp each.
const HEADS: usize = 8;

/// Whether it gives what single calls give: wider heads are normed by a block.
pub(crate) fn suits<D: Driver>(d: &Project<'_, CudaBackend<D>>) -> bool {
    let RopeParams { head_dim, .. } = d.rope;
    let is_normed = d.head_norms.iter().any(Option::is_some);
    let has_heads = d.layers[..2].iter().all(|layer| layer.n_out > 0 && head_dim > 0);
    has_heads && (!is_normed || head_dim as usize <= NARROW)
}

/// From where the layers of q and k write to their results; lengths were checked.
pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: &Project<'_, CudaBackend<D>>,
) -> OpResult<()> {
    let RopeParams { n_tokens, head_dim, rotary_dim, .. } = d.rope;
    let mut norms = [(Address::NONE, NO_KIND); 2];
    for (to, norm) in norms.iter_mut().zip(d.head_norms) {
        if let Some(norm) = norm {
            norm.expect(Op::RmsNorm, 1, head_dim as usize)?;
            *to = (norm.address(), kind(norm.plain(Op::RmsNorm)?.dtype));
        }
    }
    let [q, k] = [0, 1].map(|i: usize| d.layers[i].n_out / head_dim);
    let args = NormRopeArgs {
        q: d.layers[0].out.at(),
        k: d.layers[1].out.at(),
        q_norm: norms[0].0,
        k_norm: norms[1].0,
        table: d.table.at(),
        q_out: d.out[0].at(),
        k_out: d.out[1].at(),
        n_tokens,
        n_q_heads: q,
        n_k_heads: k,
        head_dim,
        rotary_dim,
        q_norm_kind: norms[0].1,
        k_norm_kind: norms[1].1,
        eps: d.p.eps,
    };
    let n_heads = n_tokens as usize * (q + k) as usize;
    backend.launch(Kernel::norm_rope, Grid::over(n_heads, HEADS), &args)
}
