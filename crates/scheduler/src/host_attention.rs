//! Attention to recalled rows where they are: in host memory, by the host.
//!
//! While the device attends to the first and the last rows, the host attends to the chosen ones;
//! then both are merged by log-sum-exp (KTransformers' CPU attention). Only the query comes from
//! the device and only the result goes there, so that no row is ever moved and the device keeps no
//! cache.

use std::sync::Arc;

use longview_core::{DType, decode_f32_into};
use longview_ops::{Backend, LseMerge, LseMergeParams, OpResult, View, ViewMut};

use crate::error::SchedulerError;
use crate::sequence::Sequence;
use crate::shape::KvShape;
use crate::step::LayerTensors;
use crate::tier::HostTier;

/// Buffers of one token's attention on the host.
pub(crate) struct HostAttention<B: Backend> {
    /// `[Hq, Dh]`, scaled by nothing.
    pub q: Vec<f32>,
    out: Vec<f32>,
    lse: Vec<f32>,
    device_out: B::Buffer,
    device_lse: B::Buffer,
    bytes: Vec<u8>,
    row: Vec<f32>,
    /// The selection that waits to be attended.
    pub slot: Option<usize>,
}

impl<B: Backend> HostAttention<B> {
    pub fn new(backend: &B, shape: &KvShape) -> OpResult<Self> {
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        Ok(Self {
            q: vec![0.0; hq * d],
            out: vec![0.0; hq * d],
            lse: vec![0.0; hq],
            device_out: backend.alloc(DType::F32, hq * d, "attention of the host")?,
            device_lse: backend.alloc(DType::F32, hq, "attention of the host")?,
            bytes: Vec::new(),
            row: vec![0.0; 2 * d],
            slot: None,
        })
    }

    fn clear(&mut self) {
        self.out.fill(0.0);
        self.lse.fill(f32::NEG_INFINITY);
    }

    /// Takes rows `start..start + n` of a KV head in. `lse` holds the running logarithm of the sum,
    /// `out` the mean so far.
    fn take_run(
        &mut self,
        shape: &KvShape,
        tier: &dyn HostTier<B>,
        (layer, head): (usize, usize),
        rows: std::ops::Range<usize>,
    ) {
        let (d, row_bytes) = (shape.head_dim, shape.row_bytes());
        let group = shape.n_q_heads / shape.n_kv_heads;
        self.bytes.resize(rows.len() * row_bytes, 0);
        tier.read_rows(layer, head, rows, &mut self.bytes);
        for bytes in self.bytes.chunks_exact(row_bytes) {
            decode_f32_into(shape.kv_dtype, bytes, &mut self.row);
            let (key, value) = self.row.split_at(d);
            for h in head * group..(head + 1) * group {
                let q = &self.q[h * d..(h + 1) * d];
                let score = shape.scale * dot(q, key);
                let (out, lse) = (&mut self.out[h * d..(h + 1) * d], &mut self.lse[h]);
                // The new logarithm of the sum, and the new row's share of it.
                let (low, high) = if score < *lse { (score, *lse) } else { (*lse, score) };
                *lse = high + (low - high).exp().ln_1p();
                let share = (score - *lse).exp();
                out.iter_mut().zip(value).for_each(|(o, v)| *o += share * (v - *o));
            }
        }
    }
}

/// Several sums at once, so that they need not wait for each other.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a8.zip(b8) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

impl<B: Backend> Sequence<B> {
    /// After the device was given a token's attention: what waits for the host is attended here and
    /// merged there.
    pub(crate) fn attend_on_host(
        &mut self,
        layer: usize,
        index: usize,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> Result<(), SchedulerError> {
        let Self { backend, shape, tier, layers, selector, host_attention, stats, .. } = self;
        let Some(host) = host_attention else { return Ok(()) };
        let Some(slot) = host.slot.take() else { return Ok(()) };
        let backend = Arc::clone(backend);
        backend.submit()?;
        let begin = backend.now();
        host.clear();
        let clusters = layers[layer].chosen_index().expect("recall layers have an index");
        let selector = selector.as_ref().expect("a recall policy has a selector");
        for (head, clusters) in clusters.heads().iter().enumerate() {
            for (cluster, take) in selector.selected(slot, head) {
                let start = clusters.starts[cluster] as usize;
                host.take_run(shape, &**tier, (layer, head), start..start + take);
            }
        }
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        backend.write(ViewMut::all(&mut host.device_out), bytemuck::cast_slice(&host.out))?;
        backend.write(ViewMut::all(&mut host.device_lse), bytemuck::cast_slice(&host.lse))?;
        let at = t.out.offset + index * hq * d;
        backend.lse_merge(LseMerge {
            p: LseMergeParams { n_rows: hq as u32, head_dim: d as u32 },
            other_out: View::all(&host.device_out),
            other_lse: View::all(&host.device_lse),
            out: ViewMut::part(t.out.buffer, at, hq * d),
            lse: ViewMut::part(lse, index * hq, hq),
        })?;
        stats.attend += backend.now().saturating_sub(begin);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::dot;

    #[test]
    fn a_dot_product_takes_every_element() {
        for n in [0, 1, 7, 8, 9, 20] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let want: f32 = a.iter().map(|x| x * x).sum();
            assert_eq!(dot(&a, &a), want);
        }
    }
}
