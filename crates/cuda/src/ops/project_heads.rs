//! Launches `project_heads.cu`.

use longview_ops::{OpResult, ProjectHeads};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::ProjectHeadsArgs;
use crate::kernels::Kernel;

/// Columns of a block.
const RANKS: usize = 32;
/// Vectors of a block of the kernel for many.
const WIDE: usize = 128;
/// Vectors of a block of the kernel for few.
const NARROW: usize = 8;
/// With more vectors of a matrix than this, reading it once for every 8 of them costs more than
/// blocks that are not full.
const MOST_NARROW: usize = 64;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: ProjectHeads<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    if d.out.len == 0 {
        return Ok(());
    }
    let x = d.x.at();
    let args = ProjectHeadsArgs {
        x,
        w: d.w.at(),
        out: d.out.at(),
        n_tokens: p.n_tokens,
        n_heads: p.n_heads,
        group: p.group,
        head_dim: p.head_dim,
        rank: p.rank,
        head_major: p.head_major,
        is_aligned: (x.is_aligned(16) && p.head_dim.is_multiple_of(4)).into(),
        unused: 0,
    };
    let n_vectors = p.n_tokens as usize * p.group as usize;
    let (kernel, each) = if n_vectors <= MOST_NARROW {
        (Kernel::project_heads_narrow, NARROW)
    } else {
        (Kernel::project_heads_wide, WIDE)
    };
    let n_matrices = (p.n_heads / p.group) as usize;
    let n_columns = (p.rank as usize).div_ceil(RANKS);
    backend.launch(kernel, Grid::new([n_vectors.div_ceil(each), n_matrices, n_columns]), &args)
}
