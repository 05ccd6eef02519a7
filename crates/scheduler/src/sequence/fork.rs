//! A second sequence that goes on from where one is: several answers to one document, or branches
//! of a conversation.
//!
//! Rows in host memory are shared until one of the two writes there ([`HostStore::fork`]), and so
//! are indexes. All else is carried over as plain data, the way a session file has it, because that
//! is known to go on to the bit.
//!
//! [`HostStore::fork`]: crate::HostStore::fork

use longview_ops::{Backend, DeviceBuffer, View, ViewMut};

use super::kv_sequence::Sequence;
use super::snapshot::Restored;
use crate::error::SchedulerError;
use crate::layout::HostRows;
use crate::store::DeviceRows;

/// Bytes of device rows that pass through the host at a time.
const PIECE_BYTES: usize = 4 << 20;

impl<B: Backend> Sequence<B> {
    /// A second sequence with the same tokens under the same policy, with device rows, caches and
    /// counters of its own. It and this one go on without each other, each as this one would have.
    /// What a session file does not hold begins anew in it: the last choice of speculative recall,
    /// and a selection for several steps where the device itself finds hits and misses.
    ///
    /// # Errors
    /// If the device refuses, or there is no memory; after a step whose verdict was not read; and
    /// as [`Sequence::make_ready`] where a prefill or a change of the policy did not end.
    pub async fn fork(&mut self) -> Result<Self, SchedulerError> {
        self.make_ready().await?;
        self.settle_rows().await?;
        let mut fork = Restored::fork_of(self)?;
        for layer in self.shape.layers() {
            fork.fork_layer(layer, self).await?;
        }
        let mut fork = fork.finish().await?;
        if self.shape.host_rows == HostRows::EightBits {
            self.copy_device_rows(&mut fork).await?;
        }
        Ok(fork)
    }

    /// A piece of what [`Sequence::fork`] does first: rows of one layer in host memory are put to
    /// where both sequences have them. `false` where nothing is left to do, or rows cannot be
    /// shared; a fork takes little time then, or copies them.
    ///
    /// # Errors
    /// As [`Sequence::fork`].
    pub async fn share_piece(&mut self) -> Result<bool, SchedulerError> {
        self.make_ready().await?;
        self.settle_rows().await?;
        for layer in self.shape.layers() {
            if self.store.share(layer, self.n_tokens)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Rows on the device are as they were written where the host store has some of them rounded.
    async fn copy_device_rows(&self, fork: &mut Self) -> Result<(), SchedulerError> {
        let mut bytes = Vec::new();
        for (from, to) in self.layers.iter().zip(&mut fork.layers) {
            for (i, from) in from.segments().enumerate() {
                let Some(DeviceRows { buffer: to, .. }) = to.segment_mut(i) else { continue };
                let step = PIECE_BYTES / from.dtype().size();
                for at in (0..from.len()).step_by(step) {
                    let len = step.min(from.len() - at);
                    bytes.resize(len * from.dtype().size(), 0);
                    self.backend.read(View::part(from, at, len), &mut bytes).await?;
                    self.backend.write(ViewMut::part(to, at, len), &bytes)?;
                }
            }
        }
        Ok(())
    }
}
