//! What layers that recall share in a sequence: the selector and, where the policy and the options
//! ask for it, what speculates, looks rows up on the device, attends on the host, or estimates what
//! is left unread.

use longview_ops::{Backend, OpResult, View};

use super::device_cache::{DeviceCache, DeviceCacheSizes};
use super::host_attention::HostAttention;
use super::resident_lists::ResidentLists;
use super::residual::ResidualMeans;
use super::sampled::SampledRest;
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
    /// Where the device lists selected rows, all of which lie on it.
    pub resident: Option<ResidentLists<B>>,
    /// Where the host attends to what was selected.
    pub host_attention: Option<HostAttention<B>>,
    /// Where clusters that are not opened are attended as their means.
    pub residual: Option<ResidualMeans<B>>,
    /// Where tokens are drawn from those that are not chosen.
    pub sampled: Option<SampledRest<B>>,
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
    /// Whether the host does not learn what is selected before the step ends.
    pub on_device: bool,
    /// Whether all rows lie on the device.
    pub resident: bool,
}

impl<B: Backend> RecallPath<B> {
    pub fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        setup: &RecallSetup,
    ) -> Result<Self, SchedulerError> {
        let RecallSetup { n_layers, capacity, mode, in_place, on_device, resident } = *setup;
        let speculation = match mode {
            RecallMode::Speculative { gate } => {
                Some(Speculation::new(backend, shape, n_layers, gate)?)
            }
            RecallMode::Exact => None,
        };
        let device_cache = match policy.residency {
            Residency::Recall { cache_steps } if on_device && !resident => {
                let (layout, most_attended) =
                    (policy.device_layout(shape.capacity), policy.most_attended());
                let sizes = DeviceCacheSizes { layout, n_layers, most_attended, cache_steps };
                Some(DeviceCache::new(backend, shape, &sizes)?)
            }
            _ => None,
        };
        let lists = || ResidentLists::new(backend, shape, n_layers);
        let resident = (on_device && resident).then(lists).transpose()?;
        let host_attention = match policy.residency {
            Residency::AttendOnHost { threads } if !in_place => {
                Some(HostAttention::new(backend, shape, threads)?)
            }
            _ => None,
        };
        let residual = match policy.residual {
            Residual::Means | Residual::Groups => {
                let on_device = device_cache.is_some() || resident.is_some();
                Some(ResidualMeans::new(backend, shape, policy, (capacity, on_device))?)
            }
            Residual::Drop | Residual::Sample(_) | Residual::Verified { .. } => None,
        };
        let sampled = policy.draws().then(|| SampledRest::new(backend, shape)).transpose()?;
        let selector = Selector::new(backend, shape, policy, capacity, n_layers)?;
        Ok(Self {
            selector,
            speculation,
            device_cache,
            resident,
            host_attention,
            residual,
            sampled,
        })
    }

    /// How many rows a layer attends, where the device has added some to its lists.
    pub fn n_rows(&self, selection: SelectionId) -> Option<View<'_, B>> {
        match (&self.device_cache, &self.resident) {
            (Some(cache), _) => Some(cache.n_rows(selection)),
            (None, resident) => resident.as_ref()?.n_rows(selection),
        }
    }

    /// Whether the host does not learn what is selected before the step ends.
    pub fn is_on_device(&self) -> bool {
        self.device_cache.is_some() || self.resident.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recall::testing::{Device, policy, shape};
    use crate::stats::Stats;

    const SETUP: RecallSetup = RecallSetup {
        n_layers: 3,
        capacity: 8,
        mode: RecallMode::Exact,
        in_place: false,
        on_device: false,
        resident: false,
    };

    fn path(policy: &Policy, setup: RecallSetup) -> RecallPath<Device> {
        RecallPath::new(&Device::new(), &shape(), policy, &setup).unwrap()
    }

    /// Which parts there are: speculation, device cache, host attention, residual means.
    fn parts(policy: &Policy, setup: RecallSetup) -> [bool; 4] {
        let RecallPath { speculation, device_cache, host_attention, residual, sampled, .. } =
            path(policy, setup);
        assert_eq!(sampled.is_some(), policy.draws());
        [
            speculation.is_some(),
            device_cache.is_some(),
            host_attention.is_some(),
            residual.is_some(),
        ]
    }

    #[test]
    fn only_what_policy_and_options_ask_for_is_made() {
        let recall = policy(4);
        assert_eq!(parts(&recall, SETUP), [false; 4]);
        let mode = RecallMode::Speculative { gate: 0.9 };
        assert_eq!(parts(&recall, RecallSetup { mode, ..SETUP }), [true, false, false, false]);
        let on_device = RecallSetup { on_device: true, ..SETUP };
        assert_eq!(parts(&recall, on_device), [false, true, false, false]);
        let means = Policy { residual: Residual::Means, ..recall.clone() };
        assert_eq!(parts(&means, SETUP), [false, false, false, true]);
        let sample = Policy { residual: Residual::Sample(3), ..recall.clone() };
        assert_eq!(parts(&sample, SETUP), [false; 4]);
        let residency = Residency::AttendOnHost { threads: Some(1) };
        let host = Policy { residency, ..recall };
        assert_eq!(parts(&host, SETUP), [false, false, true, false]);
        assert_eq!(parts(&host, on_device), [false, false, true, false]);
        assert_eq!(parts(&host, RecallSetup { in_place: true, ..SETUP }), [false; 4]);
    }

    #[test]
    fn a_path_without_speculation_never_speculates() {
        let mut path = path(&policy(4), SETUP);
        path.forget_speculation();
        assert!(!path.is_speculative() && !path.is_unread() && !path.was_compared());
        path.forget_cached(&Device::new(), SelectionId(2)).unwrap();
    }

    #[test]
    fn a_path_says_what_its_speculation_says_and_forgets_it() {
        let mode = RecallMode::Speculative { gate: -1.0 };
        let mut path = path(&policy(4), RecallSetup { mode, ..SETUP });
        let mut stats = Stats::new(3, 2);
        let mut states = vec![];
        for _ in 0..2 {
            let speculation = path.speculation.as_mut().unwrap();
            speculation.begin_step(false, &mut stats);
            states.push([path.is_speculative(), path.is_unread(), path.was_compared()]);
            path.speculation.as_mut().unwrap().end_step(&mut stats);
            states.push([path.is_speculative(), path.is_unread(), path.was_compared()]);
            let verdict = path.speculation.as_mut().unwrap().judge(&mut stats);
            assert_eq!(verdict, crate::recall::StepVerdict::Stands);
        }
        let expected = [
            [false, false, false],
            [false, false, true],
            [true, false, false],
            [false, true, true],
        ];
        assert_eq!(states, expected);
        path.forget_speculation();
        path.speculation.as_mut().unwrap().begin_step(false, &mut stats);
        assert!(!path.is_speculative());
    }
}
