//! Several ops in one launch (`norm_matvec` of `matvec.cu`), for few rows and plain weights: what a
//! decode step is made of. [`tile_layers`] has quantised weights. All else is done by single ops.

use longview_ops::{Activation, LinearOut, NO_KIND, NormGated, Op, OpResult, Project, View, kind};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::fused_args::NormMatvecArgs;
use crate::kernels::Kernel;
use crate::norm_rope;
use crate::ops::matvec::MAX_ROWS;
use crate::tile_layers;
use crate::variant::by_type;
use crate::weight::{CudaWeight, Plain, Rows};

/// Rows of weights that a block owns; of gate and up half of them each.
const OUTS: usize = 4;

/// Rows of x that one reading of the weights serves: more rows take another launch.
const ROWS: usize = 4;

/// Of one row, and of up to [`ROWS`].
const F32: [Kernel; 2] = [Kernel::norm_matvec_f32_1, Kernel::norm_matvec_f32_4];
const F16: [Kernel; 2] = [Kernel::norm_matvec_f16_1, Kernel::norm_matvec_f16_4];
const BF16: [Kernel; 2] = [Kernel::norm_matvec_bf16_1, Kernel::norm_matvec_bf16_4];

/// What a block makes of its sums, as the kernel numbers it.
const PROJECT: u32 = 0;
const SILU: u32 = 1;
const GELU: u32 = 2;

/// One layer as the kernel takes it.
struct Layer {
    weight: Address,
    bias: Address,
    bias_kind: u32,
    n_out: u32,
}

/// No layer.
const ABSENT: Layer =
    Layer { weight: Address::NONE, bias: Address::NONE, bias_kind: NO_KIND, n_out: 0 };

/// What all layers of a call read.
struct Input<'a, D: Driver> {
    x: View<'a, CudaBackend<D>>,
    norm: &'a CudaWeight<D>,
    n_rows: u32,
    n_in: u32,
    eps: f32,
}

pub(crate) fn project<D: Driver>(
    backend: &CudaBackend<D>,
    d: Project<'_, CudaBackend<D>>,
) -> OpResult<()> {
    if tile_layers::project(backend, &d)? {
        return Ok(());
    }
    let Some(plain) = common(d.p.n_rows, &d.layers) else { return d.unfused(backend) };
    // A block owns elements with their partners.
    let is_whole = d.rope.rotary_dim == 0
        || (d.rope.rotary_dim.is_multiple_of(4) && d.rope.head_dim.is_multiple_of(4));
    let is_rotated = is_whole && d.head_norms.iter().all(Option::is_none);
    if !is_rotated && !norm_rope::suits(&d) {
        return d.unfused(backend);
    }
    d.check()?;
    let n_in = d.p.width;
    let layers = [0, 1, 2].map(|i| layer(&d.layers[i], n_in));
    let [q, k, v] = layers;
    let layers = [q?, k?, v?];
    let n_blocks = layers.iter().map(|layer| (layer.n_out as usize).div_ceil(OUTS)).sum();
    let (x, norm) = (d.x, d.norm);
    let input = Input { x, norm, n_rows: d.p.n_rows, n_in, eps: d.p.eps };
    let args = NormMatvecArgs {
        table: d.table.at(),
        out_0: d.out[0].at(),
        out_1: d.out[1].at(),
        out_2: d.layers[2].out.at(),
        head_dim: d.rope.head_dim,
        rotary_dim: d.rope.rotary_dim,
        mode: PROJECT,
        ..args(&input, plain, &layers)?
    };
    if is_rotated {
        return launch(backend, plain, n_blocks, &args);
    }
    let (out_0, out_1) = (d.layers[0].out.at(), d.layers[1].out.at());
    launch(backend, plain, n_blocks, &NormMatvecArgs { out_0, out_1, rotary_dim: 0, ..args })?;
    norm_rope::run(backend, &d)
}

pub(crate) fn gated<D: Driver>(
    backend: &CudaBackend<D>,
    d: NormGated<'_, CudaBackend<D>>,
) -> OpResult<()> {
    if tile_layers::gated(backend, &d)? {
        return Ok(());
    }
    let pair = [&d.gate, &d.up];
    let Some(plain) = common(d.p.n_rows, pair) else { return d.unfused(backend) };
    d.check()?;
    let n_in = d.p.width;
    let layers = [layer(&d.gate, n_in)?, layer(&d.up, n_in)?, ABSENT];
    let n_blocks = (d.gate.n_out as usize).div_ceil(OUTS / 2);
    let (x, norm) = (d.x, d.norm);
    let input = Input { x, norm, n_rows: d.p.n_rows, n_in, eps: d.p.eps };
    let args = NormMatvecArgs {
        out_0: d.out.at(),
        mode: match d.activation {
            Activation::Silu => SILU,
            Activation::GeluTanh => GELU,
        },
        ..args(&input, plain, &layers)?
    };
    launch(backend, plain, n_blocks, &args)
}

