//! What layers that recall share in a sequence: the selector and, where the policy and the options
//! ask for it, what speculates, looks rows up on the device, attends on the host, or estimates what
//! is left unread.

use longview_ops::{Backend, OpResult};

use super::device_cache::{DeviceCache, DeviceCacheSizes};
use super::host_attention::HostAttention;
use super::residual::ResidualMeans;
use super::selector::Selector;
use super::speculation::{RecallMode, Speculation};
use crate::error::SchedulerError;
use crate::layout::{KvShape, SelectionId};
use crate::policy::{Policy, Residency, Residual};

/// What layers that recall share.
pub(crate) struct RecallPath<B: Backend> {
    pub selector: Selector<B>,
    /// With [`RecallMode::Speculative`].
    pub speculation: Option<Speculation<B>>,
    /// Where the device looks rows up, and the host knows no selection.
    pub device_cache: Option<DeviceCache<B>>,
    /// Where the host attends to what was selected.
    pub host_attention: Option<HostAttention<B>>,
    /// Where clusters that are not opened are attended as their means.
    pub residual: Option<ResidualMeans<B>>,
}

/// How a sequence recalls, apart from its policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecallSetup {
    /// Layers that recall.
    pub n_layers: usize,
    /// Most clusters, blocks or tokens of an index.
    pub capacity: usize,
    pub mode: RecallMode,
    /// Whether recalled rows are attended in the host store itself.
    pub in_place: bool,
    /// Whether the device looks rows up.
    pub on_device: bool,
}

impl<B: Backend> RecallPath<B> {
    pub fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        setup: &RecallSetup,
    ) -> Result<Self, SchedulerError> {
        let RecallSetup { n_layers, capacity, mode, in_place, on_device } = *setup;
        let speculation = match mode {
            RecallMode::Speculative { gate } => {
                Some(Speculation::new(backend, shape, n_layers, gate)?)
            }
            RecallMode::Exact => None,
        };
        let device_cache = match policy.residency {
            Residency::Recall { cache_steps } if on_device => {
                let (layout, most_attended) =
                    (policy.device_layout(shape.capacity), policy.most_attended());
                let sizes = DeviceCacheSizes { layout, n_layers, most_attended, cache_steps };
                Some(DeviceCache::new(backend, shape, &sizes)?)
            }
            _ => None,
        };
        let host_attention = match policy.residency {
            Residency::AttendOnHost { threads } if !in_place => {
                Some(HostAttention::new(backend, shape, threads)?)
            }
            _ => None,
        };
        let residual = match policy.residual {
            Residual::Means => Some(ResidualMeans::new(backend, shape, capacity)?),
            Residual::Drop => None,
        };
        let selector = Selector::new(backend, shape, policy, capacity, n_layers)?;
        Ok(Self { selector, speculation, device_cache, host_attention, residual })
    }

    /// Whether the step in progress goes by the last step's selections.
    pub fn is_speculative(&self) -> bool {
        self.speculation.as_ref().is_some_and(Speculation::is_speculative)
    }

    /// Whether a speculative step has ended whose verdict nobody has read.
    pub fn is_unread(&self) -> bool {
        self.speculation.as_ref().is_some_and(Speculation::is_unread)
    }

    /// Whether a step has ended whose comparisons nobody has read.
    pub fn was_compared(&self) -> bool {
        self.speculation.as_ref().is_some_and(Speculation::was_compared)
    }

    /// Rows, clusters or device buffers changed: no selection says anything about the next step.
    pub fn forget_speculation(&mut self) {
        if let Some(speculation) = &mut self.speculation {
            speculation.forget();
        }
    }

    /// Rows of a layer in the host store have moved.
    pub fn forget_cached(&mut self, backend: &B, selection: SelectionId) -> OpResult<()> {
        match &mut self.device_cache {
            Some(cache) => cache.forget(backend, selection),
            None => Ok(()),
        }
    }
}
