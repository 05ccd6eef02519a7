//! What the two linear ops have in common: their parameters.

use std::sync::Arc;

use longview_ops::{Linear, LinearParams, NO_KIND, Op, OpResult, kind};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::raw_buffer::RawBuffer;
use crate::weight::{Plain, Shard};

/// Compares the shapes of the weights with the parameters.
pub(crate) fn expect(op: Op, d: &Linear<'_, WgpuBackend>) -> OpResult<()> {
    let (n_in, n_out) = (d.p.n_in as usize, d.p.n_out as usize);
    d.weight.expect(op, n_out, n_in)?;
    let Some(bias) = d.bias else { return Ok(()) };
    bias.expect(op, 1, n_out)?;
    bias.plain(op).map(drop)
}

/// What is bound as bias, its kind and its first element. Without a bias something must be bound
/// all the same.
pub(crate) fn bias_of<'a>(
    d: &'a Linear<'_, WgpuBackend>,
    shard: &'a Shard,
) -> (&'a Arc<RawBuffer>, u32, usize) {
    let bias = d.bias.and_then(|bias| Some((bias.numbers()?, bias.shards.first()?)));
    bias.map_or((&shard.raw, NO_KIND, 0), |(plain, at)| {
        (&at.raw, kind(plain.dtype), plain.elements_of(at.word_offset))
    })
}

/// Rows of x.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub first: usize,
    pub n: usize,
}

/// What one dispatch does: some rows of x with the rows of W that lie in one buffer.
pub(crate) struct Part<'d, 'a> {
    pub d: &'d Linear<'a, WgpuBackend>,
    pub plain: Plain,
    pub rows: Rows,
    pub shard: &'d Shard,
}