/// How the rows of all weights lie, where one launch can take them and so few rows.
fn common<'a, 'b: 'a, D: Driver>(
    n_rows: u32,
    layers: impl IntoIterator<Item = &'a LinearOut<'b, CudaBackend<D>>>,
) -> Option<Plain> {
    let mut all = None;
    for layer in layers {
        let Rows::Plain(plain) = layer.weight.rows else { return None };
        let first = *all.get_or_insert(plain);
        let is_alike = (plain.dtype, plain.row_bytes, plain.is_rounding())
            == (first.dtype, first.row_bytes, first.is_rounding());
        if !is_alike {
            return None;
        }
    }
    all.filter(|_| (1..=MAX_ROWS).contains(&(n_rows as usize)))
}

/// Shapes are checked, as those of a product of its own.
fn layer<D: Driver>(layer: &LinearOut<'_, CudaBackend<D>>, n_in: u32) -> OpResult<Layer> {
    let n_out = layer.n_out as usize;
    layer.weight.expect(Op::Matvec, n_out, n_in as usize)?;
    let (bias, bias_kind) = match layer.bias {
        None => (Address::NONE, NO_KIND),
        Some(bias) => {
            bias.expect(Op::Matvec, 1, n_out)?;
            (bias.address(), kind(bias.plain(Op::Matvec)?.dtype))
        }
    };
    Ok(Layer { weight: layer.weight.address(), bias, bias_kind, n_out: layer.n_out })
}

/// All but what becomes of the sums.
fn args<D: Driver>(
    input: &Input<'_, D>,
    plain: Plain,
    [a, b, c]: &[Layer; 3],
) -> OpResult<NormMatvecArgs> {
    let Input { x, norm, n_rows, n_in, eps } = *input;
    norm.expect(Op::RmsNorm, 1, n_in as usize)?;
    let at = x.at();
    Ok(NormMatvecArgs {
        x: at,
        norm: norm.address(),
        table: Address::NONE,
        weight_0: a.weight,
        weight_1: b.weight,
        weight_2: c.weight,
        bias_0: a.bias,
        bias_1: b.bias,
        bias_2: c.bias,
        out_0: Address::NONE,
        out_1: Address::NONE,
        out_2: Address::NONE,
        n_rows,
        n_in,
        n_out_0: a.n_out,
        n_out_1: b.n_out,
        n_out_2: c.n_out,
        row_units: plain.row_units(),
        norm_kind: kind(norm.plain(Op::RmsNorm)?.dtype),
        bias_kind_0: a.bias_kind,
        bias_kind_1: b.bias_kind,
        bias_kind_2: c.bias_kind,
        head_dim: 0,
        rotary_dim: 0,
        eps,
        x_is_aligned: (at.is_aligned(16) && n_in.is_multiple_of(4)).into(),
        is_rounding: plain.is_rounding().into(),
        mode: PROJECT,
    })
}

fn launch<D: Driver>(
    backend: &CudaBackend<D>,
    plain: Plain,
    n_blocks: usize,
    args: &NormMatvecArgs,
) -> OpResult<()> {
    let kernels = by_type(plain.dtype, [F32, F16, BF16]);
    let behind = |at: Address, row_len: u32, first: usize| match at {
        Address::NONE => at,
        Address(at) => Address(at + 4 * u64::from(row_len) * first as u64),
    };
    for first in (0..args.n_rows as usize).step_by(ROWS) {
        let n = ROWS.min(args.n_rows as usize - first);
        let args = NormMatvecArgs {
            x: behind(args.x, args.n_in, first),
            table: behind(args.table, args.rotary_dim, first),
            out_0: behind(args.out_0, args.n_out_0, first),
            out_1: behind(args.out_1, args.n_out_1, first),
            out_2: behind(args.out_2, args.n_out_2, first),
            n_rows: n as u32,
            ..*args
        };
        let kernel = kernels[usize::from(n > 1)];
        backend.launch(kernel, Grid::new([n_blocks, 1, 1]), &args)?;
    }
    Ok(())
}
