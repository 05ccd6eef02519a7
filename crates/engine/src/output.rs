//! What a step says about the token after its last one: all logits, or what the device chose from
//! them. The less is asked for, the less has to be read.

use longview_core::DType;
use longview_ops::{Argmax, ArgmaxParams, Backend, OpResult, TopK, TopKParams, View, ViewMut};
use longview_scheduler::ReadParts;

/// Most candidates of a row.
pub(crate) const MAX_CANDIDATES: usize = TopKParams::MAX_K as usize;

/// What a step should say about a sequence's last token, or has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Nothing, or it was taken back.
    Nothing,
    /// All logits.
    Logits,
    /// The most likely token.
    Best,
    /// That many of the largest logits with their tokens, or all if there are fewer; at most
    /// [`MAX_CANDIDATES`].
    Candidates(usize),
}

/// Where the device puts what it chooses, a row for each sequence of a step.
pub(crate) struct Choices<B: Backend> {
    /// F32 `[rows, MAX_CANDIDATES]`.
    values: B::Buffer,
    /// U32 `[rows, MAX_CANDIDATES]`.
    ids: B::Buffer,
}

impl<B: Backend> Choices<B> {
    /// Room for `rows` sequences.
    pub(crate) fn new(backend: &B, rows: usize) -> OpResult<Self> {
        let len = rows * MAX_CANDIDATES;
        Ok(Self {
            values: backend.alloc(DType::F32, len, "logits of candidates")?,
            ids: backend.alloc(DType::U32, len, "candidates")?,
        })
    }

    /// Has the device choose from `logits` what `output` asks for.
    pub(crate) fn choose(
        &mut self,
        backend: &B,
        output: Output,
        logits: View<'_, B>,
        row: usize,
    ) -> OpResult<()> {
        let (at, width) = (row * MAX_CANDIDATES, logits.len as u32);
        match output {
            Output::Nothing | Output::Logits => Ok(()),
            Output::Best => backend.argmax(Argmax {
                p: ArgmaxParams { n_rows: 1, width },
                x: logits,
                out: ViewMut::part(&mut self.ids, at, 1),
            }),
            Output::Candidates(k) => {
                let k = k.min(logits.len);
                backend.top_k(TopK {
                    p: TopKParams { n_rows: 1, width, k: k as u32 },
                    x: logits,
                    values: ViewMut::part(&mut self.values, at, k),
                    ids: ViewMut::part(&mut self.ids, at, k),
                })
            }
        }
    }
}

/// What was read into a session: which of it is meant, an [`Output`] says.
#[derive(Debug)]
pub(crate) struct Said {
    /// Of the whole vocabulary, or of the candidates.
    pub(crate) logits: Vec<f32>,
    /// The candidates, or the best token alone.
    pub(crate) ids: Vec<u32>,
}

impl Said {
    pub(crate) fn new(n_vocab: usize) -> Self {
        Self { logits: Vec::with_capacity(n_vocab), ids: Vec::with_capacity(MAX_CANDIDATES) }
    }

    /// Adds what has to be read after [`Choices::choose`] to `parts`.
    pub(crate) fn read<'a, B: Backend>(
        &'a mut self,
        output: Output,
        logits: View<'a, B>,
        choices: &'a Choices<B>,
        row: usize,
        parts: &mut ReadParts<'a, B>,
    ) {
        let at = row * MAX_CANDIDATES;
        match output {
            Output::Nothing => {}
            Output::Logits => {
                self.logits.resize(logits.len, 0.0);
                parts.push((logits, bytemuck::cast_slice_mut(&mut self.logits)));
            }
            Output::Best => {
                self.ids.resize(1, 0);
                let from = View::part(&choices.ids, at, 1);
                parts.push((from, bytemuck::cast_slice_mut(&mut self.ids)));
            }
            Output::Candidates(k) => {
                let k = k.min(logits.len);
                self.logits.resize(k, 0.0);
                self.ids.resize(k, 0);
                let values = View::part(&choices.values, at, k);
                parts.push((values, bytemuck::cast_slice_mut(&mut self.logits)));
                let ids = View::part(&choices.ids, at, k);
                parts.push((ids, bytemuck::cast_slice_mut(&mut self.ids)));
            }
        }
    }
}
