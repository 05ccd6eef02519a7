//! The trace of decode steps: their queries and attention on the host, for probes of what a policy
//! does to them.

use longview_core::decode_f32_into;
use longview_ops::{Backend, OpResult, View};

use crate::layout::{KvShape, LayerTensors};
use crate::store::LayerRows;

/// What one layer computed for the last decoded token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TracedLayer {
    /// Queries after RoPE, `[Hq, Dh]`.
    pub q: Vec<f32>,
    /// The attention's output, `[Hq, Dh]`.
    pub out: Vec<f32>,
}

/// What decode steps computed; nothing while no one asked for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    layers: Vec<TracedLayer>,
}

impl Trace {
    /// Copies every decode step from now on, or no longer.
    pub fn set(&mut self, on: bool, shape: &KvShape) {
        let len = if on { shape.n_q_heads * shape.head_dim } else { 0 };
        let layer = || TracedLayer { q: vec![0.0; len], out: vec![0.0; len] };
        self.layers = (0..if on { shape.n_layers } else { 0 }).map(|_| layer()).collect();
    }

    /// One entry for each layer, or none while nothing is traced.
    pub fn layers(&self) -> &[TracedLayer] {
        &self.layers
    }

    /// Copies the layer's tensors of the step's token `index`, if steps are traced.
    pub async fn record<B: Backend>(
        &mut self,
        backend: &B,
        layer: usize,
        index: usize,
        t: &LayerTensors<'_, B>,
    ) -> OpResult<()> {
        let Some(traced) = self.layers.get_mut(layer) else { return Ok(()) };
        let len = traced.q.len();
        let mut parts = [
            (
                View::part(t.q.buffer, t.q.offset + index * len, len),
                bytemuck::cast_slice_mut(&mut traced.q),
            ),
            (
                View::part(&*t.out.buffer, t.out.offset + index * len, len),
                bytemuck::cast_slice_mut(&mut traced.out),
            ),
        ];
        backend.read_all(&mut parts).await
    }
}

/// One KV head of a layer, and the rows that it attended.
pub(crate) struct AttendedHead<'a, B: Backend> {
    pub rows: LayerRows<'a, B>,
    pub head: usize,
    /// The token in each row.
    pub positions: &'a [u32],
    /// The attended rows, ascending.
    pub attended: &'a [u32],
    /// First tokens, whose mass does not count.
    pub sinks: usize,
}

impl<B: Backend> AttendedHead<'_, B> {
    /// Adds to `mass[token]` the probability that each query of `q`, `[G, Dh]`, gave the token
    /// above that of a query which gives all that it attends the same.
    pub fn add_attention(&self, q: &[f32], mass: &mut [f32]) {
        let LayerRows { shape, store, layer } = self.rows;
        let (d, n) = (shape.head_dim, self.attended.len());
        let mut scores = vec![0.0; q.len() / d * n];
        let (mut bytes, mut row) = (Vec::new(), vec![0.0; 2 * d]);
        let mut done = 0;
        // Rows that follow each other are one read.
        for run in self.attended.chunk_by(|a, b| a + 1 == *b) {
            bytes.resize(run.len() * shape.row_bytes(), 0);
            let first = run[0] as usize;
            store.read_rows(layer, self.head, first..first + run.len(), &mut bytes);
            for bytes in bytes.chunks_exact(shape.row_bytes()) {
                decode_f32_into(shape.kv_dtype, bytes, &mut row);
                for (q, scores) in q.chunks_exact(d).zip(scores.chunks_exact_mut(n)) {
                    let dot: f32 = q.iter().zip(&row).map(|(q, k)| q * k).sum();
                    scores[done] = dot * shape.scale;
                }
                done += 1;
            }
        }
        for scores in scores.chunks_exact_mut(n) {
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - most).exp());
            let sum: f32 = scores.iter().sum();
            for (row, score) in self.attended.iter().zip(scores) {
                let token = self.positions[*row as usize] as usize;
                if let Some(mass) = mass.get_mut(token).filter(|_| token >= self.sinks) {
                    *mass += (*score / sum - 1.0 / n as f32).max(0.0);
                }
            }
        }
    }
}
