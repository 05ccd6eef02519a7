//! Launches `quantised.cu`: products and lookups of quantised weights, and the rounding of
//! activations for the products that follow.
//!
//! Many rounded rows are multiplied on tensor cores ([`tile_products`]), fewer without. Either way
//! rows are cut into blocks in one launch, and a row has the same bits whatever rows are computed
//! with it. What [`tile_layers`] makes of one row in a launch has the bits of few rows, too.

use longview_core::quant::{QuantType, UNIT};
use longview_ops::{Activations, Embed, Linear, LinearGroup, LinearParams, Op, OpResult};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernels::Kernel;
use crate::library::args_of_x;
use crate::tile_args::{
    RoundBlocksArgs, RoundRowsArgs, TileEmbedArgs, TileProductArgs, TileProductsArgs,
};
use crate::tile_layers;
use crate::tile_products::{self, BLOCK_ROWS};
use crate::variant::bias_of;
use crate::weight::{Rows, Tiled};

/// Bytes of a rounded group of columns beside its codes, of single rows and of blocks.
const BESIDE_CODES: [usize; 2] = [16, tile_products::BESIDE_CODES];
/// Bytes of rounded rows in one product: scratch has a size that does not depend on the model.
const MOST_ROUNDED: usize = 32 << 20;
/// Threads of a block that rounds.
const ROUND_THREADS: usize = 128;
/// Columns of a block that looks up.
const EMBED_COLUMNS: usize = 1024;

/// The kernels of a format.
struct Kernels {
    /// Of one rounded row, and of a few.
    one: Kernel,
    few: Kernel,
    /// Of rows that are not rounded.
    floats: Kernel,
    embed: Kernel,
}

/// Rows of x of a block of threads, and tiles.
const FEW: [usize; 2] = [4, 1];
const FLOATS: [usize; 2] = [2, 1];

/// More rounded rows than this are many.
const MOST_FEW: usize = 8;

fn kernels(ty: QuantType) -> Kernels {
    macro_rules! of {
        ($one:ident, $few:ident, $floats:ident, $embed:ident) => {
            Kernels {
                one: Kernel::$one,
                few: Kernel::$few,
                floats: Kernel::$floats,
                embed: Kernel::$embed,
            }
        };
    }
    match ty {
        QuantType::Q4_0 => {
            of!(tile_product_q4_0_1, tile_product_q4_0_4, tile_product_q4_0_floats, tile_embed_q4_0)
        }
        QuantType::Q4_1 => {
            of!(tile_product_q4_1_1, tile_product_q4_1_4, tile_product_q4_1_floats, tile_embed_q4_1)
        }
        QuantType::Q5_0 => {
            of!(tile_product_q5_0_1, tile_product_q5_0_4, tile_product_q5_0_floats, tile_embed_q5_0)
        }
        QuantType::Q5_1 => {
            of!(tile_product_q5_1_1, tile_product_q5_1_4, tile_product_q5_1_floats, tile_embed_q5_1)
        }
        QuantType::Q8_0 => {
            of!(tile_product_q8_0_1, tile_product_q8_0_4, tile_product_q8_0_floats, tile_embed_q8_0)
        }
        QuantType::Q4K => {
            of!(tile_product_q4_k_1, tile_product_q4_k_4, tile_product_q4_k_floats, tile_embed_q4_k)
        }
        QuantType::Q5K => {
            of!(tile_product_q5_k_1, tile_product_q5_k_4, tile_product_q5_k_floats, tile_embed_q5_k)
        }
        QuantType::Q6K => {
            of!(tile_product_q6_k_1, tile_product_q6_k_4, tile_product_q6_k_floats, tile_embed_q6_k)
        }
        QuantType::Iq4Nl => of!(
            tile_product_iq4_nl_1,
            tile_product_iq4_nl_4,
            tile_product_iq4_nl_floats,
            tile_embed_iq4_nl
        ),
        QuantType::Mxfp4 => of!(
            tile_product_mxfp4_1,
            tile_product_mxfp4_4,
            tile_product_mxfp4_floats,
            tile_embed_mxfp4
        ),
    }
}

/// Rows of x as a product takes them.
struct Input {
    /// Rounded groups, or the first row of f32.
    x: Address,
    /// Whether groups lie in blocks of rows.
    is_many: bool,
    /// The first row, and how many.
    first: usize,
    n: usize,
}

/// A product of any number of rows; shapes were checked.
pub(crate) fn linear<D: Driver>(
    backend: &CudaBackend<D>,
    op: Op,
    d: &Linear<'_, CudaBackend<D>>,
    tiled: Tiled,
) -> OpResult<()> {
    if backend.is_fused() && tile_layers::linear(backend, op, d)? {
        return Ok(());
    }
    match tiled.activations {
        kind @ (Activations::Int8 | Activations::Int16 | Activations::Bf16) => {
            with_rounded(backend, kind, args_of_x(d), d.p, |x| product(backend, op, d, tiled, x))
        }
        Activations::F32 => {
            let n = d.p.n_rows as usize;
            let input = Input { x: d.x.at(), is_many: false, first: 0, n };
            product(backend, op, d, tiled, &input)
        }
    }
}

