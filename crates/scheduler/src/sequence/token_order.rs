//! Rows that clusters have put out of token order, as a prompt that goes on attends to them: copied
//! into token order, so that the sums of its attention have the order, and the bits, that they
//! would have if all of it had been read at once.
//!
//! The copy is of one layer at a time, and is little work beside the attention of a whole chunk.
//! The rows themselves stay where they are: forks share them, and clusters need them so.

use longview_ops::{Backend, KvView, OpResult};

use super::kv_sequence::Sequence;
use super::ordered_rows::OrderedRows;
use super::prefill::{Chunk, Run};
use super::scratch::StepScratch;
use crate::layout::LayerTensors;

impl Chunk {
    /// Attention over all rows so far, the chunk's own included, in token order.
    pub(super) fn attend_in_token_order<B: Backend>(
        &self,
        sequence: &Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> OpResult<()> {
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let positions = &sequence.layers[self.layer].positions;
        let n_rows = positions.first().map_or(0, Vec::len);
        if scratch.ordered.as_ref().is_none_or(|ordered| ordered.stride < n_rows) {
            // The old one is freed first.
            scratch.ordered = None;
            scratch.ordered = Some(OrderedRows::new(backend, shape, n_rows)?);
        }
        let Some(ordered) = &mut scratch.ordered else { return Ok(()) };
        ordered.copy(backend, shape, sequence.attended_rows(self.layer), positions)?;
        let run = Run {
            kv: KvView::new(&ordered.rows, ordered.stride),
            rows: 0..n_rows,
            diagonal: self.position(sequence) as i32,
            window: None,
            accumulate: false,
        };
        self.attend_run(backend, shape, &mut scratch.lse, t, run)
    }
}
