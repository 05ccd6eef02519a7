//! Launches `tile_products.cu`: products of many rounded rows with quantised weights on tensor
//! cores, and the rounding of rows into the blocks that they take.

use longview_core::quant::{QuantType, Tiles};
use longview_ops::OpResult;

use crate::backend::CudaBackend;
use crate::driver::{Driver, Grid};
use crate::kernels::Kernel;
use crate::tile_args::{RoundBlocksArgs, TileProductsArgs};

/// Rows of a block of rounded rows.
pub(crate) const BLOCK_ROWS: usize = 8;
/// Bytes of a rounded group of columns of one row beside its codes: a scale and a sum.
pub(crate) const BESIDE_CODES: usize = 8;

/// Groups of columns of a block of threads that rounds.
const GROUPS_OF_ROUNDING: usize = 4;
/// Blocks of rows of x, and tiles of W, of a block of threads that multiplies.
const BLOCKS: usize = 8;
const TILES: usize = 8;
/// Groups of columns in shared memory at once.
const STAGES: usize = 4;
/// Bytes of the codes of a group of 32 columns, for each bit of a code, of a tile; and of a plane
/// of rounded numbers, of a block.
const BYTES_OF_BIT: usize = 64;
const BYTES_OF_PLANE: usize = 32 * BLOCK_ROWS;

fn kernel(ty: QuantType) -> Kernel {
    match ty {
        QuantType::Q4_0 => Kernel::tile_products_q4_0,
        QuantType::Q4_1 => Kernel::tile_products_q4_1,
        QuantType::Q5_0 => Kernel::tile_products_q5_0,
        QuantType::Q5_1 => Kernel::tile_products_q5_1,
        QuantType::Q8_0 => Kernel::tile_products_q8_0,
        QuantType::Q4K => Kernel::tile_products_q4_k,
        QuantType::Q5K => Kernel::tile_products_q5_k,
        QuantType::Q6K => Kernel::tile_products_q6_k,
        QuantType::Iq4Nl => Kernel::tile_products_iq4_nl,
        QuantType::Mxfp4 => Kernel::tile_products_mxfp4,
    }
}

/// Rounds rows into blocks of them.
pub(crate) fn round<D: Driver>(backend: &CudaBackend<D>, args: &RoundBlocksArgs) -> OpResult<()> {
    let n_groups = (args.groups_of_row as usize).div_ceil(GROUPS_OF_ROUNDING);
    let grid = Grid::new([n_groups, (args.n_rows as usize).div_ceil(BLOCK_ROWS), 1]);
    backend.launch(Kernel::round_blocks, grid, args)
}

/// A product of rows that [`round`] left.
pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    tiles: Tiles,
    args: &TileProductsArgs,
) -> OpResult<()> {
    let block_bytes = BYTES_OF_PLANE * args.planes as usize + BESIDE_CODES * BLOCK_ROWS;
    let stage = BLOCKS * block_bytes + TILES * BYTES_OF_BIT * tiles.ty.code_bits();
    let n_rows = args.n_rows as usize;
    // Blocks that share tiles of W follow each other.
    let grid = Grid::new([n_rows.div_ceil(BLOCKS * BLOCK_ROWS), tiles.count().div_ceil(TILES), 1])
        .with_shared((STAGES * stage) as u32);
    backend.launch(kernel(tiles.ty), grid, args)
}
