//! Launches `shared/norm_matvec.wgsl`: the fused calls of a decoder layer, where the shapes allow
//! them.
//!
//! What a launch needs: few rows, whole vectors, each weight in one piece, all matrices of the call
//! in one buffer and all vectors (norms, biases) in one. Anything else takes the single calls.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use longview_ops::{
    Activation, LinearOut, NO_KIND, NormGated, Op, OpResult, Project, RmsNormParams, View, kind,
};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::ops::matvec::MAX_ROWS;
use crate::raw_buffer::RawBuffer;
use crate::weight::{Plain, Shard, VECTOR, WgpuWeight};

/// `Layer` of the shader.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct LayerParams {
    n_out: u32,
    weight_offset: u32,
    bias_kind: u32,
    bias_offset: u32,
    out_offset: u32,
}

/// What both entry points share, found to be possible.
struct Common<'a> {
    p: RmsNormParams,
    x: View<'a, WgpuBackend>,
    norm: Plain,
    /// Word of the norm's weights.
    norm_at: usize,
    vectors: &'a Arc<RawBuffer>,
    matrices: &'a Arc<RawBuffer>,
    matrix: Plain,
}

/// The only shard of a weight.
fn whole(weight: &WgpuWeight) -> Option<&Shard> {
    match weight.shards.as_slice() {
        [shard] => Some(shard),
        _ => None,
    }
}

impl<'a> Common<'a> {
    /// `None` where one launch cannot do it.
    fn find(
        p: RmsNormParams,
        x: View<'a, WgpuBackend>,
        norm: &'a WgpuWeight,
        layers: &[&LinearOut<'a, WgpuBackend>],
    ) -> Option<Self> {
        let first = layers.first()?.weight;
        let (matrix, matrices) = (first.numbers()?, &whole(first)?.raw);
        let Shard { raw: vectors, word_offset: norm_at, .. } = whole(norm)?;
        let norm = norm.numbers()?;
        let fits = (1..=MAX_ROWS as u32).contains(&p.n_rows)
            && p.width.is_multiple_of(4)
            && x.offset.is_multiple_of(4);
        let together = layers.iter().all(|layer| {
            let in_place = |w: &WgpuWeight, raw: &Arc<RawBuffer>| {
                whole(w).is_some_and(|shard| Arc::ptr_eq(&shard.raw, raw))
            };
            layer.weight.numbers() == Some(matrix)
                && layer.n_out > 0
                && in_place(layer.weight, matrices)
                && layer.bias.is_none_or(|bias| bias.numbers().is_some() && in_place(bias, vectors))
        });
        let norm_at = *norm_at;
        (fits && together).then_some(Self { p, x, norm, norm_at, vectors, matrices, matrix })
    }

    fn launch<'b>(&self, backend: &'b WgpuBackend, entry: &'static str) -> Launch<'b> {
        let rows = self.p.n_rows.next_power_of_two();
        let group = if rows > 4 { 64 } else { 128 };
        Launch::new(backend, "shared/norm_matvec", entry)
            .define("WEIGHT_KIND", kind(self.matrix.dtype))
            .define("ROUND_X", self.matrix.is_rounding.into())
            .define("ROWS", rows)
            .define("GROUP", group)
            .define("PROJECT", (entry == "project").into())
            .params(&[self.p.n_rows, self.p.width])
            .params(&self.p.eps)
            .reads(self.vectors)
            .view(&self.x)
            .params(&kind(self.norm.dtype))
            .u32(self.norm.elements_of(self.norm_at))
            .u32(self.matrix.row_words / VECTOR)
            .reads(self.matrices)
    }
}

fn layer_params(layer: &LinearOut<'_, WgpuBackend>, out_offset: usize) -> LayerParams {
    let bias = layer.bias.and_then(|bias| Some((bias.numbers()?, bias.shards.first()?)));
    let (bias_kind, bias_offset) = bias.map_or((NO_KIND, 0), |(plain, shard)| {
        (kind(plain.dtype), plain.elements_of(shard.word_offset))
    });
    LayerParams {
        n_out: layer.n_out,
        weight_offset: (layer.weight.shards[0].word_offset / VECTOR) as u32,
        bias_kind,
        bias_offset: bias_offset as u32,
        out_offset: out_offset as u32,
    }
}

fn expect(
    p: RmsNormParams,
    norm: &WgpuWeight,
    layers: &[&LinearOut<'_, WgpuBackend>],
) -> OpResult<()> {
    norm.expect(Op::RmsNorm, 1, p.width as usize)?;
    for layer in layers {
        layer.weight.expect(Op::Matvec, layer.n_out as usize, p.width as usize)?;
        layer.bias.map_or(Ok(()), |bias| bias.expect(Op::Matvec, 1, layer.n_out as usize))?;
    }
    Ok(())
}

fn weight_bytes(layers: &[&LinearOut<'_, WgpuBackend>]) -> u64 {
    layers.iter().map(|layer| layer.weight.size_bytes()).sum()
}

pub(crate) fn project(backend: &WgpuBackend, d: Project<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let layers = d.layers.each_ref();
    expect(d.p, d.norm, &layers)?;
    let heads_turn = d.rope.head_dim.is_multiple_of(4)
        && d.rope.rotary_dim.is_multiple_of(4)
        && layers.iter().all(|layer| layer.n_out.is_multiple_of(4))
        && d.head_norms.iter().all(Option::is_none);
    let Some(common) = Common::find(d.p, d.x, d.norm, &layers).filter(|_| heads_turn) else {
        return d.unfused(backend);
    };
    let [q, k, v] = layers;
    let [q_out, k_out] = &d.out;
    let quads: u32 = layers.iter().map(|layer| layer.n_out / 4).sum();
    common
        .launch(backend, "project")
        .u32(d.rope.head_dim as usize)
        .u32(d.rope.rotary_dim as usize)
        .view(&d.table)
        .params(&layer_params(q, q_out.offset))
        .params(&layer_params(k, k_out.offset))
        .params(&layer_params(v, v.out.offset))
        .writes(&q_out.buffer.raw)
        .writes(&k_out.buffer.raw)
        .writes(&v.out.buffer.raw)
        .counts(weight_bytes(&layers))
        .run(quads as usize)
}

pub(crate) fn gated(backend: &WgpuBackend, d: NormGated<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let layers = [&d.gate, &d.up];
    expect(d.p, d.norm, &layers)?;
    let Some(common) = Common::find(d.p, d.x, d.norm, &layers) else {
        return d.unfused(backend);
    };
    common
        .launch(backend, "gated")
        .define("GELU", (d.activation == Activation::GeluTanh).into())
        // No heads, no rotation.
        .params(&[0u32; 3])
        .params(&layer_params(&d.gate, 0))
        .params(&layer_params(&d.up, 0))
        .params(&LayerParams { out_offset: d.out.offset as u32, ..Default::default() })
        .writes(&d.out.buffer.raw)
        .counts(weight_bytes(&layers))
        .run(d.gate.n_out.div_ceil(2) as usize)
}
