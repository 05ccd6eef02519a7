//! The trace of decode steps: their queries and attention on the host, for probes of what a policy
//! does to them.

use longview_core::{HeadId, LayerId, decode_f32_into};
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
    /// Bounds of U / Z that the step counted, `[Hq]`: of the attention that was not chosen over
    /// that which was. Empty where the policy asks for none, and in layers that do not recall.
    pub bounds: Vec<f64>,
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
        let layer = || TracedLayer { q: vec![0.0; len], out: vec![0.0; len], bounds: Vec::new() };
        self.layers = (0..if on { shape.n_layers } else { 0 }).map(|_| layer()).collect();
    }

    /// One entry for each layer, or none while nothing is traced.
    pub fn layers(&self) -> &[TracedLayer] {
        &self.layers
    }

    /// Notes the bounds that a layer counted, if steps are traced.
    pub fn note_bounds(&mut self, layer: LayerId, bounds: &[f64]) {
        if let Some(traced) = self.layers.get_mut(layer.index()) {
            traced.bounds.clear();
            traced.bounds.extend_from_slice(bounds);
        }
    }

    /// Copies the layer's tensors of the step's token `index`, if steps are traced.
    pub async fn record<B: Backend>(
        &mut self,
        backend: &B,
        layer: LayerId,
        index: usize,
        t: &LayerTensors<'_, B>,
    ) -> OpResult<()> {
        let Some(traced) = self.layers.get_mut(layer.index()) else { return Ok(()) };
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
    pub head: HeadId,
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

#[cfg(test)]
mod tests {
    use longview_core::encode_f32;
    use longview_ops::{ReferenceBackend, ViewMut};

    use super::*;
    use crate::store::PlainStore;
    use crate::store::fixture::{floats, shape};

    /// Query and output of the second of two tokens, behind one number of a larger tensor.
    fn record(trace: &mut Trace, layer: LayerId) {
        let backend = ReferenceBackend::new();
        let numbers = |first: usize| (first..first + 33).map(|i| i as f32).collect::<Vec<_>>();
        let (q, mut out) = (floats(&backend, &numbers(0)), floats(&backend, &numbers(100)));
        let kv = floats(&backend, &[0.0; 16]);
        let t = LayerTensors {
            q: View::part(&q, 1, 32),
            k: View::all(&kv),
            v: View::all(&kv),
            out: ViewMut::part(&mut out, 1, 32),
        };
        pollster::block_on(trace.record(&backend, layer, 1, &t)).unwrap();
    }

    #[test]
    fn a_step_is_copied_layer_by_layer() {
        let mut trace = Trace::default();
        trace.set(true, &shape());
        record(&mut trace, LayerId(1));
        let bounds = Vec::new;
        let zeros = TracedLayer { q: vec![0.0; 16], out: vec![0.0; 16], bounds: bounds() };
        let numbers = |first: usize| (first..first + 16).map(|i| i as f32).collect::<Vec<_>>();
        let copied = TracedLayer { q: numbers(17), out: numbers(117), bounds: bounds() };
        assert_eq!(trace.layers(), [zeros, copied.clone()]);
        trace.note_bounds(LayerId(1), &[0.5, 0.25]);
        let bounded = TracedLayer { bounds: vec![0.5, 0.25], ..copied };
        assert_eq!(trace.layers()[1], bounded);
    }

    #[test]
    fn nothing_is_copied_unless_it_is_asked_for() {
        let mut trace = Trace::default();
        record(&mut trace, LayerId(0));
        assert!(trace.layers().is_empty());
        trace.set(true, &shape());
        record(&mut trace, LayerId(0));
        trace.set(false, &shape());
        record(&mut trace, LayerId(0));
        assert!(trace.layers().is_empty(), "no longer");
    }

    /// Head 1 attends rows 1, 2 and 5, which are tokens 4, 0 and 3. A query of (2, 0, 0, 0) gives
    /// them 1, 2 and 5 of 8 parts, one of zeros a third each.
    #[test]
    fn what_exceeds_an_equal_share_is_added_to_the_tokens_mass() {
        let shape = shape();
        let mut store = PlainStore::new(&shape).unwrap();
        let row_of = |x: f32| encode_f32(shape.kv_dtype, &[x, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]);
        for (row, parts) in [(1, 1.0f32), (2, 2.0), (5, 5.0)] {
            let store: &mut dyn crate::store::HostStore<ReferenceBackend> = &mut store;
            // The scale of a half takes the 2 away.
            store.write_rows(LayerId(1), HeadId(1), row, &row_of(parts.ln()));
        }
        let rows: LayerRows<'_, ReferenceBackend> =
            LayerRows { shape: &shape, store: &store, layer: LayerId(1) };
        let head = |sinks| AttendedHead {
            rows,
            head: HeadId(1),
            positions: &[7, 4, 0, 6, 1, 3],
            attended: &[1, 2, 5],
            sinks,
        };
        let queries = [2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0];
        let mut mass = vec![0.25; 5];
        head(0).add_attention(&queries, &mut mass);
        let above = 2.0 * (5.0 / 8.0 - 1.0 / 3.0);
        let want = [0.25, 0.25, 0.25, 0.25 + above, 0.25];
        for (x, y) in mass.iter().zip(want) {
            assert!((x - y).abs() < 1e-6, "{mass:?}");
        }
        // Token 3 is one of the first four now, and a cut has taken it back from a shorter list.
        let mut mass = vec![0.0; 5];
        head(4).add_attention(&queries, &mut mass);
        assert_eq!(mass, [0.0; 5]);
        let mut short = vec![0.0; 3];
        head(0).add_attention(&queries, &mut short);
        assert_eq!(short, [0.0; 3]);
    }
}
