//! Launches products and lookups of quantised weights: `shared/tile_product.wgsl` and
//! `shared/tile_embed.wgsl`, once for each shard, and `shared/round_rows.wgsl`, which rounds
//! activations for the products that follow.
//!
//! A format is a few constants of a variant. Many rows are blocks of few ones in one launch: so a
//! row has the same bits whatever rows are computed with it, and W comes from the device's cache
//! for all blocks but the first.

use std::sync::Arc;

use longview_core::quant::{QuantType, Scales, TILE_ROWS, UNIT, table};
use longview_ops::{Activations, Embed, EmbedParams, Linear, LinearGroup, Op, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::{Launch, rows_are_vectors};
use crate::linear;
use crate::raw_buffer::RawBuffer;
use crate::shader::Define;
use crate::weight::{Layout, Shard, Tiled, VECTOR};

/// Rows of x that one unpacking of the codes serves.
const MAX_ROWS: usize = 8;
/// Invocations that share a unit of a tile, with 4 rows each.
const QUADS: usize = TILE_ROWS / 4;
/// Invocations of a workgroup that rounds, or looks up.
const GROUP: usize = 64;
/// Bytes of a rounded unit: its codes, and a vector beside them.
const fn rounded_bytes(planes: usize) -> usize {
    planes * UNIT + 4 * VECTOR
}

/// The constants of a format, as `shared/tiles.wgsl` has them.
pub(crate) fn format_defines(ty: QuantType) -> [Define; 3] {
    let scales = match ty.scales() {
        Scales::F16 => 0,
        Scales::Bf16 => 1,
        Scales::WithMin => 2,
        Scales::SuperMin => 3,
        Scales::SuperHalves => 4,
    };
    let table = match ty {
        QuantType::Iq4Nl => 1,
        QuantType::Mxfp4 => 2,
        _ => 0,
    };
    [("CODE_BITS", ty.code_bits() as u32), ("SCALES", scales), ("TABLE", table)]
}

/// Invocations of a workgroup: by the shape of W alone, on which the order of sums depends. Eight
/// rows of x then fill 16 KiB of shared memory, or half of it beside a table.
pub(crate) fn group_size(ty: QuantType, n_units: usize) -> usize {
    if n_units > 8 * QUADS && table(ty).is_none() { 128 } else { 64 }
}

/// Rows of activations as a product takes them.
struct Input<'a> {
    raw: &'a Arc<RawBuffer>,
    /// Vectors where rows are rounded, else elements.
    offset: usize,
    /// Codes of 8 bits that stand for a number; 0 where rows are not rounded.
    planes: usize,
    is_vector: bool,
}

/// A product of any number of rows; shapes were checked.
pub(crate) fn linear(
    backend: &WgpuBackend,
    d: &Linear<'_, WgpuBackend>,
    tiled: Tiled,
) -> OpResult<()> {
    match tiled.activations {
        Activations::Int8 | Activations::Int16 | Activations::Bf16 => {
            let rounded = round(backend, d, tiled.activations)?;
            product(backend, d, tiled, &of_rounded(&rounded, tiled.activations))
        }
        Activations::F32 => {
            let is_vector = rows_are_vectors(d.p.n_in, &[d.x.offset]);
            let (raw, offset) = (&d.x.buffer.raw, d.x.offset);
            product(backend, d, tiled, &Input { raw, offset, planes: 0, is_vector })
        }
    }
}

/// Layers that read the same rows: these are rounded once, where all round them alike.
pub(crate) fn group(
    backend: &WgpuBackend,
    mut d: LinearGroup<'_, '_, WgpuBackend>,
) -> OpResult<()> {
    let tiled = |layout| match layout {
        Layout::Tiled(tiled) => Some(tiled),
        Layout::Plain(_) => None,
    };
    let kind = |layout| tiled(layout).map_or(Activations::F32, |tiled| tiled.activations);
    let first = d.layers.first().map_or(Activations::F32, |layer| kind(layer.weight.layout));
    if first == Activations::F32 || d.layers.iter().any(|l| kind(l.weight.layout) != first) {
        return d.unfused(backend);
    }
    let mut rounded = None;
    for i in 0..d.layers.len() {
        let layer = d.layer(i);
        layer.check(Op::Matmul)?;
        linear::expect(Op::Matmul, &layer)?;
        let Some(tiled) = tiled(layer.weight.layout) else { continue };
        let rows = match &rounded {
            Some(rows) => rows,
            None => rounded.insert(round(backend, &layer, first)?),
        };
        product(backend, &layer, tiled, &of_rounded(rows, first))?;
    }
    Ok(())
}

