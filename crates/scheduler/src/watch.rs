//! Looking on: queries and attention of decode steps on the host, for probes of what a policy does
//! to them.

use longview_core::decode_f32_into;
use longview_ops::{Backend, View};

use crate::error::SchedulerError;
use crate::layer::LayerMode;
use crate::sequence::Sequence;
use crate::step::LayerTensors;

/// What one layer computed for the last decoded token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    /// Queries after RoPE, `[Hq, Dh]`.
    pub q: Vec<f32>,
    /// The attention's output, `[Hq, Dh]`.
    pub out: Vec<f32>,
}

impl<B: Backend> Sequence<B> {
    /// Copies queries and attention of every decode step to the host from now on, or no longer.
    /// Each layer then waits for the device.
    pub fn watch(&mut self, on: bool) {
        let len = if on { self.shape.n_q_heads * self.shape.head_dim } else { 0 };
        let layer = || Watched { q: vec![0.0; len], out: vec![0.0; len] };
        self.watched = (0..if on { self.shape.n_layers } else { 0 }).map(|_| layer()).collect();
    }

    /// What each layer computed for the last decoded token; empty unless somebody watches.
    pub fn watched(&self) -> &[Watched] {
        &self.watched
    }

    /// Adds what each token received from the last decoded one to `mass[token]`: of every query
    /// head of every layer the probability above that of a head which gives all tokens that it
    /// attends the same. First tokens are left out, because heads leave there what they have no use
    /// for.
    ///
    /// Computed on the host in f32 from the watched queries and the host tier's keys; nothing
    /// unless somebody watches. Returns the rows that were read.
    pub fn add_attention(&self, mass: &mut [f32]) -> usize {
        let mut rows = Vec::new();
        let mut n_read = 0;
        let heads = self.shape.n_kv_heads;
        for (layer, watched) in self.watched.iter().enumerate() {
            for (head, q) in watched.q.chunks_exact(watched.q.len() / heads).enumerate() {
                self.list_attended_rows(layer, head, &mut rows);
                n_read += rows.len();
                self.add_head(layer, head, q, &rows, mass);
            }
        }
        n_read
    }

    /// The rows of the host tier that a head attended in the last decode step, ascending.
    fn list_attended_rows(&self, layer: usize, head: usize, rows: &mut Vec<u32>) {
        rows.clear();
        let (state, n) = (&self.layers[layer], self.n_tokens);
        if state.mode == LayerMode::Dense {
            return rows.extend(0..n as u32);
        }
        let start = self.window_start(layer, n);
        rows.extend((0..self.layout.sinks.min(start)).chain(start..n).map(|row| row as u32));
        self.push_recalled_rows(layer, head, rows);
        if let Some(kept) = &state.kept {
            rows.extend(kept.rows[head].iter().map(|kept| kept.row));
        }
        rows.sort_unstable();
        rows.dedup();
    }

    /// One KV head's part of [`Sequence::add_attention`]; `q` is `[G, Dh]`.
    fn add_head(&self, layer: usize, head: usize, q: &[f32], rows: &[u32], mass: &mut [f32]) {
        let d = self.shape.head_dim;
        let (group, n) = (q.len() / d, rows.len());
        let mut scores = vec![0.0; group * n];
        let (mut bytes, mut row) = (Vec::new(), vec![0.0; 2 * d]);
        let mut done = 0;
        for run in rows.chunk_by(|a, b| a + 1 == *b) {
            bytes.resize(run.len() * self.shape.row_bytes(), 0);
            let first = run[0] as usize;
            self.tier.read_rows(layer, head, first..first + run.len(), &mut bytes);
            for bytes in bytes.chunks_exact(self.shape.row_bytes()) {
                decode_f32_into(self.shape.kv_dtype, bytes, &mut row);
                for (q, scores) in q.chunks_exact(d).zip(scores.chunks_exact_mut(n)) {
                    let dot: f32 = q.iter().zip(&row).map(|(q, k)| q * k).sum();
                    scores[done] = dot * self.shape.scale;
                }
                done += 1;
            }
        }
        let (positions, sinks) = (&self.layers[layer].positions[head], self.policy.sinks.max(1));
        for scores in scores.chunks_exact_mut(n) {
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - most).exp());
            let sum: f32 = scores.iter().sum();
            for (row, score) in rows.iter().zip(scores) {
                let token = positions[*row as usize] as usize;
                if let Some(mass) = mass.get_mut(token).filter(|_| token >= sinks) {
                    *mass += (*score / sum - 1.0 / n as f32).max(0.0);
                }
            }
        }
    }

    /// `sum q q^T` and `sum k k^T` of `layer` over the tokens of all prompts, `[Hkv, Dh, Dh]` each.
    pub async fn gram_sums(&self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), SchedulerError> {
        Ok(self.layers[layer].recorded.sums(&*self.backend).await?)
    }

    /// Copies the layer's tensors of the step's token `index`, if somebody watches.
    pub(crate) async fn look_on(
        &mut self,
        layer: usize,
        index: usize,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Some(watched) = self.watched.get_mut(layer) else { return Ok(()) };
        let len = watched.q.len();
        let mut parts = [
            (
                View::part(t.q.buffer, t.q.offset + index * len, len),
                bytemuck::cast_slice_mut(&mut watched.q),
            ),
            (
                View::part(&*t.out.buffer, t.out.offset + index * len, len),
                bytemuck::cast_slice_mut(&mut watched.out),
            ),
        ];
        Ok(self.backend.read_all(&mut parts).await?)
    }
}
