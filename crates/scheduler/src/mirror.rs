//! New rows on their way to a host tier that kernels do not write.
//!
//! A decoded token's row is written on the device. Where the host tier is mapped, a gather carries
//! it there in the same step. Where it is not, a read per layer would stop the device as often; so
//! the step only remembers where the rows lie, and one read at its end, together with the token
//! that the caller waits for anyway, brings all of them. What a speculative step chose for the next
//! one, and whether it stands, comes with the same read.

use longview_ops::{Backend, View};
use smallvec::SmallVec;

use crate::error::SchedulerError;
use crate::layer::LayerMode;
use crate::sequence::Sequence;
use crate::speculate::StepVerdict;

/// Views of the device and where their bytes go.
pub type ReadParts<'a, B> = SmallVec<[(View<'a, B>, &'a mut [u8]); 8]>;

/// Rows of the last token that the host does not have yet.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// The device row in each layer, in the order of the layers.
    rows: Vec<usize>,
    /// The token's row in the host tier; `None` while its step is not finished.
    token: Option<usize>,
    bytes: Vec<u8>,
}

impl Mirror {
    pub fn with_layers(n_layers: usize) -> Self {
        Self { rows: Vec::with_capacity(n_layers), token: None, bytes: Vec::new() }
    }

    /// Notes the row of the next layer.
    pub fn push(&mut self, row: usize) {
        self.rows.push(row);
    }

    /// The step has ended: the rows are those of `token`.
    pub fn finish_step(&mut self, token: usize) {
        self.token = Some(token);
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.token = None;
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl<B: Backend> Sequence<B> {
    /// What has to be read after a decode step: the new rows where the host tier is not mapped, and
    /// what a step that speculates chose and compared. Once it is read, call
    /// [`Sequence::finish_mirror`].
    pub fn mirror_parts(&mut self) -> ReadParts<'_, B> {
        let (is_unread, was_compared) = (self.is_unread(), self.was_compared());
        let (d, row_bytes) = (self.shape.head_dim, self.shape.row_bytes());
        let heads = self.shape.n_kv_heads;
        self.mirror.bytes.resize(self.mirror.rows.len() * heads * row_bytes, 0);
        let mut rest = self.mirror.bytes.as_mut_slice();
        let mut parts = ReadParts::<B>::new();
        for (layer, row) in self.layers.iter().zip(&self.mirror.rows) {
            let buffer = layer.device.as_ref().expect("rows to mirror lie on the device");
            for head in 0..heads {
                let (out, next) = std::mem::take(&mut rest).split_at_mut(row_bytes);
                let at = (head * layer.device_rows + row) * 2 * d;
                parts.push((View::part(buffer, at, 2 * d), out));
                rest = next;
            }
        }
        if is_unread {
            parts.extend(self.selector.iter_mut().flat_map(|selector| selector.read_parts()));
        }
        parts.extend(
            self.resolver.iter_mut().filter(|r| r.is_unread()).map(|resolver| resolver.read_part()),
        );
        if was_compared {
            parts.extend(self.speculation.iter_mut().map(|speculation| speculation.read_part()));
        }
        parts
    }

    /// Takes in what was read for [`Sequence::mirror_parts`]: rows go to the host tier, or the step
    /// is taken back.
    pub fn finish_mirror(&mut self) -> StepVerdict {
        let token = self.mirror.token.filter(|_| !self.mirror.is_empty());
        let ends_step = token.is_some() || self.is_unread();
        if self.judge() == StepVerdict::RunAgain {
            return StepVerdict::RunAgain;
        }
        let (row_bytes, heads) = (self.shape.row_bytes(), self.shape.n_kv_heads);
        if let Some(resolver) = self.resolver.as_mut().filter(|resolver| resolver.is_unread()) {
            let layers = self.layers.iter().enumerate();
            let layers = layers.filter(|(_, layer)| layer.mode == LayerMode::Recall);
            let layers = layers.map(|(i, _)| i);
            resolver.report(&mut self.stats, layers, row_bytes);
        }
        if let Some(row) = token {
            for (i, bytes) in self.mirror.bytes.chunks_exact(row_bytes).enumerate() {
                self.tier.write_rows(i / heads, i % heads, row, bytes);
            }
        }
        self.mirror.clear();
        if ends_step {
            self.submit_windows();
        }
        StepVerdict::Stands
    }

    /// Brings what the last step left on the device to the host now, if nobody has. Rows of a step
    /// that did not end are forgotten.
    pub async fn mirror(&mut self) -> Result<StepVerdict, SchedulerError> {
        if self.mirror.token.is_none() {
            self.mirror.clear();
        }
        if self.mirror.is_empty() && !self.was_compared() {
            return Ok(StepVerdict::Stands);
        }
        let backend = std::sync::Arc::clone(&self.backend);
        let mut parts = self.mirror_parts();
        backend.read_all(&mut parts).await?;
        drop(parts);
        Ok(self.finish_mirror())
    }

    /// [`Sequence::mirror`] for calls that build on the last step. One that may not stand is the
    /// caller's to look at first.
    pub(crate) async fn bring_rows(&mut self) -> Result<(), SchedulerError> {
        if self.is_unread() {
            return Err(SchedulerError::VerdictUnread);
        }
        self.mirror().await.map(|_| ())
    }
}