impl Part<'_, '_> {
    /// Bindings and parameters, as both shaders list them. `unit` is how many words their loads of
    /// the weight have.
    pub fn add_to<'l>(&self, launch: Launch<'l>, unit: usize) -> Launch<'l> {
        let Self { d, plain, rows, shard } = self;
        let LinearParams { n_in, n_out, .. } = d.p;
        let x_offset = d.x.offset + rows.first * n_in as usize;
        let out_offset = d.out.offset + rows.first * n_out as usize;
        // Rows of x that begin at whole vectors.
        let is_vector = x_offset.is_multiple_of(4) && n_in.is_multiple_of(4);
        let (bias_raw, bias_kind, bias_offset) = bias_of(d, shard);
        launch
            .define("WEIGHT_KIND", kind(plain.dtype))
            .define("ROUND_X", plain.is_rounding.into())
            .define("X_VECTOR", is_vector.into())
            .params(&LinearParams { n_rows: rows.n as u32, ..d.p })
            .u32(shard.first_row)
            .u32(shard.n_rows)
            .reads(&shard.raw)
            .u32(shard.word_offset / unit)
            .u32(plain.row_words / unit)
            .reads(bias_raw)
            .params(&bias_kind)
            .u32(bias_offset)
            .reads(&d.x.buffer.raw)
            .u32(x_offset)
            .writes(&d.out.buffer.raw)
            .u32(out_offset)
            .counts(d.weight.shard_bytes(shard) + rows.n as u64 * u64::from(n_in) * 4)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longview_core::{DType, HostBytes, decode_f32, encode_f32};
    use longview_ops::*;
    use pollster::block_on;

    use crate::{WgpuBackend, WgpuBuffer, testing};

    const N_IN: usize = 5;
    const N_OUT: usize = 40;
    const N_ROWS: usize = 2;

    fn value(row: usize, column: usize) -> f32 {
        ((3 * row + 5 * column) % 11) as f32 - 4.0
    }

    fn holding(backend: &WgpuBackend, values: &[f32]) -> WgpuBuffer {
        let mut buffer = backend.alloc(DType::F32, values.len(), "test").unwrap();
        let bytes = encode_f32(DType::F32, values);
        backend.write(ViewMut::all(&mut buffer), &bytes).unwrap();
        buffer
    }

    fn read(backend: &WgpuBackend, buffer: &WgpuBuffer) -> Vec<f32> {
        let mut bytes = vec![0; buffer.len() * 4];
        block_on(backend.read(View::all(buffer), &mut bytes)).unwrap();
        decode_f32(DType::F32, &bytes)
    }

    fn weight(backend: &WgpuBackend, n_rows: usize, n_cols: usize) -> crate::WgpuWeight {
        let values: Vec<f32> =
            (0..n_rows).flat_map(|r| (0..n_cols).map(move |c| value(r, c))).collect();
        let bytes = HostBytes::from_vec(encode_f32(DType::F16, &values));
        let (name, dtype, activations) = ("w".to_owned(), DType::F16, Activations::F32);
        let source = WeightSource { name, dtype, n_rows, n_cols, bytes, activations };
        backend.load_weight(source).unwrap()
    }

    /// Needs an adapter, as `tests/runtime.rs` does.
    #[test]
    fn a_weight_may_lie_in_several_buffers() {
        let Some(mut backend) = testing::device() else { return };
        let x: Vec<f32> = (0..N_ROWS * N_IN).map(|i| i as f32 - 3.0).collect();
        let x_buffer = holding(&backend, &x);
        let ids = [39u32, 0, 15, 16, 31, 32, 17, 40];
        let mut id_buffer = backend.alloc(DType::U32, ids.len(), "ids").unwrap();
        backend.write(ViewMut::all(&mut id_buffer), bytemuck::cast_slice(&ids)).unwrap();
        let mut outs = [(); 2].map(|()| holding(&backend, &[9.0; N_ROWS * N_OUT]));
        let mut embedded = holding(&backend, &[9.0; 8 * N_IN]);

        // From now on a buffer holds 16 rows of 16 bytes.
        let gpu = Arc::get_mut(&mut backend.gpu).expect("nobody else has the device");
        gpu.limits.max_storage_buffer_binding_size = 256;
        let w = weight(&backend, N_OUT, N_IN);
        let bias = weight(&backend, 1, N_OUT);
        let rows: Vec<_> = w.shards.iter().map(|s| (s.first_row, s.n_rows)).collect();
        assert_eq!(rows, [(0, 16), (16, 16), (32, 8)]);

        let expected: Vec<f32> = (0..N_ROWS * N_OUT)
            .map(|i| {
                let (t, o) = (i / N_OUT, i % N_OUT);
                let product: f32 = (0..N_IN).map(|c| x[t * N_IN + c] * value(o, c)).sum();
                product + value(0, o)
            })
            .collect();
        for (i, out) in outs.iter_mut().enumerate() {
            let [n_rows, n_in, n_out] = [N_ROWS, N_IN, N_OUT].map(|n| n as u32);
            let d = Linear {
                p: LinearParams { n_rows, n_in, n_out, accumulate: 0 },
                x: View::all(&x_buffer),
                weight: &w,
                bias: Some(&bias),
                out: ViewMut::all(out),
            };
            if i == 0 { backend.matvec(d) } else { backend.matmul(d) }.unwrap();
        }
        assert_eq!(read(&backend, &outs[0]), expected);
        assert_eq!(read(&backend, &outs[1]), expected);

        let p = EmbedParams { n_tokens: ids.len() as u32, width: N_IN as u32, scale: 1.0 };
        let (ids_view, out) = (View::all(&id_buffer), ViewMut::all(&mut embedded));
        backend.embed(Embed { p, ids: ids_view, table: &w, out }).unwrap();
        let row = |id: u32| (0..N_IN).map(move |c| (id, c));
        let element = |(id, c)| if (id as usize) < N_OUT { value(id as usize, c) } else { 0.0 };
        let expected: Vec<f32> = ids.into_iter().flat_map(row).map(element).collect();
        assert_eq!(read(&backend, &embedded), expected);
    }
}
