//! Launches `tile_layers.cu`: linear layers of one row with quantised weights, what comes before
//! them and what behind, in one launch. All else is done by single ops, to the same bits.

use longview_core::quant::{QuantType, TILE_ROWS, UNIT};
use longview_ops::{
    Activation, Linear, LinearGroup, LinearOut, NO_KIND, NormGated, Op, OpResult, Project,
    RmsNormParams, kind,
};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::fused_args::TileLayersArgs;
use crate::kernels::Kernel;
use crate::norm_rope;
use crate::variant::bias_of;
use crate::weight::{CudaWeight, Rows, Tiled};

/// What a block makes of its sums, as the kernel numbers it.
const PLAIN: u32 = 0;
const PROJECT: u32 = 1;
const SILU: u32 = 2;
const GELU: u32 = 3;

/// Layers of a launch.
const MAX_LAYERS: usize = 3;
/// Blocks that a multiprocessor is to hold at once: so many threads of two blocks find registers.
const BLOCKS: usize = 2;
/// Bytes of a rounded row in shared memory; with what a block has besides, every device has as much
/// without being asked.
const MOST_ROUNDED: usize = 44 << 10;

/// Of one format.
fn kernel(ty: QuantType) -> Kernel {
    match ty {
        QuantType::Q4_0 => Kernel::tile_layers_q4_0,
        QuantType::Q4_1 => Kernel::tile_layers_q4_1,
        QuantType::Q5_0 => Kernel::tile_layers_q5_0,
        QuantType::Q5_1 => Kernel::tile_layers_q5_1,
        QuantType::Q8_0 => Kernel::tile_layers_q8_0,
        QuantType::Q4K => Kernel::tile_layers_q4_k,
        QuantType::Q5K => Kernel::tile_layers_q5_k,
        QuantType::Q6K => Kernel::tile_layers_q6_k,
        QuantType::Iq4Nl => Kernel::tile_layers_iq4_nl,
        QuantType::Mxfp4 => Kernel::tile_layers_mxfp4,
    }
}

/// Where the third layer has another format than the first two.
fn mixed(ty: QuantType, third: QuantType) -> Option<Kernel> {
    match (ty, third) {
        (QuantType::Q4K, QuantType::Q6K) => Some(Kernel::tile_layers_q4_k_q6_k),
        (QuantType::Q5K, QuantType::Q6K) => Some(Kernel::tile_layers_q5_k_q6_k),
        _ => None,
    }
}

/// How a layer is stored and what its product does to x.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Form {
    ty: QuantType,
    planes: usize,
    n_in: usize,
}

impl Form {
    /// Of a product of one row that rounds it; `None` where it does not, or the row does not fit.
    fn of<D: Driver>(weight: &CudaWeight<D>, n_rows: u32) -> Option<Self> {
        let Rows::Tiled(Tiled { tiles, activations }) = weight.rows else { return None };
        let form = Self { ty: tiles.ty, planes: activations.planes(), n_in: tiles.n_cols };
        let is_rounded = n_rows == 1 && form.planes > 0 && form.n_in > 0;
        (is_rounded && form.shared_bytes() <= MOST_ROUNDED).then_some(form)
    }

    /// Of a rounded row.
    fn shared_bytes(self) -> usize {
        self.n_in / UNIT * (self.planes * UNIT + 16)
    }
}

/// One layer as the kernel takes it.
#[derive(Clone, Copy)]
struct Layer {
    /// `None` of a layer that is not there.
    form: Option<Form>,
    /// Of a tile, and those before its scales.
    units: [u32; 2],
    weight: Address,
    bias: Address,
    bias_kind: u32,
    out: Address,
    n_out: u32,
}

const ABSENT: Layer = Layer {
    form: None,
    units: [0; 2],
    weight: Address::NONE,
    bias: Address::NONE,
    bias_kind: NO_KIND,
    out: Address::NONE,
    n_out: 0,
};

impl Layer {
    /// `None` where no launch can do it. Shapes are checked, as those of a product of its own.
    fn new<D: Driver>(
        op: Op,
        layer: &LinearOut<'_, CudaBackend<D>>,
        [n_rows, n_in]: [u32; 2],
    ) -> OpResult<Option<Self>> {
        let Some(form) = Form::of(layer.weight, n_rows) else { return Ok(None) };
        let n_out = layer.n_out as usize;
        layer.weight.expect(op, n_out, n_in as usize)?;
        let (bias, bias_kind) = match layer.bias {
            None => (Address::NONE, NO_KIND),
            Some(bias) => {
                bias.expect(op, 1, n_out)?;
                (bias.address(), kind(bias.plain(op)?.dtype))
            }
        };
        let (units, weight) = (units(layer.weight), layer.weight.address());
        let (out, n_out) = (layer.out.at(), layer.n_out);
        Ok(Some(Self { form: Some(form), units, weight, bias, bias_kind, out, n_out }))
    }

