//! Launches `project_heads.wgsl`.

use longview_ops::{OpResult, ProjectHeads};

use crate::backend::WgpuBackend;
use crate::launch::{Launch, rows_are_vectors};

/// Vectors and columns of a workgroup.
const VECTORS: usize = 64;
const RANKS: usize = 32;

pub(crate) fn run(backend: &WgpuBackend, d: ProjectHeads<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    let vector =
        rows_are_vectors(p.head_dim, &[d.x.offset]) && rows_are_vectors(p.rank, &[d.w.offset]);
    let n_vectors = p.n_tokens as usize * p.group as usize;
    let grid = [
        n_vectors.div_ceil(VECTORS),
        p.n_heads as usize / p.group.max(1) as usize,
        (p.rank as usize).div_ceil(RANKS),
    ];
    Launch::new(backend, "project_heads", "project_heads")
        .define("VECTOR", vector.into())
        .params(&p)
        .view(&d.x)
        .view(&d.w)
        .view_mut(&d.out)
        .counts(((d.x.len + d.w.len) * 4) as u64)
        .run_grid(grid)
}
