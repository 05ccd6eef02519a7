//! What the two linear ops have in common: their parameters.

use longview_ops::{Linear, LinearParams, Op, OpResult};

use super::{NO_KIND, kind};
use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::weight::Shard;

/// Compares the shapes of the weights with the parameters.
pub(super) fn expect(op: Op, d: &Linear<'_, WgpuBackend>) -> OpResult<()> {
    let (n_in, n_out) = (d.p.n_in as usize, d.p.n_out as usize);
    d.weight.expect(op, n_out, n_in)?;
    d.bias.map_or(Ok(()), |bias| bias.expect(op, 1, n_out))
}

/// Rows of x.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub first: usize,
    pub n: usize,
}

/// What one dispatch does: some rows of x with the rows of W that lie in one buffer.
pub(super) struct Part<'d, 'a> {
    pub d: &'d Linear<'a, WgpuBackend>,
    pub rows: Rows,
    pub shard: &'d Shard,
}

impl Part<'_, '_> {
    /// Bindings and parameters, as both shaders list them. `unit` is how many words their loads of
    /// the weight have.
    pub fn add_to<'l>(&self, launch: Launch<'l>, unit: usize) -> Launch<'l> {
        let Self { d, rows, shard } = self;
        let LinearParams { n_in, n_out, .. } = d.p;
        let x_offset = d.x.offset + rows.first * n_in as usize;
        let out_offset = d.out.offset + rows.first * n_out as usize;
        // Rows of x that begin at whole vectors.
        let is_vector = x_offset.is_multiple_of(4) && n_in.is_multiple_of(4);
        // Without a bias something must be bound all the same.
        let bias = d.bias.and_then(|bias| Some((bias, bias.shards.first()?)));
        let (bias_kind, bias_raw, bias_offset) = match bias {
            Some((bias, at)) => (kind(bias.dtype), &at.raw, bias.elements_of(at.word_offset)),
            None => (NO_KIND, &shard.raw, 0),
        };
        let row_bytes = d.weight.row_words * 4;
        launch
            .define("WEIGHT_KIND", kind(d.weight.dtype))
            .define("X_VECTOR", is_vector.into())
            .params(&LinearParams { n_rows: rows.n as u32, ..d.p })
            .u32(shard.first_row)
            .u32(shard.n_rows)
            .reads(&shard.raw)
            .u32(shard.word_offset / unit)
            .u32(d.weight.row_words / unit)
            .reads(bias_raw)
            .params(&bias_kind)
            .u32(bias_offset)
            .reads(&d.x.buffer.raw)
            .u32(x_offset)
            .writes(&d.out.buffer.raw)
            .u32(out_offset)
            .counts((shard.n_rows * row_bytes + rows.n * n_in as usize * 4) as u64)
    }
}