fn of_rounded(raw: &Arc<RawBuffer>, activations: Activations) -> Input<'_> {
    Input { raw, offset: 0, planes: activations.planes(), is_vector: true }
}

/// Rounds rows into a buffer that they stay in until the next op that takes scratch.
fn round(
    backend: &WgpuBackend,
    d: &Linear<'_, WgpuBackend>,
    activations: Activations,
) -> OpResult<Arc<RawBuffer>> {
    let planes = activations.planes();
    let n_units = d.p.n_rows as usize * (d.p.n_in as usize / UNIT);
    let bytes = (n_units * rounded_bytes(planes)) as u64;
    // A power of two grows seldom; but the bytes themselves may fit where it does not.
    let bytes = bytes.next_power_of_two().min(backend.gpu.max_storage_bytes()).max(bytes);
    let rounded = backend.scratch.take(&backend.gpu, bytes)?;
    Launch::new(backend, "shared/round_rows", "round_rows")
        .define("X_VECTOR", rows_are_vectors(d.p.n_in, &[d.x.offset]).into())
        .define("PLANES", planes as u32)
        .u32(n_units)
        .view(&d.x)
        .writes(&rounded)
        .counts((n_units * UNIT * 4) as u64)
        .run(n_units.div_ceil(GROUP))?;
    Ok(rounded)
}

fn product(
    backend: &WgpuBackend,
    d: &Linear<'_, WgpuBackend>,
    tiled: Tiled,
    x: &Input<'_>,
) -> OpResult<()> {
    let rows = (d.p.n_rows as usize).clamp(1, MAX_ROWS).next_power_of_two();
    let n_blocks = (d.p.n_rows as usize).div_ceil(rows);
    let group = group_size(tiled.tiles.ty, tiled.tiles.n_units());
    for shard in &d.weight.shards {
        let (bias_raw, bias_kind, bias_offset) = linear::bias_of(d, shard);
        let launch = Launch::new(backend, "shared/tile_product", "tile_product");
        let launch = with_format(launch, tiled.tiles.ty)
            .define("ROWS", rows as u32)
            .define("GROUP", group as u32)
            .define("PLANES", x.planes as u32);
        let launch = match x.planes {
            0 => launch.define("X_VECTOR", x.is_vector.into()),
            _ => launch,
        };
        at_shard(launch.params(&d.p).u32(shard.first_row).u32(shard.n_rows), tiled, shard)
            .reads(bias_raw)
            .params(&bias_kind)
            .u32(bias_offset)
            .reads(x.raw)
            .u32(x.offset)
            .view_mut(&d.out)
            .counts(d.weight.shard_bytes(shard))
            .run(shard.n_rows.div_ceil(TILE_ROWS) * n_blocks)?;
    }
    Ok(())
}

/// Rows of a table; shapes were checked.
pub(crate) fn embed(
    backend: &WgpuBackend,
    d: &Embed<'_, WgpuBackend>,
    tiled: Tiled,
) -> OpResult<()> {
    let EmbedParams { n_tokens, width, .. } = d.p;
    let n_quads = n_tokens as usize * width as usize / 4;
    for shard in &d.table.shards {
        let launch = Launch::new(backend, "shared/tile_embed", "tile_embed");
        let launch = with_format(launch, tiled.tiles.ty).params(&d.p);
        let launch = launch.u32(d.table.n_rows).u32(shard.first_row).u32(shard.n_rows);
        at_shard(launch, tiled, shard)
            .view(&d.ids)
            .view_mut(&d.out)
            .counts((n_quads * tiled.tiles.ty.code_bits() / 2) as u64)
            .run(n_quads.div_ceil(GROUP))?;
    }
    Ok(())
}

fn with_format(launch: Launch<'_>, ty: QuantType) -> Launch<'_> {
    format_defines(ty).into_iter().fold(launch, |launch, (name, value)| launch.define(name, value))
}

/// Binds a shard and says where its tiles are, as both shaders list it.
fn at_shard<'l>(launch: Launch<'l>, tiled: Tiled, shard: &Shard) -> Launch<'l> {
    let [tile_vectors, scales_at] = tiled.vectors();
    launch.reads(&shard.raw).u32(shard.word_offset / VECTOR).u32(tile_vectors).u32(scales_at)
}

#[cfg(test)]
mod tests {
    use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
    use longview_ops::corpus::random_blocks;
    use longview_ops::{Backend, EmbedParams, LinearParams, QuantSource, View, ViewMut};
    use pollster::block_on;

