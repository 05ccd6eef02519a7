//! Launches `embed.cu`; `quantised` has the other tables.

use longview_ops::{Embed, Op, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::EmbedArgs;
use crate::kernels::Kernel;
use crate::quantised;
use crate::variant::by_type;
use crate::weight::Rows;

/// Columns of a block.
const PER_BLOCK: usize = 1024;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: Embed<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (n_tokens, width) = (d.p.n_tokens as usize, d.p.width as usize);
    let table = d.table;
    table.expect(Op::Embed, table.n_rows, width)?;
    let plain = match table.rows {
        Rows::Plain(plain) => plain,
        Rows::Tiled(tiled) => return quantised::embed(backend, &d, tiled),
    };
    let args = EmbedArgs {
        ids: d.ids.at(),
        table: table.address(),
        out: d.out.at(),
        row_bytes: plain.row_bytes as u64,
        n_tokens: d.p.n_tokens,
        width: d.p.width,
        n_vocab: table.n_rows as u32,
        scale: d.p.scale,
    };
    let kernels = [Kernel::embed_f32, Kernel::embed_f16, Kernel::embed_bf16];
    let grid = Grid::new([n_tokens, width.div_ceil(PER_BLOCK), 1]);
    backend.launch(by_type(plain.dtype, kernels), grid, &args)
}