    fn tiles(self) -> u32 {
        self.n_out.div_ceil(TILE_ROWS as u32)
    }
}

/// Where x comes from and what it goes through.
#[derive(Clone, Copy)]
struct Input {
    x: Address,
    norm: Address,
    norm_kind: u32,
    eps: f32,
}

/// The norm in front of layers; its shape is checked.
fn normed<D: Driver>(x: Address, norm: &CudaWeight<D>, p: RmsNormParams) -> OpResult<Input> {
    norm.expect(Op::RmsNorm, 1, p.width as usize)?;
    let norm_kind = kind(norm.plain(Op::RmsNorm)?.dtype);
    Ok(Input { x, norm: norm.address(), norm_kind, eps: p.eps })
}

/// A row without a norm.
fn bare(x: Address) -> Input {
    Input { x, norm: Address::NONE, norm_kind: NO_KIND, eps: 0.0 }
}

fn units<D: Driver>(weight: &CudaWeight<D>) -> [u32; 2] {
    match weight.rows {
        Rows::Tiled(tiled) => tiled.units(),
        Rows::Plain(_) => [0; 2],
    }
}

/// q, k and v with what comes before, in as many launches as their formats need, and one more for
/// what a tile does not see: norms of heads, rotations that reach beyond two tiles. False where no
/// launch can do it.
pub(crate) fn project<D: Driver>(
    backend: &CudaBackend<D>,
    d: &Project<'_, CudaBackend<D>>,
) -> OpResult<bool> {
    if d.layers.iter().any(|layer| Form::of(layer.weight, d.p.n_rows).is_none()) {
        return Ok(false);
    }
    let (head_dim, rotary_dim) = (d.rope.head_dim, d.rope.rotary_dim);
    let tile = TILE_ROWS as u32;
    // Rows that the rotation mixes lie in one tile, or in tiles of their own side by side.
    let is_whole = rotary_dim == 0
        || (head_dim.is_multiple_of(tile)
            && (rotary_dim == tile || rotary_dim.is_multiple_of(2 * tile)));
    let is_rotated = is_whole && d.head_norms.iter().all(Option::is_none);
    if !is_rotated && !norm_rope::suits(d) {
        return Ok(false);
    }
    d.check()?;
    let mut layers = [ABSENT; MAX_LAYERS];
    for (to, layer) in layers.iter_mut().zip(&d.layers) {
        let Some(layer) = Layer::new(Op::Matvec, layer, [d.p.n_rows, d.p.width])? else {
            return Ok(false);
        };
        *to = layer;
    }
    let mut call = Call::new(normed(d.x.at(), d.norm, d.p)?);
    if !is_rotated {
        call.run(backend, &layers)?;
        norm_rope::run(backend, d)?;
        return Ok(true);
    }
    (call.table, call.mode) = (d.table.at(), PROJECT);
    (call.head_dim, call.rotary_dim) = (head_dim, rotary_dim);
    (layers[0].out, layers[1].out) = (d.out[0].at(), d.out[1].at());
    call.run(backend, &layers)?;
    Ok(true)
}

/// Gate and up; false where no launch can do it.
pub(crate) fn gated<D: Driver>(
    backend: &CudaBackend<D>,
    d: &NormGated<'_, CudaBackend<D>>,
) -> OpResult<bool> {
    let [gate, up] = [&d.gate, &d.up].map(|layer| Form::of(layer.weight, d.p.n_rows));
    if gate.is_none() || gate != up {
        return Ok(false);
    }
    d.check()?;
    let sizes = [d.p.n_rows, d.p.width];
    let gate = Layer::new(Op::Matvec, &d.gate, sizes)?;
    let up = Layer::new(Op::Matvec, &d.up, sizes)?;
    let (Some(gate), Some(up)) = (gate, up) else { return Ok(false) };
    let mut call = Call::new(normed(d.x.at(), d.norm, d.p)?);
    call.mode = match d.activation {
        Activation::Silu => SILU,
        Activation::GeluTanh => GELU,
    };
    call.run(backend, &[Layer { out: d.out.at(), ..gate }, up, ABSENT])?;
    Ok(true)
}

/// A product of a row; shapes were checked. False where no launch can do it.
pub(crate) fn linear<D: Driver>(
    backend: &CudaBackend<D>,
    op: Op,
    d: &Linear<'_, CudaBackend<D>>,
) -> OpResult<bool> {
    let form = Form::of(d.weight, d.p.n_rows);
    if form.is_none() {
        return Ok(false);
    }
    let (bias, bias_kind) = bias_of(op, d)?;
    let (units, weight) = (units(d.weight), d.weight.address());
    let layer = Layer { form, units, weight, bias, bias_kind, out: d.out.at(), n_out: d.p.n_out };
    let mut call = Call::new(bare(d.x.at()));
    call.accumulate = d.p.accumulate;
    call.run(backend, &[layer, ABSENT, ABSENT])?;
    Ok(true)
}

