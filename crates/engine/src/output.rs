//! What a step says about the token after its last one: all logits, or what the device chose from
//! them. The less is asked for, the less has to be read.

use std::ops::Range;

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

/// Where the device puts what it chooses, a row for each token of a step that says something.
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

/// What was read into a session: which of it is meant, an [`Output`] says. A step with drafted
/// tokens says as much of each of its tokens.
#[derive(Debug)]
pub(crate) struct Said {
    /// Of the whole vocabulary, or of the candidates; one row behind the other.
    logits: Vec<f32>,
    /// The candidates, or the best token alone; one row behind the other.
    ids: Vec<u32>,
    /// Rows that were read.
    n_rows: usize,
    /// The one that says what follows the session's last token.
    row: usize,
}

impl Said {
    pub(crate) fn new(n_vocab: usize) -> Self {
        Self {
            logits: Vec::with_capacity(n_vocab),
            ids: Vec::with_capacity(MAX_CANDIDATES),
            n_rows: 1,
            row: 0,
        }
    }

    /// One row, as it was read elsewhere.
    pub(crate) fn set(&mut self, logits: &[f32], ids: &[u32]) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.ids.clear();
        self.ids.extend_from_slice(ids);
        (self.n_rows, self.row) = (1, 0);
    }

    /// Logits of the vocabulary, or of the candidates.
    pub(crate) fn logits(&self) -> &[f32] {
        let width = self.logits.len() / self.n_rows;
        &self.logits[self.row * width..][..width]
    }

    /// The candidates, or the best token alone.
    pub(crate) fn ids(&self) -> &[u32] {
        let width = self.ids.len() / self.n_rows;
        &self.ids[self.row * width..][..width]
    }

    /// What follows the next token that the step computed is meant from now on.
    pub(crate) fn next(&mut self) {
        self.row += 1;
    }

    /// Adds what has to be read after [`Choices::choose`] of `rows` to `parts`; `logits` are those
    /// rows', `[rows, V]`.
    pub(crate) fn read<'a, B: Backend>(
        &'a mut self,
        output: Output,
        logits: View<'a, B>,
        choices: &'a Choices<B>,
        rows: Range<usize>,
        parts: &mut ReadParts<'a, B>,
    ) {
        let n = rows.len();
        let n_vocab = logits.len / n;
        let (n_logits, n_ids) = match output {
            Output::Nothing => return,
            Output::Logits => (n_vocab, 0),
            Output::Best => (0, 1),
            Output::Candidates(k) => (k.min(n_vocab), k.min(n_vocab)),
        };
        self.logits.resize(n * n_logits, 0.0);
        self.ids.resize(n * n_ids, 0);
        (self.n_rows, self.row) = (n, 0);
        if output == Output::Logits {
            parts.push((logits, bytemuck::cast_slice_mut(&mut self.logits)));
            return;
        }
        let at = |row: usize| row * MAX_CANDIDATES;
        for (row, out) in rows.clone().zip(self.ids.chunks_exact_mut(n_ids)) {
            let from = View::part(&choices.ids, at(row), n_ids);
            parts.push((from, bytemuck::cast_slice_mut(out)));
        }
        if n_logits > 0 {
            for (row, out) in rows.zip(self.logits.chunks_exact_mut(n_logits)) {
                let from = View::part(&choices.values, at(row), n_logits);
                parts.push((from, bytemuck::cast_slice_mut(out)));
            }
        }
    }
}