    use super::*;
    use crate::{WgpuBuffer, WgpuWeight, testing};

    #[test]
    fn sums_of_eight_rows_and_a_table_fit_into_shared_memory() {
        for ty in QuantType::ALL {
            let table = if table(ty).is_some() { 64 } else { 0 };
            for n_units in [1, 18, 33, 128, 600] {
                let group = group_size(ty, n_units);
                assert!(MAX_ROWS * group * 16 + table <= 16384, "{ty}, {n_units} units");
                assert!(group / 2 >= 8 * QUADS, "the parts that are left at the end");
            }
        }
    }

    const N_IN: usize = 64;
    const N_OUT: usize = 40;
    const N_ROWS: usize = 3;

    fn weight(backend: &WgpuBackend, ty: QuantType) -> WgpuWeight {
        let n_blocks = N_OUT * N_IN / ty.block_len();
        let blocks = random_blocks(ty, n_blocks, 0.1, &mut SplitMix64::new(3));
        let (name, blocks) = ("w".into(), HostBytes::from_vec(blocks));
        let (n_rows, n_cols, activations) = (N_OUT, N_IN, Activations::Int8);
        let source = QuantSource { name, ty, n_rows, n_cols, blocks, activations };
        backend.load_quantised(source).unwrap()
    }

    fn read(backend: &WgpuBackend, buffer: &WgpuBuffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len * 4];
        block_on(backend.read(View::all(buffer), &mut bytes)).unwrap();
        bytes
    }

    /// A product and lookups, into buffers that hold something else.
    fn results(
        backend: &WgpuBackend,
        weight: &WgpuWeight,
        [x, ids]: [&WgpuBuffer; 2],
        [product, rows]: &mut [WgpuBuffer; 2],
    ) -> [Vec<u8>; 2] {
        for buffer in [&mut *product, &mut *rows] {
            let other = vec![0xff; buffer.len * 4];
            backend.write(ViewMut::all(buffer), &other).unwrap();
        }
        let [n_rows, n_in, n_out] = [N_ROWS, N_IN, N_OUT].map(|n| n as u32);
        let p = LinearParams { n_rows, n_in, n_out, accumulate: 0 };
        let out = ViewMut::all(product);
        backend.matvec(Linear { p, x: View::all(x), weight, bias: None, out }).unwrap();
        let p = EmbedParams { n_tokens: ids.len as u32, width: n_in, scale: 1.0 };
        let out = ViewMut::all(rows);
        backend.embed(Embed { p, ids: View::all(ids), table: weight, out }).unwrap();
        [read(backend, product), read(backend, rows)]
    }

    /// Needs an adapter, as `tests/backend.rs` does.
    #[test]
    fn tiles_may_lie_in_several_buffers() {
        let Some(mut backend) = testing::device() else { return };
        let alloc = |dtype, len| backend.alloc(dtype, len, "test").unwrap();
        let ids = [39u32, 0, 15, 16, 31, 32, 17, 40];
        let (mut x, mut id_buffer) =
            (alloc(DType::F32, N_ROWS * N_IN), alloc(DType::U32, ids.len()));
        let mut outs = [N_ROWS * N_OUT, ids.len() * N_IN].map(|len| alloc(DType::F32, len));
        let values: Vec<f32> = (0..N_ROWS * N_IN).map(|i| (i % 17) as f32 - 8.0).collect();
        backend.write(ViewMut::all(&mut x), &encode_f32(DType::F32, &values)).unwrap();
        backend.write(ViewMut::all(&mut id_buffer), bytemuck::cast_slice(&ids)).unwrap();
        let inputs = [&x, &id_buffer];
        let whole = weight(&backend, QuantType::Q4_0);
        assert_eq!(whole.shards.len(), 1);
        let expected = results(&backend, &whole, inputs, &mut outs);

        // From now on a buffer holds two tiles.
        let tile_bytes = whole.size_bytes() / 3;
        let gpu = Arc::get_mut(&mut backend.gpu).expect("nobody else has the device");
        gpu.limits.max_storage_buffer_binding_size =
            (2 * tile_bytes).next_multiple_of(crate::gpu::STORAGE_ALIGNMENT);
        let cut = weight(&backend, QuantType::Q4_0);
        let rows: Vec<_> = cut.shards.iter().map(|s| (s.first_row, s.n_rows)).collect();
        assert_eq!(rows, [(0, 32), (32, 8)]);
        assert!(results(&backend, &cut, inputs, &mut outs) == expected);
    }
}