/// Products of a row, in as many launches as their formats need; shapes were checked. False where
/// no launch can do one of them, or they are more than a launch takes.
pub(crate) fn group<D: Driver>(
    backend: &CudaBackend<D>,
    d: &LinearGroup<'_, '_, CudaBackend<D>>,
) -> OpResult<bool> {
    if d.layers.len() > MAX_LAYERS {
        return Ok(false);
    }
    let mut layers = [ABSENT; MAX_LAYERS];
    for (to, layer) in layers.iter_mut().zip(d.layers.iter()) {
        let Some(layer) = Layer::new(Op::Matmul, layer, [d.n_rows, d.n_in])? else {
            return Ok(false);
        };
        *to = layer;
    }
    Call::new(bare(d.x.at())).run(backend, &layers)?;
    Ok(true)
}

/// What is done to a row, but for the layers.
struct Call {
    input: Input,
    table: Address,
    head_dim: u32,
    rotary_dim: u32,
    accumulate: u32,
    mode: u32,
}

impl Call {
    /// Of plain products.
    fn new(input: Input) -> Self {
        let (table, mode) = (Address::NONE, PLAIN);
        Self { input, table, head_dim: 0, rotary_dim: 0, accumulate: 0, mode }
    }

    /// All layers, those of one form in one launch.
    fn run<D: Driver>(
        &self,
        backend: &CudaBackend<D>,
        layers: &[Layer; MAX_LAYERS],
    ) -> OpResult<()> {
        let forms = layers.map(|layer| layer.form);
        if let [Some(a), Some(b), Some(c)] = forms
            && a == b
            && (a.planes, a.n_in) == (c.planes, c.n_in)
            && let Some(kernel) = mixed(a.ty, c.ty)
        {
            return self.launch(backend, kernel, a, layers);
        }
        for (i, form) in forms.into_iter().enumerate() {
            let Some(form) = form.filter(|_| !forms[..i].contains(&form)) else { continue };
            let own = layers.map(|layer| if layer.form == Some(form) { layer } else { ABSENT });
            self.launch(backend, kernel(form.ty), form, &own)?;
        }
        Ok(())
    }

    /// Pairs of tiles of each layer, as the kernel makes them.
    fn pairs(&self, layers: &[Layer; MAX_LAYERS]) -> [u32; MAX_LAYERS] {
        if matches!(self.mode, SILU | GELU) {
            // A tile of each.
            return [layers[0].tiles(), 0, 0];
        }
        [0, 1, 2].map(|i: usize| {
            let is_rotated = self.mode == PROJECT && i < 2 && self.rotary_dim > 0;
            let layer = layers[i];
            if !is_rotated {
                return layer.tiles().div_ceil(2);
            }
            let tiles = self.head_dim / TILE_ROWS as u32;
            layer.n_out / self.head_dim * tiles.div_ceil(2)
        })
    }

    fn launch<D: Driver>(
        &self,
        backend: &CudaBackend<D>,
        kernel: Kernel,
        form: Form,
        layers: &[Layer; MAX_LAYERS],
    ) -> OpResult<()> {
        let args = self.args(form, layers);
        let most = BLOCKS * backend.driver().facts().n_multiprocessors as usize;
        let n_blocks = (args.n_pairs as usize).min(most);
        let grid = Grid::new([n_blocks, 1, 1]).with_shared(form.shared_bytes() as u32);
        backend.launch(kernel, grid, &args)
    }

    fn args(&self, form: Form, layers: &[Layer; MAX_LAYERS]) -> TileLayersArgs {
        let [a, b, c] = layers;
        let pairs = self.pairs(layers);
        // Of one form, but for the third layer: any of the others has them.
        let units = layers.iter().find(|layer| layer.form == Some(form));
        let units = units.map_or([0; 2], |layer| layer.units);
        TileLayersArgs {
            x: self.input.x,
            norm: self.input.norm,
            table: self.table,
            weight_0: a.weight,
            weight_1: b.weight,
            weight_2: c.weight,
            bias_0: a.bias,
            bias_1: b.bias,
            bias_2: c.bias,
            out_0: a.out,
            out_1: b.out,
            out_2: c.out,
            n_in: form.n_in as u32,
            n_out_0: a.n_out,
            n_out_1: b.n_out,
            n_out_2: c.n_out,
            pairs_0: pairs[0],
            pairs_1: pairs[1],
            n_pairs: pairs.iter().sum(),
            tile_units: units[0],
            scales_at: units[1],
            tile_units_2: c.units[0],
            scales_at_2: c.units[1],
            planes: form.planes as u32,
            norm_kind: self.input.norm_kind,
            bias_kind_0: a.bias_kind,
            bias_kind_1: b.bias_kind,
            bias_kind_2: c.bias_kind,
            head_dim: self.head_dim,
            rotary_dim: self.rotary_dim,
            eps: self.input.eps,
            x_is_aligned: self.input.x.is_aligned(16).into(),
            accumulate: self.accumulate,
            mode: self.mode,
        }
    }
}
