//! Looking on: queries and attention of decode steps on the host, for probes of what a policy does
//! to them.

use longview_ops::{Backend, View};

use crate::error::SchedulerError;
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