/// Layers that read the same rows: these are rounded once, where all round them alike.
pub(crate) fn group<D: Driver>(
    backend: &CudaBackend<D>,
    mut d: LinearGroup<'_, '_, CudaBackend<D>>,
) -> OpResult<()> {
    let tiled = |rows| match rows {
        Rows::Tiled(tiled) => Some(tiled),
        Rows::Plain(_) => None,
    };
    let kind = |rows| tiled(rows).map_or(Activations::F32, |tiled| tiled.activations);
    let own = d.layers.first().map_or(Activations::F32, |layer| kind(layer.weight.rows));
    if own == Activations::F32 || d.layers.iter().any(|layer| kind(layer.weight.rows) != own) {
        return d.unfused(backend);
    }
    for i in 0..d.layers.len() {
        let layer = d.layer(i);
        layer.check(Op::Matmul)?;
        layer.weight.expect(Op::Matmul, layer.p.n_out as usize, layer.p.n_in as usize)?;
    }
    if backend.is_fused() && tile_layers::group(backend, &d)? {
        return Ok(());
    }
    let first = d.layer(0);
    with_rounded(backend, own, args_of_x(&first), first.p, |x| {
        for i in 0..d.layers.len() {
            let layer = d.layer(i);
            if let Some(tiled) = tiled(layer.weight.rows) {
                product(backend, Op::Matmul, &layer, tiled, x)?;
            }
        }
        Ok(())
    })
}

/// Calls `products` with rounded rows: with all of them, or with as many at a time as fit into
/// scratch.
fn with_rounded<D: Driver>(
    backend: &CudaBackend<D>,
    activations: Activations,
    (x, x_is_aligned): (Address, u32),
    p: LinearParams,
    mut products: impl FnMut(&Input) -> OpResult<()>,
) -> OpResult<()> {
    let (n_rows, n_in) = (p.n_rows as usize, p.n_in as usize);
    let (groups_of_row, is_many) = (n_in / UNIT, n_rows > MOST_FEW);
    let planes = activations.planes();
    let row_bytes = groups_of_row * (planes * UNIT + BESIDE_CODES[usize::from(is_many)]);
    let most = MOST_ROUNDED / row_bytes.max(1) / BLOCK_ROWS * BLOCK_ROWS;
    let at_once = n_rows.max(1).next_multiple_of(BLOCK_ROWS).min(most.max(BLOCK_ROWS));
    backend.queue.with_scratch((at_once * row_bytes) as u64, |rounded| {
        for first in (0..n_rows).step_by(at_once) {
            let n = at_once.min(n_rows - first);
            let x = Address(x.0 + (first * n_in * 4) as u64);
            if is_many {
                let args = RoundBlocksArgs {
                    x,
                    blocks: rounded,
                    n_rows: n as u32,
                    groups_of_row: groups_of_row as u32,
                    x_is_aligned,
                    planes: planes as u32,
                };
                tile_products::round(backend, &args)?;
            } else {
                let n_groups = n * groups_of_row;
                let args = RoundRowsArgs {
                    x,
                    rounded,
                    n_groups: n_groups as u64,
                    x_is_aligned,
                    planes: planes as u32,
                };
                backend.launch(Kernel::round_rows, Grid::over(n_groups, ROUND_THREADS), &args)?;
            }
            products(&Input { x: rounded, is_many, first, n })?;
        }
        Ok(())
    })
}

fn product<D: Driver>(
    backend: &CudaBackend<D>,
    op: Op,
    d: &Linear<'_, CudaBackend<D>>,
    tiled: Tiled,
    input: &Input,
) -> OpResult<()> {
    let kernels = kernels(tiled.tiles.ty);
    let (kernel, [rows, tiles]) = match (tiled.activations, input.n) {
        (Activations::F32, _) => (kernels.floats, FLOATS),
        (_, 1) => (kernels.one, [1, 1]),
        (_, _) => (kernels.few, FEW),
    };
    let [tile_units, scales_at] = tiled.units();
    let (bias, bias_kind) = bias_of(op, d)?;
    let out = Address(d.out.at().0 + (input.first * d.p.n_out as usize * 4) as u64);
    if input.is_many {
        let args = TileProductsArgs {
            x: input.x,
            weight: d.weight.address(),
            bias,
            out,
            n_rows: input.n as u32,
            n_in: d.p.n_in,
            n_out: d.p.n_out,
            tile_units,
            scales_at,
            bias_kind,
            accumulate: d.p.accumulate,
            planes: tiled.activations.planes() as u32,
        };
        return tile_products::run(backend, tiled.tiles, &args);
    }
    let args = TileProductArgs {
        x: input.x,
        weight: d.weight.address(),
        bias,
        out,
        n_rows: input.n as u32,
        n_in: d.p.n_in,
        n_out: d.p.n_out,
        tile_units,
        scales_at,
        bias_kind,
        accumulate: d.p.accumulate,
        x_is_aligned: args_of_x(d).1,
        planes: tiled.activations.planes() as u32,
        unused: 0,
    };
    let grid = Grid::new([input.n.div_ceil(rows), tiled.tiles.count().div_ceil(tiles), 1]);
    backend.launch(kernel, grid, &args)
}

/// Rows of a table; shapes were checked.
pub(crate) fn embed<D: Driver>(
    backend: &CudaBackend<D>,
    d: &Embed<'_, CudaBackend<D>>,
    tiled: Tiled,
) -> OpResult<()> {
    let [tile_units, scales_at] = tiled.units();
    let args = TileEmbedArgs {
        ids: d.ids.at(),
        table: d.table.address(),
        out: d.out.at(),
        n_tokens: d.p.n_tokens,
        width: d.p.width,
        n_vocab: d.table.n_rows as u32,
        tile_units,
        scales_at,
        scale: d.p.scale,
    };
    let grid = Grid::new([d.p.n_tokens as usize, (d.p.width as usize).div_ceil(EMBED_COLUMNS), 1]);
    backend.launch(kernels(tiled.tiles.ty).embed, grid, &args)
}
