//! The buffers a step works in, made once.

use std::ops::Range;

use longview_core::DType;
use longview_ops::{Backend, OpResult, ViewMut};

use crate::batch::{Batch, BatchError};
use crate::config::ModelConfig;
use crate::rope::RopeTable;

/// Buffers for steps of up to `max_tokens` tokens and `max_logit_rows` rows of logits.
pub struct Workspace<B: Backend> {
    max_tokens: usize,
    max_logit_rows: usize,
    /// Tokens of the last step.
    n_tokens: usize,
    /// Runs of them whose final hidden states are there.
    pub(super) wanted: Vec<Range<usize>>,
    pub(super) ids: B::Buffer,
    pub(super) rope: RopeRows<B>,
    /// The residual stream, `[T, D]`.
    pub(super) hidden: B::Buffer,
    pub(super) normed: B::Buffer,
    pub(super) q: B::Buffer,
    pub(super) q_scratch: B::Buffer,
    pub(super) k: B::Buffer,
    pub(super) k_scratch: B::Buffer,
    pub(super) v: B::Buffer,
    pub(super) attended: B::Buffer,
    pub(super) gate: B::Buffer,
    pub(super) up: B::Buffer,
    pub(super) activated: B::Buffer,
    pub(super) logits: B::Buffer,
    positions: Vec<u32>,
    rope_rows: Vec<f32>,
}

/// Rows of the rotary embedding, `[T, rotary_dim]`.
pub(super) struct RopeRows<B: Backend> {
    all: B::Buffer,
    /// Of layers that see the last tokens alone, where there are such.
    local: Option<B::Buffer>,
}

impl<B: Backend> RopeRows<B> {
    /// Those of a kind of layers.
    pub fn of(&self, is_local: bool) -> &B::Buffer {
        self.local.as_ref().filter(|_| is_local).unwrap_or(&self.all)
    }

    /// All buffers.
    #[cfg(test)]
    pub fn buffers(&self) -> impl Iterator<Item = &B::Buffer> {
        std::iter::once(&self.all).chain(&self.local)
    }
}

/// Elements of each buffer; the one place that both planning and allocation read.
struct Sizes {
    ids: usize,
    rope: usize,
    local_rope: usize,
    hidden: usize,
    q: usize,
    kv: usize,
    mlp: usize,
    logits: usize,
}

impl Sizes {
    fn new(config: &ModelConfig, max_tokens: usize, max_logit_rows: usize) -> Self {
        Self {
            ids: max_tokens,
            rope: max_tokens * config.rope.rotary_dim,
            local_rope: config.local.as_ref().map_or(0, |local| max_tokens * local.rope.rotary_dim),
            hidden: max_tokens * config.hidden_size,
            q: max_tokens * config.q_width(),
            kv: max_tokens * config.kv_width(),
            mlp: max_tokens * config.intermediate_size,
            logits: max_logit_rows * config.vocab_size,
        }
    }

    fn bytes(&self) -> u64 {
        let elements = self.ids
            + self.rope
            + self.local_rope
            + 2 * self.hidden
            + 3 * self.q
            + 3 * self.kv
            + 3 * self.mlp
            + self.logits;
        // All are f32 or u32.
        4 * elements as u64
    }
}

impl<B: Backend> Workspace<B> {
    /// Allocates everything. `max_logit_rows` is cut to `max_tokens`: there are no more rows.
    pub fn new(
        backend: &B,
        config: &ModelConfig,
        max_tokens: usize,
        max_logit_rows: usize,
    ) -> OpResult<Self> {
        let max_logit_rows = max_logit_rows.min(max_tokens);
        let sizes = Sizes::new(config, max_tokens, max_logit_rows);
        let floats = |len: usize, label: &str| backend.alloc(DType::F32, len, label);
        Ok(Self {
            max_tokens,
            max_logit_rows,
            n_tokens: 0,
            wanted: Vec::with_capacity(max_logit_rows),
            ids: backend.alloc(DType::U32, sizes.ids, "token ids")?,
            rope: RopeRows {
                all: floats(sizes.rope, "rope rows")?,
                local: match config.local {
                    Some(_) => Some(floats(sizes.local_rope, "rope rows of windows")?),
                    None => None,
                },
            },
            hidden: floats(sizes.hidden, "hidden states")?,
            normed: floats(sizes.hidden, "normed states")?,
            q: floats(sizes.q, "queries")?,
            q_scratch: floats(sizes.q, "queries before rope")?,
            k: floats(sizes.kv, "keys")?,
            k_scratch: floats(sizes.kv, "keys before rope")?,
            v: floats(sizes.kv, "values")?,
            attended: floats(sizes.q, "attention output")?,
            gate: floats(sizes.mlp, "mlp gate")?,
            up: floats(sizes.mlp, "mlp up")?,
            activated: floats(sizes.mlp, "mlp activation")?,
            logits: floats(sizes.logits, "logits")?,
            positions: Vec::with_capacity(max_tokens),
            rope_rows: vec![0.0; sizes.rope.max(sizes.local_rope)],
        })
    }

    /// Device bytes that [`Workspace::new`] will take, for planning.
    pub fn device_bytes(config: &ModelConfig, max_tokens: usize, max_logit_rows: usize) -> u64 {
        Sizes::new(config, max_tokens, max_logit_rows.min(max_tokens)).bytes()
    }

    /// Most tokens of a step.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Most rows of logits of one call.
    pub fn max_logit_rows(&self) -> usize {
        self.max_logit_rows
    }

    /// Starts a step; the last one's hidden states are gone.
    pub(super) fn begin(&mut self, batch: &Batch<'_>) -> Result<(), BatchError> {
        let n_tokens = batch.n_tokens();
        if n_tokens > self.max_tokens {
            return Err(BatchError::TooManyTokens { n_tokens, max_tokens: self.max_tokens });
        }
        self.n_tokens = n_tokens;
        batch.wanted(&mut self.wanted);
        Ok(())
    }

    /// Sends the step's ids and rope rows to the device: those of all layers, and those of layers
    /// that see the last tokens alone.
    pub(super) fn upload(
        &mut self,
        backend: &B,
        tables: [Option<&RopeTable>; 2],
        batch: &Batch<'_>,
    ) -> OpResult<()> {
        let n_tokens = batch.n_tokens();
        self.positions.clear();
        self.positions.extend(batch.positions());
        let buffers = [Some(&mut self.rope.all), self.rope.local.as_mut()];
        for (table, buffer) in tables.into_iter().zip(buffers) {
            let (Some(table), Some(buffer)) = (table, buffer) else { continue };
            let rows = &mut self.rope_rows[..n_tokens * table.row_len()];
            table.fill_rope_rows(&self.positions, rows);
            backend.write(ViewMut::part(buffer, 0, rows.len()), bytemuck::cast_slice(rows))?;
        }
        let ids = ViewMut::part(&mut self.ids, 0, n_tokens);
        backend.write(ids, bytemuck::cast_slice(batch.ids))
    }

    pub(super) fn check_rows(&self, rows: &[usize]) -> Result<(), BatchError> {
        let (n_rows, max_rows) = (rows.len(), self.max_logit_rows);
        if n_rows > max_rows {
            return Err(BatchError::TooManyRows { n_rows, max_rows });
        }
        if let Some(&row) = rows.iter().find(|row| **row >= self.n_tokens) {
            return Err(BatchError::NoSuchRow { row, n_tokens: self.n_tokens });
        }
        match rows.iter().find(|row| !self.wanted.iter().any(|run| run.contains(row))) {
            Some(&row) => Err(BatchError::NotWanted { row }),
            None => Ok(()),
        }
    }
}
