//! Rows of a text, over and over: a context of any length for measurements, without its prefill.

use std::ops::ControlFlow;

use longview_core::{HeadId, LayerId, SplitMix64, decode_f32};
use longview_ops::Backend;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::Session;

/// Relative size of the noise of rows behind the first ones.
const NOISE: f32 = 0.01;

/// Rows of a prefilled text, to [inject](Session::inject). Behind its end they begin again, each
/// number with noise of one per cent, so that clusters and scores look like those of text.
#[derive(Debug)]
pub struct RepeatedRows {
    /// `[layer][KV head]`: `[tokens, 2, Dh]`.
    rows: Vec<Vec<Vec<f32>>>,
    tokens: usize,
    width: usize,
}

impl RepeatedRows {
    /// Prefills the text into `session`, which is empty, and copies its rows, in the order of
    /// positions.
    ///
    /// # Errors
    /// If the prefill fails, as for a context that is smaller than `ids`.
    pub async fn read<B: Backend>(
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        ids: &[u32],
    ) -> Result<Self, EngineError> {
        engine.prefill(session, ids, &mut |_| ControlFlow::Continue(())).await?;
        let sequence = session.sequence();
        let (shape, tokens) = (sequence.shape(), sequence.n_tokens());
        let head_rows = |layer: LayerId, head: HeadId| {
            let mut bytes = vec![0; tokens * shape.row_bytes()];
            sequence.store().read_rows(layer, head, 0..tokens, &mut bytes);
            decode_f32(shape.kv_dtype, &bytes)
        };
        let rows = shape
            .layers()
            .map(|layer| shape.heads().map(|head| head_rows(layer, head)).collect())
            .collect();
        Ok(Self { rows, tokens, width: 2 * shape.head_dim })
    }

    /// Tokens of the text.
    pub fn n_tokens(&self) -> usize {
        self.tokens
    }

    /// Writes row `first` and those after it of a context that repeats the text, as
    /// [`Session::inject`] asks for them: F32 `[rows, 2, Dh]`.
    pub fn fill(&self, layer: LayerId, head: HeadId, first: usize, out: &mut [f32]) {
        let rows = &self.rows[layer][head];
        for (row, out) in (first..).zip(out.chunks_exact_mut(self.width)) {
            let start = row % self.tokens * self.width;
            out.copy_from_slice(&rows[start..start + self.width]);
            if row >= self.tokens {
                let place =
                    (row * self.rows.len() + layer.index()) * self.rows[layer].len() + head.index();
                let mut random = SplitMix64::new(place as u64);
                out.iter_mut().for_each(|x| *x *= 1.0 + NOISE * (2.0 * random.next_f32() - 1.0));
            }
        }
    }
}
